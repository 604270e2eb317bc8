"""The pieces of which the catalogue of known failures speaks: small models on which engines fail, or did."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.real_failures import normalization_of_columns, product_and_slopes_of_channels, relu_clip_of_integers


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, list[int]],
    output: list[int],
    weights: Mapping[str, np.ndarray],
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def normalization_of_columns_in_full() -> onnx.ModelProto:
    """All eight nodes of a layer normalization that reduces the variance with ``keepdims=0``."""
    width = 8
    nodes = [
        helper.make_node("ReduceMean", ["x", "last"], ["mean"]),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["square"]),
        helper.make_node("ReduceMean", ["square", "last"], ["variance"], keepdims=0),
        helper.make_node("Add", ["variance", "eps"], ["more"]),
        helper.make_node("Sqrt", ["more"], ["root"]),
        helper.make_node("Div", ["centred", "root"], ["ratio"]),
        helper.make_node("Mul", ["ratio", "gain"], ["y"]),
    ]
    weights = {
        "two": np.array(2, np.float32),
        "eps": np.array(1e-5, np.float32),
        "last": np.array([-1], np.int64),
        "gain": np.linspace(0.5, 1.5, width, dtype=np.float32),
    }
    return _model(nodes, {"x": [width, width]}, [width, width], weights)


def convolution_with_a_sum(activation: str = "Relu") -> onnx.ModelProto:
    """A FusedConv whose fourth input is added: the NCHWc form of ONNX Runtime forgot it."""
    attributes = {"activation": activation} if activation else {}
    node = helper.make_node(
        "FusedConv", ["x", "w", "b", "z"], ["y"], domain="com.microsoft", kernel_shape=[1, 1], **attributes
    )
    shape = [1, 16, 5, 5]
    return _model([node], {"x": shape, "z": shape}, shape, {"w": _floats(16, 16, 1, 1), "b": _floats(16)})


def transposed_convolution(stride: int = 2, auto_pad: str = "SAME_UPPER") -> onnx.ModelProto:
    """A ConvTranspose that asks for a size: OpenVINO gave another one."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad=auto_pad, strides=[stride, stride])
    return _model([node], {"x": [1, 1, 3, 3]}, [1, 2, 3 * stride, 3 * stride], {"w": _floats(1, 2, 3, 3)}, opset=11)


def there_and_back() -> onnx.ModelProto:
    """A Cast to float16 and one back, which rounds."""
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT),
    ]
    return _model(nodes, {"x": [64]}, [64], {})


def slope_along_columns() -> onnx.ModelProto:
    """A PRelu whose slope has one dimension, along the last axis, and as many values as there are channels."""
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    return _model([node], {"x": [1, 4, 4, 4]}, [1, 4, 4, 4], {"slope": _floats(4)})


PIECES: Mapping[str, tuple[Callable[[], onnx.ModelProto], ...]] = {
    "onnxruntime-30513-keepdims": (normalization_of_columns, normalization_of_columns_in_full),
    "onnxruntime-23284-fused-conv": (convolution_with_a_sum, lambda: convolution_with_a_sum("")),
    "onnxruntime-23116-relu-clip": (relu_clip_of_integers,),
    "openvino-31007-conv-transpose": (
        transposed_convolution,
        lambda: transposed_convolution(1),
        lambda: transposed_convolution(2, "SAME_LOWER"),
        lambda: transposed_convolution(1, "SAME_LOWER"),
    ),
    "openvino-matmul-prelu": (product_and_slopes_of_channels,),
    "openvino-33371-prelu-slope": (slope_along_columns,),
    "openvino-cast-float16": (there_and_back,),
}
"""File of the catalogue -> the models of its patterns, in their order."""
