"""Made-up inputs: random values that depend on the seed, name, type and shape alone, and inputs that are some
roundings off.
"""

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
"""Of floats and of integers, both ends included: what Polygraphy draws from, and safe for indices, masks and ids."""

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

    The values of a tensor depend on seed, iteration, name, type and shape only: not on what other inputs there are, nor
    on the version of numpy. Floats are uniform in their range, integers too; booleans are random whatever the range;
    strings are simple words. ``val_range`` gives a range per name, "" for all that are not named; the values of a type
    that cannot hold the range of "" are those it can hold. ``shapes`` overrides shapes, ``symbols`` are sizes of open
    dimensions (see ``resolve_shapes``). Names that are no inputs are ignored, since a smaller candidate lacks some of
    the original's inputs.

    Raises DoesNotFit if a shape is unknown or contradicted, or if there are no values of an input's type at all;
    UsageError if a range has no values of that type; CannotCompare if the model itself declares a shape that no values
    have.
    """
    resolved = resolve_shapes(inputs, shapes or {}, symbols or {})
    ranges = val_range or {}
    plans = {name: _Draw(name, tensor, resolved[name], ranges) for name, tensor in inputs.items()}
    return [
        {name: plan.values(f"{seed}/{iteration}/{name}") for name, plan in plans.items()}
        for iteration in range(iterations)
    ]


# Shapes


def resolve_shapes(
    inputs: Mapping[str, TensorType],
    shapes: Mapping[str, tuple[int, ...]],
    symbols: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, tuple[int, ...]]:
    """The shape of every input, all dimensions known.

    A dynamic dimension is what ``shapes`` says; else, if it is a symbol whose size follows from another input's
    override, or that ``symbols`` names, that size; else 1. Raises DoesNotFit if an override contradicts the model, or
    if an input's rank is unknown and nobody said it.
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
    """The sizes that the symbols of some inputs get by the shapes that are said of them.

    Raises DoesNotFit if a shape contradicts the model.
    """
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
    """The inputs whose shape is a guess: a dynamic dimension became 1, or the size of its symbol elsewhere.

    Their shapes as ``resolve_shapes`` has them, for a warning that names them. Raises DoesNotFit as it does.
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
    """Shapes in which None is what the model says, else what ``symbols`` does, else 1; and where it is 1 for that."""
    closed, guessed = {}, set()
    pairs = {}
    for name, shape in shapes.items():
        said = inputs[name].shape if name in inputs else None  # nothing where it has another number of dimensions
        dims = said if said is not None and len(said) == len(shape) else (None,) * len(shape)
        pairs[name] = list(zip(shape, dims, strict=True))
    bound = {dim: size for each in pairs.values() for size, dim in each if isinstance(dim, str) and size is not None}
    known = {**symbols, **bound}
    for name, each in pairs.items():
        sizes = [size if size is not None else known.get(dim) if isinstance(dim, str) else dim for size, dim in each]
        closed[name] = tuple(1 if size is None else size for size in sizes)
        if None in sizes:
            guessed.add(name)
    return closed, frozenset(guessed)


def _shape_option(name: str, tensor: TensorType) -> str:
    sizes = (1, 3, 224, 224) if tensor.shape is None else [d if isinstance(d, int) else 1 for d in tensor.shape]
    return option_line("--input-shapes", f"{name}:[{','.join(map(str, sizes))}]")


# Values


class _Draw:
    """How one input is drawn: decided once, for every iteration."""

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
        """The values that belong to a key, in the input's type and shape."""
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
"""Bytes for each element while values are made: random bits, floats of them, and what they become."""


def _require_possible(name: str, shape: tuple[int, ...], *, of_model: bool) -> None:
    """Refuse to make up values for more elements than can be: a model may declare any number of them.

    Raises CannotCompare if it is the model that says so (``of_model``), DoesNotFit if somebody may say otherwise.
    """
    shown = f"[{', '.join(map(str, shape[:8]))}{', ...' if len(shape) > 8 else ''}]"
    try:
        require_possible(np.dtype(np.complex128), shape)
    except errors.DataError as error:
        why = error.message
    else:
        needed = math.prod(shape) * _PEAK
        if needed <= memory():
            return
        why = f"that takes {needed / 1e9:.1f} GB, and there are {memory() / 1e9:.1f} GB of memory"
    refused = f"no values can be made up for input {name!r} of shape {shown}: {why}"
    if of_model:
        raise errors.CannotCompare(refused, next_steps=["--load-inputs FILE"])
    raise errors.DoesNotFit(refused, next_steps=["--input-shapes, where the shape is open", "--load-inputs FILE"])


def _raw(key: str, count: int) -> Array:
    """``count`` random uint64. The bit stream of PCG64 is what numpy promises never to change, unlike Generator."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    bits = np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "little")))
    return np.asarray(bits.random_raw(count), dtype=np.uint64)


# Inputs that are some roundings off: how far an output moves with them is what rounding can do to it.


def roundings_off(feeds: Sequence[Feed], roundings: int = 1, seed: int = 0) -> list[Feed]:
    """The same feeds, every number of a floating type multiplied by 1 plus or minus so many steps of its type.

    What such a change flips, as the index of the greatest of two nearly equal numbers, a rounding may flip.
    Another ``seed`` gives other signs.

    Whole numbers move away from 0, or stay: they may be indices, and a Cast cuts off what they are too great by.
    """
    random = np.random.default_rng((roundings, seed))

    def moved(value: Array) -> Array:
        if value.dtype.name not in {"float16", "bfloat16", "float32", "float64"}:
            return value
        wide = widened(value).astype(np.float64)
        # The distance from 1 to the next number, but that of float32 at most: what is wider is told by it.
        step = roundings * max(float(number_info(value.dtype).eps), 2.0**-23)
        with np.errstate(invalid="ignore", over="ignore"):
            signs = random.choice((-1.0, 1.0), wide.shape)
            signs = np.where(wide == np.rint(wide), np.maximum(signs, 0), signs)
            return (wide * (1 + step * signs)).astype(value.dtype)

    return [{name: moved(value) for name, value in feed.items()} for feed in feeds]


def differ(feeds: Sequence[Feed], others: Sequence[Feed]) -> bool:
    """Whether two lists of feeds, which have the same names and shapes, differ in any value."""
    return any(
        not np.array_equal(widened(value), widened(other[name]))
        for feed, other in zip(feeds, others, strict=True)
        for name, value in feed.items()
    )
