"""Models for the spellings of convolutions, of com.microsoft, and of what the standard defines."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from onnx import TensorProto

from questions.workarounds.spellings.cases import axis_of, holds, opset, shape, spread
from questions.workarounds.spellings.proving import Case, Draw


def _conv(
    draw: Draw, *, spatial: int = 0, bias: bool | None = None, groups: int = 0, transposed: bool | None = False,
    auto: list[str] | None = None, pads: bool | None = None, domain: str = "", name: str = "", free: bool = True,
) -> Case:  # fmt: skip
    case = Case(draw=draw, opset=opset(draw, 11), plain=True)
    axes = spatial or draw(st.integers(1, 3))
    turned = draw(st.booleans()) if transposed is None else transposed
    group = groups or draw(st.integers(1, 2))
    inner, outer = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(axes)]
    sizes = [draw(st.integers(5, 8)) for _ in range(axes)]
    given: dict[str, Any] = {"group": group if group > 1 else None}
    if draw(st.booleans()):
        given["kernel_shape"] = kernel
    if free and draw(st.booleans()):
        given["strides"] = [draw(st.integers(1, 2)) for _ in range(axes)]
    if free and draw(st.booleans()):
        given["dilations"] = [draw(st.integers(1, 2)) for _ in range(axes)]
    if auto:
        given["auto_pad"] = draw(st.sampled_from(auto))
        if turned and given["auto_pad"] != "VALID":
            kernel = [each + (each % 2 != given.get("strides", [1] * axes)[at] % 2) for at, each in enumerate(kernel)]
            given |= {"kernel_shape": kernel, "dilations": None}
            kernel = [max(each, given.get("strides", [1] * axes)[at]) for at, each in enumerate(kernel)]
            given["kernel_shape"] = kernel
    elif pads or (pads is None and draw(st.booleans())):
        given["pads"] = [draw(st.integers(0, 1)) for _ in range(2 * axes)]
        given["pads"][0] = 1 if pads else given["pads"][0]
    case.by_engine = turned and group > 1
    weight = (inner * group, outer, *kernel) if turned else (outer * group, inner, *kernel)
    inputs = [case.input("x", draw(st.integers(1, 2)), inner * group, *sizes), case.input("w", *weight)]
    if bias or (bias is None and draw(st.booleans())):
        inputs.append(case.input("b", outer * group))
    case.node(name or ("ConvTranspose" if turned else "Conv"), inputs, domain=domain or None, **given)
    return case


@holds("bias-as-add")
def _bias(draw: Draw) -> Case:
    return _conv(draw, bias=True, transposed=None)


@holds("add-as-bias")
def _add(draw: Draw) -> Case:
    case = _conv(draw, bias=False, transposed=None)
    node = case.nodes[0]
    node.output[0] = "t"
    group = next((each.i for each in node.attribute if each.name == "group"), 1)
    weight = case.inputs["w"]
    channels = weight[1] * group if node.op_type == "ConvTranspose" else weight[0]
    ones = [1] * (len(weight) - 2)
    case.node("Add", draw(st.permutations(["t", case.input("c", *draw(st.sampled_from([[], [1]])), channels, *ones)])))
    return case


@holds("explicit-pads")
def _explicit(draw: Draw) -> Case:
    if draw(st.booleans()):
        return _conv(draw, transposed=None, auto=["SAME_UPPER", "SAME_LOWER", "VALID"])
    case = Case(draw=draw, opset=opset(draw, 11), plain=True)
    axes = draw(st.integers(1, 2))
    given: dict[str, Any] = {"kernel_shape": [draw(st.integers(1, 3)) for _ in range(axes)]}
    if draw(st.booleans()):  # where a step is longer than the kernel, onnxruntime works out negative pads
        given["strides"] = [draw(st.integers(1, each)) for each in given["kernel_shape"]]
    x = case.input("x", 1, 2, *(draw(st.integers(4, 7)) for _ in range(axes)))
    mode = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    operator = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    case.by_engine = True
    case.node(operator, [x], auto_pad=mode, **given)
    return case


@holds("pads-as-pad")
def _pads(draw: Draw) -> Case:
    return _conv(draw, pads=True)


@holds("groups-apart")
def _groups(draw: Draw) -> Case:
    return _conv(draw, groups=draw(st.integers(2, 4)))


@holds("one-dimension-as-two")
def _one_dimension(draw: Draw) -> Case:
    if draw(st.booleans()):
        return _conv(draw, spatial=1, transposed=None)
    case = Case(draw=draw, opset=opset(draw, 11), open_dims=draw(st.booleans()), plain=True)
    given: dict[str, Any] = {"kernel_shape": [2], "strides": draw(st.sampled_from([None, [2]]))}
    pads = draw(st.sampled_from([None, [1, 0], [1, 1]]))
    x = case.input("x", 1, 2, draw(st.integers(3, 7)))
    operator = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    case.by_engine = operator == "MaxPool"
    case.node(operator, [x], pads=pads, **given)
    return case


@holds("pointwise-conv-as-matmul")
def _pointwise(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw))
    axes, inputs, outputs = (draw(st.integers(1, 3)) for _ in range(3))
    x = case.input("x", draw(st.integers(1, 2)), inputs, *(draw(st.integers(1, 4)) for _ in range(axes)))
    names = [x, case.input("w", outputs, inputs, *[1] * axes)]
    if draw(st.booleans()):
        names.append(case.input("b", outputs))
    case.node(
        "Conv",
        names,
        strides=draw(st.sampled_from([None, [1] * axes])),
        pads=draw(st.sampled_from([None, [0, 0] * axes])),
    )
    return case


# com.microsoft


@holds("fused-conv-as-conv")
def _fused_conv(draw: Draw) -> Case:
    case = _conv(draw, spatial=2, bias=True, pads=False, domain="com.microsoft", name="FusedConv", free=False)
    case.shapes["y"] = [None] * 4
    attributes = {each.name for each in case.nodes[0].attribute}
    case.nodes[0].attribute.extend(
        _attributes(
            activation=draw(st.sampled_from(["Relu", "Tanh", "Sigmoid", "LeakyRelu"])),
            kernel_shape=None if "kernel_shape" in attributes else list(case.inputs["w"][2:]),
        )
    )
    if case.nodes[0].attribute and any(each.s == b"LeakyRelu" for each in case.nodes[0].attribute):
        case.nodes[0].attribute.extend(_attributes(activation_params=[0.25]))
    return case


def _attributes(**given: Any) -> list[Any]:
    from onnx import helper

    return [helper.make_attribute(name, value) for name, value in given.items() if value is not None]


@holds("fused-gemm-as-gemm")
def _fused_gemm(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    inputs = [case.input("a", m, k), case.input("b", k, n), case.input("c", *spread(draw, (m, n)))]
    activation = draw(st.sampled_from(["Relu", "LeakyRelu"]))
    more = {"activation_alpha": 0.25} if activation == "LeakyRelu" else {}
    case.node("FusedGemm", inputs, domain="com.microsoft", activation=activation, alpha=0.5, beta=2.0, **more)
    case.shapes["y"] = [m, n]
    return case


@holds("fused-matmul-as-matmul")
def _fused_matmul(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    batch = shape(draw, 0, 2, empty=False)
    turned = draw(st.booleans()), draw(st.booleans())
    a, b = ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))
    inputs = [case.input("a", *batch, *a), case.input("b", *batch, *b)]
    alpha = draw(st.sampled_from([None, 0.5]))
    case.node("FusedMatMul", inputs, domain="com.microsoft", transA=int(turned[0]), transB=int(turned[1]), alpha=alpha)
    case.shapes["y"] = [*batch, m, n]
    return case


@holds("contributed-gelu-as-operators")
def _contributed_gelu(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    dims = shape(draw, 1, 3, empty=False)
    operator = draw(st.sampled_from(["Gelu", "BiasGelu", "FastGelu"]))
    inputs = [case.input("x", *dims)]
    if operator == "BiasGelu" or (operator == "FastGelu" and draw(st.booleans())):
        inputs.append(case.input("b", dims[-1]))
    case.node(operator, inputs, domain="com.microsoft")
    case.shapes["y"] = list(dims)
    return case


@holds("quick-gelu-as-sigmoid")
def _quick(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    dims = shape(draw, 1, 3, empty=False)
    case.node("QuickGelu", [case.input("x", *dims)], domain="com.microsoft", alpha=draw(st.sampled_from([None, 1.0])))
    case.shapes["y"] = list(dims)
    return case


@holds("skip-layer-normalization-as-operators")
def _skip(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    dims = shape(draw, 3, 3, empty=False)
    inputs = [case.input("x", *dims), case.input("skip", *dims)]
    inputs += [case.input(name, dims[-1]) for name in ("scale", "shift", "bias")[: draw(st.integers(1, 3))]]
    case.node("SkipLayerNormalization", inputs, domain="com.microsoft", epsilon=draw(st.sampled_from([None, 1e-3])))
    case.shapes["y"] = list(dims)
    if draw(st.booleans()):
        case.nodes[0].output.extend(["", "", "total"])
        case.outputs["total"], case.shapes["total"] = TensorProto.FLOAT, list(dims)
    return case


# Definitions

_UNARY: dict[str, tuple[int, dict[str, Any]]] = {
    "Celu": (12, {}), "Elu": (18, {"alpha": 0.5}), "Gelu": (20, {}), "HardSigmoid": (18, {}), "HardSwish": (14, {}),
    "LeakyRelu": (16, {}), "Mish": (18, {}), "Relu": (18, {}), "Selu": (18, {}), "Shrink": (18, {}),
    "Softplus": (18, {}), "Softsign": (18, {}), "ThresholdedRelu": (18, {}), "ReduceL1": (18, {}), "ReduceL2": (18, {}),
}  # fmt: skip


@holds("by-definition")
def _definition(draw: Draw) -> Case:
    operator = draw(
        st.sampled_from([*_UNARY, "Softmax", "LogSoftmax", "RMSNormalization", "Attention", "RotaryEmbedding"])
    )
    if operator in _UNARY:
        least, given = _UNARY[operator]
        case = Case(draw=draw, opset=opset(draw, least), plain=True, tolerance=1e-4)
        case.node(operator, [case.input("x", *shape(draw, 1, 3, empty=False))], **given)
        case.by_engine = operator == "Celu"  # which is for float32 alone
        return case
    case = Case(draw=draw, opset=23, plain=True, tolerance=1e-4)
    dims = shape(draw, 1, 4, empty=False)
    if "Softmax" in operator:
        case.opset = opset(draw, 13)
        case.node(operator, [case.input("x", *dims)], axis=axis_of(draw, len(dims)))
    elif operator == "RMSNormalization":
        axis = axis_of(draw, len(dims))
        case.node(operator, [case.input("x", *dims), case.input("s", *dims[axis % len(dims) :])], axis=axis)
    elif operator == "Attention":
        batch, heads, length, past, width = (draw(st.integers(1, 3)) for _ in range(5))
        sizes = ((batch, heads, length, width), (batch, heads, past, width), (batch, heads, past, width))
        case.node(operator, [case.input(name, *each) for name, each in zip("qkv", sizes, strict=True)])
    else:
        batch, heads, length, half = (draw(st.integers(1, 3)) for _ in range(4))
        x = case.input("x", batch, heads, length, 2 * half)
        angles = [case.input(name, batch, length, half) for name in ("cos", "sin")]
        case.node(operator, [x, *angles], interleaved=draw(st.integers(0, 1)))
    return case
