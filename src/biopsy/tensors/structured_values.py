"""Sequences, optional values and maps, as the tensors that they hold: one way to save, feed and compare all of them.

=================  =====================================================================================
``s[#]``           how many items the sequence ``s`` has, int64; its items are ``s[0]``, ``s[1]``, ...
``o[?]``           whether the optional ``o`` has a value; the value itself is ``o``, if it is a tensor
``m[keys]``        the keys of the map ``m`` in ascending order, and ``m[values]``, a tensor, theirs
=================  =====================================================================================

Where one holds another, names go on: ``o[?]``, ``o[#]``, ``o[0]`` is an optional sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.tensor_type import STRING, MapType, OptionalType, SequenceType, TensorType, ValueType
from biopsy.tensors.results import Array, Feed

_MADE_UP = 2
"""Items of a sequence, and entries of a map, that are made up."""


def item_of(name: str, containers: Collection[str]) -> str | None:
    """Which of the containers a tensor is a part of, by its name; None if it is of none."""
    return next((one for one in containers if name == one or name.startswith(f"{one}[")), None)


# Values as an engine has them -> tensors


def flattened(
    name: str, value: Any, kind: ValueType | None, readable: Callable[[Any], Array] = np.asarray
) -> dict[str, Array]:
    """The tensors that a value holds, by name; of what no type is declared, by what it is.

    ``value`` is an array, a list, a dictionary, or None for an optional without a value. Empty where nothing is known.
    """
    return dict(_flattened(name, value, kind, readable))


def all_flattened(
    kinds: Mapping[str, ValueType | None], values: Iterable[Any], readable: Callable[[Any], Array]
) -> dict[str, Array]:
    """The tensors of all outputs, in their order. Raises CannotCompare if two of them would have one name."""
    found: dict[str, Array] = {}
    for (name, kind), value in zip(kinds.items(), values, strict=True):
        tensors = flattened(name, value, kind, readable)
        for part in tensors:
            if part in found or (part != name and part in kinds):
                raise errors.CannotCompare(f"two outputs are called {part!r}: one is a tensor, one a part of {name!r}")
        found |= tensors
    return found


def _flattened(
    name: str, value: Any, kind: ValueType | None, readable: Callable[[Any], Array]
) -> Iterator[tuple[str, Array]]:
    if isinstance(kind, OptionalType):
        yield f"{name}[?]", np.asarray(value is not None)
        kind = kind.item
    if isinstance(value, list | tuple):
        yield f"{name}[#]", np.asarray(len(value), np.int64)
        item = kind.item if isinstance(kind, SequenceType) else None
        for number, one in enumerate(value):
            yield from _flattened(f"{name}[{number}]", one, item, readable)
    elif isinstance(value, Mapping):
        keys = sorted(value)
        yield f"{name}[keys]", np.asarray(keys, np.str_ if keys and isinstance(keys[0], str) else np.int64)
        yield f"{name}[values]", np.asarray([value[key] for key in keys])
    elif isinstance(value, np.ndarray | np.generic):
        yield name, readable(value)


# Tensors -> values as an engine takes them


def has_value(feed: Feed, name: str, kind: ValueType | None) -> bool:
    """Whether a feed says what an input is."""
    if isinstance(kind, OptionalType):
        return f"{name}[?]" in feed or has_value(feed, name, kind.item)
    if isinstance(kind, SequenceType):
        return f"{name}[#]" in feed or has_value(feed, f"{name}[0]", kind.item)
    if isinstance(kind, MapType):
        return f"{name}[keys]" in feed and f"{name}[values]" in feed
    return name in feed


def parts(feed: Feed, name: str, kind: ValueType) -> dict[str, TensorType]:
    """The tensors of a feed that an input is made of, with the types that they must have.

    Raises CannotCompare for one that is missing, or a number of items that is none.
    """
    if isinstance(kind, TensorType):
        if name not in feed:
            raise errors.CannotCompare(f"there is no value for {name!r}")
        return {name: kind}
    if isinstance(kind, OptionalType):
        return parts(feed, name, kind.item) if _is_present(feed, name, kind) else {}
    if isinstance(kind, MapType):
        return {f"{name}[keys]": TensorType(kind.key, (None,)), f"{name}[values]": _values_of(name, kind)}
    found: dict[str, TensorType] = {}
    for number in range(_length(feed, name, kind)):
        found |= parts(feed, f"{name}[{number}]", kind.item)
    return found


def marks(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """What says how many items there are, and whether there is a value, of an input and all that it holds."""
    if isinstance(kind, OptionalType):
        present = _is_present(feed, name, kind)
        return {f"{name}[?]": np.asarray(present)} | (marks(feed, name, kind.item) if present else {})
    if not isinstance(kind, SequenceType):
        return {}
    length = _length(feed, name, kind)
    found: dict[str, Array] = {f"{name}[#]": np.asarray(length, np.int64)}
    for number in range(length):
        found |= marks(feed, f"{name}[{number}]", kind.item)
    return found


def structured(feed: Feed, name: str, kind: ValueType | None) -> Any:
    """The value of an input as engines take it: an array, a list, a dictionary or None."""
    if isinstance(kind, OptionalType):
        return structured(feed, name, kind.item) if _is_present(feed, name, kind) else None
    if isinstance(kind, SequenceType):
        return [structured(feed, f"{name}[{number}]", kind.item) for number in range(_length(feed, name, kind))]
    if isinstance(kind, MapType):
        return dict(zip(feed[f"{name}[keys]"].tolist(), feed[f"{name}[values]"].tolist(), strict=True))
    return feed[name]


def _is_present(feed: Feed, name: str, kind: OptionalType) -> bool:
    said = feed.get(f"{name}[?]")
    return bool(np.asarray(said).any()) if said is not None else has_value(feed, name, kind.item)


def _length(feed: Feed, name: str, kind: SequenceType) -> int:
    said = feed.get(f"{name}[#]")
    if said is None:
        number = 0
        while has_value(feed, f"{name}[{number}]", kind.item):
            number += 1
        return number
    if np.asarray(said).size != 1 or np.asarray(said).dtype.kind not in "iu" or int(np.asarray(said).item()) < 0:
        raise errors.CannotCompare(f"'{name}[#]' must be the number of items of {name!r}, and not {said!r:.80}")
    return int(np.asarray(said).item())


def _values_of(name: str, kind: MapType) -> TensorType:
    if not isinstance(kind.value, TensorType):
        raise errors.CannotCompare(f"{name!r} is a map of other values than numbers and strings: it cannot be fed")
    return TensorType(kind.value.elem, (None,))


# Made-up values


def drawn(name: str, kind: ValueType) -> dict[str, TensorType]:
    """The tensors to make up for an input: of a sequence two items, of a map two entries; an optional has a value."""
    if isinstance(kind, OptionalType):
        return drawn(name, kind.item)
    if isinstance(kind, SequenceType):
        found: dict[str, TensorType] = {}
        for number in range(_MADE_UP):
            found |= drawn(f"{name}[{number}]", kind.item)
        return found
    if isinstance(kind, MapType):
        return {f"{name}[values]": TensorType(_values_of(name, kind).elem, (_MADE_UP,))}
    return {name: kind}


def completed(feed: Feed, name: str, kind: ValueType) -> dict[str, Array]:
    """What else belongs to tensors that were made up: how many there are, and keys."""
    if isinstance(kind, MapType):
        keys = ["a", "b"] if kind.key == STRING else list(range(_MADE_UP))
        return {f"{name}[keys]": np.asarray(keys)}
    found = marks(feed, name, kind)
    inner = kind.item if isinstance(kind, OptionalType) else kind
    if isinstance(inner, SequenceType):
        for number in range(_MADE_UP):
            found |= completed(feed, f"{name}[{number}]", inner.item)
    return found


def fixed_names(name: str, kind: ValueType | None) -> list[str]:
    """The names of tensors that a value has whatever it holds; those of items begin alike."""
    if isinstance(kind, OptionalType):
        return [f"{name}[?]", *fixed_names(name, kind.item)]
    if isinstance(kind, SequenceType):
        return [f"{name}[#]"]
    return [f"{name}[keys]", f"{name}[values]"] if isinstance(kind, MapType) else [name]
