"""``biopsy run MODEL``: run a model in one or more engines and compare what they give.

Every check of a reduction may be one such process: what is not needed is not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import comparing, engine_options, groups, tensorrt
from biopsy.cli.run import options as run_options
from biopsy.cli.run.findings import Findings, Ran, unique, what_passed
from biopsy.cli.run.inputs import Feeder, require_same
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.cli.run.recording import Recorder
    from biopsy.comparison.compare import Detail
    from biopsy.comparison.noise import NoiseReport
    from biopsy.comparison.non_finite import NotFinite
    from biopsy.comparison.runs import RunComparison
    from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
    from biopsy.engines.base import Engine, ModelInput
    from biopsy.tensors.results import RunnerResult

EXAMPLES = """\
examples:
  biopsy run model.onnx --onnxrt                                       does it run?
  biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt     an engine against itself
  biopsy run model.onnx --reference --onnxrt --openvino --atol 1e-3    two engines against a third
  biopsy run model.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all --save-outputs golden.json
  biopsy run model.onnx --openvino --load-inputs inputs.json --load-outputs golden.json
  biopsy run model.onnx --openvino --compare-with noise                a bug, or only rounding?
  biopsy run model.onnx --onnxrt --onnx-outputs mark all --save-outputs golden.safetensors --memory-limit 500MB
  biopsy run model.onnx --trt --build-only --save-engine model.engine  does it build? (TensorRT-RTX: without a GPU)

exit status: 0 every engine runs and everything agrees; 1 a mismatch, or an engine fails on the model;
2 wrong usage; 4 nothing was concluded (an engine is missing, or the values do not fit the model)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    parser.epilog = EXAMPLES
    groups.add_model(parser)
    engine_options.add_engines(parser)
    groups.add_inputs(parser)
    comparing.add_comparing(parser)
    comparing.add_limits(parser)
    run_options.add(parser)
    tensorrt.add(parser)


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run, save, compare, report."""
    from biopsy.checks import verdict
    from biopsy.cli.run.building import require_possible
    from biopsy.cli.run.names import require_known_names
    from biopsy.cli.run.settings import golden_values, inputs_of, model_of, require_writable, tolerances_of
    from biopsy.comparison.spoken_of import spoken_of
    from biopsy.engines.registry import create

    specs = engine_options.engine_specs(args)
    for ignored in engine_options.ignored_settings(args):
        console.warn(f"{ignored}; with --engine, write it after the name")
    engines = [create(spec) for spec in specs]
    require_possible(args, engines)
    tolerances, stats = tolerances_of(args)
    require_writable(args)
    golden = golden_values(args.load_outputs or ())
    inputs = inputs_of(args)
    for engine in engines:
        engine.version()  # imports its package
    verdict.report_looking()
    model = model_of(args)
    feeder = Feeder(inputs, args.save_inputs, console, lambda feeds: require_same(feeds, golden, tolerances, stats))
    limits, ratios = comparing.limits_of(args), run_options.noise_ratios_of(args)
    spoken = {**spoken_of(tolerances, stats, limits), "--noise-ratio": ratios}
    require_known_names(args, model, spoken)
    recorder = _recorder(model, engines, args.save_outputs, args, console)
    ran = _run_all(engines, model, feeder, recorder, args, console)
    _save_outputs(args.save_outputs, ran, recorder, console)
    done = [replace(one.result, runner=one.engine.label) for one in ran if one.result is not None]
    odd = _not_finite(done, console) if args.validate else []
    pairs = _pairs(done, golden, first_worked=ran[0].result is not None and not args.compare_with)
    if pairs or args.compare_with:
        _warn_of_random(model, console)
    compared = _compare(pairs, golden, (tolerances, stats, limits), args, console)
    rerun = partial(_rerun, model=model, args=args, console=console)
    noise = _noise(done, rerun, feeder, ratios, console) if args.compare_with else []
    findings = _hinted(Findings(ran, compared, noise, odd), golden, console)
    if verdict.is_wanted():
        from biopsy.cli.run.mismatch import Arbiter, sized

        findings = sized(findings, pairs, Arbiter(rerun, feeder) if args.tell_rounding else None)
    if args.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(args.report, args.model, findings)
    return _conclude(findings, console)


# Running


def _run_all(
    engines: Sequence[Engine],
    model: ModelInput,
    feeder: Feeder,
    recorder: Recorder | None,
    args: argparse.Namespace,
    console: Console,
) -> list[Ran]:
    """Run each engine in turn, freed before the next; all get the inputs that the first one that builds asks for."""
    ran = []
    for number, engine in enumerate(engines):
        try:
            ran.append(_run_one(engine, number, model, feeder, recorder, args, console))
        except errors.EngineFailure as failure:
            console.failure(_told(failure, engine))
            ran.append(Ran(engine, failure=failure))
            if args.fail_fast:
                break
    return ran


def _run_one(
    engine: Engine,
    number: int,
    model: ModelInput,
    feeder: Feeder,
    recorder: Recorder | None,
    args: argparse.Namespace,
    console: Console,
) -> Ran:
    """Run one engine, in memory or into the recorder's file. Raises EngineFailure."""
    if recorder is not None:
        return Ran(engine, recorder.record(engine, number, feeder.feeds(recorder.inputs)), remarks=recorder.remarks)
    from biopsy.cli.run.building import session_of
    from biopsy.engines.runner import run_session, runner_name

    session = session_of(engine, model, feeder.inputs, args, console)
    if args.build_only:
        console.note(f"{engine.label} {engine.version()} has built the model")
        return Ran(engine, remarks=tuple(session.remarks))
    feeds = feeder.feeds(session.inputs)
    result = run_session(session, feeds, runner=runner_name(engine.name, number), warm_up=args.warm_up)
    console.note(f"{engine.label}  {_timing(result)}")
    return Ran(engine, result, remarks=tuple(session.remarks))


