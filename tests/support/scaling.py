"""A model that scales by one weight, which stands in it or in a file beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.arange(512, dtype=np.float32)


def scaling_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["scaled"]), helper.make_node("Add", ["scaled", "b"], ["y"])],
        "scaling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [512])],
        [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(np.ones(1, np.float32), "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external_model(
    folder: Path, location: str = "w.bin", offset: int = 0, length: int | None = 2048
) -> onnx.ModelProto:
    model = scaling_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)} | ({} if length is None else {"length": str(length)})
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    (folder / "w.bin").write_bytes(bytes(offset if offset > 0 else 0) + WEIGHT.tobytes())
    return model
