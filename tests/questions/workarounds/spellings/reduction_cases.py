"""Models for the spellings of reductions, Softmax and activations."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from questions.workarounds.spellings.cases import axis_of, holds, opset, shape, some_axes, spread
from questions.workarounds.spellings.proving import Case, Draw

_WITH_AXES = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"]


def _reduction(draw: Draw, operators: list[str], keepdims: int | None, *, least: int = 1, empty: bool = False) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw, max(1, least), 4, empty=empty)
    operator = draw(st.sampled_from(operators))
    case.engine_loses_nan = operator in {"ReduceMax", "ReduceMin"}
    x = case.input("x", *dims)
    if operator.startswith("Arg"):
        case.plain = True
        case.outputs = {"y": TensorProto.INT64}
        case.node(operator, [x], axis=axis_of(draw, len(dims)), keepdims=keepdims)
    elif draw(st.booleans()) or least > 1:
        since = 13 if operator == "ReduceSum" else 18
        case.axes(operator, x, some_axes(draw, case, len(dims), least), since=since, keepdims=keepdims)
    else:
        case.node(operator, [x], keepdims=keepdims)
    return case


@holds("reduction-with-kept-axes")
def _without(draw: Draw) -> Case:
    return _reduction(draw, [*_WITH_AXES, "ArgMax", "ArgMin"], 0)


@holds("reduction-without-kept-axes")
def _with(draw: Draw) -> Case:
    return _reduction(draw, [*_WITH_AXES, "ArgMax", "ArgMin"], draw(st.sampled_from([None, 1])))


@holds("squeeze-into-reduction")
def _squeezed(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()), engine_loses_nan=True)
    dims = shape(draw, 1, 4, empty=False)
    operator, axes = draw(st.sampled_from(_WITH_AXES)), some_axes(draw, case, len(dims))
    since = 13 if operator == "ReduceSum" else 18
    case.axes(operator, case.input("x", *dims), axes, "t", since=since, keepdims=draw(st.sampled_from([None, 1])))
    order = (
        draw(st.permutations(axes)) if case.opset >= 13 else sorted(axis % len(dims) for axis in axes)
    )  # onnx infers others wrongly
    case.axes("Squeeze", "t", order, since=13)
    return case


@holds("mean-as-sum")
def _mean(draw: Draw) -> Case:
    return _reduction(draw, ["ReduceMean"], draw(st.sampled_from([None, 0, 1])))


@holds("reduction-axis-by-axis")
def _axes(draw: Draw) -> Case:
    return _reduction(
        draw, ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"], draw(st.sampled_from([0, 1])), least=2
    )


@holds("extremum-of-negated")
def _extremum(draw: Draw) -> Case:
    return _reduction(draw, ["ReduceMax", "ReduceMin"], draw(st.sampled_from([None, 0, 1])))


@holds("norm-as-sum")
def _norm(draw: Draw) -> Case:
    operators = ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
    case = _reduction(draw, operators, draw(st.sampled_from([None, 0, 1])))
    case.plain = True
    return case


@holds("global-pool-as-reduction")
def _global_pool(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()), plain=True)
    operator = draw(st.sampled_from(["GlobalAveragePool", "GlobalMaxPool"]))
    case.by_engine = operator == "GlobalMaxPool"
    case.node(operator, [case.input("x", *shape(draw, 3, 5, empty=False))])
    return case


@holds("reduction-as-global-pool")
def _as_pool(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()), plain=True)
    dims = shape(draw, 3, 5, empty=False)
    axes = draw(st.permutations(range(2, len(dims))))
    operator = draw(st.sampled_from(["ReduceMean", "ReduceMax"]))
    case.by_engine = operator == "ReduceMax"
    case.axes(operator, case.input("x", *dims), axes)
    return case


# Softmax


def _softmax(draw: Draw, operators: list[str], dims: tuple[int, ...]) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    axis = (
        axis_of(draw, len(dims))
        if case.opset >= 13
        else draw(st.sampled_from([len(dims) - 1, -1] if case.opset >= 11 else [len(dims) - 1]))
    )
    case.node(draw(st.sampled_from(operators)), [case.input("x", *dims)], axis=axis)
    return case


@holds("softmax-as-exp")
def _as_exp(draw: Draw) -> Case:
    return _softmax(draw, ["Softmax"], shape(draw, 1, 4, empty=False))


@holds("log-softmax-as-log")
def _as_log(draw: Draw) -> Case:
    return _softmax(draw, ["LogSoftmax"], shape(draw, 1, 4, empty=False))


@holds("softmax-on-the-last-axis")
def _last_axis(draw: Draw) -> Case:
    dims = shape(draw, 2, 4, empty=False)
    case = Case(draw=draw, opset=opset(draw, 13), open_dims=draw(st.booleans()))
    axis = draw(st.integers(0, len(dims) - 2))
    operator = draw(st.sampled_from(["Softmax", "LogSoftmax"]))
    case.node(operator, [case.input("x", *dims)], axis=axis - len(dims) if draw(st.booleans()) else axis)
    return case


@holds("exp-as-softmax")
def _softmax_of_exp(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 13), open_dims=draw(st.booleans()))
    dims = shape(draw, 1, 4, empty=False)
    axis = axis_of(draw, len(dims))
    x = case.input("x", *dims)
    case.axes("ReduceMax", x, [axis], "greatest")
    case.node("Sub", [x, "greatest"], "shifted")
    case.node("Exp", ["shifted"], "e")
    case.axes("ReduceSum", "e", [axis], "total", since=13)
    case.node("Div", ["e", "total"])
    return case


# Activations


def _unary(draw: Draw, operator: str, least: int = 9, most: int = 23, *, plain: bool = False, **given: object) -> Case:
    case = Case(draw=draw, opset=opset(draw, least, most), open_dims=draw(st.booleans()), plain=plain)
    case.node(operator, [case.input("x", *shape(draw))], **given)
    return case


@holds("gelu-as-operators")
def _gelu(draw: Draw) -> Case:
    case = _unary(draw, "Gelu", 20, plain=True, approximate=draw(st.sampled_from([None, "none", "tanh"])))
    case.tolerance = 1e-6
    return case


@holds("erf-as-gelu")
def _erf(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 20), open_dims=draw(st.booleans()), plain=True, tolerance=1e-4)
    x = case.input("x", *shape(draw, 1))
    ones = [1] if draw(st.booleans()) else []
    root, half, one = (case.weight(name, np.full(ones, value)) for name, value in (("r", 2**0.5), ("h", 0.5), ("o", 1)))
    if draw(st.booleans()):
        case.node("Div", [x, root], "scaled")
    else:
        case.node("Mul", draw(st.permutations([x, case.weight("i", 0.5**0.5)])), "scaled")
    case.node("Erf", ["scaled"], "erf")
    case.node("Add", draw(st.permutations(["erf", one])), "sum")
    factors = draw(st.permutations([x, half, "sum"]))
    case.node("Mul", factors[:2], "part")
    case.node("Mul", draw(st.permutations(["part", factors[2]])))
    return case


@holds("sigmoid-as-exp")
@holds("sigmoid-as-tanh")
def _sigmoid(draw: Draw) -> Case:
    return _unary(draw, "Sigmoid")


@holds("swish-as-sigmoid")
def _swish(draw: Draw) -> Case:
    case = _unary(draw, "Swish", alpha=draw(st.sampled_from([None, 1.0, 2.0])))
    case.opset = 24
    return case


@holds("sigmoid-as-swish")
def _as_swish(draw: Draw) -> Case:
    case = Case(draw=draw, opset=24, open_dims=draw(st.booleans()))
    x = case.input("x", *shape(draw))
    case.node("Sigmoid", [x], "s")
    case.node("Mul", draw(st.permutations([x, "s"])))
    return case


@holds("hard-sigmoid-as-operators")
def _hard_sigmoid(draw: Draw) -> Case:
    return _unary(
        draw, "HardSigmoid", alpha=draw(st.sampled_from([None, 0.25])), beta=draw(st.sampled_from([None, 0.75]))
    )


@holds("hard-swish-as-operators")
def _hard_swish(draw: Draw) -> Case:
    case = _unary(draw, "HardSwish", 14)
    case.tolerance = 1e-4
    return case


@holds("leaky-relu-as-where")
def _leaky(draw: Draw) -> Case:
    return _unary(draw, "LeakyRelu", alpha=draw(st.sampled_from([None, 0.5, -1.0, 2.0])))


@holds("leaky-relu-as-max")
def _leaky_max(draw: Draw) -> Case:
    return _unary(draw, "LeakyRelu", alpha=draw(st.sampled_from([None, 0.5, 1.0])))


@holds("prelu-as-where")
def _prelu(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()), plain=True)
    dims = shape(draw)
    case.node("PRelu", [case.input("x", *dims), case.input("slope", *spread(draw, dims))])
    return case


@holds("prelu-with-whole-slope")
def _whole_slope(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), engine_loses_nan=True)
    dims = shape(draw, 1)
    case.node("PRelu", [case.input("x", *dims), case.input("slope", *spread(draw, dims[1:]))])
    return case


@holds("softplus-as-log")
def _softplus(draw: Draw) -> Case:
    return _unary(draw, "Softplus", plain=True)


@holds("mish-as-tanh")
def _mish(draw: Draw) -> Case:
    return _unary(draw, "Mish", 18, plain=True)
