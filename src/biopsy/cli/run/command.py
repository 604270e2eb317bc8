"""The work of ``biopsy run``: runs a model in engines, or loads saved outputs, compares the outputs, and concludes.

Each check of a reduction may be such a process, so modules that only some runs need are imported in functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks import verdict
from biopsy.cli.advice import say_advice
from biopsy.cli.arguments.engines import install
from biopsy.cli.console import Console
from biopsy.cli.run.execution import Feeder, ModelExecution, require_possible, save_outputs
from biopsy.cli.run.files import golden_values, require_known_names, require_writable, save_model
from biopsy.cli.run.findings import (
    CostComparison,
    EngineResult,
    Findings,
    names_failing,
    nothing_compared,
    unique,
    what_passed,
    whose_fault,
)
from biopsy.cli.run.options import RunOptions, functions_of
from biopsy.comparison.mismatch import GRAVEST, LARGER, MOST_OF_A_KIND, SLOWER, most_telling
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
from biopsy.engines.runner import with_declared_types
from biopsy.model.index import index_bytes
from biopsy.model.nodes import may_be_random, warning_of_random
from biopsy.tensors.results import Feed, RunnerResult
from biopsy.text import ListOption, line_of

if TYPE_CHECKING:
    from biopsy.comparison.compare import Detail
    from biopsy.comparison.metrics import NotFinite
    from biopsy.comparison.runs import ComparisonFunction, RunComparison


def run(options: RunOptions, console: Console) -> int:
    """Run the model in the engines, save and compare the outputs, and conclude; or compare saved outputs."""
    if not (options.engines or options.given(_NEED_AN_ENGINE)) and len(options.load_outputs or ()) > 1:
        return compare_files(options, console)
    engines = _engines(options, console)
    limits = tolerances, stats, _ = options.limits()
    golden = golden_values(options.load_outputs or ())

    def require_inputs_of_golden_values(feeds: Sequence[Feed]) -> None:
        from biopsy.comparison.runs import require_same_inputs

        require_same_inputs(feeds, golden, tolerances, stats)

    functions = functions_of(options, console)
    inputs = options.inputs()
    for engine in engines:
        engine.version()  # imports its package
    verdict.report_looking()
    model = options.model_input()
    feeder = Feeder(inputs, options.save_inputs, console, require_inputs_of_golden_values)
    require_known_names(options, model, {**names_by_option(*limits), "--noise-ratio": options.noise_ratios()})
    save_model(options, model, console)
    execution = ModelExecution(model, feeder, options, console)
    if options.tell_slow_tensors:
        verdict.report_mismatch(engines[-1].label, execution.slow_tensors(engines), SLOWER)
        return 1
    recorder = execution.recorder(engines, options.save_outputs)
    runs = execution.run_all(engines, recorder)
    save_outputs(options.save_outputs, runs, recorder, console)
    results = [replace(run.result, runner=run.engine.label) for run in runs if run.result is not None]
    if not options.has_built_model and len(results) + len(golden) > 1:
        results = with_declared_types(results, [run.engine for run in runs if run.result is not None], model)
    results, expected = functions.postprocessed(results), functions.postprocessed(golden)
    not_finite = find_not_finite(results, console) if options.validate else []
    against_first = results[1:] if runs[0].result is not None and not options.compare_with else []
    pairs = [(other, results[0]) for other in against_first] + list(product(results, expected))
    if (pairs or options.compare_with) and may_be_random(model.data):
        hint = warning_of_random(index_bytes(model.data, model.folder))
        if hint is not None:
            console.warn(hint)
    compared = compare(pairs, expected, limits, options, console, function=functions.compare)
    findings = Findings(runs, compared, not_finite=not_finite, guessed=feeder.guessed)
    if options.compare_with:
        from biopsy.cli.run.noise import judge_noise

        noise = judge_noise(results, execution.run_again, options.noise_ratios(), console)
        findings = replace(findings, noise=noise)
    findings = replace(findings, costs=tuple(_costs(execution, findings, engines)))
    findings = _hinted(findings, expected, console, validated=options.validate)
    if verdict.is_wanted():
        from biopsy.cli.run.noise import sized

        # A function of the user's decides without regard to rounding.
        measures_rounding = options.tell_rounding and not options.has_functions
        findings = sized(findings, pairs, execution.run_again if measures_rounding else None)
    return conclude(findings, console, options)


def _engines(options: RunOptions, console: Console) -> list[Engine]:
    """The engines to run. Raises UsageError for options that they do not support, or files that cannot be written."""
    specs = options.specs_to_run()
    if not (options.engines or options.packages):
        console.note(f"no engine is named: {specs[0].text} is used")
    engines = [create(spec) for spec in specs]
    require_possible(options, engines)
    require_writable(options)
    install(engines, console)
    return engines


def _costs(execution: ModelExecution, findings: Findings, engines: Sequence[Engine]) -> Iterator[CostComparison]:
    """What --slower and --larger ask of the second engine, if both run; a check that fails anyway need not know.

    Raises EngineFailure.
    """
    if (findings.reasons and verdict.is_wanted()) or any(run.failure for run in findings.runs):
        return
    labels = {"trusted": engines[0].label, "suspect": engines[-1].label}
    if (slower := execution.options.slower) is not None:
        yield CostComparison(kind=SLOWER, limit=slower, measured=execution.latency(engines, slower), **labels)
    if (larger := execution.options.larger) is not None:
        yield CostComparison(kind=LARGER, limit=larger, measured=execution.peak_memory(engines, larger), **labels)


def _hinted(findings: Findings, golden: Sequence[RunnerResult], console: Console, *, validated: bool) -> Findings:
    """The findings, with hints on the cause of a failure, or on a pass that compared nothing.

    ``validated``: outputs were searched for NaN and infinity.
    """
    if not findings.reasons:
        return replace(findings, hint=nothing_compared(findings, validated=validated))
    hints = [whose_fault(findings, golden)]
    shapes = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in findings.guessed.items()]
    if shapes:
        hints.append(
            f"this ran with {', '.join(shapes)}, made up because the model leaves the shape open: if the failure comes "
            f"from that, choose sizes with {line_of([ListOption('--input-shapes', shapes)])}"
        )
    hints = list(filter(None, hints))
    for hint in hints:
        console.warn(hint)
    return replace(findings, hint="; ".join(hints))


_NEED_AN_ENGINE = (
    "load_inputs", "data_loader_script", "save_inputs", "save_outputs", "save_onnx", "save_engine", "build_only",
    "compare_with", "record_memory", "slower", "larger",
)  # fmt: skip
"""Options that make no sense where only saved outputs are compared."""


def compare_files(options: RunOptions, console: Console) -> int:
    """Compare saved outputs: all runners with the first. Raises CannotCompare if they have nothing in common."""
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
    return conclude(Findings([], compared, not_finite=not_finite), console, options)


def compare(
    pairs: Sequence[tuple[RunnerResult, RunnerResult]],
    golden: Sequence[RunnerResult],
    limits: tuple[Tolerances, Stats, MetricLimits],
    options: RunOptions,
    console: Console,
    *,
    function: ComparisonFunction | None,
) -> list[RunComparison]:
    """Compare each pair (actual, expected) and show the result; --fail-fast stops at the first that differs.

    A ``function`` of the user's replaces the ``limits``.
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
        if not any(expected is result for result in golden):  # golden values may hold every tensor of the model
            comparison = replace(comparison, missing=comparison.iterations[0].only_expected)
        compared.append(comparison)
        show_comparison(comparison, console)
        if options.fail_fast and not comparison.passed:
            break
    return compared


