"""Running, comparing and reducing from Python: what the commands do, without a terminal.

results = biopsy.run("model.onnx", engines=["onnxrt:optimization=none", "onnxrt"])
comparison = biopsy.compare(results[1], results[0], rtol=1e-3)
assert comparison.passed, comparison.failures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from biopsy import errors, events
from biopsy.checks.function import FunctionCheck
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check
from biopsy.checks.signature import Match
from biopsy.checks.warm import command_check
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.spoken_of import names_of, require_known_outputs, spoken_of
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, Stat, Stats, Tolerances
from biopsy.engines.base import ModelInput
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.engines.registry import create
from biopsy.engines.runner import run_session
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.external import require_safe_locations
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.model.load import read_bytes
from biopsy.model.outputs import mark_outputs
from biopsy.reduction.job import BorderOptions, RecordingOptions, ReductionJob
from biopsy.reduction.job_run import run_job
from biopsy.reduction.problem import Cut
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.schedule import Mode, Selection
from biopsy.reduction.values import Values
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.journal_identity import digest_of_feeds
from biopsy.session.options import SearchOptions
from biopsy.session.pool import Parallelism
from biopsy.session.resume import Resume
from biopsy.tensors.results import Feed, Iteration, RunnerResult

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
"""A model: the path of its file, its serialized bytes, or the protobuf object itself."""


def run(
    model: Model,
    engines: str | Sequence[str] = ("onnxrt",),
    inputs: Feed | Sequence[Feed] | str | PathLike[str] | None = None,
    outputs: Literal["all"] | Sequence[str] | None = None,
    iterations: int = 1,
    seed: int = 1,
    *,
    val_range: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    folder: str | PathLike[str] | None = None,
) -> list[RunnerResult]:
    """Run a model in one or more engines, one after the other, all with the same inputs.

    ``engines`` are specs such as ``"onnxrt:optimization=none"``; the results come in their order, each named by its
    spec, runtimes in seconds. ``inputs`` is one feed (tensor name -> array), several, one per iteration, or a file of
    them; entries that the model does not take are ignored, missing ones are an error. Without ``inputs``, there are
    ``iterations`` random ones: the same for the same ``seed``, within ``val_range`` (default 0 to 1; for all inputs, or
    by name), dimensions that the model leaves open as in ``shapes``, else 1. ``outputs`` are other tensors to return,
    ``"all"`` for every one. ``folder`` is where external weights stand: by default the model's own folder, or the
    current one if the model is not a file.

    Raises EngineFailure if an engine cannot load, build or run the model, EngineMissing if there is no such engine,
    CannotCompare if ``inputs`` do not fit the model, ModelError or DataError for damaged files, UsageError otherwise.
    """
    if isinstance(outputs, str):
        _require_choice("outputs", outputs, ("all",), "or a list of names of tensors")
    given = _model_input(model, folder)
    if outputs is not None:
        given = ModelInput(mark_outputs(given.data, outputs), given.folder)
    ranges = {"": val_range} if isinstance(val_range, tuple) else (val_range or {})
    wanted = Inputs(
        given=_feeds(inputs), iterations=iterations, seed=seed, val_range=ranges, shapes=shapes or {}, complete=False
    )
    feeds: Sequence[Feed] | None = None
    results = []
    for engine in [create(spec) for spec in ([engines] if isinstance(engines, str) else engines)]:
        session = engine.build(given)
        if feeds is None:
            feeds = feeds_for(session.inputs, wanted).feeds
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
    neither has; UsageError for an unknown ``stat``.
    """
    for one in [stat] if isinstance(stat, str) else stat.values():
        _require_choice("stat", one, get_args(Stat))
    tolerances = Tolerances(_by_name(atol), _by_name(rtol))
    stats = Stats({"": stat} if isinstance(stat, str) else stat)
    sides = _result(actual, "actual"), _result(expected, "expected")
    require_known_outputs(spoken_of(tolerances, stats), {name for one in sides for name in names_of(one)})
    return compare_runs(*sides, tolerances, stats)


