"""Generates random inputs, which depend only on seed, name, type and shape, and changes inputs by some roundings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from biopsy import errors
from biopsy.model.tensor_type import BOOL, DTYPE_OF_ELEM, FLOATS, INTEGERS, STRING, TensorType
from biopsy.processes.own_process import memory
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import dtype_named, number_info, require_possible, widened
from biopsy.text import option_line

Range: TypeAlias = tuple[float, float]

DEFAULT_RANGE: Range = (0.0, 1.0)
"""The range of floats and integers, with both ends: Polygraphy's, and safe for indices, masks and ids."""

WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")


def generate_feeds(
    inputs: Mapping[str, TensorType],
    *,
    iterations: int = 1,
    seed: int = 1,
    val_range: Mapping[str, Range] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    symbols: Mapping[str, int] | None = None,
) -> list[dict[str, Array]]:
    """Random inputs: one dictionary per iteration, tensor name -> array, in the order of ``inputs``.

    The values of a tensor depend only on seed, iteration, name, type and shape: not on other inputs or the version of
    NumPy. Floats and integers are uniform in their range, booleans are random, strings are simple words. ``val_range``
    has a range per name, "" for all others, which is cut to the values that a type can hold. ``shapes`` overrides
    shapes, ``symbols`` has sizes of open dimensions (see ``resolve_shapes``). Unknown names are ignored, since a
    reduced model may lack inputs of the original.

    Raises DoesNotFit if a shape is unknown or contradicts the model, or if no values of an input's type can be
    generated; UsageError if a range does not fit the type; CannotCompare if the model declares an impossible shape.
    """
    resolved = resolve_shapes(inputs, shapes or {}, symbols or {})
    ranges = val_range or {}
    plans = {name: _Draw(name, tensor, resolved[name], ranges) for name, tensor in inputs.items()}
    return [
        {name: plan.values(f"{seed}/{iteration}/{name}") for name, plan in plans.items()}
        for iteration in range(iterations)
    ]


def resolve_shapes(
    inputs: Mapping[str, TensorType],
    shapes: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, tuple[int, ...]]:
    """The shape of every input, with all dimensions known.

    An open dimension has the size that ``shapes`` has for it; else the size that its symbol has in another override or
    in ``symbols``; else 1. Raises DoesNotFit if an override contradicts the model, or if an input's rank is unknown.
    """
    sizes: dict[object, int] = dict(symbols.items())
    sizes.update(symbols_bound(inputs, shapes))
    resolved = {}
    for name, tensor in inputs.items():
        if name not in shapes and tensor.shape is None:
            raise errors.DoesNotFit(
                f"the model does not say how many dimensions input {name!r} has",
                next_steps=[_shape_option(name, tensor)],
            )
        open_shape = shapes.get(name, tensor.shape or ())
        resolved[name] = tuple(
            1 if dim is None else sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in open_shape
        )
    return resolved