def find_not_finite(results: Sequence[RunnerResult], console: Console) -> list[tuple[str, NotFinite]]:
    """Find and show the outputs with NaN or infinity; returns (runner, output)."""
    from biopsy.cli.run.report import show_not_finite
    from biopsy.comparison.metrics import not_finite

    outputs = [(result.runner, output) for result in results for output in not_finite(result)]
    show_not_finite(outputs, console)
    return outputs


def conclude_crash(options: RunOptions, console: Console, crash: errors.EngineCrash) -> int:
    """Conclude, in the supervising process, a run whose process an engine has crashed; other findings are lost."""
    console.failure(crash)
    engines = [create(spec) for spec in options.specs_to_run()]
    crashed = next((engine for engine in engines if crash.label in (engine.label, engine.name)), None)
    if crashed is None:
        return crash.status
    if options.save_outputs is not None and options.record_memory is None:
        console.warn(f"{options.save_outputs} is not written: the outputs of the other engines are lost")
    return conclude(Findings([EngineResult(crashed, failure=crash)]), console, options)


def conclude(findings: Findings, console: Console, options: RunOptions) -> int:
    """Write the report and the verdict file, and show the verdict; returns the exit status.

    Of several problems, the verdict file names a failure of an engine first, then NaN and infinities, of the engine
    with the gravest, then a mismatch, then the cost. A run that fails and is not a check shows what to type next.
    """
    if options.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(options, findings, console)
    failure = next((run.failure for run in findings.runs if run.failure is not None), None)
    mismatch = next((compared for compared in findings.compared if not compared.passed), None)
    noisy = next((report for report in findings.noise if report.failures), None)
    costly = next((cost for cost in findings.costs if cost.fails), None)
    if failure is not None:
        verdict.report_error(failure, findings.hint)
    elif findings.not_finite:
        special = next(kind for kind in GRAVEST if any(kind in output.counts for _, output in findings.not_finite))
        engine = next(label for label, output in findings.not_finite if special in output.counts)
        outputs = [output for label, output in findings.not_finite if label == engine]
        specials = most_telling([size for output in outputs for size in output.mismatches], MOST_OF_A_KIND)
        names = unique(output.name for output in outputs)
        verdict.report_mismatch(engine, names, mismatches=specials, hint=findings.hint)
    elif mismatch is not None:
        names = unique([*mismatch.missing, *(output.name for _, output in mismatch.failures)])
        sizes, rounding = findings.mismatches, findings.rounding
        verdict.report_mismatch(mismatch.actual, names, mismatches=sizes, rounding=rounding, hint=findings.hint)
    elif noisy is not None:
        verdict.report_mismatch(noisy.suspect, unique(output.name for output in noisy.failures), "beyond-rounding")
    elif costly is not None:
        verdict.report_mismatch(costly.suspect, (), costly.kind, hint=findings.hint)
    elif findings.undecided is not None:
        raise errors.CannotCompare(findings.undecided)
    else:
        verdict.report_pass(findings.hint)
        console.say(f"PASSED | {what_passed(findings)}")
        return 0
    console.say(f"FAILED | {'; '.join(findings.reasons)}")
    if findings.runs and not verdict.is_wanted():
        from biopsy.cli.run.report import advice_of, origin_lines

        for line in origin_lines(options.model, names_failing(findings)):
            console.say(line)
        say_advice(console, advice_of(options, findings.guessed))
    return 1
