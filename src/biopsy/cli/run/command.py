"""``biopsy run MODEL``: run a model in one or more engines, or take saved outputs, compare what they give, and
conclude. Every check of a reduction may be one such process: what is not needed is not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.advice import say_advice
from biopsy.cli.arguments import absent_options, types
from biopsy.cli.arguments.engines import install
from biopsy.cli.arguments.groups import WeightsFileOption
from biopsy.cli.console import Console
from biopsy.cli.run.execution import Feeder, ModelExecution, require_possible, save_outputs
from biopsy.cli.run.findings import Findings, Ran, names_failing, nothing_compared, unique, what_passed, whose_fault
from biopsy.cli.run.options import RunOptions, add, functions_of
from biopsy.comparison.tolerance import (
    MetricLimits,
    Stats,
    Tolerances,
    names_by_option,
    names_of,
    require_known_outputs,
)
from biopsy.engines.base import Engine
from biopsy.engines.registry import create
from biopsy.model.index import index_bytes
from biopsy.model.nodes import may_be_random, warning_of_random
from biopsy.tensors.results import Feed, RunnerResult
from biopsy.text import ListOption, line_of

if TYPE_CHECKING:
    from biopsy.comparison.compare import Detail
    from biopsy.comparison.metrics import NotFinite
    from biopsy.comparison.runs import ComparisonFunction, RunComparison

__all__ = ["conclude_crash", "configure", "derived_files", "execute"]

EXAMPLES = """\
examples:
  biopsy run model.onnx --onnxrt                                       does it run?
  biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt     an engine against itself
  biopsy run model.onnx --reference --onnxrt --openvino --atol 1e-3    two engines against a third
  biopsy run model.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all --save-outputs golden.json
  biopsy run model.onnx --openvino --load-inputs inputs.json --load-outputs golden.json
  biopsy run model.onnx --openvino --compare-with noise                a bug, or only rounding?
  biopsy run model.onnx --onnxrt --onnx-outputs mark all --save-outputs golden.safetensors --memory-limit 500MB
  biopsy run model.onnx --engine onnxrt:release=1.20.1 --onnxrt        a release against the one installed here
  biopsy run model.onnx --trt --build-only --save-engine model.engine  does it build? (TensorRT-RTX: without a GPU)

exit status: 0 every engine runs and all results agree; 1 a mismatch, or an engine fails on the model;
2 wrong usage; 4 nothing was concluded (an engine is missing, or the values do not fit the model)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    parser.epilog = EXAMPLES
    add(parser)
    absent_options.add(parser, "run")


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights beside the model that is saved."""
    return WeightsFileOption.of(args).derived_weights(args.save_onnx)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run, save, compare, report; or compare saved outputs."""
    from biopsy.cli.run.files import golden_values, require_known_names, save_model

    options = RunOptions.of(args)
    if not (options.engines or options.given(_NEED_AN_ENGINE)) and len(options.load_outputs or ()) > 1:
        return compare_files(options, console)
    engines = _engines(options, console)
    limits = tolerances, stats, _ = options.limits()
    golden = golden_values(options.load_outputs or ())

    def vet(feeds: Sequence[Feed]) -> None:
        from biopsy.comparison.runs import require_same_inputs

        for expected in golden:
            require_same_inputs(feeds, expected, tolerances, stats)

    functions = functions_of(options, console)
    inputs = options.inputs()
    for engine in engines:
        engine.version()  # imports its package
    verdict.report_looking()
    model = options.model_input()
    feeder = Feeder(inputs, options.save_inputs, console, vet)
    require_known_names(options, model, {**names_by_option(*limits), "--noise-ratio": options.noise_ratios()})
    save_model(options, model, console)
    execution = ModelExecution(model, feeder, options, console)
    recorder = execution.recorder(engines, options.save_outputs)
    ran = execution.run_all(engines, recorder)
    save_outputs(options.save_outputs, ran, recorder, console)
    done = [replace(each.result, runner=each.engine.label) for each in ran if each.result is not None]
    done, expected = functions.postprocessed(done), functions.postprocessed(golden)
    not_finite = find_not_finite(done, console) if options.validate else []
    against_first = done[1:] if ran[0].result is not None and not options.compare_with else []
    pairs = [(other, done[0]) for other in against_first] + [(each, one) for each in done for one in expected]
    if (pairs or options.compare_with) and may_be_random(model.data):
        hint = warning_of_random(index_bytes(model.data, model.folder))
        if hint is not None:
            console.warn(hint)
    compared = compare(pairs, expected, limits, options, console, function=functions.compare)
    findings = Findings(ran, compared, odd=not_finite, guessed=feeder.guessed)
    if options.compare_with:
        from biopsy.cli.run.noise import judge_noise

        noise = judge_noise(done, execution.run_again, options.noise_ratios(), console)
        findings = replace(findings, noise=noise)
    findings = _hinted(findings, expected, console, validated=options.validate)
    if verdict.is_wanted():
        from biopsy.cli.run.noise import sized

        # Rounding is no excuse before a function of the user's.
        excuses = options.tell_rounding and not options.has_functions
        findings = sized(findings, pairs, execution.run_again if excuses else None)
    return conclude(findings, console, options)


