"""``biopsy.run`` and ``biopsy.compare``; and the arguments that several functions of the Python API take: models,
checks, inputs and options, each validated.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from biopsy import errors
from biopsy.checks.judge import Match, Rules
from biopsy.comparison.runs import RunComparison, compare_runs
from biopsy.comparison.tolerance import (
    DEFAULT_TOLERANCE,
    Stat,
    Stats,
    Tolerances,
    names_by_option,
    names_of,
    require_known_outputs,
)
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import Inputs, casts, casts_text, checked_feed, feeds_for, run_session, with_declared_types
from biopsy.model.external import require_safe_locations
from biopsy.model.extract import mark_outputs
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.processes.cleanup import temporary_folder
from biopsy.slow_imports import onnx
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed, Iteration, RunnerResult
from biopsy.text import similar

Model: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
"""A model: the path of its file, its serialized bytes, or the protobuf object itself."""

Folder: TypeAlias = "str | PathLike[str] | None"
"""Where external weights are: None for the model's own folder, or the current one if the model is not a file."""

Function: TypeAlias = "Callable[[Any], object]"

GivenInputs: TypeAlias = "Feed | Sequence[Feed] | str | PathLike[str] | None"
"""One feed (tensor name -> array), several, or a file of them; None for random feeds."""

GivenRanges: TypeAlias = "tuple[float, float] | Mapping[str, tuple[float, float]] | None"
"""The range of random values, as (low, high): for all inputs, or by name."""


def run(
    model: Model,
    engines: str | Sequence[str] = ("onnxrt",),
    inputs: GivenInputs = None,
    outputs: Literal["all"] | Sequence[str] | None = None,
    iterations: int = 1,
    seed: int = 1,
    *,
    val_range: GivenRanges = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    external_data_dir: Folder = None,
) -> list[RunnerResult]:
    """Run a model in one or more engines, one after the other, all with the same inputs.

    ``engines`` are specs such as ``"onnxrt:optimization=none"``; the results are in their order, each named by its
    spec, with runtimes in seconds. ``inputs`` is one feed (tensor name -> array), several (one per iteration), or a
    file of feeds. Entries that the model does not take are ignored, missing ones are an error, and those of another
    element type are cast, with a warning, if that only rounds floats.

    Without ``inputs``, there are ``iterations`` random feeds: the same for the same ``seed``, with values within
    ``val_range`` (for all inputs, or by name; 0 to 1 by default). ``input_shapes`` has the sizes of dimensions that the
    model leaves open, which are otherwise 1. ``outputs`` are the tensors to return instead of the model's outputs,
    ``"all"`` for every tensor. ``external_data_dir`` is where external weights are: by default the model's own folder,
    or the current one if the model is not a file.

    Raises EngineFailure if an engine cannot load, build or run the model, EngineMissing if there is no such engine,
    CannotCompare if ``inputs`` do not fit the model, ModelError or DataError for damaged files, or UsageError for an
    argument that cannot be used.

    >>> expected, actual = biopsy.run("model.onnx", ["reference", "onnxrt"], iterations=3)
    >>> actual.iterations[0].outputs["logits"].shape
    (1, 1000)
    """
    if isinstance(outputs, str):
        require_choice("outputs", outputs, ("all",), "or a list of names of tensors")
    specs = [engines] if isinstance(engines, str) else list(engines or ())
    if not specs or not all(isinstance(spec, str) for spec in specs):
        raise errors.UsageError(f"engines={engines!r}: they are specs, such as 'onnxrt', and one at least")
    path = Path(model) if isinstance(model, str | PathLike) else None
    data = _serialized(model) if path is None else read_bytes(path)
    model_input = ModelInput(data, _weights_folder(model, external_data_dir), path)
    if outputs is not None:
        model_input = ModelInput(mark_outputs(data, outputs), model_input.folder)
    input_options = inputs_of(inputs, iterations, seed, val_range, input_shapes)
    feeds: Sequence[Feed] | None = None
    results = []
    created = [create(spec) for spec in specs]
    for engine in created:
        session = engine.build(model_input)
        if feeds is None:
            feeds = checked_feeds(session.inputs, input_options)
        results.append(run_session(session, feeds, runner=engine.label))
    return with_declared_types(results, created, model_input)


