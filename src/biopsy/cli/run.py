"""``biopsy run MODEL``: run a model in one or more engines and compare what they give.

Every check of a reduction may be one such process: what is not needed is not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import option_groups

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.comparison.compare import NotFinite, RunComparison
    from biopsy.comparison.tolerance import Stats, Tolerances
    from biopsy.engines.base import Engine, ModelInput
    from biopsy.engines.feeding import Feeds, Inputs
    from biopsy.model.tensor_type import TensorType
    from biopsy.tensors.results import Feed, RunnerResult

EXAMPLES = """\
examples:
  biopsy run model.onnx --onnxrt                                       does it run?
  biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt     an engine against itself
  biopsy run model.onnx --reference --onnxrt --openvino --atol 1e-3    two engines against a third
  biopsy run model.onnx --onnxrt --save-inputs inputs.json --onnx-outputs mark all --save-outputs golden.json
  biopsy run model.onnx --openvino --load-inputs inputs.json --load-outputs golden.json

exit status: 0 every engine runs and everything agrees; 1 a mismatch, or an engine fails on the model;
2 wrong usage; 4 nothing was concluded (an engine is missing, or the values do not fit the model)"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run``."""
    parser.epilog = EXAMPLES
    option_groups.add_model(parser)
    option_groups.add_engines(parser)
    option_groups.add_inputs(parser)
    option_groups.add_comparing(parser)


