"""Small models on which engines really fail, whatever biopsy does."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def _model(
    nodes: list[onnx.NodeProto],
    shape: list[int],
    ends: list[int],
    weights: dict[str, object],
    elem: int = TensorProto.FLOAT,
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", elem, shape)],
        [helper.make_tensor_value_info("y", elem, ends)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def relu_clip_of_integers() -> onnx.ModelProto:
    """ONNX Runtime (to 1.32.0 at least) cannot fuse Relu and Clip where the limits are integers, and gives up."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Clip", ["r", "low", "high"], ["y"])]
    return _model(nodes, [3], [3], {"low": np.int32(0), "high": np.int32(6)}, TensorProto.INT32)


def normalization_of_columns(width: int = 8) -> onnx.ModelProto:
    """ONNX Runtime (1.17.3 to 1.32.0 at least) takes this for layer normalization, although ``keepdims`` is 0."""
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["p"]),
        helper.make_node("ReduceMean", ["p", "last"], ["m"], keepdims=0),
        helper.make_node("Add", ["m", "eps"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["s"]),
        helper.make_node("Div", ["x", "s"], ["d"]),
        helper.make_node("Mul", ["d", "gain"], ["y"]),
    ]
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "last": np.array([-1], np.int64),
        "gain": np.linspace(0.5, 1.5, width, dtype=np.float32),
    }
    return _model(nodes, [width, width], [width, width], weights)


def saturating_cast() -> onnx.ModelProto:
    """OpenVINO 2026.4.1 gives NaN where float8 is to saturate; ONNX Runtime is wrong at 480 to 500 if it is not to."""
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN, saturate=1)]
    made = _model(nodes, [4, 32], [4, 32], {}, opset=19)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN
    return made


def product_and_slopes_of_channels() -> onnx.ModelProto:
    """OpenVINO 2026.4.1 does not compile a product and a slope per channel, if there are not as many columns."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slope"], ["y"])]
    weights = {"w": np.ones((4, 6), np.float32), "slope": np.full((3, 1, 1), 0.1, np.float32)}
    return _model(nodes, [1, 3, 5, 4], [1, 3, 5, 6], weights)
