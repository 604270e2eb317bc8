"""Nodes that change no value and that optimizers do not see through, so that they cannot fuse what is around them.

A plain Identity is no such node: ONNX Runtime and OpenVINO remove it before they look for fusions. Which of these
survive is measured on the engines themselves, see tests/workarounds/test_barriers.py: ONNX Runtime 1.32 keeps all of
them, and takes the pair of casts away after its fusions; OpenVINO 2026.4 keeps the Max and the Where on its CPU.
Whether TensorRT keeps them can only be seen on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.workarounds.patch import Patch
from biopsy.workarounds.spellings.respelling import respellings
from biopsy.workarounds.spellings.site import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT64, Site, unmatched
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx

_WIDER = {FLOAT16: FLOAT, BFLOAT16: FLOAT, FLOAT: DOUBLE}
_INT32 = 6


def _behind(at: Site) -> list[str]:
    """The node again; only its first output gets a barrier."""
    at.require(bool(at.node.output[0]) and at.node.op_type not in {"Constant", "Identity"})
    return at.copies(at.node.input)


def _cast_pair(at: Site) -> list[str]:
    elem = at.elem(at.node.output[0])
    first, *others = _behind(at)
    return [at.cast(at.cast(first, _WIDER.get(elem) or unmatched()), elem), *others]


def _max_with_itself(at: Site) -> list[str]:
    elem = at.elem(at.node.output[0])
    at.require(elem in {FLOAT, DOUBLE} or (at.opset >= 12 and elem in {FLOAT16, _INT32, INT64}))
    first, *others = _behind(at)
    return [at.new("Max", first, first), *others]


def _where_never(at: Site) -> list[str]:
    elem = at.elem(at.node.output[0])
    at.require(elem in {FLOAT, DOUBLE, INT64, _INT32})
    first, *others = _behind(at)
    return [at.new("Where", at.new("Less", first, first), first, first), *others]


BARRIERS = (
    Spelling(
        name="cast-pair",
        operators=(),
        matches="a result",
        writes="its result cast to a wider type and back",
        draft=_cast_pair,
        cost="the fusions that it breaks; ONNX Runtime removes the casts after them",
        exact=True,
    ),
    Spelling(
        name="max-with-itself",
        operators=(),
        matches="a result",
        writes="Max(r, r) of its result r, which is r",
        draft=_max_with_itself,
        cost="the fusions that it breaks, and a pass over the tensor",
        exact=True,
        least_opset=8,
    ),
    Spelling(
        name="where-with-itself",
        operators=(),
        matches="a result",
        writes="Where(r < r, r, r) of its result r, which is r",
        draft=_where_never,
        cost="the fusions that it breaks, and two passes over the tensor",
        exact=True,
        least_opset=9,
    ),
)


def barriers(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """One patch for each barrier after the first output of these nodes of the main graph and of those in their bodies.

    Cheap ones first.
    """
    order = [each.name for each in BARRIERS]
    return sorted(respellings(model, nodes, BARRIERS, "barrier"), key=lambda patch: order.index(patch.name))
