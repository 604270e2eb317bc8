"""What ``biopsy run`` shows of comparisons, all of what fails, little of what passes; and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.run.findings import names_failing, what_passed
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.describe import index, number, report_lines, wide_tolerance
from biopsy.comparison.non_finite import NotFinite
from biopsy.comparison.runs import RunComparison

if TYPE_CHECKING:
    from biopsy.cli.run.findings import Findings

_MOST_PASSING = 10
_MOST_FAILING = 20


def show_comparison(compared: RunComparison, console: Console) -> None:
    """One comparison: a line per output that passes, several per output that fails; long lists are cut without -v."""
    console.note("", f"{compared.actual}, expected: {compared.expected}")
    _show_differing_sets(compared, console)
    outputs = [(iteration.number, output) for iteration in compared.iterations for output in iteration.outputs]
    several = len(compared.iterations) > 1
    passing = [pair for pair in outputs if pair[1].passed]
    most = len(passing) if console.verbosity > 0 or len(passing) <= _MOST_PASSING else 0
    for iteration, output in passing[:most]:
        _show_output(iteration if several else None, output, console.note)
    if len(passing) > most:
        console.note(f"  {len(passing)} outputs pass (-v shows them)")
    failing = compared.failures
    most = len(failing) if console.verbosity > 0 else _MOST_FAILING
    for iteration, output in failing[:most]:
        _show_output(iteration if several else None, output, console.say)
    if len(failing) > most:
        console.say(f"  {len(failing) - most} more outputs fail (-v shows them)")
    for warning in dict.fromkeys(filter(None, (wide_tolerance(output) for _, output in passing))):
        console.warn(warning)
    if not compared.complete:
        console.note("  the comparison ended at the first failure (--fail-fast)")
    console.note(f"  {_pass_rate(compared)}", "")


def _pass_rate(compared: RunComparison) -> str:
    """The line that scripts written for Polygraphy look for. Where outputs are missing, no iteration passes."""
    passed = 0 if compared.missing else sum(iteration.passed for iteration in compared.iterations)
    total = len(compared.iterations)
    beyond = any(output.tolerances_decide and output.measured is not None for _, output in compared.failures)
    found = "is within" if compared.passed else "exceeds" if beyond else ""
    return (
        f"Accuracy Summary | {compared.actual} vs. {compared.expected} | Passed: {passed}/{total} iterations | "
        f"Pass Rate: {100 * passed / total:.2f}%{found and f' | Difference {found} tolerance'}"
    )


def _show_output(iteration: int | None, output: OutputComparison, say: Callable[[str], None]) -> None:
    where = "" if iteration is None else f"iteration {iteration}: "
    first, *rest = report_lines(output)
    say(f"  {where}{first}")
    for line in rest:
        say(f"  {line}")


def _show_differing_sets(compared: RunComparison, console: Console) -> None:
    if compared.actual_iterations != compared.expected_iterations:
        console.warn(
            f"{compared.actual} has {compared.actual_iterations} iterations, {compared.expected} has "
            f"{compared.expected_iterations}: the rest is not compared"
        )
    first = compared.iterations[0]
    if compared.missing:
        console.say(f"  {compared.actual} does not give {', '.join(map(repr, compared.missing))}")
    if first.only_actual:
        names = ", ".join(map(repr, first.only_actual[:5]))
        console.warn(f"not compared, because nothing is expected of them: {names}{_more(first.only_actual)}")


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 5} more" if len(names) > 5 else ""


def show_not_finite(found: Sequence[tuple[str, NotFinite]], console: Console) -> None:
    """The outputs that hold NaN or infinity."""
    for runner, odd in found[: None if console.verbosity > 0 else _MOST_FAILING]:
        counts = " and ".join(f"{count} {what}" for count, what in ((odd.nan, "NaN"), (odd.inf, "infinite")) if count)
        console.say(
            f"{runner}: {odd.name}  {counts} of {odd.elements} elements, first {number(odd.value)} "
            f"at {index(odd.first)} (iteration {odd.iteration})"
        )


def write_report(args: argparse.Namespace, found: Findings, console: Console) -> None:
    """Write everything found. Raises UsageError if it cannot be written."""
    from biopsy.cli.report_file import report_file

    report_file(args, console).write(_STATUS[found.verdict], lambda: sections(args, found))


_STATUS = {"passes": 0, "fails": 1, "unknown": errors.CannotCompare.status}


def sections(args: argparse.Namespace, found: Findings) -> dict[str, Any]:
    """What a report tells of a run."""
    from biopsy.cli.run.next_lines import advice_of
    from biopsy.cli.run.origins import origin_trees
    from biopsy.report.model_summary import model_tree_of
    from biopsy.report.run import EngineRun, run_section
    from biopsy.report.verdict import verdict_tree
    from biopsy.report.versions import versions_tree

    runs = [
        EngineRun(
            engine=one.engine,
            seconds=[] if one.result is None else [iteration.runtime for iteration in one.result.iterations],
            remarks=one.remarks,
            failure=one.failure,
        )
        for one in found.ran
    ]
    text = "; ".join(found.reasons) or found.undecided or what_passed(found)
    ran = run_section(runs, found.compared, found.noise, found.odd)
    crashed = any(one.crashed for one in found.ran)  # to ask its version could crash this process too
    return {
        "verdict": verdict_tree(found.verdict, text, certainty=found.hint or None),
        "model": model_tree_of(args.model),
        "versions": versions_tree(() if crashed else [one.engine.label for one in found.ran]),
        "next": [vars(one) for one in advice_of(args, found.guessed)] if found.ran and found.reasons else None,
        "run": {
            "reasons": found.reasons,
            "hint": found.hint or None,
            **ran,
            "origins": origin_trees(args.model, names_failing(found)),
        },
    }