def compare(
    actual: RunnerResult | Feed,
    expected: RunnerResult | Feed,
    atol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    rtol: float | Mapping[str, float] = DEFAULT_TOLERANCE,
    check_error_stat: Stat | Mapping[str, Stat] = "elemwise",
) -> RunComparison:
    """Compare the outputs of a run with the expected ones, by name.

    Either side is a result of ``run`` or a dictionary of tensors. ``atol``, ``rtol`` and ``check_error_stat``, the
    statistic of the error that must be within them, are for all outputs, or by name with ``""`` for all others. Shapes
    must agree. A result of ``run`` must have the element types that its model declares; the numbers of a dictionary may
    be of any type. The result's ``passed`` is the verdict, ``failures`` are the outputs that fail.

    Raises CannotCompare if the two have no output with an element in common, DoesNotFit for a name that neither has, or
    UsageError for an unknown ``check_error_stat``, an invalid tolerance, or a side that is not a dictionary of arrays.

    >>> expected, actual = biopsy.run("model.onnx", ["reference", "onnxrt"])
    >>> biopsy.compare(actual, expected, atol=1e-3).passed
    True
    """
    tolerances, stats = tolerances_and_stats(atol, rtol, check_error_stat)
    sides = _result(actual, "actual"), _result(expected, "expected")
    require_known_outputs(names_by_option(tolerances, stats), {name for side in sides for name in names_of(side)})
    return compare_runs(*sides, tolerances, stats)


def tolerances_and_stats(
    atol: float | Mapping[str, float], rtol: float | Mapping[str, float], stat: Stat | Mapping[str, Stat]
) -> tuple[Tolerances, Stats]:
    """Tolerances and statistics by name. Raises UsageError for invalid ones."""
    stats = stat if isinstance(stat, Mapping) else {"": stat}
    for value in stats.values():
        require_choice("check_error_stat", value, get_args(Stat))
    return Tolerances(tolerances_by_name("atol", atol), tolerances_by_name("rtol", rtol)), Stats(stats)


def tolerance_words(**tolerances: float | Mapping[str, float]) -> tuple[str, ...]:
    """The words of ``biopsy run`` that set tolerances, given by the names of their options; none for the default."""
    words: list[str] = []
    for option, value in tolerances.items():
        limits = value if isinstance(value, Mapping) else {"": value}
        if limits != {"": DEFAULT_TOLERANCE}:
            numbers = (f"{name}:{number!r}" if name else repr(number) for name, number in limits.items())
            words += [f"--{option}", *numbers]
    return tuple(words)


def _result(side: RunnerResult | Feed, name: str) -> RunnerResult:
    if isinstance(side, RunnerResult):
        return side
    require_arrays(name, side)
    return RunnerResult(name, (Iteration(side),))


def _weights_folder(model: Model, folder: Folder) -> Path:
    if folder is not None:
        return Path(folder)
    return Path(model).parent if isinstance(model, str | PathLike) else Path()


def index_of(model: Model, folder: Folder = None) -> ModelIndex:
    """The index of a model, for a search. Raises UsageError or ModelError if the model cannot be used."""
    weights = None if folder is None else Path(folder)
    if isinstance(model, str | PathLike):
        return index_file(Path(model), weights)
    data = _serialized(model)
    require_safe_locations(data, weights or Path())
    return index_bytes(data, weights)


@contextmanager
def model_file(model: Model, folder: Folder) -> Iterator[tuple[Path, Path]]:
    """The path of a model, which is a temporary file if it has none, and the folder of its external weights."""
    if isinstance(model, str | PathLike):
        yield Path(model), _weights_folder(model, folder)
        return
    with temporary_folder("biopsy-") as scratch:
        path = scratch / "model.onnx"
        path.write_bytes(_serialized(model))
        yield path, _weights_folder(model, folder)