def reduce(
    model: Model,
    check: Callable[[Any], object] | Sequence[str],
    output: str | PathLike[str] = "reduced.onnx",
    *,
    takes: Literal["path", "model"] = "path",
    mode: Mode = "minimal",
    inputs: Sequence[Feed] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    min_good: str | PathLike[str] | None = None,
    match: Match = "auto",
    cut: Cut = "auto",
    values: Values = "auto",
    keep_inputs: bool = False,
    keep_outputs: bool = False,
    mark_intermediate: bool = False,
    simplify: bool = False,
    anonymize: bool = False,
    skip_passes: Sequence[str] = (),
    only_passes: Sequence[str] = (),
    jobs: int = 1,
    executor: Executor | None = None,
    repeat: int | None = None,
    confidence: float = 0.99,
    max_checks: int | None = None,
    max_seconds: float | None = None,
    journal: str | PathLike[str] | None = None,
    allow_vacuous_check: bool = False,
    listener: events.Listener = events.ignore,
) -> Reduction:
    """Find the smallest part of ``model`` that still fails ``check``, and write it to ``output``.

    ``check`` is called with each candidate, a ``pathlib.Path`` or, with ``takes="model"``, an ``onnx.ModelProto``. It
    returns True if the model fails and False if it passes. An exception is a failure too, of which type and message
    must be those that the original raises; ``biopsy.EngineFailure`` counts by engine, stage and kind. Or ``check`` is
    a command, a list of words in which ``{}`` stands for the candidate's path.

    ``inputs`` are feeds, tensor name -> array of the input's shape and dtype, of which every one is recorded: cuts
    that look like shapes are frozen with their values. ``input_shapes`` freezes dynamic inputs. ``min_good`` is where
    to write the passing model closest in size. ``mark_intermediate`` makes every tensor of a candidate an output, for a
    wrong value that is masked later. ``simplify`` also tries to remove attributes, make sizes smaller and
    fill weights, ``anonymize`` to replace names and weights; ``skip_passes`` and ``only_passes`` name passes, which
    ``biopsy debug reduce --list-passes`` lists. ``listener`` is called with each event of ``biopsy.events``.

    ``jobs`` checks run at once, in threads, or where ``executor`` runs them: another machine must see the folder of
    temporary files, and get ``check`` by pickle. The result is the same for any number. If the failure is flaky, a
    candidate passes after ``repeat`` runs, by default as many as ``confidence`` needs. ``max_checks`` and
    ``max_seconds`` end the search with the best result; ``stopped`` of what is returned says so. ``journal`` is a file
    from which an interrupted reduction goes on; it is removed at the end. A ``check`` that fails on a model of one
    Identity node too says nothing: that is a CheckError, unless ``allow_vacuous_check``.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or contradicts itself,
    ModelError for a damaged model, UsageError for an argument that cannot be used, such as an unknown ``mode``, and for
    a path that cannot be read or written, Interrupted on Ctrl-C with the best result written.

    >>> import biopsy, onnx                                                              # doctest: +SKIP
    >>> def has_mul(model: onnx.ModelProto) -> bool:
    ...     return any(node.op_type == "Mul" for node in model.graph.node)
    >>> biopsy.reduce("model.onnx", has_mul, "reduced.onnx", takes="model").nodes        # doctest: +SKIP
    ("Mul 'onnx_graphsurgeon_node_3'",)
    """
    choices = {
        "takes": (takes, ("path", "model")), "mode": (mode, get_args(Mode)), "match": (match, get_args(Match)),
        "cut": (cut, get_args(Cut)), "values": (values, get_args(Values)),
    }  # fmt: skip
    for name, (value, known) in choices.items():
        _require_choice(name, value, known)
    _require_check(check)
    _require_numbers(jobs=jobs, repeat=repeat, max_checks=max_checks)
    if not 0 < confidence < 1:
        raise errors.UsageError(f"confidence={confidence!r}: it is above 0 and below 1")
    with temporary_folder("biopsy-") as folder:
        candidate = folder / "candidate.onnx"
        search = SearchOptions(
            rules=Rules(match=match),
            candidate=candidate,
            parallelism=Parallelism(jobs, executor),
            budget=Budget(max_checks, max_seconds),
            repeating=Repeating(repeat, confidence),
            resume=Resume(
                journal=None if journal is None else Path(journal),
                about={} if journal is None else {"inputs": digest_of_feeds(inputs or ())},
            ),
        )
        border = BorderOptions(
            cut=cut, keep_inputs=keep_inputs, keep_outputs=keep_outputs, mark_intermediate=mark_intermediate
        )
        job = ReductionJob(
            target=Target(Path(output), None if min_good is None else Path(min_good)),
            mode=mode,
            search=search,
            recording=RecordingOptions(samples=None if inputs is None else lambda: inputs),
            border=border,
            input_shapes=dict(input_shapes or {}),
            values=values,
            selection=Selection(
                simplify=simplify, anonymize=anonymize, skip=tuple(skip_passes), only=tuple(only_passes)
            ),
            allow_vacuous_check=allow_vacuous_check,
        )
        return run_job(_index(model), _as_check(check, candidate, takes, jobs), job, listener)