def _recorder(
    model: ModelInput, engines: Sequence[Engine], save_to: Path | None, args: argparse.Namespace, console: Console
) -> Recorder | None:
    """What keeps outputs out of memory, if that is asked for."""
    if args.memory_limit is None:
        return None
    from biopsy.cli.run.recording import Recorder
    from biopsy.cli.run.settings import own_outputs, tolerances_of

    if args.warm_up:
        console.warn("--warm-up is ignored: with --memory-limit nothing is timed")
    return Recorder(model, own_outputs(args), engines, args.memory_limit, save_to, tolerances_of(args)[0], console)


def _told(failure: errors.EngineFailure, engine: Engine) -> errors.EngineFailure:
    message = f"{engine.label} cannot {failure.stage} the model: {failure.kind}: {failure.message}"
    told = errors.EngineFailure(
        message, engine=failure.engine, stage=failure.stage, kind=failure.kind, next_steps=failure.next_steps
    )
    return told.with_traceback(failure.__traceback__)


def _timing(result: RunnerResult) -> str:
    times = [one.runtime * 1000 for one in result.iterations if one.runtime is not None]
    return f"{count(len(result.iterations), 'iteration')}, {sum(times) / len(times):.3g} ms each"


def _save_outputs(path: Path | None, ran: Sequence[Ran], recorder: Recorder | None, console: Console) -> None:
    results = [one.result for one in ran if one.result is not None]
    finished = recorder is not None and recorder.finish()
    if path is None:
        return
    if finished:
        console.note(f"outputs saved to {path}")
        return
    if not results and recorder is not None:
        return
    if not results:
        console.warn(f"{path} is not written: no engine gave any outputs")
        return
    from biopsy.tensors.files import write_results

    write_results(path, results)
    console.note(f"outputs saved to {path}")


# Comparing


def _pairs(
    done: Sequence[RunnerResult], golden: Sequence[RunnerResult], first_worked: bool
) -> list[tuple[RunnerResult, RunnerResult]]:
    """(actual, expected): the others against the first engine, then all against every loaded runner."""
    against_first = [(result, done[0]) for result in done[1:]] if first_worked else []
    return [*against_first, *((result, expected) for result in done for expected in golden)]


