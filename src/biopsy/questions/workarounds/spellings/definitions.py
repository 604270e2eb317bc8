"""Operators and calls that stand for other nodes: operators that ONNX defines by others, those of com.microsoft, and
the model's own functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.questions.workarounds.patch import Patch
from biopsy.questions.workarounds.spellings.activations import gelu_by_erf, gelu_by_tanh
from biopsy.questions.workarounds.spellings.normalization import normalized
from biopsy.questions.workarounds.spellings.site import FLOAT, MICROSOFT, Site, Spelling
from biopsy.reduction.passes.inlining import called_functions, inlined
from biopsy.text import printable

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
    node = type(at.node).FromString(at.node.SerializeToString())
    found = walk.schema_of(node.op_type, at.opset, "")
    at.require(found is not None)
    assert found is not None
    given = {each.name for each in node.attribute}
    node.attribute.extend(
        each.default_value for name, each in found.attributes.items() if name not in given and each.default_value.name
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in at.scope.opsets.items()]
    return helper.make_model(helper.make_graph([node], "alone", inputs, outputs), opset_imports=opsets)


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


# Calls of a model's own functions, with the nodes of the functions in their place.


def calls_as_nodes(model: onnx.ModelProto, nodes: Sequence[int]) -> Iterator[Patch]:
    """One patch for each local function that these nodes of the main graph call; it changes all calls of it.

    Functions that call themselves, or would become too many nodes, are left out.
    """
    able = set(called_functions(model))
    places: dict[tuple[str, str], list[int]] = {}
    for place in nodes:
        domain, name, _ = walk.operator(model.graph.node[place])
        if (domain, name) in able:
            places.setdefault((domain, name), []).append(place)
    for function, found in places.items():
        yield _patch(function, found)


def _patch(function: tuple[str, str], places: Sequence[int]) -> Patch:
    return Patch(
        kind="spelling",
        name="call-as-nodes",
        text=f"calls of {printable(function[1])!r} written as the nodes of the function",
        cost="nothing, or a fusion that the engine has for the function",
        exact=True,
        nodes=tuple(places),
        change=lambda model: _inlined(model, function),
    )


def _inlined(model: onnx.ModelProto, function: tuple[str, str]) -> onnx.ModelProto | None:
    if function not in called_functions(model):
        return None
    made = inlined(model, [function])
    return None if any(walk.operator(node)[:2] == function for node in walk.nodes(made)) else made


# Operators of com.microsoft, which ONNX Runtime writes into optimized models, as operators of ONNX.


def _activated(at: Site, x: str, name: str, parameters: Sequence[float]) -> str:
    """The activation that a fused operator names, with its parameters."""
    if not name:
        return x
    at.require(name in {"Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"})
    if name == "LeakyRelu":
        return at.new("LeakyRelu", x, alpha=parameters[0] if parameters else None)
    if name == "HardSigmoid":
        at.require(len(parameters) == 2)
        return at.new("HardSigmoid", x, alpha=parameters[0], beta=parameters[1])
    if name == "Clip":
        at.require(len(parameters) == 2)
        if at.opset < 11:
            return at.new("Clip", x, min=parameters[0], max=parameters[1])
        return at.new("Clip", x, *(at.constant(bound, FLOAT) for bound in parameters))
    return at.new(name, x)


def _fused_conv(at: Site) -> str:
    x, weight, bias, other = at.inputs(4)
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    given = {name: at.attribute(name, None) for name in kept}
    found = at.new("Conv", x, weight, bias, **given)
    if other:
        found = at.new("Add", found, other)
    return _activated(at, found, at.attribute("activation", ""), at.attribute("activation_params", []))


def _fused_gemm(at: Site) -> str:
    given = {name: at.attribute(name, None) for name in ("alpha", "beta", "transA", "transB")}
    found = at.new("Gemm", *at.node.input, **given)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = [value for value in (at.attribute(name, None) for name in names) if value is not None]
    return _activated(at, found, at.attribute("activation", ""), parameters)


def _fused_matmul(at: Site) -> str:
    a, b = at.inputs(2)
    at.require(not at.attribute("transBatchA", 0) and not at.attribute("transBatchB", 0))
    a, b = (_turned(at, name) if at.attribute(trans, 0) else name for name, trans in ((a, "transA"), (b, "transB")))
    found, alpha = at.new("MatMul", a, b), at.attribute("alpha", 1.0)
    return found if alpha == 1 else at.new("Mul", found, at.scalar(alpha, at.node.input[0]))


def _turned(at: Site, x: str) -> str:
    rank = at.rank(x)
    at.require(rank >= 2)
    return at.new("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _gelu(at: Site) -> str:
    x, bias = at.inputs(2)
    if at.node.op_type != "Gelu" and bias:
        x = at.new("Add", x, bias, like=x)
    return gelu_by_tanh(at, x) if at.node.op_type == "FastGelu" else gelu_by_erf(at, x)


def _quick_gelu(at: Site) -> str:
    (x,) = at.inputs(1)
    return at.new("Mul", x, at.new("Sigmoid", at.new("Mul", x, at.scalar(at.attribute("alpha", 1.702), x))))


def _skip_layer_normalization(at: Site) -> list[str]:
    x, skip, scale, shift, bias = at.inputs(5)
    at.require(all(not name for name in at.node.output[1:3]) and at.shape(x) == at.shape(skip))
    total = at.new("Add", x, skip, like=x)
    if bias:
        total = at.new("Add", total, bias, like=x)
    found = at.new("Mul", normalized(at, total, [at.rank(x) - 1], at.attribute("epsilon", 1e-12)), scale)
    return [at.new("Add", found, shift) if shift else found, "", "", total]


_ROUNDED = "all values; rounded differently"
_FREE = "the fusion"

CONTRIBUTED_SPELLINGS = (
    Spelling(
        name="fused-conv-as-conv",
        operators=("FusedConv",),
        matches="com.microsoft FusedConv",
        writes="Conv, Add and the activation",
        draft=_fused_conv,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="fused-gemm-as-gemm",
        operators=("FusedGemm",),
        matches="com.microsoft FusedGemm",
        writes="Gemm and the activation",
        draft=_fused_gemm,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="fused-matmul-as-matmul",
        operators=("FusedMatMul",),
        matches="com.microsoft FusedMatMul",
        writes="Transpose, MatMul and Mul",
        draft=_fused_matmul,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="contributed-gelu-as-operators",
        operators=("Gelu", "BiasGelu", "FastGelu"),
        matches="com.microsoft Gelu, BiasGelu or FastGelu",
        writes="Add, Mul, Erf or Tanh, Add and Mul",
        draft=_gelu,
        cost=_FREE,
        exact=False,
        holds="finite values; rounded differently",
        least_opset=9,
        domain=MICROSOFT,
    ),
    Spelling(
        name="quick-gelu-as-sigmoid",
        operators=("QuickGelu",),
        matches="com.microsoft QuickGelu",
        writes="x * Sigmoid(alpha * x)",
        draft=_quick_gelu,
        cost=_FREE,
        exact=False,
        holds=_ROUNDED,
        domain=MICROSOFT,
    ),
    Spelling(
        name="skip-layer-normalization-as-operators",
        operators=("SkipLayerNormalization",),
        matches="com.microsoft SkipLayerNormalization",
        writes="Add, and the operators of a LayerNormalization",
        draft=_skip_layer_normalization,
        cost=_FREE,
        exact=False,
        holds="all values that stay finite when squared",
        domain=MICROSOFT,
    ),
)
