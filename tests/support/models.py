"""Small models with one interesting trait each, written by code."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Sequence[int | str | None] | None = (2, 2), elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Iterable[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    value_info: Sequence[onnx.ValueInfoProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "graph", list(inputs), list(outputs), list(weights), value_info=list(value_info)
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def weight(name: str, *values: float, shape: Sequence[int] | None = None, dtype: str = "float32") -> onnx.TensorProto:
    array = np.array(values, dtype=dtype)
    return numpy_helper.from_array(array.reshape(shape) if shape is not None else array, name)


def seeds_example() -> onnx.ModelProto:
    """The model of the seeds' example: two inputs, Mul, Add, Sub and what stands around them; five nodes."""
    return model(
        [
            helper.make_node("Identity", ["X0"], ["x"], name="onnx_graphsurgeon_node_1"),
            helper.make_node("Mul", ["x", "a"], ["Ax"], name="onnx_graphsurgeon_node_3"),
            helper.make_node("Identity", ["Y0"], ["y"], name="onnx_graphsurgeon_node_5"),
            helper.make_node("Add", ["Ax", "y"], ["axpy"], name="onnx_graphsurgeon_node_7"),
            helper.make_node("Sub", ["axpy", "d"], ["out"], name="onnx_graphsurgeon_node_9"),
        ],
        [info("X0", (1, 3, 8, 8)), info("Y0", (1, 3, 8, 8))],
        [info("out", (1, 3, 8, 8))],
        [weight("a", 2.5, shape=(1,)), weight("d", 0.25, shape=(1,))],
    )


def chain(length: int, ops: Sequence[str] = ("Relu",), names: bool = True) -> onnx.ModelProto:
    """``length`` nodes one after the other; node i has operator ``ops[i % len(ops)]`` and the name ``n<i>``."""
    nodes = [
        helper.make_node(ops[i % len(ops)], [f"t{i}"], [f"t{i + 1}"], name=f"n{i}" if names else "")
        for i in range(length)
    ]
    return model(nodes, [info("t0")], [info(f"t{length}")])


def save(made: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(made.SerializeToString())
    return path
