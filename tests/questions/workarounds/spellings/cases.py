"""A model for each spelling, drawn: any opset, rank, shape, axis and attribute with which it holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from questions.workarounds.spellings.proving import Case, Draw

OF_SPELLING: dict[str, Callable[[Draw], Case]] = {}
"""The name of a spelling -> what draws a model in which it holds."""


def holds(name: str) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    def keep(function: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        OF_SPELLING[name] = function
        return function

    return keep


def opset(draw: Draw, least: int = 9, most: int = 23) -> int:
    return draw(
        st.sampled_from([each for each in (9, 10, 11, 12, 13, 14, 17, 18, 20, 21, 22, 23) if least <= each <= most])
    )


def shape(draw: Draw, least: int = 0, most: int = 4, *, empty: bool = True) -> tuple[int, ...]:
    size = st.sampled_from([0, 1, 2, 3, 5] if empty else [1, 2, 3, 5])
    return tuple(draw(st.lists(size, min_size=least, max_size=most)))


def spread(draw: Draw, dims: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that can be spread over another."""
    kept = dims[draw(st.integers(0, len(dims))) :]
    return tuple(draw(st.sampled_from([1, size])) for size in kept)


def axis_of(draw: Draw, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def some_axes(draw: Draw, case: Case, rank: int, least: int = 1) -> list[int]:
    """Different axes; before opset 11 none is negative."""
    chosen = draw(st.lists(st.integers(0, rank - 1), min_size=least, max_size=rank, unique=True))
    return [axis - rank if case.opset >= 11 and draw(st.booleans()) else axis for axis in chosen]


# Clamping


@holds("clip-as-max-and-min")
def _clip(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    low, high = draw(st.sampled_from([(-0.5, 0.5), (0.5, -0.5), (None, 0.25), (-0.25, None), (0.0, 6.0)]))
    case.plain = low is None or high is None  # the standard makes the last finite number of an infinity there
    x = case.input("x", *shape(draw))
    if case.opset < 11:
        case.node("Clip", [x], min=low, max=high)
    else:
        bounds = [case.weight(name, value) if value is not None else "" for name, value in (("l", low), ("h", high))]
        case.node("Clip", [x, *(bounds if bounds[1] else bounds[:1])])
    return case


@holds("max-and-min-as-clip")
def _max_min(draw: Draw) -> Case:
    dims = shape(draw)
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    ones = [1] * draw(st.integers(0, len(dims)))
    low, high = case.weight("l", np.full(ones, -0.5)), case.weight("h", np.full(ones, 0.75))
    x = case.input("x", *dims)
    first, second = draw(st.sampled_from([(("Max", low), ("Min", high)), (("Min", high), ("Max", low))]))
    case.node(first[0], draw(st.permutations([x, first[1]])), "t")
    case.node(second[0], draw(st.permutations(["t", second[1]])))
    return case


@holds("relu-as-max")
@holds("relu-as-where")
def _relu(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    case.node("Relu", [case.input("x", *shape(draw))])
    return case


@holds("many-inputs-as-pairs")
def _many(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw)
    count = draw(st.integers(3, 5))
    names = [case.input(f"x{number}", *(spread(draw, dims))) for number in range(count)]
    case.node(draw(st.sampled_from(["Max", "Min", "Sum"])), names)
    return case


# Matrices. NumPy multiplies them by BLAS, which may leave out products with 0: no NaN, no infinity.


@holds("gemm-as-matmul")
def _gemm(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw), open_dims=draw(st.booleans()))
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    turned = draw(st.booleans()), draw(st.booleans())
    a = case.input("a", *((k, m) if turned[0] else (m, k)))
    b = case.input("b", *((n, k) if turned[1] else (k, n)))
    inputs = [a, b]
    if case.opset < 11 or draw(st.booleans()):
        inputs.append(case.input("c", *spread(draw, (m, n))))
    factors = {name: draw(st.sampled_from([None, 1.0, 0.5, -2.0])) for name in ("alpha", "beta")}
    case.node("Gemm", inputs, transA=int(turned[0]) or None, transB=int(turned[1]) or None, **factors)
    return case


@holds("matmul-as-gemm")
def _matrices(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw))
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    case.node("MatMul", [case.input("a", m, k), case.input("b", k, n)])
    return case


@holds("matmul-and-add-as-gemm")
def _matmul_add(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw))
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    case.node("MatMul", [case.input("a", m, k), case.input("b", k, n)], "t")
    case.node("Add", draw(st.permutations(["t", case.input("c", *spread(draw, (m, n)))])))
    return case


def _matmul(draw: Draw, *, least: int = 1) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw), open_dims=draw(st.booleans()))
    m, k, n = (draw(st.integers(0, 4)) for _ in range(3))
    batch = shape(draw, 0, 2)
    a = (*spread(draw, batch), m, k) if least == 2 or draw(st.booleans()) else (k,)
    b = (*spread(draw, batch), k, n) if least == 2 or draw(st.booleans()) else (k,)
    case.node("MatMul", [case.input("a", *a), case.input("b", *b)])
    return case


@holds("matmul-of-transposed")
def _matmul_transposed(draw: Draw) -> Case:
    return _matmul(draw, least=2)


@holds("matmul-as-einsum")
def _matmul_einsum(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw, 12))
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))  # of nothing onnxruntime 1.23 makes anything
    batch = shape(draw, 0, 2, empty=False)
    a, b = (draw(st.sampled_from([(k,), matrix, (*batch, *matrix)])) for matrix in ((m, k), (k, n)))
    case.open_dims = min(len(a), len(b)) <= 2 and draw(st.booleans())
    case.node("MatMul", [case.input("a", *a), case.input("b", *b)])
    return case


