"""What the functions for Python users take: models, inputs, checks and options, each refused if it cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from biopsy import errors
from biopsy.checks.function import FunctionCheck
from biopsy.checks.outcome import Check
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.casting import casts, casts_told
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.engines.runner import checked_feed
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.external import require_safe_locations
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import ValueType
from biopsy.similar_names import similar
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
"""A model: the path of its file, its serialized bytes, or the protobuf object itself."""

Folder: TypeAlias = "str | PathLike[str] | None"
"""Where external weights stand: None for the model's own folder, or the current one if the model is not a file."""

GivenInputs: TypeAlias = "Feed | Sequence[Feed] | str | PathLike[str] | None"
"""One feed (tensor name -> array), several, or a file of them; None for random ones."""

Function: TypeAlias = "Callable[[Any], object]"

_Option = TypeVar("_Option")


# Models


def model_input(model: Model, folder: Folder) -> ModelInput:
    """The model as engines take it. Raises UsageError or ModelError if there is none."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        return ModelInput(read_bytes(path), Path(folder) if folder is not None else path.parent, path)
    return ModelInput(_serialized(model), Path(folder) if folder is not None else Path())


def index_of(model: Model, folder: Folder = None) -> ModelIndex:
    """The model as searches take it. Raises UsageError or ModelError if it cannot be used."""
    weights = None if folder is None else Path(folder)
    if isinstance(model, str | PathLike):
        return index_file(Path(model), weights)
    data = _serialized(model)
    require_safe_locations(data, weights or Path())
    return index_bytes(data, weights)


@contextmanager
def model_file(model: Model, folder: Folder) -> Iterator[tuple[Path, Path]]:
    """The file of a model, a temporary one if it has none, and the folder of its external weights."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        yield path, Path(folder) if folder is not None else path.parent
        return
    with temporary_folder("biopsy-") as place:
        path = place / "model.onnx"
        path.write_bytes(_serialized(model))
        yield path, Path(folder) if folder is not None else Path()


def _serialized(model: bytes | onnx.ModelProto) -> bytes:
    if isinstance(model, bytes):
        return model
    if not hasattr(model, "SerializeToString"):
        raise errors.UsageError(f"model={model!r}: it is a path, bytes, or an onnx.ModelProto")
    return model.SerializeToString()


# Inputs


def inputs_of(
    inputs: GivenInputs,
    iterations: int = 1,
    seed: int = 1,
    val_range: tuple[float, float] | Mapping[str, tuple[float, float]] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Inputs:
    """What was said about inputs. Raises DataError if a file of them is damaged."""
    ranges = {"": val_range} if isinstance(val_range, tuple) else (val_range or {})
    given = _feeds(inputs)
    return Inputs(given=given, iterations=iterations, seed=seed, val_range=ranges, shapes=shapes or {}, complete=False)


def fed(inputs: Mapping[str, ValueType | None], wanted: Inputs, stacklevel: int = 3) -> Sequence[Feed]:
    """The feeds that a model takes, with a warning for inputs that are cast."""
    given = feeds_for(inputs, wanted).feeds
    feeds = [checked_feed(feed, inputs, number) for number, feed in enumerate(given)]
    changes = casts(given, feeds)
    if changes:
        warnings.warn(casts_told(changes), UserWarning, stacklevel=stacklevel)
    return feeds


def _feeds(inputs: GivenInputs) -> Sequence[Feed] | None:
    if inputs is None:
        return None
    if isinstance(inputs, str | PathLike):
        from biopsy.tensors.files import read_feeds

        return read_feeds(Path(inputs))
    return [inputs] if isinstance(inputs, Mapping) else inputs


# Checks


def require_check(check: object) -> None:
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


def check_of(check: Function | Sequence[str], candidate: Path, takes: Literal["path", "model"], jobs: int) -> Check:
    """The check that a function or a command makes; ``candidate`` is where candidates stand."""
    if callable(check):
        return FunctionCheck(check, as_proto=takes == "model")
    return command_check(check, str(candidate), jobs=jobs)


# Options


def require_choice(name: str, value: object, choices: Sequence[str], more: str = "") -> None:
    """Raise UsageError, with the nearest choice, if the value is none of them."""
    if value not in choices:
        known = ", ".join(map(repr, choices))
        near = similar(str(value), choices, most=1)
        raise errors.UsageError(
            f"{name}={value!r}: it is {'one of ' if len(choices) > 1 else ''}{known}{f', {more}' if more else ''}",
            next_steps=[f"did you mean {name}={near[0]!r}?"] if near else [],
        )


def options_of(name: str, given: _Option | None, kind: type[_Option]) -> _Option:
    """The object that holds some options, the usual ones if none is given. Raises UsageError for another thing."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise errors.UsageError(f"{name}={given!r}: it is a biopsy.{kind.__name__}(...)")
    return given


def require_whole(**given: int | None) -> None:
    """Raise UsageError for what is no whole number above 0; None is no number to look at."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise errors.UsageError(f"{name}={value!r}: it is a whole number above 0")


def require_seconds(**given: float | None) -> None:
    """Raise UsageError for what is no time; None is no time to look at."""
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise errors.UsageError(f"{name}={value!r}: it is a time above 0, in seconds")


def by_name(value: float | Mapping[str, float]) -> Mapping[str, float]:
    """Values by the name of a tensor, "" for all."""
    return value if isinstance(value, Mapping) else {"": value}
