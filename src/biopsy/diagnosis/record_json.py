"""Records as JSON and back: frozen dataclasses of plain values, tuples and other such records."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


def as_json(record: Any) -> dict[str, Any]:
    """The fields of a record; tuples become lists when this is written."""
    return asdict(record)


def from_json(kind: type[Record], tree: object) -> Record:
    """The record that a tree of JSON holds. Raises ValueError if it holds none."""
    if not isinstance(tree, Mapping):
        raise ValueError(f"no {kind.__name__}")
    hints = get_type_hints(kind)
    known: Any = kind
    try:
        return kind(**{one.name: _value(hints[one.name], tree[one.name]) for one in fields(known) if one.name in tree})
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value)
    if origin is tuple:
        return _tuple(arguments, value)
    if origin is Literal:
        return _require(value in arguments, value)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value)
    if hint is float:
        return float(_require(isinstance(value, int | float), value))
    return _require(type(value) is hint, value)


def _one_of(hints: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        return _require(type(None) in hints, value)
    (hint,) = (each for each in hints if each is not type(None))
    return _value(hint, value)


def _tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"no list: {value!r}")
    if hints[1:] == (Ellipsis,):
        return tuple(_value(hints[0], item) for item in value)
    return tuple(_value(hint, item) for hint, item in zip(hints, value, strict=True))


def _require(holds: bool, value: Any) -> Any:
    if not holds:
        raise ValueError(f"an unexpected value: {value!r}")
    return value
