"""Values of another element type than the model's: cast where that only rounds, refused where it gives other values.

A float may be rounded to fewer bits, as ``np.random.rand`` for a float32 input needs. Everything else must keep its
value: no fraction is cut off, no integer becomes another one, and no number leaves the range of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from biopsy import errors
from biopsy.model.tensor_type import DTYPE_OF_ELEM, STRING, TensorType, ValueType
from biopsy.quantities import count
from biopsy.tensors.dtypes import dtype_named, is_extended, widened
from biopsy.tensors.lazy_tensors import ChosenTensors
from biopsy.tensors.results import Array, Feed, TensorForm, form_of


class Cast(NamedTuple):
    """That the values of a tensor were given in one element type and are fed in another."""

    name: str
    given: str
    fed: str

    def __str__(self) -> str:
        return f"{self.name!r} from {self.given} to {self.fed}"


def cast(name: str, array: Array, target: np.dtype[Any]) -> Array:
    """The values as ``target``: floats rounded to the nearest, all others unchanged.

    Raises CannotCompare, naming the input and a value, if one would be lost: a fraction in an integer or boolean, a
    number that ``target`` does not hold, an integer that it only holds rounded.
    """
    if array.dtype.kind in "OUSTM":
        raise errors.CannotCompare(f"input {name!r} is {target} in the model, but the value given is {array.dtype}")
    with np.errstate(all="ignore"):
        # Widened, which loses nothing: ml_dtypes cannot cast int4 to uint4.
        values = widened(array) if is_extended(array.dtype) else array
        there = values.real.astype(target) if _drops_imaginary(array, target) else values.astype(target)
        lost = _beyond(array, there) if _may_round(array.dtype, target) else _changed(array, there)
    if lost.any():
        raise _refused(name, array, target, lost)
    return there


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fc" or (is_extended(dtype) and "float" in dtype.name)


def _drops_imaginary(array: Array, target: np.dtype[Any]) -> bool:
    return array.dtype.kind == "c" and target.kind != "c"


def _may_round(given: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether both are floats. A complex number does not become a real one by rounding."""
    return _is_float(given) and _is_float(target) and not (given.kind == "c" and target.kind != "c")


def _changed(array: Array, there: Array) -> Any:
    from biopsy.comparison.metrics import differing

    return differing(there, array)


def _beyond(array: Array, there: Array) -> Any:
    """Where a float is not what it was but for rounding: NaN, an infinity or a finite number that is none any more."""
    wide = np.complex128 if array.dtype.kind == "c" or there.dtype.kind == "c" else np.float64
    before, after = array.astype(wide), there.astype(wide)
    lost = np.isnan(before) != np.isnan(after)
    lost |= np.isinf(before) != np.isinf(after)
    lost |= np.isinf(before) & np.isinf(after) & (before != after)
    # A type without infinities may give its largest value for all that is above.
    return lost | (np.isfinite(before) & (np.abs(before) > _ROUNDED_DOWN * _largest(there.dtype)))


_ROUNDED_DOWN = 1.25
"""How far above the largest value of a type a number may be that is rounded to it: half a step of float4_e2m1fn."""


def _largest(dtype: np.dtype[Any]) -> float:
    if not is_extended(dtype):
        return float(np.finfo(dtype).max)
    import ml_dtypes

    untyped: Any = ml_dtypes
    return float(untyped.finfo(dtype).max)


def _why(given: np.dtype[Any], target: np.dtype[Any]) -> str:
    if target.kind == "b":
        return "are not all 0 or 1"
    if _is_float(target):
        return f"are not all {'in its range' if _may_round(given, target) else 'numbers that it holds exactly'}"
    return "are not all whole numbers in its range"


def _refused(name: str, array: Array, target: np.dtype[Any], lost: Any) -> errors.CannotCompare:
    place = tuple(int(at) for at in np.argwhere(lost)[0])
    why = _why(array.dtype, target)
    where = f" at {list(place)}" if place else ""
    value = array[place]
    return errors.CannotCompare(
        f"input {name!r} is {target} in the model, and the {array.dtype} values given {why}: {value}{where} "
        f"({count(int(np.count_nonzero(lost)), 'such value')})",
        next_steps=[f"values.astype({str(target)!r}), where {name!r} is made, if that is what you mean"],
    )


def casts(feeds: Iterable[Feed], fed: Iterable[Feed]) -> tuple[Cast, ...]:
    """What was cast on the way from ``feeds`` to ``fed``, each input once."""
    found: dict[Cast, None] = {}
    for before, after in zip(feeds, fed, strict=True):
        for name, value in after.items():
            if name in before and (change := _difference(name, form_of(before, name), value.dtype)) is not None:
                found[change] = None
    return tuple(found)


def _difference(name: str, given: TensorForm, wanted: np.dtype[Any]) -> Cast | None:
    same = given.dtype.name == wanted.name or given.dtype.kind in "OUST"
    return None if same else Cast(name, given.dtype.name, wanted.name)


def casts_told(changes: Sequence[Cast]) -> str:
    """One line for a person."""
    return f"cast to the {'type' if len(changes) == 1 else 'types'} of the model: input {', '.join(map(str, changes))}"


def in_declared_types(
    feeds: Sequence[Feed], declared: Callable[[str], ValueType | None]
) -> tuple[Sequence[Feed], tuple[Cast, ...]]:
    """Feeds with every tensor in its ``declared`` type, if there is one, and what was cast for that.

    Nothing is read that needs no cast. Raises CannotCompare as ``cast`` does.
    """
    found: dict[Cast, None] = {}
    return [_declared(feed, declared, found) for feed in feeds], tuple(found)


def _declared(feed: Feed, declared: Callable[[str], ValueType | None], found: dict[Cast, None]) -> Feed:
    other: dict[str, Array] = {}
    for name in feed:
        kind = declared(name)
        if isinstance(kind, TensorType) and kind.elem in DTYPE_OF_ELEM and kind.elem != STRING:
            wanted = dtype_named(kind.dtype)
            if (change := _difference(name, form_of(feed, name), wanted)) is not None:
                other[name] = cast(name, feed[name], wanted)
                found[change] = None
    return ChosenTensors.merged((feed, other)) if other else feed