def require_own_files(model: Model, **written: str | PathLike[str] | None) -> None:
    """Raise UsageError if two arguments name the same file.

    ``written`` are the files that will be written, by the names of the arguments; None is not a file.
    """
    files: dict[str, Path] = {"model": Path(model)} if isinstance(model, str | PathLike) else {}
    for argument, path in written.items():
        if path is None:
            continue
        for other, file in files.items():
            is_same_file = file.is_file() and Path(path).is_file() and file.samefile(path)
            if is_same_file or file.resolve() == Path(path).resolve():
                raise errors.UsageError(f"{argument}={str(path)!r} is the file of {other} too: it would be lost")
        files[argument] = Path(path)


def _serialized(model: Model) -> bytes:
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | PathLike) or not hasattr(model, "SerializeToString"):
        raise errors.UsageError(f"model={model!r}: it is a path, bytes, or an onnx.ModelProto")
    return model.SerializeToString()


def require_check(check: object, *, is_command: bool = False) -> None:
    """Raise UsageError unless the check is a function or the words of a command; with ``is_command``, only those."""
    wanted = "it is a function, or a command as a list of words"
    if callable(check):
        if is_command:
            raise errors.UsageError(f"check={check!r}: it is a command as a list of words")
    elif isinstance(check, str):
        raise errors.UsageError(f"check={check!r}: {wanted}", next_steps=[f"check={check.split()!r}"])
    elif not isinstance(check, Sequence) or not check or not all(isinstance(word, str) for word in check):
        raise errors.UsageError(
            f"check={check!r}: {wanted}", next_steps=["check=['biopsy', 'run', '{}', '--onnxrt', '--openvino']"]
        )


