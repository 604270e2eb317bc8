"""Running a model in engines, and comparing what two runs gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from biopsy import errors
from biopsy.api.arguments import (
    Folder,
    GivenInputs,
    GivenRanges,
    Model,
    fed,
    inputs_of,
    model_input,
    require_arrays,
    require_choice,
    tolerances_by_name,
)
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.tolerance import (
    DEFAULT_TOLERANCE,
    Stat,
    Stats,
    Tolerances,
    names_of,
    require_known_outputs,
    spoken_of,
)
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import run_session
from biopsy.model.extract import mark_outputs
from biopsy.tensors.results import Feed, Iteration, RunnerResult


def run(
    model: Model,
    engines: str | Sequence[str] = ("onnxrt",),
    inputs: GivenInputs = None,
    outputs: Literal["all"] | Sequence[str] | None = None,
    iterations: int = 1,
    seed: int = 1,
    *,
    val_range: GivenRanges = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: Folder = None,
) -> list[RunnerResult]:
    """Run a model in one or more engines, one after the other, all with the same inputs.

    ``engines`` are specs such as ``"onnxrt:optimization=none"``; the results come in their order, each named by its
    spec, runtimes in seconds. ``inputs`` is one feed (tensor name -> array), several, one per iteration, or a file of
    them; entries that the model does not take are ignored, missing ones are an error, and those of another element type
    are cast with a warning where that only rounds floats. Without ``inputs``, there are
    ``iterations`` random ones: the same for the same ``seed``, within ``val_range`` (default 0 to 1; for all inputs, or
    by name), dimensions that the model leaves open as in ``shapes``, else 1. ``outputs`` are other tensors to return,
    ``"all"`` for every one. ``folder`` is where external weights stand: by default the model's own folder, or the
    current one if the model is not a file.

    Raises EngineFailure if an engine cannot load, build or run the model, EngineMissing if there is no such engine,
    CannotCompare if ``inputs`` do not fit the model, ModelError or DataError for damaged files, UsageError otherwise.
    """
    if isinstance(outputs, str):
        require_choice("outputs", outputs, ("all",), "or a list of names of tensors")
    specs = [engines] if isinstance(engines, str) else list(engines or ())
    if not specs or not all(isinstance(spec, str) for spec in specs):
        raise errors.UsageError(f"engines={engines!r}: they are specs, such as 'onnxrt', and one at least")
    given = model_input(model, folder)
    if outputs is not None:
        given = ModelInput(mark_outputs(given.data, outputs), given.folder)
    wanted = inputs_of(inputs, iterations, seed, val_range, shapes)
    feeds: Sequence[Feed] | None = None
    results = []
    for engine in [create(spec) for spec in specs]:
        session = engine.build(given)
        if feeds is None:
            feeds = fed(session.inputs, wanted)
        results.append(run_session(session, feeds, runner=engine.label))
    return results


def compare(
    actual: RunnerResult | Feed,
    expected: RunnerResult | Feed,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    stat: Stat | Mapping[str, Stat] = "elemwise",
) -> RunComparison:
    """Compare what a run gave with what is expected, output by output, by name.

    Either side is a result of ``run`` or a dictionary of tensors. Tolerances and the statistic held against them are
    for all outputs, or by name with ``""`` for all others. Shapes must agree; types need not, numbers are compared by
    value. ``passed`` of the result is the verdict, ``failures`` has the outputs that fail.

    Raises CannotCompare if the two have no output in common, or none that has an element; DoesNotFit for a name that
    neither has; UsageError for an unknown ``stat``, a tolerance that is none, and what is no dictionary of arrays.
    """
    tolerances, stats = asked_of_outputs(atol, rtol, stat)
    sides = _result(actual, "actual"), _result(expected, "expected")
    require_known_outputs(spoken_of(tolerances, stats), {name for one in sides for name in names_of(one)})
    return compare_runs(*sides, tolerances, stats)


def asked_of_outputs(
    atol: float | Mapping[str, float], rtol: float | Mapping[str, float], stat: Stat | Mapping[str, Stat]
) -> tuple[Tolerances, Stats]:
    """Tolerances and statistics by name. Raises UsageError for what is none."""
    stats = stat if isinstance(stat, Mapping) else {"": stat}
    for one in stats.values():
        require_choice("stat", one, get_args(Stat))
    return Tolerances(tolerances_by_name("atol", atol), tolerances_by_name("rtol", rtol)), Stats(stats)


def tolerance_words(option: str, value: float | Mapping[str, float]) -> tuple[str, ...]:
    """Tolerances as words of ``biopsy run``; none for the usual ones."""
    given = value if isinstance(value, Mapping) else {"": value}
    if given == {"": DEFAULT_TOLERANCE}:
        return ()
    return (option, *(f"{name}:{number!r}" if name else repr(number) for name, number in given.items()))


def _result(given: RunnerResult | Feed, name: str) -> RunnerResult:
    if isinstance(given, RunnerResult):
        return given
    require_arrays(name, given)
    return RunnerResult(name, (Iteration(given),))