@holds("einsum-as-matmul")
def _einsum(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw, 12))
    batch = "bcd"[: draw(st.integers(0, 2))]
    sizes = {label: draw(st.integers(1, 3)) for label in "bcdikj"}
    terms = ["".join(draw(st.permutations([*batch, *each]))) for each in ("ik", "kj", "ij")]
    a, b = (case.input(name, *(sizes[label] for label in term)) for name, term in zip("ab", terms[:2], strict=True))
    case.node("Einsum", [a, b], equation=f"{terms[0]},{terms[1]}->{terms[2]}")
    return case


@holds("matmul-flattened")
def _flattened(draw: Draw) -> Case:
    case = Case(draw=draw, plain=True, opset=opset(draw))
    dims = shape(draw, 2, 3, empty=False)
    k, n = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    case.node("MatMul", [case.input("a", *dims, k), case.input("b", k, n)])
    return case


# Normalization


@holds("layer-normalization-as-operators")
def _layer_normalization(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 17), plain=True, widened_after=True)
    dims = shape(draw, 1, 4, empty=False)
    axis = axis_of(draw, len(dims))
    tail = dims[axis % len(dims) :]
    inputs = [case.input("x", *dims), case.input("scale", *tail)]
    if draw(st.booleans()):
        inputs.append(case.input("bias", *tail))
    case.node("LayerNormalization", inputs, axis=axis, epsilon=draw(st.sampled_from([None, 1e-3])))
    if draw(st.booleans()):
        case.nodes[0].output.extend(["mean", "inverse"])
        case.outputs |= {"mean": TensorProto.FLOAT, "inverse": TensorProto.FLOAT}
    return case


@holds("operators-as-layer-normalization")
def _decomposed(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 17), plain=True, widened_after=True)
    dims = (*shape(draw, 0, 3, empty=False), draw(st.integers(2, 4)))  # onnxruntime 1.23 refuses a single element
    first = draw(st.integers(0, len(dims) - 1))
    axes = list(draw(st.permutations(range(first, len(dims)))))
    axes = [axis - len(dims) if draw(st.booleans()) else axis for axis in axes]
    x = case.input("x", *dims)
    case.axes("ReduceMean", x, axes, "mean", keepdims=draw(st.sampled_from([None, 1])))
    case.node("Sub", [x, "mean"], "d")
    square = ("Mul", ["d", "d"]) if draw(st.booleans()) else ("Pow", ["d", case.weight("two", 2.0)])
    case.node(*square, "square")
    case.axes("ReduceMean", "square", axes, "variance")
    case.node(
        "Add", draw(st.permutations(["variance", case.weight("epsilon", draw(st.sampled_from([1e-5, [1e-3]])))])), "sum"
    )
    case.node("Sqrt", ["sum"], "deviation")
    inverse = draw(st.booleans())
    case.node("Reciprocal" if inverse else "Identity", ["deviation"], "divisor")
    steps = [("Mul" if inverse else "Div", "divisor" if inverse else "deviation")]
    steps += [(step, case.input(step, *dims[first:])) for step in ("Mul", "Add") if draw(st.booleans())]
    at = "d"
    for number, (operator, other) in enumerate(steps):
        inputs = [at, other] if operator == "Div" else draw(st.permutations([at, other]))
        at = case.node(operator, inputs, "y" if number == len(steps) - 1 else f"t{number}")
    return case


@holds("rms-normalization-as-operators")
def _rms_normalization(draw: Draw) -> Case:
    case = Case(draw=draw, opset=23, plain=True, widened_after=True)
    dims = shape(draw, 1, 4, empty=False)
    axis = axis_of(draw, len(dims))
    inputs = [case.input("x", *dims), case.input("scale", *dims[axis % len(dims) :])]
    case.node("RMSNormalization", inputs, axis=axis, epsilon=draw(st.sampled_from([None, 1e-3])))
    return case


@holds("instance-normalization-as-operators")
def _instance_normalization(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), plain=True)
    dims = shape(draw, 3, 5, empty=False)
    inputs = [case.input("x", *dims), case.input("scale", dims[1]), case.input("bias", dims[1])]
    case.node("InstanceNormalization", inputs, epsilon=draw(st.sampled_from([None, 1e-3])))
    return case


@holds("group-normalization-as-operators")
def _group_normalization(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 18), plain=True)
    batch, groups, each = (draw(st.integers(1, 3)) for _ in range(3))
    channels = groups * each
    parameters = channels if case.opset >= 21 else groups
    inputs = [
        case.input("x", batch, channels, *shape(draw, 1, 3, empty=False)),
        case.input("scale", parameters),
        case.input("bias", parameters),
    ]
    stage = 1 if case.opset >= 21 else None  # said, so that it is float64 in float64
    case.node(
        "GroupNormalization", inputs, num_groups=groups, epsilon=draw(st.sampled_from([None, 1e-3])), stash_type=stage
    )
    return case


@holds("batch-normalization-as-operators")
def _batch_normalization(draw: Draw) -> Case:
    # Before opset 14 onnx's reference evaluator takes the default momentum for a sign of training.
    case = Case(draw=draw, opset=opset(draw, 14), open_dims=draw(st.booleans()), plain=True)
    dims = shape(draw, 2, 5, empty=False)
    x = case.input("x", *dims)
    parameters = [case.input(name, dims[1]) for name in ("scale", "bias", "mean")]
    variance = case.weight("variance", np.linspace(0.1, 2, dims[1]))
    case.node("BatchNormalization", [x, *parameters, variance], epsilon=draw(st.sampled_from([None, 1e-3])))
    return case