def _engines(options: RunOptions, console: Console) -> list[Engine]:
    """The engines to run. Raises UsageError for options that no engine here can follow, or files not to be written."""
    from biopsy.cli.run.files import require_writable

    specs = options.specs_to_run()
    if not (options.engines or options.packages):
        console.note(f"no engine is named: {specs[0].text} is used")
    engines = [create(spec) for spec in specs]
    require_possible(options, engines)
    require_writable(options)
    install(engines, console)
    return engines


def _hinted(found: Findings, golden: Sequence[RunnerResult], console: Console, *, validated: bool) -> Findings:
    """The findings with hints on whose fault a failure is, or what a pass is worth.

    ``validated``: whether values were looked at by themselves.
    """
    if not found.reasons:
        return replace(found, hint=nothing_compared(found, validated=validated))
    hints = [whose_fault(found, golden)]
    shapes = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in found.guessed.items()]
    if shapes:
        hints.append(
            f"this ran with {', '.join(shapes)}, made up because the model leaves the shape open: if the failure comes "
            f"from that, choose sizes with {line_of([ListOption('--input-shapes', shapes)])}"
        )
    hints = list(filter(None, hints))
    for hint in hints:
        console.warn(hint)
    return replace(found, hint="; ".join(hints))


# ``biopsy run`` without an engine: saved outputs compared with each other.

_NEED_AN_ENGINE = (
    "load_inputs", "data_loader_script", "save_inputs", "save_outputs", "save_onnx", "save_engine", "build_only",
    "compare_with", "record_memory",
)  # fmt: skip
"""Options that speak of a run."""


def compare_files(options: RunOptions, console: Console) -> int:
    """Compare the runners of all files with the first of them. Raises CannotCompare if they have nothing in common."""
    from biopsy.cli.run.files import golden_values, require_writable

    require_writable(options)
    functions = functions_of(options, console)
    verdict.report_looking()
    runners = golden_values(options.load_outputs or ())
    limits = options.limits()
    require_known_outputs(names_by_option(*limits), set().union(*map(names_of, runners)))
    first = runners[0].runner
    console.note(f"no engine is named: the files are compared with {first}, and {options.model} is not run")
    runners = functions.postprocessed(runners)
    not_finite = find_not_finite(runners, console) if options.validate else []
    pairs = [(other, runners[0]) for other in runners[1:]]
    compared = compare(pairs, (), limits, options, console, function=functions.compare)
    return conclude(Findings([], compared, odd=not_finite), console, options)


# Comparing what engines gave, with each other and with golden values.


def compare(
    pairs: Sequence[tuple[RunnerResult, RunnerResult]],
    golden: Sequence[RunnerResult],
    limits: tuple[Tolerances, Stats, MetricLimits],
    options: RunOptions,
    console: Console,
    *,
    function: ComparisonFunction | None,
) -> list[RunComparison]:
    """Compare each pair (actual, expected), and show what was found; --fail-fast ends at the first that differs.

    A ``function`` decides alone.
    """
    compared: list[RunComparison] = []
    if not pairs:
        return compared
    from biopsy.cli.run.report import show_comparison
    from biopsy.comparison.runs import compare_runs, compare_runs_by

    tolerances, stats, metrics = limits
    detail: Detail = "brief" if options.report is None else "full"
    for actual, expected in pairs:
        comparison = (
            compare_runs(actual, expected, tolerances, stats, options.fail_fast, limits=metrics, detail=detail)
            if function is None
            else compare_runs_by(function, actual, expected, fail_fast=options.fail_fast, detail=detail)
        )
        if not any(expected is result for result in golden):  # they may hold every tensor: none of them is missing
            comparison = replace(comparison, missing=comparison.iterations[0].only_expected)
        compared.append(comparison)
        show_comparison(comparison, console)
        if options.fail_fast and not comparison.passed:
            break
    return compared


def find_not_finite(done: Sequence[RunnerResult], console: Console) -> list[tuple[str, NotFinite]]:
    """The outputs with NaN or infinity, by runner; shows them."""
    from biopsy.cli.run.report import show_not_finite
    from biopsy.comparison.metrics import not_finite

    outputs = [(result.runner, output) for result in done for output in not_finite(result)]
    show_not_finite(outputs, console)
    return outputs


# The end of a run: its report, the last line, the verdict file, the exit status.


def conclude_crash(args: argparse.Namespace, console: Console, crash: errors.EngineCrash) -> int:
    """Report, from the process that is left, an engine that ended the other; only its failure is known."""
    options = RunOptions.of(args)
    console.failure(crash)
    engines = [create(spec) for spec in options.specs_to_run()]
    crashed = next((engine for engine in engines if crash.label in (engine.label, engine.name)), None)
    if crashed is None:
        return crash.status
    if options.save_outputs is not None and options.record_memory is None:
        console.warn(f"{options.save_outputs} is not written: the outputs of the other engines are lost")
    return conclude(Findings([Ran(crashed, failure=crash)]), console, options)


def conclude(found: Findings, console: Console, options: RunOptions) -> int:
    """The report, the verdict in a line, the verdict file, and the exit status.

    An engine's failure counts first, then NaN, then mismatches. If a run fails that is no check, what to type next is
    shown.
    """
    if options.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(options, found, console)
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
    if found.ran and not verdict.is_wanted():
        from biopsy.cli.run.report import advice_of, origin_lines

        for line in origin_lines(options.model, names_failing(found)):
            console.say(line)
        say_advice(console, advice_of(options, found.guessed))
    return 1
