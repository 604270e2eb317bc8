"""The pieces of which the catalogue of known failures speaks: small models on which engines fail, or did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.known_pieces_as_text import PIECES_AS_TEXT, KnownPieces
from support.real_failures import normalization_of_columns, product_and_slopes_of_channels, relu_clip_of_integers


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def _elem(name: str) -> int:
    return TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper()))


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, list[int]],
    output: list[int] | None,
    weights: Mapping[str, np.ndarray],
    opset: int = 18,
    elem: str = "float32",
) -> onnx.ModelProto:
    """All inputs are of one type; weights that nothing reads are left out."""
    read = {name for node in nodes for name in node.input}
    last = helper.make_tensor_value_info("y", TensorProto.FLOAT, output)
    last.type.tensor_type.elem_type = next((one.i for one in nodes[-1].attribute if one.name == "to"), _elem(elem))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, _elem(elem), shape) for name, shape in inputs.items()],
        [last],
        [numpy_helper.from_array(value, name) for name, value in weights.items() if name in read],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _normalization(
    elem: str = "float32",
    *,
    keepdims: int = 0,
    axis: int = -1,
    centred: bool = False,
    opset: int = 18,
    exchanged: bool = False,
    rank: int = 2,
    gain: tuple[int, ...] = (8,),
    exponent: int = 2,
    epsilon: bool = True,
) -> onnx.ModelProto:
    """What a layer normalization is made of, with a mean of squares whose ``keepdims`` is 0."""

    def mean(read: str, output: str, **more: int) -> onnx.NodeProto:
        if opset >= 18:
            return helper.make_node("ReduceMean", [read, "axes"], [output], **more)
        return helper.make_node("ReduceMean", [read], [output], axes=[axis], **more)

    source, nodes = "x", []
    if centred:
        source, nodes = "c", [mean("x", "mean"), helper.make_node("Sub", ["x", "mean"], ["c"])]
    nodes += [helper.make_node("Pow", [source, "two"], ["square"]), mean("square", "variance", keepdims=keepdims)]
    sides = ["eps", "variance"] if exchanged else ["variance", "eps"]
    nodes += [helper.make_node("Add", sides, ["more"])] if epsilon else []
    nodes += [
        helper.make_node("Sqrt", ["more" if epsilon else "variance"], ["root"]),
        helper.make_node("Div", [source, "root"], ["ratio"]),
        helper.make_node("Mul", ["gain", "ratio"] if exchanged else ["ratio", "gain"], ["y"]),
    ]
    weights = {
        "two": np.array(exponent, elem),
        "eps": np.array(1e-5, elem),
        "axes": np.array([axis], np.int64),
        "gain": np.linspace(0.5, 1.5, int(np.prod(gain))).reshape(gain).astype(elem),
    }
    return _model(nodes, {"x": [8] * rank}, None, weights, opset, elem)


def normalization_of_columns_in_full() -> onnx.ModelProto:
    """All eight nodes of a layer normalization that reduces the variance with ``keepdims=0``."""
    return _normalization(centred=True)


def convolution_with_a_sum(
    activation: str = "Relu", *, size: int = 1, channels: int = 16, bias: bool = True, summand: bool = True
) -> onnx.ModelProto:
    """A FusedConv whose fourth input is added: the NCHWc form of ONNX Runtime forgot it."""
    attributes = {"activation": activation} if activation else {}
    inputs = ["x", "w", "b" if bias else "", *(["z"] if summand else [])]
    node = helper.make_node("FusedConv", inputs, ["y"], domain="com.microsoft", kernel_shape=[size] * 2, **attributes)
    given = {"x": [1, channels, 5, 5]} | ({"z": [1, 16, 6 - size, 6 - size]} if summand else {})
    return _model([node], given, None, {"w": _numbers(16, channels, size, size), "b": _numbers(16)})


def transposed_convolution(
    stride: int = 2, auto_pad: str = "SAME_UPPER", *, rank: int = 2, bias: bool = False, **more: list[int]
) -> onnx.ModelProto:
    """A ConvTranspose that asks for a size: OpenVINO gave another one."""
    asked = {"auto_pad": auto_pad} if auto_pad else {}
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"] if bias else ["x", "w"], ["y"], strides=[stride] * rank, **asked, **more
    )
    weights = {"w": _numbers(1, 2, *[3] * rank), "b": _numbers(2)}
    return _model([node], {"x": [1, 1, *[3] * rank]}, None, weights, opset=11)


def there_and_back(
    inner: str = "float16", *, first: str = "float32", last: str = "float32", between: str = ""
) -> onnx.ModelProto:
    """A Cast to float16 and one back, which rounds."""
    nodes = [helper.make_node("Cast", ["x"], ["inner"], to=_elem(inner))]
    nodes += [helper.make_node(between, ["inner"], ["changed"])] if between else []
    nodes += [helper.make_node("Cast", ["changed" if between else "inner"], ["y"], to=_elem(last))]
    return _model(nodes, {"x": [64]}, None, {}, elem=first)


def slope_along_columns(
    shape: tuple[int, ...] = (1, 4, 4, 4), slope: tuple[int, ...] = (4,), elem: str = "float32"
) -> onnx.ModelProto:
    """A PRelu whose slope has one dimension, along the last axis, and as many values as there are channels."""
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    return _model([node], {"x": list(shape)}, None, {"slope": _numbers(*slope).astype(elem)}, elem=elem)


def product_and_slopes(
    *,
    x: tuple[int, ...] = (1, 3, 5, 4),
    w: tuple[int, ...] = (4, 6),
    slope: tuple[int, ...] = (3, 1, 1),
    bias: tuple[int, ...] = (),
    fed: bool = False,
) -> onnx.ModelProto:
    """A MatMul, perhaps with a bias, and a PRelu, which has a slope for each channel."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"])]
    nodes += [helper.make_node("Add", ["a", "b"], ["c"])] if bias else []
    nodes += [helper.make_node("PRelu", ["c" if bias else "a", "slope"], ["y"])]
    weights = {"slope": _numbers(*slope)} | ({"b": _numbers(*bias)} if bias else {})
    weights |= {} if fed else {"w": _numbers(*w)}
    return _model(nodes, {"x": list(x)} | ({"w": list(w)} if fed else {}), None, weights)


