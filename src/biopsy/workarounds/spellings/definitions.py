"""Operators that ONNX itself defines by others, and calls of local functions: their nodes in place of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biopsy.model import schema, walk
from biopsy.workarounds.spellings.site import Site
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx

_RANDOM = frozenset({"Bernoulli"})
"""Their definitions draw other numbers."""


def _by_definition(at: Site) -> list[str]:
    from onnx import inliner

    at.require(at.node.op_type not in _RANDOM and not any(walk.bodies(at.node)))
    alone = _alone(at)
    try:
        made = inliner.inline_selected_functions(
            alone, [("", at.node.op_type)], exclude=False, inline_schema_functions=True
        )
    except Exception:  # onnx raises whatever it stumbles over; what has no definition here is no error
        at.require(False)
    at.require(bool(made.graph.node) and all(node.op_type != at.node.op_type for node in made.graph.node))
    return _taken(at, made.graph)


def _alone(at: Site) -> onnx.ModelProto:
    """A model of the node alone, its inputs typed."""
    from onnx import helper

    inputs = [
        helper.make_tensor_value_info(name, at.elem(name), _dims(at, name))
        for name in dict.fromkeys(at.node.input)
        if name
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in at.node.output if name]
    node = _with_defaults(at)
    opsets = [helper.make_opsetid(domain, version) for domain, version in at.scope.opsets.items()]
    return helper.make_model(helper.make_graph([node], "alone", inputs, outputs), opset_imports=opsets)


def _with_defaults(at: Site) -> onnx.NodeProto:
    """The node with every attribute given that has a default: onnx does not fill them in where it puts a definition."""
    made = type(at.node).FromString(at.node.SerializeToString())
    found = schema.schema_of(made.op_type, at.opset, "")
    at.require(found is not None)
    assert found is not None
    given = {each.name for each in made.attribute}
    made.attribute.extend(
        each.default_value for name, each in found.attributes.items() if name not in given and each.default_value.name
    )
    return made


def _dims(at: Site, name: str) -> list[int | str | None] | None:
    shape = at.kind(name).shape
    return None if shape is None else list(shape)


def _taken(at: Site, graph: onnx.GraphProto) -> list[str]:
    """Write the nodes of a graph at a site, its own tensors under free names; what stands for the node's outputs."""
    at.require(not graph.initializer)
    names = {name: name for name in at.node.input}
    for node in graph.node:
        at.require(not any(walk.bodies(node)))
        copy = type(node).FromString(node.SerializeToString())
        for position, name in enumerate(copy.input):
            copy.input[position] = names.get(name, name)
        for position, name in enumerate(copy.output):
            if name:
                names[name] = copy.output[position] = at.free(node.op_type)
        copy.name = next(name for name in copy.output if name)
        at.written.append(copy)
    return [names.get(name, "") for name in at.node.output]


SPELLINGS = (
    Spelling(
        name="by-definition",
        operators=(
            "AffineGrid", "Attention", "CastLike", "Celu", "CenterCropPad", "Elu", "Gelu", "GreaterOrEqual",
            "GroupNormalization", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "LessOrEqual",
            "LogSoftmax", "MeanVarianceNormalization", "Mish", "NegativeLogLikelihoodLoss", "PRelu", "ReduceL1",
            "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Relu", "RMSNormalization",
            "RotaryEmbedding", "Selu", "Shrink", "Softmax", "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "Swish",
            "ThresholdedRelu",
        ),
        matches="an operator that ONNX defines by others",
        writes="the nodes of its definition in the standard",
        draft=_by_definition,
        cost="about as many passes over the tensor as the definition has nodes",
        exact=False,
        holds="values that stay finite on the way of the definition; small results may lose digits there",
    ),
)  # fmt: skip
