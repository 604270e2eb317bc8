"""The end of a run: a hint on whose fault a failure is, the last line, the verdict file, the exit status."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import engine_options
from biopsy.cli.run.findings import Findings, Ran, names_failing, unique, what_passed

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.tensors.results import RunnerResult


def conclude_crash(args: argparse.Namespace, console: Console, crash: errors.EngineCrash) -> int:
    """Report, from the process that is left, an engine that ended the other; only its failure is known."""
    from biopsy.engines.registry import create

    console.failure(crash)
    engines = [create(spec) for spec in engine_options.specs_to_run(args)]
    crashed = next((engine for engine in engines if crash.label in (engine.label, engine.name)), None)
    if crashed is None:
        return crash.status
    if args.save_outputs is not None and args.record_memory is None:
        console.warn(f"{args.save_outputs} is not written: the outputs of the other engines are lost")
    findings = Findings([Ran(crashed, failure=crash)])
    if args.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(args, findings, console)
    return conclude(findings, console, args)


def hinted(
    found: Findings,
    golden: Sequence[RunnerResult],
    guessed: Mapping[str, Sequence[int]],
    console: Console,
    *,
    validated: bool,
) -> Findings:
    """The findings with hints on whose fault a failure is, or what a pass is worth.

    ``guessed`` are shapes that nobody said; ``validated``: whether values were looked at by themselves.
    """
    from biopsy.cli.run.hints import guessed_shapes, nothing_compared, whose_fault

    if not found.reasons:
        return replace(found, hint=nothing_compared(found, validated=validated))

    hints = [hint for hint in (whose_fault(found, golden), guessed_shapes(guessed)) if hint is not None]
    for hint in hints:
        console.warn(hint)
    return replace(found, hint="; ".join(hints), guessed=guessed)


def conclude(found: Findings, console: Console, args: argparse.Namespace | None = None) -> int:
    """The verdict in a line, the verdict file, the exit status: an engine's failure first, then NaN, then mismatches.

    ``args`` are those of a run that may be gone on with: if it fails, what to type next is shown, unless it is a check.
    """
    from biopsy.checks import verdict

    failure = next((one.failure for one in found.ran if one.failure is not None), None)
    wrong = next((one for one in found.compared if not one.passed), None)
    noisy = next((one for one in found.noise if one.failures), None)
    if failure is not None:
        verdict.report_error(failure, found.hint)
    elif found.odd:
        engine = found.odd[0][0]
        names = unique(odd.name for label, odd in found.odd if label == engine)
        verdict.report_mismatch(engine, names, "not-finite", hint=found.hint)
    elif wrong is not None:
        names = unique([*wrong.missing, *(output.name for _, output in wrong.failures)])
        sizes, rounding = found.mismatches, found.rounding
        verdict.report_mismatch(wrong.actual, names, mismatches=sizes, rounding=rounding, hint=found.hint)
    elif noisy is not None:
        verdict.report_mismatch(noisy.suspect, unique(output.name for output in noisy.failures), "beyond-rounding")
    elif found.undecided is not None:
        raise errors.CannotCompare(found.undecided)
    else:
        verdict.report_pass(found.hint)
        console.say(f"PASSED | {what_passed(found)}")
        return 0
    console.say(f"FAILED | {'; '.join(found.reasons)}")
    if args is not None and not verdict.is_wanted():
        from biopsy.cli.advice import say_advice
        from biopsy.cli.run.next_lines import advice_of
        from biopsy.cli.run.origins import origin_lines

        for line in origin_lines(args.model, names_failing(found)):
            console.say(line)
        say_advice(console, advice_of(args, found.guessed))
    return 1