def _compare(
    pairs: Sequence[tuple[RunnerResult, RunnerResult]],
    golden: Sequence[RunnerResult],
    settings: tuple[Tolerances, Stats, MetricLimits],
    args: argparse.Namespace,
    console: Console,
) -> list[RunComparison]:
    compared: list[RunComparison] = []
    if not pairs:
        return compared
    from biopsy.cli.run.report import show_comparison
    from biopsy.comparison.runs import compare_runs

    tolerances, stats, limits = settings
    detail: Detail = "brief" if args.report is None else "full"
    for actual, expected in pairs:
        found = compare_runs(actual, expected, tolerances, stats, args.fail_fast, limits, detail)
        loaded = any(expected is one for one in golden)  # they may hold every tensor: none of them is missing
        compared.append(found if loaded else replace(found, missing=found.iterations[0].only_expected))
        show_comparison(compared[-1], console)
        if args.fail_fast and not compared[-1].passed:
            break
    return compared


def _noise(
    done: Sequence[RunnerResult],
    rerun: Callable[[Engine, Feeder], RunnerResult],
    feeder: Feeder,
    ratios: Mapping[str, float],
    console: Console,
) -> list[NoiseReport]:
    from biopsy.cli.run.noise import judge_noise

    def run(engine: Engine) -> RunnerResult:
        return rerun(engine, feeder)

    def run_changed(engine: Engine, roundings: int) -> RunnerResult:
        return rerun(engine, feeder.roundings_off(roundings))

    return judge_noise(done, run, ratios, console, run_changed)


def _not_finite(done: Sequence[RunnerResult], console: Console) -> list[tuple[str, NotFinite]]:
    from biopsy.cli.run.report import show_not_finite
    from biopsy.comparison.non_finite import not_finite

    found = [(result.runner, odd) for result in done for odd in not_finite(result)]
    show_not_finite(found, console)
    return found


def _rerun(
    engine: Engine, source: Feeder, *, model: ModelInput, args: argparse.Namespace, console: Console
) -> RunnerResult:
    """What another engine gives. Raises EngineFailure."""
    recorder = _recorder(model, [engine], None, args, console)
    result = _run_one(engine, 0, model, source, recorder, args, console).result
    if recorder is not None:
        recorder.finish()
    assert result is not None
    return result


def _warn_of_random(model: ModelInput, console: Console) -> None:
    from biopsy.cli.run.hints import random_hint

    hint = random_hint(model)
    if hint is not None:
        console.warn(hint)


# The verdict


def conclude_crash(args: argparse.Namespace, console: Console, crash: errors.EngineCrash) -> int:
    """Tell, in the process that is left, of an engine that has ended the other: its failure, and no more, is known."""
    from biopsy.engines.registry import create

    console.failure(crash)
    engines = [create(spec) for spec in engine_options.engine_specs(args)]
    one = next((engine for engine in engines if crash.label in (engine.label, engine.name)), None)
    if one is None:
        return crash.status
    if args.save_outputs is not None and args.memory_limit is None:
        console.warn(f"{args.save_outputs} is not written: what other engines gave is lost")
    findings = Findings([Ran(one, failure=crash)])
    if args.report is not None:
        from biopsy.cli.run.report import write_report

        write_report(args.report, args.model, findings)
    return _conclude(findings, console)


def _hinted(found: Findings, golden: Sequence[RunnerResult], console: Console) -> Findings:
    """The findings with a hint on whose fault a failure is, if there is one."""
    if not found.reasons:
        return found
    from biopsy.cli.run.hints import whose_fault

    hint = whose_fault(found, golden)
    if hint is not None:
        console.warn(hint)
    return replace(found, hint=hint or "")


def _conclude(found: Findings, console: Console) -> int:
    """The last line, the verdict file and the exit status: an engine's failure first, then NaN, then mismatches."""
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
        verdict.report_pass()
        console.say(f"PASSED | {what_passed(found)}")
        return 0
    console.say(f"FAILED | {'; '.join(found.reasons)}")
    return 1