def relu_and_clip(
    elem: str = "int32",
    *,
    low: float | None = 0,
    high: float | None = 6,
    fed: tuple[str, ...] = (),
    before: str = "",
    also_output: bool = False,
    first: str = "Relu",
    shape: tuple[int, ...] = (3,),
) -> onnx.ModelProto:
    """A Relu and a Clip, whose limits are constants unless they are ``fed``."""
    limits = {name: np.array(value, elem) for name, value in (("low", low), ("high", high)) if value is not None}
    nodes = [helper.make_node(before, ["x"], ["b"])] if before else []
    nodes += [helper.make_node(first, ["b" if before else "x"], ["r"])]
    inputs = ["r", "low" if low is not None else "", *(["high"] if high is not None else [])]
    nodes += [helper.make_node("Clip", inputs, ["y"])]
    held = {name: value for name, value in limits.items() if name not in fed}
    made = _model(nodes, {"x": list(shape)} | {name: [] for name in fed}, None, held, elem=elem)
    if also_output:
        made.graph.output.append(helper.make_tensor_value_info("r", _elem(elem), None))
    return made


def _pieces_of_normalization() -> KnownPieces:
    return KnownPieces(
        members={
            "as it was found": normalization_of_columns(),
            "in full": normalization_of_columns_in_full(),
            "float16": _normalization("float16"),
            "in full, float16": _normalization("float16", centred=True),
            "opset 13": _normalization(opset=13),
            "rank 3": _normalization(rank=3),
            "addends exchanged": _normalization(exchanged=True),
            "the last axis counted from the front": _normalization(axis=1),
            "one gain": _normalization(gain=(1,)),
        },
        near_misses={
            "keepdims": _normalization(keepdims=1),
            "in full, keepdims": _normalization(keepdims=1, centred=True),
            "float64": _normalization("float64"),
            "the first axis": _normalization(axis=0),
            "a cube": _normalization(exponent=3),
            "no epsilon": _normalization(epsilon=False),
            "a matrix of gains": _normalization(gain=(8, 8)),
        },
    )