def symbols_bound(inputs: Mapping[str, TensorType], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of the inputs' symbols that follow from ``shapes``. Raises DoesNotFit if one contradicts the model."""
    symbols: dict[str, int] = {}
    for name, tensor in inputs.items():
        if name in shapes:
            if not tensor.fits(shapes[name]):
                problem = f"the shape {list(shapes[name])} given for input {name!r} does not fit the model"
                raise errors.DoesNotFit(f"{problem}, where it is {tensor}", next_steps=[_shape_option(name, tensor)])
            for dim, size in zip(tensor.shape or (), shapes[name], strict=False):
                if isinstance(dim, str):
                    symbols.setdefault(dim, size)
    return symbols


def defaulted_shapes(
    inputs: Mapping[str, TensorType],
    shapes: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, tuple[int, ...]]:
    """The shapes of ``resolve_shapes`` that are guesses, for a warning: an open dimension became 1, or the size of its
    symbol elsewhere. Raises DoesNotFit as ``resolve_shapes``.
    """
    resolved = resolve_shapes(inputs, shapes, symbols)
    return {
        name: resolved[name]
        for name, tensor in inputs.items()
        if name not in shapes and any(not isinstance(dim, int) and dim not in symbols for dim in tensor.shape or ())
    }


def closed_shapes(
    inputs: Mapping[str, TensorType],
    shapes: Mapping[str, tuple[int | None, ...]],
    symbols: Mapping[str, int] = MappingProxyType({}),
) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Shapes with the model's size, else the size in ``symbols``, else 1 for None; and the names that have such a 1."""
    closed, guessed = {}, set()
    pairs = {}
    for name, shape in shapes.items():
        declared = inputs[name].shape if name in inputs else None  # useless if it has another number of dimensions
        dims = declared if declared is not None and len(declared) == len(shape) else (None,) * len(shape)
        pairs[name] = list(zip(shape, dims, strict=True))
    bound = {dim: size for each in pairs.values() for size, dim in each if isinstance(dim, str) and size is not None}
    size_of = {**symbols, **bound}
    for name, each in pairs.items():
        sizes = [size if size is not None else size_of.get(dim) if isinstance(dim, str) else dim for size, dim in each]
        closed[name] = tuple(1 if size is None else size for size in sizes)
        if None in sizes:
            guessed.add(name)
    return closed, frozenset(guessed)


def _shape_option(name: str, tensor: TensorType) -> str:
    sizes = (1, 3, 224, 224) if tensor.shape is None else [d if isinstance(d, int) else 1 for d in tensor.shape]
    return option_line("--input-shapes", f"{name}:[{','.join(map(str, sizes))}]")


class _Draw:
    """Draws the values of one input for every iteration."""

    def __init__(self, name: str, kind: TensorType, shape: tuple[int, ...], ranges: Mapping[str, Range]) -> None:
        elem = kind.elem
        self._shape = shape
        self._elem = elem
        if elem not in DTYPE_OF_ELEM:
            raise errors.DoesNotFit(
                f"no values can be made up for input {name!r}: its element type ({elem}) is unknown",
                next_steps=["give them with --load-inputs FILE or --data-loader-script FILE.py"],
            )
        self._dtype = np.dtype(np.str_) if elem == STRING else dtype_named(DTYPE_OF_ELEM[elem])
        _require_possible(name, shape, of_model=kind.is_static)
        low, high = ranges.get(name, ranges.get("", DEFAULT_RANGE))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise errors.UsageError(f"the range [{low:g},{high:g}] for input {name!r} is empty or has no end")
        if elem in {BOOL, STRING}:
            self._low, self._high = low, high
        else:
            info, number = number_info(self._dtype), int if elem in INTEGERS else float
            least, most = number(info.min), number(info.max)
            if elem in INTEGERS:
                low, high = math.trunc(low), math.trunc(high)
            if name in ranges and not (least <= low and high <= most):
                raise errors.UsageError(
                    f"the range [{low:g},{high:g}] for input {name!r} does not fit its type {self._dtype.name}, "
                    f"which holds {least:g} to {most:g}",
                    next_steps=[option_line("--val-range", f"{name}:[{max(low, least):g},{min(high, most):g}]")],
                )
            self._low, self._high = min(max(low, least), most), min(max(high, least), most)

    def values(self, key: str) -> Array:
        """The values for a key, in the input's type and shape."""
        count = math.prod(self._shape)
        if self._elem == STRING:
            return np.asarray(WORDS)[_raw(key, count) % np.uint64(len(WORDS))].reshape(self._shape)
        if self._elem == BOOL:
            return (_raw(key, count) >> np.uint64(63)).astype(np.bool_).reshape(self._shape)
        if self._elem in INTEGERS:
            raw, low = _raw(key, count), int(self._low)
            span = int(self._high) - low + 1
            offsets = raw if span >= 1 << 64 else raw % np.uint64(span)
            # In two's complement, so that the whole range of int64 and of uint64 works.
            values = offsets + np.uint64(low % (1 << 64))
            return (values if low >= 0 else values.view(np.int64)).astype(self._dtype).reshape(self._shape)
        if self._elem in FLOATS:
            return self._floats(_raw(key, count)).reshape(self._shape)
        pairs = self._floats(_raw(key, 2 * count)).reshape(2, *self._shape)
        return np.asarray(pairs[0] + 1j * pairs[1]).astype(self._dtype)

    def _floats(self, raw: Array) -> Array:
        unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        values = self._low * (1 - unit) + self._high * unit
        return values if self._dtype.kind == "c" else values.astype(self._dtype)


_PEAK = 32
"""Bytes per element while values are generated: random bits, floats, and the result."""


def _require_possible(name: str, shape: tuple[int, ...], *, of_model: bool) -> None:
    """Raise if values of this shape do not fit into memory: a model may declare any shape.

    Raises CannotCompare if the model fixes the shape (``of_model``), DoesNotFit if the user can choose another.
    """
    shown = f"[{', '.join(map(str, shape[:8]))}{', ...' if len(shape) > 8 else ''}]"
    try:
        require_possible(np.dtype(np.complex128), shape)
    except errors.DataError as error:
        reason = error.message
    else:
        needed = math.prod(shape) * _PEAK
        if needed <= memory():
            return
        reason = f"that takes {needed / 1e9:.1f} GB, and there are {memory() / 1e9:.1f} GB of memory"
    message = f"no values can be made up for input {name!r} of shape {shown}: {reason}"
    if of_model:
        raise errors.CannotCompare(message, next_steps=["--load-inputs FILE"])
    raise errors.DoesNotFit(message, next_steps=["--input-shapes, where the shape is open", "--load-inputs FILE"])


def _raw(key: str, count: int) -> Array:
    """``count`` random uint64, from PCG64: NumPy promises never to change its bit stream, unlike Generator's values."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    bits = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
    return np.asarray(bits.random_raw(count), dtype=np.uint64)


def roundings_off(feeds: Sequence[Feed], roundings: int = 1, seed: int = 0) -> list[Feed]:
    """Feeds with every floating-point number multiplied by 1 plus or minus ``roundings`` steps of its type.

    Rounding may flip whatever this change flips, such as the index of the greater of two nearly equal numbers. Another
    ``seed`` gives other signs.

    Whole numbers move away from 0 or stay: they may be indices, which a Cast rounds towards 0.
    """
    random = np.random.default_rng((roundings, seed))

    def moved(value: Array) -> Array:
        if value.dtype.name not in {"float16", "bfloat16", "float32", "float64"}:
            return value
        wide = widened(value).astype(np.float64)
        # The distance from 1 to the next number; for float64 that of float32, with whose rounding it is compared.
        step = roundings * max(float(number_info(value.dtype).eps), 2.0**-23)
        with np.errstate(invalid="ignore", over="ignore"):
            signs = random.choice((-1.0, 1.0), wide.shape)
            signs = np.where(wide == np.rint(wide), np.maximum(signs, 0), signs)
            return (wide * (1 + step * signs)).astype(value.dtype)

    return [{name: moved(value) for name, value in feed.items()} for feed in feeds]


def differ(feeds: Sequence[Feed], others: Sequence[Feed]) -> bool:
    """Whether two lists of feeds with the same names and shapes differ in any value."""
    return any(
        not np.array_equal(widened(value), widened(other[name]))
        for feed, other in zip(feeds, others, strict=True)
        for name, value in feed.items()
    )
