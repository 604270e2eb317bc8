"""Models for the spellings of arithmetic and of what only moves elements."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import TensorProto

from questions.workarounds.spellings.cases import axis_of, holds, opset, shape, spread
from questions.workarounds.spellings.proving import Case, Draw


def _pair(
    draw: Draw, operator: str, elems: tuple[int, ...] = (TensorProto.FLOAT,), least: int = 9, result: int = 0
) -> Case:
    case = Case(draw=draw, opset=opset(draw, least), open_dims=draw(st.booleans()))
    dims, elem = shape(draw), draw(st.sampled_from(elems))
    shapes = draw(st.permutations([dims, spread(draw, dims)]))
    case.node(operator, [case.input(name, *each, elem=elem) for name, each in zip("ab", shapes, strict=True)])
    case.outputs = {"y": result or elem}
    return case


_NUMBERS = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32)


@holds("pow-as-mul")
def _pow(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw)
    ones = [1] * draw(st.integers(0, len(dims)))
    case.node("Pow", [case.input("x", *dims), case.weight("e", np.full(ones, draw(st.sampled_from([2.0, 3.0]))))])
    return case


@holds("mul-as-pow")
def _square(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    x = case.input("x", *shape(draw))
    case.node("Mul", [x, x])
    return case


@holds("div-as-reciprocal")
def _div(draw: Draw) -> Case:
    return _pair(draw, "Div")


@holds("reciprocal-and-mul-as-div")
def _reciprocal_mul(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw)
    case.node("Reciprocal", [case.input("b", *spread(draw, dims))], "r")
    case.node("Mul", draw(st.permutations([case.input("a", *dims), "r"])))
    return case


def _with_constant(draw: Draw, operator: str, values: list[float]) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw, empty=False)
    other = spread(draw, dims)
    constant = np.asarray([draw(st.sampled_from(values)) for _ in range(int(np.prod(other)))]).reshape(other)
    case.node(operator, [case.input("x", *dims), case.weight("c", constant)])
    return case


@holds("div-by-constant-as-mul")
def _div_constant(draw: Draw) -> Case:
    return _with_constant(draw, "Div", [3.0, -0.1, 1e4, 8.0])


@holds("sub-of-constant-as-add")
def _sub_constant(draw: Draw) -> Case:
    return _with_constant(draw, "Sub", [3.0, -0.1, 0.0, -0.0, np.inf])


@holds("reciprocal-as-div")
def _reciprocal(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    case.node("Reciprocal", [case.input("x", *shape(draw))])
    return case


@holds("div-of-one-as-reciprocal")
def _one_by(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw)
    case.node("Div", [case.weight("one", np.ones([1] * draw(st.integers(0, len(dims))))), case.input("x", *dims)])
    return case


@holds("sub-as-add")
def _sub(draw: Draw) -> Case:
    return _pair(draw, "Sub", _NUMBERS)


@holds("neg-as-mul")
def _neg(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    case.node("Neg", [case.input("x", *shape(draw))])
    return case


@holds("mean-of-tensors-as-sum")
def _mean(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 13), open_dims=draw(st.booleans()))
    dims = shape(draw)
    case.node("Mean", [case.input(f"x{number}", *dims) for number in range(draw(st.integers(2, 4)))])
    return case


@holds("comparison-mirrored")
def _compare(draw: Draw) -> Case:
    operator = draw(st.sampled_from(["Greater", "Less", "GreaterOrEqual", "LessOrEqual"]))
    return _pair(draw, operator, _NUMBERS, 16 if "Or" in operator else 9, TensorProto.BOOL)


@holds("operands-swapped")
def _commute(draw: Draw) -> Case:
    operator = draw(st.sampled_from(["Add", "Mul", "And", "Or", "Xor", "Equal"]))
    if operator in {"Add", "Mul"}:
        return _pair(draw, operator, _NUMBERS)
    return _pair(draw, operator, (TensorProto.BOOL,), result=TensorProto.BOOL)


@holds("where-swapped")
def _where(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    dims = shape(draw)
    condition = case.input("c", *spread(draw, dims), elem=TensorProto.BOOL)
    case.node("Where", [condition, case.input("a", *dims), case.input("b", *spread(draw, dims))])
    return case


# What moves elements


def _mover(draw: Draw, *, least: int = 9) -> Case:
    """A case of any type of elements: nothing is computed."""
    return Case(draw=draw, opset=opset(draw, least))


def _elem(draw: Draw, case: Case) -> int:
    elem = draw(st.sampled_from([TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL]))
    case.outputs = {"y": elem}
    return elem


@holds("as-reshape")
def _as_reshape(draw: Draw) -> Case:
    case = _mover(draw)
    elem = _elem(draw, case)
    operator = draw(st.sampled_from(["Squeeze", "Unsqueeze", "Flatten"]))
    dims = list(shape(draw, 0, 3, empty=False))
    if operator == "Flatten":
        low = -len(dims) if case.opset >= 11 else 0
        case.node("Flatten", [case.input("x", *dims, elem=elem)], axis=draw(st.integers(low, len(dims))))
        return case
    rank = len(dims) + draw(st.integers(1, 2))
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=rank - len(dims), max_size=rank - len(dims), unique=True))
    if operator == "Squeeze":
        for axis in sorted(axes):
            dims.insert(axis, 1)
    since = 13  # before it onnx's evaluator is wrong about axes that are negative or not in order
    axes = [axis - rank if case.opset >= since and draw(st.booleans()) else axis for axis in sorted(axes)]
    case.axes(operator, case.input("x", *dims, elem=elem), axes, since=13)
    return case


@holds("transpose-as-reshape")
def _transpose(draw: Draw) -> Case:
    case = _mover(draw)
    dims = [1, *draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))]
    order = list(range(len(dims)))
    one = draw(st.sampled_from([axis for axis, dim in enumerate(dims) if dim == 1]))
    order.remove(one)
    order.insert(draw(st.integers(0, len(order))), one)
    case.node("Transpose", [case.input("x", *dims, elem=_elem(draw, case))], perm=order)
    return case


@holds("expand-as-tile")
def _expand(draw: Draw) -> Case:
    case = _mover(draw)
    large = shape(draw, 1)
    small = spread(draw, large)
    case.node("Expand", [case.input("x", *small, elem=_elem(draw, case)), case.weight("s", large, np.int64)])
    return case


@holds("split-as-slices")
def _split(draw: Draw) -> Case:
    case = _mover(draw)
    elem = _elem(draw, case)
    dims = list(shape(draw, 1, 3, empty=False))
    axis, count = axis_of(draw, len(dims)), draw(st.integers(1, 3))
    given: dict[str, Any] = {"axis": axis if case.opset >= 11 else axis % len(dims)}
    inputs: list[str] = []
    if draw(st.booleans()):
        sizes = [draw(st.integers(0 if case.opset >= 13 else 1, 3)) for _ in range(count)]
        dims[axis] = sum(sizes)
        if case.opset < 13:
            given["split"] = sizes
        else:
            inputs = [case.weight("sizes", sizes, np.int64)]
    else:
        dims[axis] = count * draw(st.integers(1, 3))
        given |= {"num_outputs": count} if case.opset >= 18 else {}
    case.node("Split", [case.input("x", *dims, elem=elem), *inputs], "y0", **given)
    case.nodes[0].output.extend(f"y{number}" for number in range(1, count))
    case.outputs = {f"y{number}": elem for number in range(count)}
    return case


@holds("gather-as-slice")
def _gather(draw: Draw) -> Case:
    case = _mover(draw, least=11)
    dims = shape(draw, 1, 4, empty=False)
    axis = axis_of(draw, len(dims))
    index = draw(st.integers(-dims[axis], dims[axis] - 1))
    case.node("Gather", [case.input("x", *dims, elem=_elem(draw, case)), case.weight("i", index, np.int64)], axis=axis)
    return case


@holds("slice-as-gather")
def _slice(draw: Draw) -> Case:
    case = _mover(draw)
    dims = shape(draw, 1, 4, empty=False)
    x = case.input("x", *dims, elem=_elem(draw, case))
    axis = draw(st.integers(0, len(dims) - 1))
    start = draw(st.integers(0, dims[axis] - 1))
    end = draw(st.sampled_from([start + 1, 1000, (1 << 62)]))
    start = start - dims[axis] if draw(st.booleans()) else start
    if case.opset < 10:
        case.node("Slice", [x], starts=[start], ends=[end], axes=[axis])
        return case
    bounds = [case.weight(name, [value], np.int64) for name, value in (("s", start), ("e", end), ("a", axis))]
    steps = [case.weight("p", [draw(st.integers(1, 3))], np.int64)] if draw(st.booleans()) else []
    case.node("Slice", [x, *bounds, *steps])
    return case


@holds("concat-in-pairs")
def _concat(draw: Draw) -> Case:
    case = _mover(draw, least=11)
    elem = _elem(draw, case)
    dims = list(shape(draw, 1, 3))
    axis = axis_of(draw, len(dims))
    names = []
    for number in range(draw(st.integers(3, 5))):
        dims[axis] = draw(st.integers(0, 3))
        names.append(case.input(f"x{number}", *dims, elem=elem))
    case.node("Concat", names, axis=axis)
    return case


@holds("shape-as-constant")
def _shape(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), outputs={"y": TensorProto.INT64}, by_engine=True)
    dims = shape(draw)
    given = {"start": draw(st.integers(-5, 5)), "end": draw(st.integers(-5, 5))} if case.opset >= 15 else {}
    case.node("Shape", [case.input("x", *dims)], **given)
    return case


@holds("dropout-as-identity")
def _dropout(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()))
    inputs = [case.input("x", *shape(draw))]
    if case.opset >= 12 and draw(st.booleans()):
        inputs += [case.weight("r", 0.3), case.weight("t", False, bool)]
    case.node("Dropout", inputs)
    return case


@holds("depth-to-space-as-transpose")
def _depth(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 11))
    batch, channels, height, width = (draw(st.integers(1, 3)) for _ in range(4))
    block = draw(st.integers(1, 3))
    x = case.input("x", batch, channels * block**2, height, width)
    case.node("DepthToSpace", [x], blocksize=block, mode=draw(st.sampled_from([None, "DCR", "CRD"])))
    return case


@holds("space-to-depth-as-transpose")
def _space(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw))
    batch, channels, height, width = (draw(st.integers(1, 3)) for _ in range(4))
    block = draw(st.integers(1, 3))
    case.node("SpaceToDepth", [case.input("x", batch, channels, height * block, width * block)], blocksize=block)
    return case


@holds("pad-as-concat")
def _pad(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw))
    dims = shape(draw, 1, 3)
    pads = [draw(st.integers(0, 2)) for _ in range(2 * len(dims))]
    pads[0] = pads[0] or 1
    x, value = case.input("x", *dims), draw(st.sampled_from([None, 0.0, -1.5, np.inf]))
    if case.opset < 11:
        case.node("Pad", [x], pads=pads, value=value)
    else:
        filled = [case.weight("v", value)] if value is not None else []
        case.node("Pad", [x, case.weight("p", pads, np.int64), *filled])
    return case


@holds("nearest-resize-as-expand")
def _resize(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 10), evaluator_computes=True)
    dims = shape(draw, 2, 4, empty=False)
    factors = [1, 1, *(draw(st.integers(1, 4)) for _ in dims[2:])][: len(dims)]
    x = case.input("x", *dims)
    case.by_engine = case.opset < 13
    case.plain = not case.by_engine  # the evaluator multiplies infinities by 0
    if case.opset < 11:
        case.node("Resize", [x, case.weight("s", factors)], mode="nearest")
        return case
    way = draw(st.sampled_from([("asymmetric", "floor"), (None, None), ("half_pixel", "round_prefer_ceil")]))
    given = {"coordinate_transformation_mode": way[0], "nearest_mode": way[1]}
    empty = case.weight("roi", []) if case.opset < 13 else ""
    if case.opset < 13 or draw(st.booleans()):
        case.node("Resize", [x, empty, case.weight("s", factors)], **given)
    else:
        sizes = [dim * factor for dim, factor in zip(dims, factors, strict=True)]
        case.node("Resize", [x, empty, "", case.weight("z", sizes, np.int64)], **given)
    return case


@holds("divisor-guarded")
def _divided(draw: Draw) -> Case:
    elem = draw(st.sampled_from([TensorProto.INT32, TensorProto.INT64]))
    case = Case(draw=draw, opset=opset(draw, 11), open_dims=draw(st.booleans()), outputs={"y": elem}, plain=True)
    dims = shape(draw)
    a, b = (case.input(name, *spread(draw, dims), elem=elem) for name in "ab")
    one = case.weight("one", 1, np.int32 if elem == TensorProto.INT32 else np.int64)
    case.node("Mul", [b, b], "square")
    case.node("Add", ["square", one], "divisor")
    case.node(draw(st.sampled_from(["Div", "Mod"])), [a, "divisor"])
    return case


@holds("cast-guarded")
def _cast(draw: Draw) -> Case:
    elem = draw(st.sampled_from([TensorProto.INT8, TensorProto.INT32, TensorProto.INT64]))
    case = Case(draw=draw, opset=opset(draw), open_dims=draw(st.booleans()), outputs={"y": elem}, plain=True)
    case.node("Cast", [case.input("x", *shape(draw))], to=elem)
    return case


@holds("index-guarded")
def _indices(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 11))
    dims = shape(draw, 1, 3, empty=False)
    axis = axis_of(draw, len(dims))
    size = dims[axis]
    operator = draw(st.sampled_from(["Gather", "GatherElements"]))
    picked = (draw(st.integers(1, 3)),) if operator == "Gather" else dims
    indices = np.resize(draw(st.permutations(range(-size, size))), picked)
    indices.flat[0] = -1
    case.node(operator, [case.input("x", *dims), case.weight("i", indices, np.int64)], axis=axis)
    return case


@holds("without-identity")
def _nothing(draw: Draw) -> Case:
    case = Case(draw=draw, opset=opset(draw, 13), open_dims=draw(st.booleans()))
    dims = shape(draw, 1, 3)
    given: dict[str, dict[str, object]] = {
        "Identity": {},
        "Dropout": {},
        "Cast": {"to": TensorProto.FLOAT},
        "Transpose": {"perm": list(range(len(dims)))},
        "Concat": {"axis": 0},
        "Sum": {},
        "Max": {},
    }
    operator = draw(st.sampled_from(sorted(given)))
    x = case.input("x", *dims)
    before, after = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    read = case.node("Neg", [x], "t") if before else x
    case.node(operator, [read], "z" if after else "y", **given[operator])
    if after:
        case.node("Abs", ["z"])
    return case
