"""Frozen dataclasses as trees of JSON values, and back."""

from __future__ import annotations

import math
import reprlib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from os import PathLike
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")

_NOT_FINITE = ("nan", "inf", "-inf")


def plain(value: Any) -> Any:
    """The value for JSON: dataclasses become objects, tuples lists, enums their values, and paths text.

    Numbers that JSON lacks become text: "nan", "inf", "-inf", "(1+2j)".
    """
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, complex | bytes | PathLike) else value


def plain_of(record: object, names: str) -> dict[str, Any]:
    """The attributes with these names, in this order, as ``plain`` values."""
    return {name: plain(getattr(record, name)) for name in names.split()}


def record_of(kind: type[Record], tree: object) -> Record:
    """The record of type ``kind`` that ``plain`` made this tree of. Raises ValueError if it is not one."""
    if not isinstance(tree, Mapping):
        raise ValueError(f"no {kind.__name__}")
    hints, known = get_type_hints(kind), fields(kind)  # type: ignore[arg-type]
    try:
        return kind(**{each.name: _value(hints[each.name], tree[each.name]) for each in known if each.name in tree})
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(value) in arguments:
            return value
        *_, hint = (each for each in arguments if each is not type(None))
        return _value(hint, value)
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[1:] == (Ellipsis,):
            return tuple(_value(arguments[0], each) for each in value)
        return tuple(_value(hint, each) for hint, each in zip(arguments, value, strict=True))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {_value(arguments[0], key): _value(arguments[1], each) for key, each in value.items()}
    if is_dataclass(hint):
        return record_of(hint, value)  # type: ignore[arg-type]
    if hint is float and (value in _NOT_FINITE or (isinstance(value, int | float) and not isinstance(value, bool))):
        return float(value)
    if (value in arguments) if origin is Literal else (type(value) is hint):
        return value
    raise ValueError(f"an unexpected value: {reprlib.repr(value)}")