@dataclass(frozen=True)
class Ran:
    """What became of one engine: its outputs, or how it failed."""

    engine: Engine
    result: RunnerResult | None = None
    failure: errors.EngineFailure | None = None


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run, save, compare, report."""
    from biopsy.cli.run_settings import golden_values, inputs_of, model_of, require_writable, tolerances_of
    from biopsy.engines.registry import create

    specs = option_groups.engine_specs(args)
    for option in option_groups.ignored_settings(args):
        console.warn(f"{option} is ignored: it is a setting of --onnxrt; with --engine, write it after the name")
    engines = [create(spec) for spec in specs]
    tolerances, stats = tolerances_of(args)
    require_writable(args)
    golden = golden_values(args.load_outputs or ())
    model = model_of(args)
    inputs = inputs_of(args)
    feeder = _Feeder(inputs, args.save_inputs, console, lambda feeds: _require_same(feeds, golden, tolerances, stats))
    ran = _run_all(engines, model, feeder, args, console)
    _save_outputs(args.save_outputs, ran, console)
    done = [replace(one.result, runner=one.engine.label) for one in ran if one.result is not None]
    odd = _not_finite(done, console) if args.validate else []
    pairs = _pairs(done, golden, first_worked=ran[0].result is not None)
    compared = _compare(pairs, (tolerances, stats), args.fail_fast, console)
    return _conclude(ran, compared, odd, console)


# Running


def _run_all(
    engines: Sequence[Engine], model: ModelInput, feeder: _Feeder, args: argparse.Namespace, console: Console
) -> list[Ran]:
    """Run each engine in turn, freed before the next; all get the inputs that the first one that builds asks for."""
    ran = []
    for number, engine in enumerate(engines):
        try:
            result = _run_one(engine, number, model, feeder, args.warm_up, console)
        except errors.EngineFailure as failure:
            console.failure(_told(failure, engine))
            ran.append(Ran(engine, failure=failure))
            if args.fail_fast:
                break
        else:
            ran.append(Ran(engine, result))
            console.note(f"{engine.label}  {_timing(result)}")
    return ran


def _run_one(
    engine: Engine, number: int, model: ModelInput, feeder: _Feeder, warm_up: int, console: Console
) -> RunnerResult:
    from biopsy.engines.runner import run_session, runner_name

    session = engine.build(model)
    for remark in session.remarks:
        console.warn(remark)
    feeds = feeder.feeds(session.inputs)
    return run_session(session, feeds, runner=runner_name(engine.name, number), warm_up=warm_up)


class _Feeder:
    """The inputs of a run: settled once, by the first engine that builds, then the same for all.

    ``vet`` raises if the golden values cannot be those of these inputs.
    """

    def __init__(
        self, inputs: Inputs, save_to: Path | None, console: Console, vet: Callable[[Sequence[Feed]], None]
    ) -> None:
        self._inputs = inputs
        self._save_to = save_to
        self._console = console
        self._vet = vet
        self._settled: Sequence[Feed] | None = None

    def feeds(self, wanted: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        """The feeds, checked and saved when they are first asked for."""
        from biopsy.engines.feeding import feeds_for
        from biopsy.engines.runner import checked_feed

        if self._settled is None:
            found = feeds_for(wanted, self._inputs)
            self._tell(found)
            self._settled = [checked_feed(feed, wanted, number) for number, feed in enumerate(found.feeds)]
            self._vet(self._settled)
            if self._save_to is not None:
                from biopsy.tensors.files import write_feeds

                write_feeds(self._save_to, self._settled)
        return self._settled

    def _tell(self, found: Feeds) -> None:
        if found.made_up:
            names = ", ".join(map(repr, found.made_up))
            self._console.warn(f"the inputs loaded have no {names}: random values are used for it")
        for name, shape in found.guessed.items():
            self._console.warn(
                f"the model leaves the shape of input {name!r} open: {list(shape)} is used "
                f"(--input-shapes {name}:[...] to choose)"
            )


def _require_same(feeds: Sequence[Feed], golden: Sequence[RunnerResult], tolerances: Tolerances, stats: Stats) -> None:
    """Raise CannotCompare if golden values were made from other inputs than these."""
    if golden:
        from biopsy.comparison.compare import require_same_inputs

        for expected in golden:
            require_same_inputs(feeds, expected, tolerances, stats)


def _told(failure: errors.EngineFailure, engine: Engine) -> errors.EngineFailure:
    message = f"{engine.label} cannot {failure.stage} the model: {failure.kind}: {failure.message}"
    told = errors.EngineFailure(
        message, engine=failure.engine, stage=failure.stage, kind=failure.kind, next_steps=failure.next_steps
    )
    return told.with_traceback(failure.__traceback__)


def _timing(result: RunnerResult) -> str:
    times = [one.runtime * 1000 for one in result.iterations if one.runtime is not None]
    count = len(result.iterations)
    return f"{count} iteration{'s' if count > 1 else ''}, {sum(times) / len(times):.3g} ms each"


def _save_outputs(path: Path | None, ran: Sequence[Ran], console: Console) -> None:
    results = [one.result for one in ran if one.result is not None]
    if path is None:
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
    settings: tuple[Tolerances, Stats],
    fail_fast: bool,
    console: Console,
) -> list[RunComparison]:
    compared: list[RunComparison] = []
    if not pairs:
        return compared
    from biopsy.cli.run_report import show_comparison
    from biopsy.comparison.compare import compare_runs

    for actual, expected in pairs:
        compared.append(compare_runs(actual, expected, *settings, fail_fast))
        show_comparison(compared[-1], console)
        if fail_fast and not compared[-1].passed:
            break
    return compared


def _not_finite(done: Sequence[RunnerResult], console: Console) -> list[tuple[str, NotFinite]]:
    from biopsy.cli.run_report import show_not_finite
    from biopsy.comparison.compare import not_finite

    found = [(result.runner, odd) for result in done for odd in not_finite(result)]
    show_not_finite(found, console)
    return found


# The verdict


def _conclude(
    ran: Sequence[Ran],
    compared: Sequence[RunComparison],
    odd: Sequence[tuple[str, NotFinite]],
    console: Console,
) -> int:
    """The last line, the verdict file and the exit status: an engine's failure first, then NaN, then mismatches."""
    from biopsy.checks import verdict

    failed = [one for one in ran if one.failure is not None]
    wrong = [one for one in compared if not one.passed]
    reasons = [f"{one.engine.label} failed to {_stage(one)} the model" for one in failed]
    if odd:
        reasons.append(f"NaN or infinity in {_listed(found.name for _, found in odd)}")
    reasons += [
        f"{_listed(output.name for _, output in one.failures)} of {one.actual} differs from {one.expected}"
        for one in wrong
    ]
    if failed and failed[0].failure is not None:
        verdict.report_error(failed[0].failure)
    elif odd:
        engine = odd[0][0]
        verdict.report_mismatch(engine, _names(found.name for label, found in odd if label == engine), "not-finite")
    elif wrong:
        verdict.report_mismatch(wrong[0].actual, _names(output.name for _, output in wrong[0].failures))
    else:
        verdict.report_pass()
        console.say(f"PASSED | {_what_passed(ran, compared)}")
        return 0
    console.say(f"FAILED | {'; '.join(reasons)}")
    return 1


def _stage(one: Ran) -> str:
    return one.failure.stage if one.failure is not None else ""


def _what_passed(ran: Sequence[Ran], compared: Sequence[RunComparison]) -> str:
    if not compared:
        return f"{', '.join(one.engine.label for one in ran)} ran; there was nothing to compare with"
    outputs = sum(len(iteration.outputs) for one in compared for iteration in one.iterations)
    return f"{outputs} output{'s' if outputs > 1 else ''} compared, all within the tolerances"


def _names(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _listed(names: Iterable[str], most: int = 5) -> str:
    each = _names(names)
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(repr(name) for name in each[:most]) + more
