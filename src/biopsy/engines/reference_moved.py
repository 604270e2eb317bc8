"""Runs in float64 that show what rounding may do: only what a narrower type cannot hold exactly is moved.

This is Monte Carlo arithmetic with random rounding (Parker 1997): an exact result stays, since every correct engine
gives it. So a tie between two integers that an input holds is no matter of rounding, and one that a product has come
near to is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from biopsy.tensors.results import Array

SEEDS = ("0", "1", "2", "3")
"""Moved runs; the second moves everything against the first, and the fourth against the third."""

_ROUNDINGS = 10
"""How far a value is moved, in roundings of its type."""

_CONTAINERS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of which the nodes inside are moved."""

_DECIDING = frozenset({
    "ArgMax", "ArgMin", "BitCast", "Cast", "CastLike", "Constant", "Equal", "Greater", "GreaterOrEqual", "IsInf",
    "IsNaN", "Less", "LessOrEqual", "MaxPool", "NonZero", "OneHot", "Optional", "Range", "SequenceConstruct",
    "SequenceInsert", "Shape", "Size", "SplitToSequence", "TopK", "Unique",
})  # fmt: skip
"""Operators that compare, count, cast or collect, without any arithmetic: equal inputs give equal results."""

_LOCATING = frozenset({"GridSample", "MaxRoiPool", "Resize", "RoiAlign", "Upsample"})
"""Operators that compute which elements they read: a result may be exact although the place was rounded."""

_SIZES = frozenset({"Resize", "Upsample"})
"""Operators whose further inputs decide the shape of the result."""


_DIGITS: Mapping[str, int] = {"float32": 24, "float16": 11, "tf32": 11, "bfloat16": 8}


def digits_of(dtypes: Iterable[str]) -> int:
    """The binary digits of the narrowest of some types, at most those of float32."""
    return min((_DIGITS[dtype] for dtype in dtypes if dtype in _DIGITS), default=_DIGITS["float32"])


@dataclass(frozen=True)
class Movement:
    """Moves what cannot be represented with ``digits`` binary digits; ``seed`` is the number of one of ``SEEDS``."""

    digits: int
    seed: int

    def around(self, node: Any, op_type: str, run: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """A node's ``run`` that moves what it reads by roundings, for those of its results that are not exact."""
        if op_type in _CONTAINERS | _DECIDING or hasattr(node, "impl_"):  # that of a function
            return run
        proto = getattr(node, "onnx_node", None)
        name = next(filter(None, proto.output), "") if proto is not None else ""
        random = np.random.default_rng((self.seed // 2, zlib.crc32(name.encode())))
        sign = -1.0 if self.seed % 2 else 1.0

        def moved(value: Array) -> Array:
            with np.errstate(invalid="ignore"):
                steps = sign * random.choice((-1.0, 1.0), value.shape) * _ROUNDINGS * 2.0 ** (1 - self.digits)
                return self._represented(value * (1 + steps))

        def run_moved(*values: Any, **context: Any) -> tuple[Any, ...]:
            results = run(*values, **context)
            places = [place for place, value in enumerate(values) if _is_double(value)]
            places = [place for place in places if place == 0 or op_type not in _SIZES]
            of_numbers = all(map(_is_double, results))
            divides_exactly = op_type == "QuantizeLinear" and np.all(np.abs(np.frexp(values[1])[0]) == 0.5)
            if not places or divides_exactly:  # by powers of two
                return results

            def with_inputs(change: Callable[[Array], Array]) -> tuple[Any, ...]:
                inputs = (change(value) if place in places else value for place, value in enumerate(values))
                return run(*inputs, **context)

            others = with_inputs(moved)
            if not of_numbers or op_type in _LOCATING:
                return others
            exact = [self._represented(result) == result for result in results]
            if any(map(np.any, exact)):
                narrow = with_inputs(lambda value: np.asarray(value.astype(np.float32)))
                exact = [held & (result == other) for held, result, other in zip(exact, results, narrow, strict=True)]
            exact = [held | ~np.isfinite(result) for held, result in zip(exact, results, strict=True)]
            return tuple(
                result if result.shape != other.shape else np.where(held, result, self._represented(other))
                for held, result, other in zip(exact, results, others, strict=True)
            )

        return run_moved

    def _represented(self, value: Array) -> Array:
        """The nearest values that have so many binary digits, with any exponent."""
        significand, exponent = np.frexp(value)
        return np.asarray(np.ldexp(np.rint(significand * 2.0**self.digits) / 2.0**self.digits, exponent))


def _is_double(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype == np.float64
