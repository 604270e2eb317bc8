"""Spellings of operators that ONNX defines by others, of those of com.microsoft, and of calls of local functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import helper, inliner

from biopsy.model import walk
from biopsy.questions.workarounds.question import Patch
from biopsy.questions.workarounds.spellings.layers import normalized
from biopsy.questions.workarounds.spellings.site import FLOAT, Drafts, Site, unmatched
from biopsy.reduction.passes.inlining import called_functions, inlined
from biopsy.text import printable

_RANDOM = frozenset({"Bernoulli"})
"""Their definitions draw other random numbers."""

DRAFTS = Drafts()


@DRAFTS.of("by-definition")
def _(at: Site) -> list[str]:
    operator = at.node.op_type
    at.require(operator not in _RANDOM and not any(walk.bodies(at.node)))
    try:
        graph = inliner.inline_selected_functions(
            _alone(at), [("", operator)], exclude=False, inline_schema_functions=True
        ).graph
    except Exception:  # onnx raises exceptions of many types, also for operators without a definition
        unmatched()
    at.require(bool(graph.node) and not graph.initializer and all(node.op_type != operator for node in graph.node))
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


def _alone(at: Site) -> onnx.ModelProto:
    """A model of the node alone, with typed inputs and all default attributes."""
    schema = walk.schema_of(at.node.op_type, at.opset, "") or unmatched()
    types = {name: at.kind(name) for name in at.node.input if name}
    inputs = [helper.make_tensor_value_info(name, kind.elem, kind.shape) for name, kind in types.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in at.node.output if name]
    node = type(at.node).FromString(at.node.SerializeToString())
    names = {each.name for each in node.attribute}
    defaults = [each.default_value for name, each in schema.attributes.items() if name not in names]
    node.attribute.extend(each for each in defaults if each.name)
    opsets = [helper.make_opsetid(domain, version) for domain, version in at.scope.opsets.items()]
    return helper.make_model(helper.make_graph([node], "alone", inputs, outputs), opset_imports=opsets)


def calls_as_nodes(model: onnx.ModelProto, nodes: Sequence[int]) -> Iterator[Patch]:
    """One patch for each local function that these nodes of the main graph call; it inlines all its calls.

    Functions that call themselves, or would become too many nodes, are skipped.
    """
    inlinable = set(called_functions(model))
    places: dict[tuple[str, str], list[int]] = {}
    for place in nodes:
        domain, name, _ = walk.operator(model.graph.node[place])
        if (domain, name) in inlinable:
            places.setdefault((domain, name), []).append(place)
    for function, called_at in places.items():

        def change(model: onnx.ModelProto, function: tuple[str, str] = function) -> onnx.ModelProto | None:
            if function not in called_functions(model):
                return None
            changed = inlined(model, [function])
            return None if any(walk.operator(node)[:2] == function for node in walk.nodes(changed)) else changed

        yield Patch(
            kind="spelling",
            name="call-as-nodes",
            text=f"calls of {printable(function[1])!r} written as the nodes of the function",
            cost="nothing, or a fusion that the engine has for the function",
            exact=True,
            nodes=tuple(called_at),
            change=change,
        )


def _activated(at: Site, x: str, name: str, parameters: Sequence[float]) -> str:
    """Write the activation of a fused operator; x itself if ``name`` is empty."""
    if name in {"", "Relu", "Tanh", "Sigmoid"}:
        return at.new(name, x) if name else x
    if name == "LeakyRelu":
        return at.new("LeakyRelu", x, alpha=parameters[0] if parameters else None)
    at.require(name in {"Clip", "HardSigmoid"})
    low, high = parameters
    if name == "HardSigmoid":
        return at.new("HardSigmoid", x, alpha=low, beta=high)
    if at.opset < 11:
        return at.new("Clip", x, min=low, max=high)
    return at.new("Clip", x, at.constant(low, FLOAT), at.constant(high, FLOAT))


@DRAFTS.of("fused-conv-as-conv")
def _(at: Site) -> str:
    x, weight, bias, other = at.inputs(4)
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    result = at.new("Conv", x, weight, bias, **{name: at.attribute(name, None) for name in kept})
    result = at.new("Add", result, other) if other else result
    return _activated(at, result, at.attribute("activation", ""), at.attribute("activation_params", []))


@DRAFTS.of("fused-gemm-as-gemm")
def _(at: Site) -> str:
    kept = ("alpha", "beta", "transA", "transB")
    result = at.new("Gemm", *at.node.input, **{name: at.attribute(name, None) for name in kept})
    parameters = [at.attribute(f"activation_{name}", None) for name in ("alpha", "beta", "gamma")]
    return _activated(at, result, at.attribute("activation", ""), [each for each in parameters if each is not None])


@DRAFTS.of("fused-matmul-as-matmul")
def _(at: Site) -> str:
    at.require(not at.attribute("transBatchA", 0) and not at.attribute("transBatchB", 0))
    flags = zip(at.inputs(2), ("transA", "transB"), strict=True)
    a, b = (at.turned(name, at.rank(name)) if at.attribute(flag, 0) else name for name, flag in flags)
    return at.write("alpha * MatMul(a, b)", at.node.input[0], a=a, b=b, alpha=at.attribute("alpha", 1.0))


@DRAFTS.of("contributed-gelu-as-operators")
def _(at: Site) -> dict[str, Any]:
    x, bias = at.inputs(2)
    return {"x": x, "bias": bias, "by_tanh": at.node.op_type == "FastGelu"}


@DRAFTS.of("skip-layer-normalization-as-operators")
def _(at: Site) -> list[str]:
    x, skip, scale, shift, bias = at.inputs(5)
    at.require(all(not name for name in at.node.output[1:3]) and at.shape(x) == at.shape(skip))
    total = at.write("total = x + skip; total + bias if bias else total", x=x, skip=skip, bias=bias)
    centered = normalized(at, total, [at.rank(x) - 1], at.attribute("epsilon", 1e-12), x)
    result = at.write("y = x * scale; y + shift if shift else y", x=centered, scale=scale, shift=shift)
    return [result, "", "", total]
