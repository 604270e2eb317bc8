"""Other values in place of those of a tensor, and conditions on values that agree with every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from biopsy.tensors.results import Array

ValueChange: TypeAlias = Callable[[Array], Array]

_LARGER = 4
"""How many times as large values are made. More would make errors of rounding larger than a tolerance."""


def value_changes(values: Array) -> Iterator[tuple[str, str, ValueChange]]:
    """Changes of values: yields the kind, the new values in words, and the function that computes them.

    They differ in sign, size, range, order and single elements, so that their answers tell simple conditions apart.
    """
    if values.dtype.kind == "f" and not np.isfinite(values).any():
        return
    if values.dtype.kind == "b":
        yield "random", "random", partial(random_like, seed=1)
        yield "all true", "all true", partial(np.full_like, fill_value=1)
        yield "all false", "all false", partial(np.full_like, fill_value=0)
    elif values.size == 1:
        yield from _changes_of_one(values)
    elif values.dtype.kind == "f":
        yield from _changes_of_floats(values)
    else:
        yield "random", "random in the same range", partial(random_like, seed=1)
        yield "zeros", "zeros", partial(np.full_like, fill_value=0)
        yield "in another order", "in reverse order", _reversed
        yield "constant", "all the same", partial(np.full_like, fill_value=values.max().item())
        yield "random", "other random ones", partial(random_like, seed=2)
        if values.dtype.kind == "i" and values.min() > np.iinfo(values.dtype).min:
            yield "negated", "negated", np.negative


def _changes_of_one(values: Array) -> Iterator[tuple[str, str, ValueChange]]:
    value = values.reshape(-1)[0].item()
    wanted = {
        "zero": 0,
        "halved": value / 2,
        "negated": -value,
        "another": random_like(values, seed=1).reshape(-1)[0].item(),
        "larger": _LARGER * value,
        "a little more": value * 1.002,
        "a little less": value * 0.998,
        "tiny": value / 1024,
    }
    wanted |= {"one": 1} if abs(value) > 1 else {}
    limits = np.finfo(values.dtype) if values.dtype.kind == "f" else np.iinfo(values.dtype)
    least, most = np.array([limits.min, limits.max], values.dtype).tolist()
    for kind, other in wanted.items():
        is_possible = values.dtype.kind == "f" or isinstance(other, int)
        if other != value and is_possible and least <= other <= most:
            yield kind, f"{other:g}", partial(np.full_like, fill_value=other)


def _changes_of_floats(values: Array) -> Iterator[tuple[str, str, ValueChange]]:
    finite = np.where(np.isfinite(values), values, np.zeros_like(values)).astype(np.float64)
    reach = float(np.abs(finite).max()) or 1.0
    largest, smallest = int(finite.argmax()), int(finite.argmin())

    def cast(change: Callable[[Any], Any]) -> ValueChange:
        return lambda given: np.asarray(change(given.astype(np.float64))).astype(given.dtype)

    def only(place: int, given: Any) -> Any:
        changed = np.zeros_like(given)
        changed.flat[place % given.size] = given.flat[place % given.size]
        return changed

    def without(place: int, given: Any) -> Any:
        changed = given.copy()
        changed.flat[place % given.size] = 0
        return changed

    yield "random", "random in the same range", partial(random_like, seed=1)
    yield "zeros", "zeros", partial(np.full_like, fill_value=0)
    yield "negated", "negated", np.negative
    yield "in another order", "in reverse order", _reversed
    yield "constant", "all the same", partial(np.full_like, fill_value=finite.max())
    yield "positive", "made positive", np.abs
    yield "negative", "made negative", cast(lambda given: -np.abs(given))
    yield "tiny", "a thousandth", cast(lambda given: given / 1024)
    if reach * _LARGER < float(np.finfo(values.dtype).max):
        yield "larger", "four times as large", cast(lambda given: given * _LARGER)
        yield "shifted", "shifted up", cast(lambda given: given + reach)
        yield "shifted", "shifted down", cast(lambda given: given - reach)
    yield "random", "random of both signs", partial(random_of_both_signs, seed=2)
    yield "random", "other random ones", partial(random_like, seed=2)
    yield "halved", "halved", cast(lambda given: given / 2)
    yield "tiny", "a thousandth, negated", cast(lambda given: given / -1024)
    yield "one element", "zeros but for the largest", cast(partial(only, largest))
    yield "one element", "zeros but for the smallest", cast(partial(only, smallest))
    yield "one element", "the largest replaced by zero", cast(partial(without, largest))
    yield (
        "far from zero",
        "moved away from zero",
        cast(lambda given: np.where(given < 0, given - reach, given + reach) / 2),
    )
    yield "quarter", "a quarter", cast(lambda given: given / 4)


def _reversed(values: Array) -> Array:
    return values.reshape(-1)[::-1].reshape(values.shape)


def random_like(values: Array, seed: int) -> Array:
    """Random values in the range of those present; if they are all equal, from half the value to the value."""
    random = np.random.default_rng(seed)
    if values.dtype.kind == "b":
        return random.random(values.shape) < 0.5
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.reshape(-1)
    low, high = (finite.min(), finite.max()) if finite.size else (0, 1)
    if values.dtype.kind != "f":
        return random.integers(int(low), int(high), values.shape, values.dtype, endpoint=True)
    if low == high:
        low, high = (float(low) / 2, float(low)) if low else (0.0, 1.0)
    low, high = sorted((float(low) / 2, float(high) / 2))  # their difference may be more than the largest number
    drawn: Any = 2 * random.uniform(low, high, values.shape)
    return drawn.astype(values.dtype)  # type: ignore[no-any-return]


def random_of_both_signs(values: Array, seed: int) -> Array:
    """Random values as large as those present, of both signs; whole numbers stay in their range."""
    if values.dtype.kind != "f" or not np.isfinite(values).any():
        return random_like(values, seed)
    reach = float(np.abs(values[np.isfinite(values)]).max()) or 1.0
    drawn: Any = 2 * np.random.default_rng(seed).uniform(-reach / 2, reach / 2, values.shape)
    return drawn.astype(values.dtype)  # type: ignore[no-any-return]


OTHER_VALUES = 4
"""How many other values there are of a tensor."""


_ENDS: Sequence[Callable[[Array], Any]] = (np.min, np.max)


def other_values(values: Array, number: int, by: float = _LARGER, beyond: float = 0) -> Array:
    """Values of another size and sign; ``number`` says which of ``OTHER_VALUES``.

    Of whole numbers, these are the least, the greatest, and random ones.
    ``by`` is how many times as large they are, and those of one sign are farther from zero by ``beyond``.
    """
    if values.dtype.kind == "b" or not values.size or values.dtype.kind not in "fiu":
        return random_like(values, 3) if values.dtype.kind == "b" and values.size else values
    if values.dtype.kind != "f" and number < len(_ENDS):
        return np.full_like(values, _ENDS[number](values))  # a failure may need one of them at a certain place
    if values.dtype.kind != "f" or not np.isfinite(values).any():
        return random_like(values, number)
    exact = values.astype(np.float64)
    far = np.abs(exact) * (by / _LARGER) + beyond
    changed: Any = (exact * by, far, -far, random_of_both_signs(exact, 3) * (by / _LARGER))[number]
    limit = float(np.finfo(values.dtype).max)
    return np.clip(changed, -limit, limit).astype(values.dtype)  # type: ignore[no-any-return]


_LEAST_SAMPLES = 4
"""Failing samples, and passing ones, that a condition on values must agree with."""

_LEAST_BESIDE_ONE = 8
"""The same, where the other side is a single point, such as zeros."""


def value_condition(failing: Sequence[Array], passing: Sequence[Array]) -> str:
    """The only simple condition that all failing values satisfy and no passing ones do; "" if there is none or several.

    It claims no more than was tried: a threshold is the passing value that is the nearest to a failing one.
    """
    if not failing or not passing:
        return ""
    is_one = all(values.size == 1 for values in (*failing, *passing))
    fails, passes = (
        [{name: measure(values) for name, measure in _MEASURES.items()} for values in side]
        for side in (failing, passing)
    )
    texts = []
    for name, (above, below) in (_OF_ONE if is_one else _OF_SEVERAL).items():
        low, high = ([each[name] for each in side] for side in (fails, passes))
        if not np.isfinite([*low, *high]).all():
            continue
        is_point = len(set(high)) == 1 or len(set(low)) == 1
        least = min(len(failing), len(passing))
        if least < _LEAST_SAMPLES and not (is_point and max(len(failing), len(passing)) >= _LEAST_BESIDE_ONE):
            continue
        if max(high) < min(low):
            texts.append(above(max(high)))
        elif max(low) < min(high):
            texts.append(below(min(high)))
    return texts[0] if len(texts) == 1 else ""


_MEASURES: dict[str, Callable[[Array], float]] = {
    "largest": lambda values: float(values.max()),
    "smallest": lambda values: float(values.min()),
    "farthest": lambda values: float(np.abs(values.astype(np.float64)).max()),
    "nearest": lambda values: float(np.abs(values.astype(np.float64)).min()),
    "spread": lambda values: float(values.max() != values.min()),
}

_OF_SEVERAL: dict[str, tuple[Callable[[float], str], Callable[[float], str]]] = {
    "largest": (lambda limit: f"not all at most {limit:.4g}", lambda limit: f"all below {limit:.4g}"),
    "smallest": (lambda limit: f"all above {limit:.4g}", lambda limit: f"not all at least {limit:.4g}"),
    "farthest": (
        lambda limit: f"not all within {limit:.4g} of zero" if limit else "not all zeros",
        lambda limit: f"all nearer to zero than {limit:.4g}",
    ),
    "nearest": (
        lambda limit: f"all farther from zero than {limit:.4g}" if limit else "all other than zero",
        lambda limit: f"not all at least {limit:.4g} from zero",
    ),
    "spread": (lambda limit: "not all the same", lambda limit: "all the same"),
}
"""The condition where the failing values measure more than a limit, and where they measure less."""

_OF_ONE: dict[str, tuple[Callable[[float], str], Callable[[float], str]]] = {
    "largest": (lambda limit: f"above {limit:.4g}", lambda limit: f"below {limit:.4g}"),
    "farthest": (
        lambda limit: f"farther from zero than {limit:.4g}" if limit else "not 0",
        lambda limit: f"nearer to zero than {limit:.4g}",
    ),
}
