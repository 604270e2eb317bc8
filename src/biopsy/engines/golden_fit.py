"""Whether golden values are of the type and shape that a model computes: others are of another model, or misnamed.

They may be wider floats than the model's, which is how somebody records who wants them exact. Dimensions that a model
leaves open are as large as in the inputs that stand beside the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from biopsy.model import value_info
from biopsy.model.infer import infer_value_infos
from biopsy.model.slice import without_weights
from biopsy.model.tensor_type import ELEM_OF_DTYPE, FLOATS, Shape, TensorType
from biopsy.tensors.results import Feed, TensorForm, form_of

if TYPE_CHECKING:
    from biopsy.model.index import ModelIndex

_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
"""Of floats that may be wider than those that the model computes; what is narrower has 8 bits or fewer."""


class GoldenFit:
    """Holds golden values of ``samples`` against the types of a model, as it declares them or as inference tells."""

    def __init__(self, index: ModelIndex, samples: Sequence[Feed]) -> None:
        self._samples = samples
        self._types: dict[str, TensorType] = {}
        infos = infer_value_infos(without_weights(index))
        for tensor in (*index.producer, *index.fed_inputs()):
            name = index.names[tensor]
            declared = index.value_type(tensor)
            inferred = value_info.tensor_type(infos[name]) if name in infos else None
            kind = declared if isinstance(declared, TensorType) and declared.shape is not None else inferred or declared
            if isinstance(kind, TensorType):
                self._types[name] = kind
        self._sizes = [self._symbols(index, sample) for sample in samples]

    def misfit(self, name: str) -> str | None:
        """What a tensor is in the first sample in which it does not fit, and in the model; None if it fits."""
        kind = self._types.get(name)
        for number, (sample, sizes) in enumerate(zip(self._samples, self._sizes, strict=True)):
            form = form_of(sample, name)
            if kind is not None and not (_fits_type(form, kind) and _fits_shape(form.shape, kind.shape, sizes)):
                which = f"in sample {number} " if len(self._samples) > 1 else ""
                return f"{which}it is {_form_text(form)}, and the model computes {_bound(kind, sizes)}"
        return None

    def _symbols(self, index: ModelIndex, sample: Feed) -> Mapping[str, int]:
        """The sizes of open dimensions by their names, from the inputs that a sample holds."""
        found: dict[str, int] = {}
        for tensor in index.fed_inputs():
            name, kind = index.names[tensor], self._types.get(index.names[tensor])
            if kind is not None and kind.shape is not None and name in sample:
                shape = form_of(sample, name).shape
                if len(shape) == len(kind.shape):
                    pairs = zip(kind.shape, shape, strict=True)
                    found.update((dim, size) for dim, size in pairs if isinstance(dim, str))
        return found


def _fits_type(form: TensorForm, kind: TensorType) -> bool:
    given = ELEM_OF_DTYPE.get(str(form.dtype))
    if not kind.elem or given is None or given == kind.elem:
        return True
    return {given, kind.elem} <= FLOATS and _BITS.get(str(form.dtype), 8) > _BITS.get(kind.dtype, 8)


def _fits_shape(shape: tuple[int, ...], wanted: Shape | None, sizes: Mapping[str, int]) -> bool:
    if wanted is None:
        return True
    expected = [sizes.get(dim) if isinstance(dim, str) else dim for dim in wanted]
    return len(shape) == len(expected) and all(
        one is None or one == size for one, size in zip(expected, shape, strict=True)
    )


def _bound(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """The type with the sizes that are known."""
    shape = kind.shape
    known = None if shape is None else tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
    return TensorType(kind.elem, known)


def _form_text(form: TensorForm) -> str:
    return f"{form.dtype}[{','.join(map(str, form.shape))}]"
