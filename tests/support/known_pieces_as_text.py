"""Pieces of the catalogue of known failures that are shortest in ONNX's own text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper, parser


@dataclass(frozen=True, kw_only=True)
class KnownPieces:
    """Models that have a bug of the catalogue, the first ones as they were reported, and near misses that have not."""

    members: Mapping[str, onnx.ModelProto]
    near_misses: Mapping[str, onnx.ModelProto]


def _of(elem: str, value: ArrayLike) -> np.ndarray:
    return np.asarray(value, {"float": "float32", "double": "float64"}.get(elem, elem))


def _float(value: ArrayLike) -> np.ndarray:
    return _of("float", value)


def _int64(value: ArrayLike) -> np.ndarray:
    return _of("int64", value)


def _numbers(*shape: int) -> np.ndarray:
    return _float(np.random.default_rng(shape).normal(size=shape))


def _written(
    inputs: str, nodes: str, outputs: str = "float y", opset: int = 18, **weights: np.ndarray
) -> onnx.ModelProto:
    """A model in ONNX's text, such as ``_written("float[3] x", "y = Add(x, b)", b=_float(1))``.

    Outputs may have any rank; weights that nothing reads, or that are inputs, are left out.
    """
    graph = parser.parse_graph(f"g ({inputs}) => ({outputs}) {{ {nodes} }}")
    held = {name for node in graph.node for name in node.input} - {info.name for info in graph.input}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items() if name in held)
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


# ONNX Runtime

_CAST = "m = Cast<to = 1>(x)"


def _inverse(
    nodes: str = f"{_CAST} d = Div(one, q) y = Mul(m, d)",
    elem: str = "float",
    shape: str = "3",
    opset: int = 18,
    also: str = "",
    one: ArrayLike = 1,
) -> onnx.ModelProto:
    """The product of ``x`` or a constant ``k`` and of 1 / ``q``."""
    weights = {"one": _of(elem, one), "two": _of(elem, 2), "k": _of(elem, 7), "ks": _of(elem, [7, 8, 9])}
    return _written(f"{elem}[{shape}] x, {elem}[3] q", nodes, f"{elem} y{also}", opset, **weights)


def _of_dropped_casts() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _written(
                "float[3] x", f"{_CAST} d = Div(one, one) y = Mul(m, d)", one=_float(1)
            ),
            "the divisor is fed": _inverse(),
            "factors exchanged": _inverse(f"{_CAST} d = Div(one, q) y = Mul(d, m)"),
            "Dropout": _inverse("m = Dropout(x) d = Div(one, q) y = Mul(m, d)"),
            "opset 13": _inverse(opset=13),
            "float64": _inverse("m = Cast<to = 11>(x) d = Div(one, q) y = Mul(m, d)", "double"),
            "one in a list": _inverse(one=[1]),
            "Abs before": _inverse("a = Abs(x) m = Cast<to = 1>(a) d = Div(one, q) y = Mul(m, d)"),
            "Relu after": _inverse(f"{_CAST} d = Div(one, q) p = Mul(m, d) y = Relu(p)"),
            "a matrix": _inverse(shape="2, 3"),
        },
        near_misses={
            "to another type": _written(
                "double[3] x, float[3] q", f"{_CAST} d = Div(one, q) y = Mul(m, d)", one=_float(1)
            ),
            "two": _inverse(one=2),
            "the dividend is fed": _written(
                "float[3] x, float[3] q, float one", f"{_CAST} d = Div(one, q) y = Mul(m, d)"
            ),
            "Neg": _inverse("m = Neg(x) d = Div(one, q) y = Mul(m, d)"),
            "nothing before": _inverse("d = Div(one, q) y = Mul(x, d)"),
            "Add": _inverse(f"{_CAST} d = Div(one, q) y = Add(m, d)"),
            "Div gives an output": _inverse(also=", float d"),
            "Cast gives an output": _inverse(also=", float m"),
            "Cast of the divisor": _inverse("m = Cast<to = 1>(q) d = Div(one, m) y = Mul(x, d)"),
            "Reciprocal": _inverse(f"{_CAST} d = Reciprocal(q) y = Mul(m, d)"),
        },
    )  # fmt: skip


def _of_whole_quotients() -> KnownPieces:
    quotient = "a = Abs(q) b = Add(a, one) d = Div(one, b)"
    return KnownPieces(
        members={
            "as it was found": _inverse(f"{quotient} y = Mul(k, d)", "int64"),
            "int32": _inverse(f"{quotient} y = Mul(k, d)", "int32"),
            "factors exchanged": _inverse(f"{quotient} y = Mul(d, k)", "int64"),
            "several factors": _inverse(f"{quotient} y = Mul(ks, d)", "int32"),
            "a factor that is computed": _inverse(f"s = Add(x, k) {quotient} y = Mul(s, d)", "int64"),
            "a constant quotient": _inverse("s = Add(x, k) d = Div(one, two) y = Mul(s, d)", "int64"),
            "opset 13": _inverse(f"{quotient} y = Mul(k, d)", "int64", opset=13),
            "Neg after": _inverse(f"{quotient} p = Mul(k, d) y = Neg(p)", "int64"),
        },
        near_misses={
            "two": _inverse("a = Abs(q) b = Add(a, one) d = Div(two, b) y = Mul(k, d)", "int64"),
            "float32": _inverse(f"{quotient} y = Mul(k, d)"),
            "float64": _inverse(f"{quotient} y = Mul(k, d)", "double"),
            "the quotient is an output": _inverse(f"{quotient} y = Mul(k, d)", "int64", also=", int64 d"),
            "Add": _inverse(f"{quotient} y = Add(k, d)", "int64"),
            "several ones": _inverse(f"{quotient} y = Mul(k, d)", "int64", one=[1, 1, 1]),
            "the quotient is read twice": _inverse(f"{quotient} p = Mul(k, d) y = Add(p, d)", "int64"),
        },
    )


def _of_ones_of_a_higher_rank() -> KnownPieces:
    plain = "d = Div(one, q) y = Mul(x, d)"
    return KnownPieces(
        members={
            "as it was found": _inverse(plain, one=[[1]]),
            "scalars": _written("float x, float q", plain, one=_float([1])),
            "a matrix": _inverse(plain, shape="2, 3", one=[[[1]]]),
            "float64": _inverse(plain, "double", one=[[1]]),
            "float16": _inverse(plain, "float16", one=[[1]]),
            "factors exchanged": _inverse("d = Div(one, q) y = Mul(d, x)", one=[[1]]),
            "Exp before": _inverse("e = Exp(q) d = Div(one, e) y = Mul(d, x)", one=[[1]]),
        },
        near_misses={
            "of the rank of a factor": _inverse(plain, shape="2, 3", one=[[1]]),
            "of the same rank": _inverse(plain, one=[1]),
            "two": _inverse(plain, one=[[2]]),
            "the quotient is an output": _inverse(plain, also=", float d", one=[[1]]),
            "the dividend is fed": _written("float[3] x, float[3] q, float[1, 1] one", plain),
            "Add": _inverse("d = Div(one, q) y = Add(x, d)", one=[[1]]),
            "two ones": _inverse(plain, one=[[1], [1]]),
        },
    )


def _gemm(
    nodes: str, inputs: str = "float[3, 4] x", opset: int = 18, also: str = "", elem: str = "float"
) -> onnx.ModelProto:
    weights = {"w": _numbers(4, 5), "s": _numbers(4, 4), "b": _numbers(5), "c": _numbers(4)}
    held = {name: _of(elem, value) for name, value in weights.items()}
    return _written(inputs, nodes, f"{elem} y{also}", opset, **held)


def _of_transposes_of_nothing() -> KnownPieces:
    of_x, of_w = "t = Transpose<perm = [0, 1]>(x)", "t = Transpose<perm = [0, 1]>(w)"
    return KnownPieces(
        members={
            "as it was found": _gemm(f"{of_x} m = MatMul(t, w) y = Add(m, b)"),
            "Gemm": _gemm(f"{of_x} y = Gemm(t, w, b)"),
            "the other matrix": _gemm(f"{of_w} y = Gemm(x, t, b)", "float[3, 4] x, float[4, 5] w"),
            "a constant": _gemm(f"{of_w} y = Gemm(x, t, b)"),
            "square": _gemm(f"{of_x} y = Gemm(t, s, c)", "float[4, 4] x"),
            "square, no bias": _gemm(f"{of_x} y = Gemm(t, s)", "float[4, 4] x"),
            "square, a sum": _gemm(f"{of_x} m = MatMul(t, s) y = Add(m, c)", "float[4, 4] x"),
            "of the product": _gemm("g = Gemm(x, w) y = Transpose<perm = [0, 1]>(g)"),
            "transA": _gemm(f"{of_x} y = Gemm<transA = 1>(t, w, b)", "float[4, 3] x"),
            "opset 11": _gemm(f"{of_x} y = Gemm(t, w, b)", opset=11),
            "float64": _gemm(f"{of_x} y = Gemm(t, w, b)", "double[3, 4] x", elem="double"),
        },
        near_misses={
            "a real transpose": _gemm("t = Transpose<perm = [1, 0]>(x) y = Gemm(t, w, b)", "float[4, 3] x"),
            "a real transpose, by default": _gemm("t = Transpose(x) y = Gemm(t, w, b)", "float[4, 3] x"),
            "of the bias": _gemm(
                "t = Transpose<perm = [0, 1]>(z) y = Gemm(x, w, t)", "float[3, 4] x, float[3, 5] z"
            ),
            "nothing is added": _gemm(f"{of_x} y = MatMul(t, w)"),
            "Transpose gives an output": _gemm(f"{of_x} y = Gemm(t, w, b)", also=", float t"),
            "read twice": _gemm(f"{of_x} g = Gemm(t, s, c) y = Add(t, g)", "float[4, 4] x"),
            "Identity": _gemm("t = Identity(x) y = Gemm(t, w, b)"),
        },
    )  # fmt: skip


def _scaled(
    shape: str = "3, 1",
    gain: ArrayLike = (0.5, 1, 1.5, 2),
    *,
    last: str = "y = Mul(d, g)",
    first: str = "p = Pow(x, two) v = ReduceMean<axes = [-1], keepdims = 1>(p)",
    root: str = "e = Add(v, epsilon) s = Sqrt(e) d = Div(x, s)",
    opset: int = 13,
    elem: str = "float",
    also: str = "",
) -> onnx.ModelProto:
    weights = {"two": 2, "four": 4, "epsilon": 1e-3, "g": gain, "b": gain}
    held = {name: _of(elem, value) for name, value in weights.items()} | {"last": _int64([-1])}
    return _written(f"{elem}[{shape}] x", f"{first} {root} {last}", f"{elem} y{also}", opset, **held)


def _of_gains_that_widen() -> KnownPieces:
    centred = (
        "m = ReduceMean<axes = [-1], keepdims = 1>(x) c = Sub(x, m) p = Pow(c, two)"
        " v = ReduceMean<axes = [-1], keepdims = 1>(p)"
    )
    of_c = "e = Add(v, epsilon) s = Sqrt(e) d = Div(c, s)"
    return KnownPieces(
        members={
            "as it was found": _scaled("1, 1", (0.5, 2), first=centred, root=of_c, last="y = Mul(g, d)"),
            "not centred": _scaled(),
            "3 rows": _scaled(first=centred, root=of_c),
            "opset 18": _scaled(first="p = Pow(x, two) v = ReduceMean<keepdims = 1>(p, last)", opset=18),
            "factors exchanged": _scaled(last="y = Mul(g, d)"),
            "rank 3": _scaled("2, 3, 1"),
            "float16": _scaled(elem="float16"),
            "a bias": _scaled(first=centred, root=of_c, last="n = Mul(d, g) y = Add(n, b)"),
        },
        near_misses={
            "a gain for each column": _scaled("3, 4"),
            "one gain": _scaled(gain=[0.5]),
            "a matrix of gains": _scaled(gain=[[0.5, 1, 1.5, 2]]),
            "one gain for 4 columns": _scaled("3, 4", [0.5]),
            "no epsilon": _scaled(root="s = Sqrt(v) d = Div(x, s)"),
            "another power": _scaled(first="p = Pow(x, four) v = ReduceMean<axes = [-1], keepdims = 1>(p)"),
            "a sum": _scaled(last="y = Add(d, g)"),
            "the ratio is an output": _scaled(also=", float d"),
            "float64": _scaled(elem="double"),
        },
    )


def _product(nodes: str, inputs: str = "float[3, 4] x", also: str = "", c: ArrayLike = 0.5) -> onnx.ModelProto:
    return _written(inputs, nodes, f"float y{also}", w=_numbers(4, 5), c=_float(c), shape=_int64([6, 5]))


def _of_factors_of_a_higher_rank() -> KnownPieces:
    after = "m = MatMul(x, w) y = Mul(m, c)"
    return KnownPieces(
        members={
            "one dimension more": _product(after, c=[[[0.5]]]),
            "two dimensions more": _product(after, c=[[[[0.5]]]]),
            "Div": _product("m = MatMul(x, w) y = Div(m, c)", c=[[[0.5]]]),
            "factors exchanged": _product("m = MatMul(x, w) y = Mul(c, m)", c=[[[0.5]]]),
            "the matrix is fed": _product(after, "float[3, 4] x, float[4, 5] w", c=[[[0.5]]]),
            "rank 3": _product(after, "float[2, 3, 4] x", c=[[[[0.5]]]]),
            "Relu before": _product("r = Relu(x) m = MatMul(r, w) y = Mul(m, c)", c=[[[0.5]]]),
        },
        near_misses={
            "a scalar": _product(after),
            "of the same rank": _product(after, c=[[0.5]]),
            "of the same rank, rank 3": _product(after, "float[2, 3, 4] x", c=[[[0.5]]]),
            "fed": _product(after, "float[3, 4] x, float[1, 1, 1] c"),
            "a sum": _product("m = MatMul(x, w) y = Add(m, c)", c=[[[0.5]]]),
            "the product is an output": _product(after, also=", float m", c=[[[0.5]]]),
            "several factors": _product(after, c=[[[0.5], [1], [2]]]),
        },
    )


def _normalized(nodes: str, inputs: str = "float[2, 3, 4] x", also: str = "", opset: int = 18) -> onnx.ModelProto:
    weights = {name: _numbers(5) for name in ("s", "b", "mean")} | {"w": _numbers(4, 5), "variance": _float([1] * 5)}
    text = f"{nodes} y = BatchNormalization(t, s, b, mean, variance)"
    return _written(inputs, text, f"float y{also}", opset, shape=_int64([6, 5]), **weights)


def _of_normalized_products() -> KnownPieces:
    swapped, reshaped = "t = Transpose<perm = [0, 2, 1]>(m)", "t = Reshape(m, shape)"
    return KnownPieces(
        members={
            "Transpose": _normalized(f"m = MatMul(x, w) {swapped}"),
            "Reshape": _normalized(f"m = MatMul(x, w) {reshaped}"),
            "rank 4": _normalized(f"m = MatMul(x, w) {reshaped}", "float[1, 2, 3, 4] x"),
            "Relu before": _normalized(f"r = Relu(x) m = MatMul(r, w) {reshaped}"),
            "opset 15": _normalized(f"m = MatMul(x, w) {reshaped}", opset=15),
            "no batch": _normalized(f"m = MatMul(x, w) {swapped}", "float[1, 3, 4] x"),
        },
        near_misses={
            "a matrix": _normalized("t = MatMul(x, w)", "float[6, 4] x"),
            "a matrix that is reshaped": _normalized(f"m = MatMul(x, w) {reshaped}", "float[6, 4] x"),
            "the matrix is fed": _normalized(f"m = MatMul(x, w) {reshaped}", "float[2, 3, 4] x, float[4, 5] w"),
            "the product is an output": _normalized(f"m = MatMul(x, w) {reshaped}", also=", float m"),
            "Relu between": _normalized(f"m = MatMul(x, w) r = Relu(m) {reshaped.replace('m,', 'r,')}"),
        },
    )


# OpenVINO


def _aligned(
    more: str = "",
    regions: ArrayLike = ((0, 0, 6, 6),),
    shape: str = "1, 1, 8, 8",
    opset: int = 16,
    elem: str = "float",
) -> onnx.ModelProto:
    rois = _of(elem, regions)
    node = f"y = RoiAlign<output_height = 2, output_width = 2{more}>(x, rois, batch)"
    return _written(
        f"{elem}[{shape}] x", node, f"{elem} y", opset, rois=rois, batch=_int64(np.arange(len(rois)) % int(shape[0]))
    )


def _of_regions() -> KnownPieces:
    two = ((0, 0, 6, 6), (1, 1, 7, 5))
    return KnownPieces(
        members={
            "as it was found": _aligned(),
            "opset 10": _aligned(opset=10),
            "a scale": _aligned(", spatial_scale = 0.5", [[0, 0, 14, 14]]),
            "two regions": _aligned("", two),
            "two images": _aligned("", two, "2, 1, 8, 8"),
            "3 channels": _aligned(shape="1, 3, 8, 8"),
            "the largest": _aligned(', mode = "max"'),
            "half pixels": _aligned(', coordinate_transformation_mode = "output_half_pixel"'),
            "float64": _aligned(elem="double"),
        },
        near_misses={
            "0": _aligned(", sampling_ratio = 0"),
            "1": _aligned(", sampling_ratio = 1"),
            "2": _aligned(", sampling_ratio = 2"),
            "3": _aligned(", sampling_ratio = 3"),
            "2, opset 10": _aligned(", sampling_ratio = 2", opset=10),
            "2, two regions": _aligned(", sampling_ratio = 2", two),
        },
    )


def _reduced(operator: str, more: str = "<axes = [1]>", opset: int = 13, elem: str = "float") -> onnx.ModelProto:
    nodes = f"y = {operator}{more}(x{', axes' if opset >= 18 else ''})"
    return _written(f"{elem}[2, 3, 4] x", nodes, f"{elem} y", opset, axes=_int64([1]))


def _of_forgotten_axes(operator: str) -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _reduced(operator),
            "keepdims": _reduced(operator, "<axes = [1], keepdims = 0>"),
            "the last axis": _reduced(operator, "<axes = [-1]>"),
            "two axes": _reduced(operator, "<axes = [0, 2]>"),
            "opset 17": _reduced(operator, opset=17),
            "float64": _reduced(operator, elem="double"),
        },
        near_misses={
            "all axes": _reduced(operator, ""),
            "all axes are named": _reduced(operator, "<axes = [0, 1, 2]>"),
            "opset 12": _reduced(operator, opset=12),
            "opset 11": _reduced(operator, opset=11),
            "opset 18": _reduced(operator, "", opset=18),
            "ReduceL2": _reduced("ReduceL2"),
            "ReduceMean": _reduced("ReduceMean"),
            "ReduceSumSquare": _reduced("ReduceSumSquare"),
        },
    )


_LARGE = 2**33


def _with_constant(operator: str, c: float = _LARGE, elem: str = "int64", operands: str = "x, c") -> onnx.ModelProto:
    return _written(f"{elem}[6] x", f"y = {operator}({operands})", f"{elem} y", c=_of(elem, c))


def _of_long_integers() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _written("int64[6] x, bool[6] k", "y = Where(k, x, c)", "int64 y", c=_int64(_LARGE)),
            "BitwiseAnd": _with_constant("BitwiseAnd"),
            "BitwiseOr": _with_constant("BitwiseOr"),
            "Add": _with_constant("Add"),
            "Sub": _with_constant("Sub"),
            "from the constant": _with_constant("Sub", operands="c, x"),
            "Mul": _with_constant("Mul"),
            "Max": _with_constant("Max"),
            "Min": _with_constant("Min", -_LARGE),
            "uint64": _with_constant("Add", elem="uint64"),
            "a little too large": _with_constant("Add", 2**31),
        },
        near_misses={
            "2 ** 30": _with_constant("Add", 2**30),
            "nearly too small": _with_constant("Add", 5 - 2**31),
            "int32": _with_constant("Add", 2**30, "int32"),
            "float32": _with_constant("Add", elem="float"),
            "float64": _with_constant("Add", elem="double"),
            "Div": _with_constant("Div"),
        },
    )


def _cast(
    c: float = 1e12, to: str = "int64", operator: str = "Mul", elem: str = "float", shape: str = "6"
) -> onnx.ModelProto:
    number = {"int32": 6, "int64": 7, "double": 11, "uint32": 12, "uint64": 13}[to]
    nodes = f"a = {operator}(x, c) y = Cast<to = {number}>(a)"
    return _written(f"{elem}[{shape}] x", nodes, f"{to} y", c=_of(elem, c))


def _of_casts_to_long_integers() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _cast(5e18),
            "1e12": _cast(),
            "3e9": _cast(3e9),
            "float64": _cast(elem="double"),
            "Add": _cast(operator="Add"),
            "a matrix": _cast(shape="2, 3"),
            "uint32": _cast(4e9, "uint32"),
            "uint64": _cast(to="uint64"),
        },
        near_misses={
            "2e9": _cast(2e9),
            "1e6": _cast(1e6),
            "Add 1e6": _cast(1e6, operator="Add"),
            "int32": _cast(1e9, "int32"),
            "to float64": _cast(to="double"),
            "float16": _cast(6e4, elem="float16"),
        },
    )


def _power(base: int, exponent: int, elem: str = "int64", last: str = "y = Pow(b, e)") -> onnx.ModelProto:
    held = {"k": _of(elem, base), "e": _of(elem, exponent), "half": _float(exponent)}
    return _written(f"{elem}[20] x", f"a = Abs(x) b = Add(a, k) {last}", f"{elem} y", **held)


def _of_powers() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _power(17, 7),
            "13 ** 8": _power(13, 8),
            "16 ** 7": _power(16, 7),
            "5001 ** 2": _power(5001, 2),
            "301 ** 3": _power(301, 3),
            "int32": _power(17, 7, "int32"),
            "a constant base": _power(6, 17, last="y = Pow(e, b)"),
            "the exponent is a float32": _power(16, 7, last="y = Pow(b, half)"),
        },
        near_misses={
            "float32": _power(13, 3, "float"),
            "float64": _power(16, 7, "double"),
            "to the power of 0": _power(5001, 0),
            "Mul": _power(5001, 2, last="y = Mul(b, b)"),
            "Add": _power(5001, 2, last="y = Add(b, e)"),
        },
    )


def _unique(more: str = "<sorted = 0>", elem: str = "float", shape: str = "6", results: str = "y") -> onnx.ModelProto:
    nodes = f"{results} = Unique{more}(x)"
    return _written(f"{elem}[{shape}] x", nodes, ", ".join([f"{elem} y", *["int64 i"] * (results != "y")]))


def _of_unique_values() -> KnownPieces:
    return KnownPieces(
        members={
            "a list": _unique(),
            "a matrix": _unique(shape="3, 4"),
            "int64": _unique(elem="int64", shape="12"),
            "float64": _unique(elem="double"),
            "rank 3": _unique(shape="2, 3, 2"),
        },
        near_misses={
            "sorted by default": _unique(""),
            "sorted": _unique("<sorted = 1>"),
            "a matrix, sorted": _unique("", shape="3, 4"),
            "rows": _unique("<sorted = 0, axis = 0>", shape="4, 3"),
            "columns": _unique("<sorted = 0, axis = 1>", shape="4, 3"),
            "one element": _unique(shape="1"),
        },
    )


def _of_unique_values_of_the_reference() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _unique(),
            "float64": _unique(elem="double"),
            "int64": _unique(elem="int64", shape="12"),
            "a matrix": _unique(shape="3, 4"),
            "a matrix, with indices": _unique(shape="3, 4", results="y, i"),
            "rank 3": _unique(shape="2, 3, 2"),
        },
        near_misses={
            "with indices": _unique(results="y, i"),
            "sorted by default": _unique(""),
            "sorted": _unique("<sorted = 1>"),
            "a matrix, sorted": _unique("", shape="3, 4"),
            "a matrix, sorted, with indices": _unique("", shape="3, 4", results="y, i"),
            "one element": _unique(shape="1"),
        },
    )


def _pooled(more: str, shape: str = "1, 2, 5, 5", opset: int = 18, results: str = "y, i") -> onnx.ModelProto:
    outputs = "float y, int64 i" if results == "y, i" else "float y"
    return _written(f"float[{shape}] x", f"{results} = MaxPool<{more}>(x)", outputs, opset)


def _of_indices_by_columns() -> KnownPieces:
    by_columns = "kernel_shape = [2, 2], storage_order = 1"
    return KnownPieces(
        members={
            "as it was found": _pooled(by_columns, opset=12),
            "opset 18": _pooled(by_columns),
            "strides": _pooled(f"{by_columns}, strides = [2, 2]"),
            "dilations": _pooled(f"{by_columns}, dilations = [2, 2]"),
            "pads": _pooled("kernel_shape = [3, 3], pads = [1, 1, 1, 1], storage_order = 1"),
            "3-D": _pooled("kernel_shape = [2, 2, 2], storage_order = 1", "1, 1, 4, 4, 4"),
            "6 columns": _pooled(by_columns, "1, 1, 4, 6"),
            "two images": _pooled(by_columns, "2, 3, 4, 4"),
        },
        near_misses={
            "by rows": _pooled("kernel_shape = [2, 2], storage_order = 0"),
            "by rows, by default": _pooled("kernel_shape = [2, 2]"),
            "by rows, strides": _pooled("kernel_shape = [2, 2], strides = [2, 2]"),
            "by rows, two images": _pooled("kernel_shape = [2, 2]", "2, 3, 4, 4"),
            "no indices": _pooled(by_columns, results="y"),
            "no indices, strides": _pooled(f"{by_columns}, strides = [2, 2]", results="y"),
            "1-D": _pooled("kernel_shape = [2], storage_order = 1", "1, 2, 5"),
        },
    )


def _resized(
    mode: str, more: str = "", by: tuple[float, ...] = (0.5, 0.5), shape: str = "1, 1, 8, 8", opset: int = 18
) -> onnx.ModelProto:
    """A Resize by factors, or, if they are whole and above 2, to sizes."""
    to = by if min(by) > 2 else ()
    node = f'y = Resize<mode = "{mode}"{more}>(x, , {", size" if to else "scale"})'
    all_axes = "axes" not in more
    return _written(
        f"float[{shape}] x", node, opset=opset,
        scale=_float([*[1, 1] * all_axes, *by]), size=_int64([*[1, int(shape[3])] * all_axes, *to]),
    )  # fmt: skip


def _of_smoothed_sizes() -> KnownPieces:
    smooth = ", antialias = 1"
    return KnownPieces(
        members={
            "as it was found": _resized("cubic", smooth),
            "linear": _resized("linear", smooth),
            "other factors": _resized("linear", smooth, (0.6, 0.8)),
            "sizes": _resized("cubic", smooth, (3, 5)),
            "linear, sizes": _resized("linear", smooth, (3, 5)),
            "opset 19": _resized("cubic", smooth, opset=19),
            "3 channels": _resized("linear", smooth, shape="1, 3, 8, 8"),
            "one axis": _resized("linear", smooth, (1, 0.5)),
            "aligned corners": _resized("cubic", smooth + ', coordinate_transformation_mode = "align_corners"'),
        },
        near_misses={
            "cubic": _resized("cubic"),
            "linear, not smoothed": _resized("linear"),
            "switched off": _resized("linear", ", antialias = 0"),
            "cubic, switched off": _resized("cubic", ", antialias = 0"),
            "larger": _resized("linear", smooth, (2, 2)),
            "cubic, larger": _resized("cubic", smooth, (2, 2)),
            "sizes, not smoothed": _resized("cubic", "", (3, 5)),
        },
    )


def _of_excluded_borders() -> KnownPieces:
    exclude = ", exclude_outside = 1"
    return KnownPieces(
        members={
            "half the size": _resized("cubic", exclude),
            "twice the size": _resized("cubic", exclude, (2, 2)),
            "sizes": _resized("cubic", exclude, (3, 5)),
            "another coefficient": _resized("cubic", exclude + ", cubic_coeff_a = -0.5"),
            "opset 13": _resized("cubic", exclude, opset=13),
            "opset 19": _resized("cubic", exclude, opset=19),
            "3 channels": _resized("cubic", exclude, shape="1, 3, 8, 8"),
            "one axis": _resized("cubic", exclude, (1, 0.5)),
        },
        near_misses={
            "not said": _resized("cubic"),
            "switched off": _resized("cubic", ", exclude_outside = 0"),
            "twice the size, not said": _resized("cubic", "", (2, 2)),
            "linear": _resized("linear"),
            "another coefficient, not said": _resized("cubic", ", cubic_coeff_a = -0.5"),
            "sizes, not said": _resized("cubic", "", (3, 5)),
        },
    )


def _of_kept_aspects() -> KnownPieces:
    def within(
        mode: str, policy: str, to: tuple[int, int] = (4, 4), shape: str = "1, 1, 8, 6", opset: int = 18
    ) -> onnx.ModelProto:
        more = f', keep_aspect_ratio_policy = "{policy}"' if policy else ""
        return _resized(mode, f"{more}, axes = [2, 3]", to, shape, opset)

    return KnownPieces(
        members={
            "nearest": within("nearest", "not_larger"),
            "linear": within("linear", "not_larger"),
            "cubic": within("cubic", "not_larger"),
            "not smaller": within("nearest", "not_smaller"),
            "linear, not smaller": within("linear", "not_smaller"),
            "larger": within("nearest", "not_larger", (16, 16)),
            "opset 19": within("nearest", "not_larger", opset=19),
            "all axes": _resized("nearest", ', keep_aspect_ratio_policy = "not_larger"', (4, 4), "1, 1, 8, 6"),
        },
        near_misses={
            "stretch": within("nearest", "stretch"),
            "linear, stretch": within("linear", "stretch"),
            "not said": within("nearest", ""),
            "linear, not said": within("linear", ""),
            "cubic, not said": within("cubic", ""),
            "factors": _resized("linear", shape="1, 1, 8, 6"),
        },
    )


def _of_negative(
    last: str, first: str = "l = Sqrt(x)", elem: str = "float", shape: str = "8", opset: int = 18
) -> onnx.ModelProto:
    """Nodes that read what is NaN for negative numbers."""
    return _written(f"{elem}[{shape}] x", f"{first} {last}", f"{elem} y", opset, c=_of(elem, 0.5))


def _of_rectified_nan() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _of_negative("y = Relu(l)"),
            "Log": _of_negative("y = Relu(l)", "l = Log(x)"),
            "Acosh": _of_negative("y = Relu(l)", "l = Acosh(x)"),
            "float64": _of_negative("y = Relu(l)", elem="double"),
            "rank 3": _of_negative("y = Relu(l)", shape="2, 3, 4"),
            "opset 14": _of_negative("y = Relu(l)", opset=14),
            "Neg before": _of_negative("y = Relu(l)", "n = Neg(x) l = Sqrt(n)"),
        },
        near_misses={
            "LeakyRelu": _of_negative("y = LeakyRelu(l)"),
            "Abs": _of_negative("y = Abs(l)"),
            "Neg": _of_negative("y = Neg(l)"),
            "Sigmoid": _of_negative("y = Sigmoid(l)"),
            "Tanh": _of_negative("y = Tanh(l)"),
            "Exp before": _of_negative("y = Relu(l)", "l = Exp(x)"),
        },
    )


def _of_compared_nan() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": _of_negative("y = Min(l, x)"),
            "Max": _of_negative("y = Max(l, x)"),
            "Log": _of_negative("y = Min(l, x)", "l = Log(x)"),
            "float64": _of_negative("y = Max(l, x)", elem="double"),
            "a matrix": _of_negative("y = Min(l, x)", shape="3, 4"),
            "opset 13": _of_negative("y = Min(l, x)", opset=13),
            "a constant": _of_negative("y = Min(l, c)"),
            "Max with a constant": _of_negative("y = Max(l, c)"),
        },
        near_misses={
            "Add": _of_negative("y = Add(l, x)"),
            "Mul": _of_negative("y = Mul(l, x)"),
            "Sub": _of_negative("y = Sub(l, x)"),
            "Exp before": _of_negative("y = Min(l, x)", "l = Exp(x)"),
            "Mean": _of_negative("y = Mean(l, x)"),
            "one input": _of_negative("y = Max(l)"),
        },
    )


def _of_small_integers() -> KnownPieces:
    def past(operator: str, elem: str, c: int, shape: str = "30") -> onnx.ModelProto:
        return _written(f"{elem}[{shape}] x", f"y = {operator}(x, c)", f"{elem} y", c=_of(elem, c))

    return KnownPieces(
        members={
            "as it was found": past("Add", "uint8", 255),
            "below 0": past("Sub", "uint8", 3),
            "int8": past("Add", "int8", 127),
            "int8, Sub": past("Sub", "int8", -128),
            "int8, Mul": past("Mul", "int8", -128),
            "a matrix": past("Add", "uint8", 255, shape="3, 4"),
        },
        near_misses={
            "int16": past("Add", "int16", 2**15 - 1),
            "uint16": past("Sub", "uint16", 3),
            "int32": past("Add", "int32", 2**31 - 1),
            "float16": past("Add", "float16", 255),
            "Max": past("Max", "uint8", 255),
            "Min": past("Min", "uint8", 255),
            "BitwiseOr": past("BitwiseOr", "uint8", 255),
            "Div": past("Div", "uint8", 255),
        },
    )


def _of_infinite_doubles() -> KnownPieces:
    def at(c: float, last: str, elem: str = "double", shape: str = "8") -> onnx.ModelProto:
        return _written(f"{elem}[{shape}] x", last, f"{elem} y", c=_of(elem, c))

    return KnownPieces(
        members={
            "as it was found": at(0, "d = Div(x, c) y = Neg(d)"),
            "Abs": at(0, "d = Div(x, c) y = Abs(d)"),
            "Round": at(0, "d = Div(x, c) y = Round(d)"),
            "Floor": at(0, "d = Div(x, c) y = Floor(d)"),
            "Div alone": at(0, "y = Div(x, c)"),
            "a matrix": at(0, "d = Div(x, c) y = Neg(d)", shape="2, 4"),
            "a large factor": at(1e60, "y = Mul(x, c)"),
            "a large summand": at(1e60, "y = Add(x, c)"),
        },
        near_misses={
            "float32": at(0, "d = Div(x, c) y = Neg(d)", "float"),
            "float16": at(0, "d = Div(x, c) y = Neg(d)", "float16"),
            "by 1": at(1, "d = Div(x, c) y = Neg(d)"),
            "by little": at(1e-30, "d = Div(x, c) y = Neg(d)"),
            "1e38": at(1e38, "y = Mul(x, c)"),
            "a summand of 1e38": at(1e38, "y = Add(x, c)"),
        },
    )


# The reference evaluator of ONNX


def _of_local_responses() -> KnownPieces:
    def response(shape: str, more: str = "size = 3", elem: str = "float") -> onnx.ModelProto:
        return _written(f"{elem}[{shape}] x", f"y = LRN<{more}, alpha = 0.5>(x)", f"{elem} y", 13)

    return KnownPieces(
        members={
            "as it was found": response("1, 5, 4, 4"),
            "two images": response("2, 5, 4, 4"),
            "fewer channels": response("2, 1, 4, 4"),
            "7 images": response("7, 5, 4, 4"),
            "a larger window": response("1, 8, 4, 4", "size = 5"),
            "another exponent": response("1, 5, 4, 4", "size = 3, beta = 0.5"),
        },
        near_misses={
            "5 images": response("5, 5, 4, 4"),
            "one channel": response("1, 1, 4, 4"),
            "two images with two channels": response("2, 2, 4, 4"),
            "3 images, a larger window": response("3, 3, 4, 4", "size = 5"),
            "5 images, another exponent": response("5, 5, 4, 4", "size = 3, beta = 0.5"),
        },
    )


PIECES_AS_TEXT: Mapping[str, KnownPieces] = {
    "onnx-7805-lrn": _of_local_responses(),
    "onnx-8424-unique": _of_unique_values_of_the_reference(),
    "onnxruntime-22512-matmul-batch-normalization": _of_normalized_products(),
    "onnxruntime-24407-matmul-factor": _of_factors_of_a_higher_rank(),
    "onnxruntime-31980-gain-widens": _of_gains_that_widen(),
    "onnxruntime-32228-gemm-transpose": _of_transposes_of_nothing(),
    "onnxruntime-32416-cast-inverse": _of_dropped_casts(),
    "onnxruntime-inverse-integers": _of_whole_quotients(),
    "onnxruntime-inverse-rank": _of_ones_of_a_higher_rank(),
    "openvino-20879-max-pool-indices": _of_indices_by_columns(),
    "openvino-35647-small-integers": _of_small_integers(),
    "openvino-35649-relu-nan": _of_rectified_nan(),
    "openvino-35838-integer-power": _of_powers(),
    "openvino-35839-min-nan": _of_compared_nan(),
    "openvino-35892-long-integers": _of_long_integers(),
    "openvino-35893-antialias": _of_smoothed_sizes(),
    "openvino-35896-cast-long-integers": _of_casts_to_long_integers(),
    "openvino-37826-roi-align": _of_regions(),
    "openvino-37968-float64-infinity": _of_infinite_doubles(),
    "openvino-38238-reduce-l1-axes": _of_forgotten_axes("ReduceL1"),
    "openvino-38238-reduce-log-axes": _of_forgotten_axes("ReduceLogSumExp"),
    "openvino-resize-aspect": _of_kept_aspects(),
    "openvino-resize-exclude-outside": _of_excluded_borders(),
    "openvino-unique-order": _of_unique_values(),
}
"""File of the catalogue -> models that it is to recognise, and others."""
