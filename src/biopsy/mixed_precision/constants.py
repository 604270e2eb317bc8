"""Weights in other formats: converted once, and what conversion does to them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy.mixed_precision.formats import E4M3FN, E5M2, FLOAT, FORMATS, FP16, Format
from biopsy.model.external import Span, chunks, is_external, raw_values, span_of
from biopsy.model.tensor_type import DTYPE_OF_ELEM

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import onnx

_MOST_LOOKED_AT = 1024
"""Elements of a weight that is looked at to see whether a format holds it exactly: masks, scales, constants."""


class Weights:
    """The weights of a model in ``folder``: what is worked out about them once and asked for in every candidate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._exact: dict[bytes, frozenset[Format]] = {}
        self._converted: dict[tuple[str, int, str], onnx.TensorProto] = {}

    def exact(self, weight: onnx.TensorProto) -> frozenset[Format]:
        """The formats that hold all values of a small weight; none of a large one."""
        if math.prod(weight.dims) > _MOST_LOOKED_AT or is_external(weight):
            return frozenset()
        key = weight.SerializeToString()
        if key not in self._exact:
            values = next(values_of(weight, self._folder))
            self._exact[key] = frozenset(found for found in FORMATS if _holds(found, values))
        return self._exact[key]

    def converted(self, graph: onnx.GraphProto, name: str, elem: int, new_name: str) -> onnx.TensorProto | None:
        """An initializer in another type; None if its values stand elsewhere and are better cast there."""
        key = (name, elem, new_name)
        if key not in self._converted:
            weight = next(weight for weight in graph.initializer if weight.name == name)
            if is_external(weight):
                return None
            self._converted[key] = _in_type(weight, next(values_of(weight, self._folder)), elem, new_name)
        return self._converted[key]


def values_of(weight: onnx.TensorProto, folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    """The values of a weight in float32 or its own type, flat; those in other files a few megabytes at a time."""
    import numpy as np

    dtype = _dtype(weight.data_type)
    if not is_external(weight):
        yield np.frombuffer(raw_values(weight), dtype)
        return
    span: Span = span_of(weight, folder)
    for chunk in chunks(weight.name, span):
        yield np.frombuffer(chunk, dtype)


def rounded(values: np.ndarray[Any, Any], found: Format) -> np.ndarray[Any, Any]:
    """Values as a format holds them, in float32. What is too large is infinite, or the largest number in fp8."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float32)
        if found.elem in (E4M3FN, E5M2):
            finite = np.isfinite(wide)
            wide = np.where(finite, np.clip(wide, -found.largest, found.largest), wide)
        return wide.astype(_dtype(found.elem)).astype(np.float32)


def _holds(found: Format, values: np.ndarray[Any, Any]) -> bool:
    import numpy as np

    return bool(np.array_equal(rounded(values, found), values.astype(np.float32), equal_nan=True))


def _in_type(weight: onnx.TensorProto, values: np.ndarray[Any, Any], elem: int, name: str) -> onnx.TensorProto:
    import numpy as np

    made = type(weight)(name=name, data_type=elem, dims=weight.dims)
    with np.errstate(over="ignore", invalid="ignore"):
        made.raw_data = values.astype(np.float32).astype(_dtype(elem)).tobytes()
    return made


def _dtype(elem: int) -> np.dtype[Any]:
    import numpy as np

    if elem == FLOAT:
        return np.dtype("<f4")
    if elem == FP16.elem:
        return np.dtype("<f2")
    from biopsy.tensors.dtypes import dtype_named

    return dtype_named(DTYPE_OF_ELEM[elem])


@dataclass(frozen=True)
class RangeLoss:
    """What a format does to a weight: how many of its ``count`` values become infinite (or the largest), or zero."""

    name: str
    count: int
    saturated: int
    vanished: int

    def told(self) -> dict[str, object]:
        """The same for JSON."""
        return asdict(self)


def range_loss_of(weight: onnx.TensorProto, folder: Path, found: Format) -> RangeLoss | None:
    """What a format does to a weight, None if nothing. Read piece by piece where the values stand elsewhere."""
    import numpy as np

    count = saturated = vanished = 0
    for values in values_of(weight, folder):
        size = np.abs(values.astype(np.float32))
        count += size.size
        saturated += int(np.count_nonzero(np.isfinite(size) & (size > np.float64(_most_kept(found)))))
        vanished += int(np.count_nonzero((size > 0) & (size <= found.smallest / 2)))
    return RangeLoss(weight.name, count, saturated, vanished) if saturated or vanished else None


def _most_kept(found: Format) -> float:
    """What is above rounds beyond the largest number: half a step above it, and there too if the largest is odd.

    It is no float32, so it must not be compared as one.
    """
    step = 2.0 ** math.floor(math.log2(found.largest)) * 2 * found.rounding
    tie = found.largest + step / 2
    return tie if found.largest / step % 2 == 0 else math.nextafter(tie, 0)