def require_choice(name: str, value: object, choices: Sequence[str], more: str = "") -> None:
    """Raise UsageError, with the most similar choice, unless the value is one; ``more`` says what else it may be."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        near = similar(str(value), choices, most=1)
        raise errors.UsageError(
            f"{name}={value!r}: it is {'one of ' if len(choices) > 1 else ''}{known}{f', {more}' if more else ''}",
            next_steps=[f"did you mean {name}={near[0]!r}?"] if near else [],
        )


def require_one(name: str, value: object, rival: str, rival_value: object) -> None:
    """Raise UsageError if two arguments are given of which only one may be."""
    if value and rival_value:
        raise errors.UsageError(f"{name}={value!r} contradicts {rival}={rival_value!r}: give one of them")


def require_whole(**numbers: int | None) -> None:
    """Raise UsageError for anything but None and whole numbers above 0."""
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise errors.UsageError(f"{name}={value!r}: it is a whole number above 0")


def require_seconds(**times: float | None) -> None:
    """Raise UsageError for anything but None and finite times above 0."""
    for name, value in times.items():
        if value is not None and not 0 < value < float("inf"):
            raise errors.UsageError(f"{name}={value!r}: it is a time above 0, in seconds")


def require_names(name: str, names: object, kind: str = "a tuple of names") -> None:
    """Raise UsageError for a single name instead of a tuple or a list."""
    if isinstance(names, str):
        shown = f"({names!r},)" if "tuple" in kind else f"[{names!r}]"
        raise errors.UsageError(f"{name}={names!r}: it is {kind}", next_steps=[f"{name}={shown}"])


def tolerances_by_name(option: str, value: float | Mapping[str, float]) -> Mapping[str, float]:
    """Tolerances by the name of a tensor, "" for all. Raises UsageError unless they are finite numbers, 0 or more."""
    by_name: Mapping[str, Any] = value if isinstance(value, Mapping) else {"": value}
    if not all(isinstance(limit, Real) and 0 <= float(limit) < math.inf for limit in by_name.values()):
        raise errors.UsageError(f"{option}={value!r}: it is a number, 0 or more, or a dictionary of these by name")
    return by_name


def inputs_of(
    inputs: GivenInputs,
    iterations: int = 1,
    seed: int = 1,
    val_range: GivenRanges = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inputs:
    """The inputs for a model, given or random.

    Raises DataError for a damaged file, UsageError for an argument that cannot be used.
    """
    require_whole(iterations=iterations)
    ranges = val_range if isinstance(val_range, Mapping) else {} if val_range is None else {"": val_range}
    if not all(isinstance(ends, Sequence) and len(ends) == 2 for ends in ranges.values()):
        raise errors.UsageError(f"val_range={val_range!r}: it is a pair of numbers, or a dictionary of these by name")
    require_shapes("input_shapes", input_shapes)
    return Inputs(
        given=feeds_of(inputs),
        iterations=iterations,
        seed=seed,
        val_range=ranges,
        shapes=input_shapes or {},
        complete=False,
    )


def require_shapes(argument: str, shapes: Mapping[str, tuple[int, ...]] | None) -> None:
    """Raise UsageError for shapes with anything but whole numbers, 0 or more."""
    for name, shape in (shapes or {}).items():
        sizes = shape if isinstance(shape, Sequence) else [-1]
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
            raise errors.UsageError(f"{argument}={{{name!r}: {shape!r}}}: sizes are whole numbers, 0 or more")


def feeds_of(inputs: GivenInputs) -> Sequence[Feed] | None:
    """The feeds given; None stands for random feeds. Raises DataError for a damaged file, UsageError for no feeds."""
    if inputs is None:
        return None
    if isinstance(inputs, str | PathLike):
        return read_feeds(Path(inputs))
    feeds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    if not feeds:
        raise errors.UsageError("inputs=[]: nothing would be run", next_steps=["inputs=None    makes random ones"])
    for feed in feeds:
        require_arrays("inputs", feed)
    return feeds


def require_arrays(argument: str, feed: Feed) -> None:
    """Raise UsageError unless a feed is a dictionary of arrays. Values of feeds read from a file are not looked at."""
    if not isinstance(feed, Mapping):
        raise errors.UsageError(f"{argument}: {type(feed).__name__} is not a dictionary of arrays by name")
    for name, value in feed.items() if isinstance(feed, dict) else ():
        if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
            kind = type(value).__name__
            raise errors.UsageError(
                f"{argument}: the value of {name!r} is a {kind}, and no array",
                next_steps=["numpy.asarray(...) makes one" + (", mask and all" if kind == "MaskedArray" else "")],
            )


def checked_feeds(inputs: Mapping[str, ValueType | None], input_options: Inputs) -> Sequence[Feed]:
    """The feeds for a model with these inputs. Warns about inputs that are cast, raises CannotCompare for misfits."""
    uncast = feeds_for(inputs, input_options).feeds
    feeds = [checked_feed(feed, inputs, number) for number, feed in enumerate(uncast)]
    changes = casts(uncast, feeds)
    if changes:
        warnings.warn(casts_text(changes), UserWarning, stacklevel=3)
    return feeds


def rules_of(rules: Rules | None) -> Rules:
    """The rules given, by default the usual ones, with any collection of statuses made a set.

    Raises UsageError for rules that cannot be used.
    """
    rules = Rules() if rules is None else rules
    if not isinstance(rules, Rules):
        raise errors.UsageError(f"rules={rules!r}: it is a biopsy.Rules(...)")
    require_one("fail_codes", rules.fail_codes, "ignored_codes", rules.ignored_codes)
    require_choice("match", rules.match, get_args(Match))
    for name, codes in (("fail_codes", rules.fail_codes), ("ignored_codes", rules.ignored_codes)):
        if not isinstance(codes, Collection) or not all(isinstance(code, int) for code in codes):
            raise errors.UsageError(f"{name}={codes!r}: it is a set of exit statuses", next_steps=[f"{name}={{1}}"])
    if not all(isinstance(pattern, re.Pattern) for pattern in rules.fail_regexes):
        raise errors.UsageError(
            f"fail_regexes={rules.fail_regexes!r}: it is a tuple of compiled regular expressions",
            next_steps=["fail_regexes=(re.compile('Op: Mul'),)"],
        )
    return Rules(
        fail_codes=frozenset(rules.fail_codes),
        ignored_codes=frozenset(rules.ignored_codes),
        fail_regexes=tuple(rules.fail_regexes),
        match=rules.match,
    )
