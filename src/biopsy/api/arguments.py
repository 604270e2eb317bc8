"""What the functions for Python users take: models, checks and options, each refused if it cannot be used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from biopsy import errors
from biopsy.checks.function import FunctionCheck
from biopsy.checks.outcome import Check
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.external import require_safe_locations
from biopsy.model.index import ModelIndex, index_bytes, index_file
from biopsy.model.load import read_bytes
from biopsy.similar_names import similar

if TYPE_CHECKING:
    import onnx

Model: TypeAlias = "str | PathLike[str] | bytes | onnx.ModelProto"
"""A model: the path of its file, its serialized bytes, or the protobuf object itself."""

Folder: TypeAlias = "str | PathLike[str] | None"
"""Where external weights stand: None for the model's own folder, or the current one if the model is not a file."""

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


def require_own_files(model: Model, **written: str | PathLike[str] | None) -> None:
    """Raise UsageError if a file that is written is the model, or is written as something else too.

    ``written`` are paths by the names of the arguments; None is no file.
    """
    named: dict[str, Path] = {"model": Path(model)} if isinstance(model, str | PathLike) else {}
    for argument, path in written.items():
        if path is None:
            continue
        for other, taken in named.items():
            if _same_file(Path(path), taken):
                raise errors.UsageError(f"{argument}={str(path)!r} is the file of {other} too: it would be lost")
        named[argument] = Path(path)


def _same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.is_file() and other.is_file() and one.samefile(other))


def _serialized(model: bytes | onnx.ModelProto) -> bytes:
    if isinstance(model, bytes):
        return model
    if not hasattr(model, "SerializeToString"):
        raise errors.UsageError(f"model={model!r}: it is a path, bytes, or an onnx.ModelProto")
    return model.SerializeToString()


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


def tolerances_by_name(option: str, value: float | Mapping[str, float]) -> Mapping[str, float]:
    """Tolerances by the name of a tensor, "" for all. Raises UsageError for what is no number, 0 or more."""
    found: Mapping[str, Any] = value if isinstance(value, Mapping) else {"": value}
    for one in found.values():
        if not isinstance(one, Real) or not 0 <= float(one) < math.inf:
            raise errors.UsageError(f"{option}={value!r}: it is a number, 0 or more, or a dictionary of these by name")
    return found
