"""Whether the nodes of a spelling are valid where they are to stand: their types, and the shapes of what they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.model import onnx_native, value_info
from biopsy.model.tensor_type import TensorType
from biopsy.workarounds.spellings.site import Site

if TYPE_CHECKING:
    import onnx


def is_valid(site: Site, results: Sequence[str]) -> bool:
    """Whether onnx accepts what was written, and infers no other types for the results than the node gives.

    Where the types of tensors around the node are not known, what was written is believed.
    """
    model = _alone(site, results)
    if model is None:
        return True
    told = onnx_native.inferred(model, strict=True)
    if told.objection is not None:
        return False
    kinds = {info.name: value_info.tensor_type(info.SerializeToString()) for info in told.model.graph.output}
    pairs = zip(site.node.output, results, strict=False)
    return all(_agree(site.scope.type_of(wanted), kinds.get(found)) for wanted, found in pairs if wanted)


def _alone(site: Site, results: Sequence[str]) -> onnx.ModelProto | None:
    """A model of what was written; None where the type of something that it reads is not known."""
    from onnx import helper

    own = {name for node in site.written for name in node.output}
    read = dict.fromkeys(name for node in site.written for name in node.input if name and name not in own)
    kinds = {name: site.scope.type_of(name) for name in read}
    inputs = []
    for name, kind in kinds.items():
        if kind is None:
            return None
        value = site.scope.own_constants.get(name)
        if value is None:
            shape = None if kind.shape is None else list(kind.shape)
            inputs.append(helper.make_tensor_value_info(name, kind.elem, shape))
    weights = [_named(site.scope.own_constants[name], name) for name in read if name in site.scope.own_constants]
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(results) if name in own]
    opsets = [helper.make_opsetid(domain, version) for domain, version in site.scope.opsets.items()]
    graph = helper.make_graph(site.written, "alone", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=opsets)


def _named(weight: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = type(weight).FromString(weight.SerializeToString())
    copy.name = name
    return copy


def _agree(one: TensorType | None, other: TensorType | None) -> bool:
    """Whether two types may be those of one tensor, as far as they are known."""
    if one is None or other is None:
        return True
    if one.elem != other.elem:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = zip(one.shape, other.shape, strict=False)
    known = ((a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return len(one.shape) == len(other.shape) and all(a == b for a, b in known)