PIECES: Mapping[str, KnownPieces] = {
    **PIECES_AS_TEXT,
    "onnxruntime-30513-keepdims": _pieces_of_normalization(),
    "onnxruntime-23284-fused-conv": KnownPieces(
        members={
            "as it was found": convolution_with_a_sum(),
            "no activation": convolution_with_a_sum(""),
            "Sigmoid": convolution_with_a_sum("Sigmoid"),
            "Tanh": convolution_with_a_sum("Tanh"),
            "3 x 3": convolution_with_a_sum(size=3),
            "3 channels": convolution_with_a_sum(channels=3),
        },
        near_misses={
            "nothing is added": convolution_with_a_sum(summand=False),
            "no bias": convolution_with_a_sum(bias=False),
            "nothing is added, no activation": convolution_with_a_sum("", summand=False),
            "no bias, no activation": convolution_with_a_sum("", bias=False),
            "nothing is added, 3 x 3": convolution_with_a_sum(size=3, summand=False),
        },
    ),
    "onnxruntime-23116-relu-clip": KnownPieces(
        members={
            "as it was found": relu_clip_of_integers(),
            **{elem: relu_and_clip(elem) for elem in ("int8", "int64", "float64")},
            "no upper limit": relu_and_clip(high=None),
            "another lower limit": relu_and_clip(low=-3),
            "the upper limit is fed": relu_and_clip(fed=("high",)),
            "a node before": relu_and_clip(before="Neg"),
            "a scalar": relu_and_clip(shape=()),
        },
        near_misses={
            "float32": relu_and_clip("float32"),
            "float16": relu_and_clip("float16"),
            "no lower limit": relu_and_clip(low=None),
            "the lower limit is fed": relu_and_clip(fed=("low",)),
            "Relu gives an output": relu_and_clip(also_output=True),
            "Abs": relu_and_clip(first="Abs"),
        },
    ),
    "openvino-31007-conv-transpose": KnownPieces(
        members={
            "as it was found": transposed_convolution(),
            "stride 1": transposed_convolution(1),
            "lower": transposed_convolution(2, "SAME_LOWER"),
            "lower, stride 1": transposed_convolution(1, "SAME_LOWER"),
            "1-D": transposed_convolution(rank=1),
            "3-D": transposed_convolution(rank=3),
            "bias": transposed_convolution(bias=True),
            "dilations": transposed_convolution(dilations=[2, 2]),
        },
        near_misses={
            "VALID": transposed_convolution(auto_pad="VALID"),
            "NOTSET": transposed_convolution(auto_pad="NOTSET"),
            "neither": transposed_convolution(auto_pad=""),
            "pads": transposed_convolution(auto_pad="", pads=[1, 1, 1, 1]),
            "pads, 1-D": transposed_convolution(auto_pad="", rank=1, pads=[1, 1]),
        },
    ),
    "openvino-matmul-prelu": KnownPieces(
        members={
            "as it was found": product_and_slopes_of_channels(),
            "as many columns as channels": product_and_slopes(w=(4, 3)),
            "as many columns as rows": product_and_slopes(w=(4, 5)),
            "bias": product_and_slopes(bias=(6,)),
            "two samples": product_and_slopes(x=(2, 3, 5, 4)),
            "a slope of rank 4": product_and_slopes(slope=(1, 3, 1, 1)),
            "two channels": product_and_slopes(x=(1, 2, 5, 4), slope=(2, 1, 1)),
        },
        near_misses={
            "a slope for each column": product_and_slopes(slope=(6,)),
            "one slope": product_and_slopes(slope=(1,)),
            "a slope for each row": product_and_slopes(slope=(5, 1)),
            "a slope for each element": product_and_slopes(slope=(3, 5, 6)),
            "the matrix is fed": product_and_slopes(fed=True),
            "a bias for each channel": product_and_slopes(bias=(3, 1, 1)),
            "a matrix for each channel": product_and_slopes(w=(1, 3, 4, 6)),
            "rank 3": product_and_slopes(x=(3, 5, 4)),
        },
    ),
    "openvino-33371-prelu-slope": KnownPieces(
        members={
            "as it was found": slope_along_columns(),
            "3 rows": slope_along_columns((1, 4, 3, 4)),
            "rank 3": slope_along_columns((2, 4, 4)),
            "rank 5": slope_along_columns((1, 4, 4, 4, 4)),
            "float16": slope_along_columns(elem="float16"),
            "8 channels": slope_along_columns((1, 8, 4, 8), (8,)),
        },
        near_misses={
            "other channels": slope_along_columns((1, 3, 4, 4)),
            "a matrix": slope_along_columns((4, 4)),
            "one slope": slope_along_columns(slope=(1,)),
            "along channels": slope_along_columns(slope=(4, 1, 1)),
            "rank 2": slope_along_columns(slope=(1, 4)),
            "rank 4": slope_along_columns(slope=(1, 1, 1, 4)),
        },
    ),
    "openvino-cast-float16": KnownPieces(
        members={
            "as it was found": there_and_back(),
            "from float64": there_and_back(first="float64"),
            "to float64": there_and_back(last="float64"),
            "both": there_and_back(first="float64", last="float64"),
            "Relu between": there_and_back(between="Relu"),
            "Relu between, to float64": there_and_back(last="float64", between="Relu"),
        },
        near_misses={
            "bfloat16": there_and_back("bfloat16"),
            "float64": there_and_back("float64"),
            "int32": there_and_back("int32"),
            "int8": there_and_back("int8"),
            "Neg between": there_and_back(between="Neg"),
            "from float16": there_and_back("float32", first="float16", last="float16"),
        },
    ),
}
"""File of the catalogue -> models that it is to recognise, and others."""