def _require_choice(name: str, value: object, choices: Sequence[str], more: str = "") -> None:
    if value not in choices:
        known = ", ".join(map(repr, choices))
        near = get_close_matches(str(value), choices, n=1)
        raise errors.UsageError(
            f"{name}={value!r}: it is {'one of ' if len(choices) > 1 else ''}{known}{f', {more}' if more else ''}",
            next_steps=[f"did you mean {name}={near[0]!r}?"] if near else [],
        )


def _require_check(check: object) -> None:
    """Raise UsageError for what is neither a function nor the words of a command."""
    if callable(check):
        return
    wanted = "it is a function, or a command as a list of words"
    if isinstance(check, str):
        raise errors.UsageError(f"check={check!r}: {wanted}", next_steps=[f"check={check.split()!r}"])
    if not isinstance(check, Sequence) or not check or not all(isinstance(word, str) for word in check):
        raise errors.UsageError(
            f"check={check!r}: {wanted}", next_steps=["check=['biopsy', 'run', '{}', '--onnxrt', '--openvino']"]
        )


def _require_numbers(**given: int | None) -> None:
    for name, value in given.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise errors.UsageError(f"{name}={value!r}: it is a whole number above 0")


def _as_check(check: Callable[[Any], object] | Sequence[str], candidate: Path, takes: str, jobs: int) -> Check:
    if callable(check):
        return FunctionCheck(check, as_proto=takes == "model")
    return command_check(check, str(candidate), jobs=jobs)


def _index(model: Model) -> ModelIndex:
    if isinstance(model, str | PathLike):
        return index_file(Path(model))
    data = model if isinstance(model, bytes) else model.SerializeToString()
    require_safe_locations(data, Path())
    return index_bytes(data)


def _by_name(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"": value}


def _result(given: RunnerResult | Feed, name: str) -> RunnerResult:
    return given if isinstance(given, RunnerResult) else RunnerResult(name, (Iteration(given),))


def _model_input(model: Model, folder: str | PathLike[str] | None) -> ModelInput:
    if isinstance(model, str | PathLike):
        path = Path(model)
        return ModelInput(read_bytes(path), Path(folder) if folder is not None else path.parent, path)
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return ModelInput(data, Path(folder) if folder is not None else Path())


def _feeds(inputs: Feed | Sequence[Feed] | str | PathLike[str] | None) -> Sequence[Feed] | None:
    if inputs is None:
        return None
    if isinstance(inputs, str | PathLike):
        from biopsy.tensors.files import read_feeds

        return read_feeds(Path(inputs))
    return [inputs] if isinstance(inputs, Mapping) else inputs
