"""The models that are measured, written by code: any number of nodes, small tensors, runnable in an engine.

The names of nodes are ``n<number>`` on the way from input to output, and ``branch<number>`` on a branch beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
WIDTH = 16  # rows and columns of the matrices: small, so that a check costs what its start costs
CHANNELS = 8

_SEED = 7


class _FullError(Exception):
    """The model has as many nodes as were asked for."""


class _Writer:
    """Collects nodes and weights up to a number of nodes; every method returns the name of the tensor it adds."""

    def __init__(self, most: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._most = most
        self._on_branch = False
        self._random = np.random.default_rng(_SEED)

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        if len(self.nodes) == self._most:
            raise _FullError
        number = len(self.nodes)
        name = f"branch{number}" if self._on_branch else f"n{number}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"t{number}"], name, None, None, None, **attributes))
        return f"t{number}"

    def branch(self, make: Callable[[str], str], x: str) -> str:
        self._on_branch = True
        try:
            return make(x)
        finally:
            self._on_branch = False

    def constant(self, *values: float, dtype: str = "float32", shape: Sequence[int] = ()) -> str:
        return self._weight(np.array(values, dtype).reshape(shape))

    def matrix(self, *shape: int) -> str:
        """Random numbers that leave what they are multiplied with as large as it was."""
        terms = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self._weight(self._random.normal(0, terms**-0.5, shape).astype(np.float32))

    def _weight(self, value: np.typing.NDArray[Any]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name


def chain(count: int) -> onnx.ModelProto:
    """One node after the other."""

    def block(made: _Writer, x: str) -> str:
        x = made.node("Tanh", made.node("Add", made.node("MatMul", x, made.matrix(WIDTH, WIDTH)), made.matrix(WIDTH)))
        return made.node("Neg", x)

    return _model("chain", count, block, [WIDTH, WIDTH])


def inception(count: int) -> onnx.ModelProto:
    """Modules of four branches of convolutions that are joined again, 17 nodes each."""

    def convolution(made: _Writer, x: str, size: int = 1, channels: int = CHANNELS) -> str:
        kernel = made.matrix(CHANNELS, channels, size, size)
        return made.node("Relu", made.node("Conv", x, kernel, pads=[size // 2] * 4, kernel_shape=[size, size]))

    def block(made: _Writer, x: str) -> str:
        one = convolution(made, x)
        three = convolution(made, convolution(made, x), 3)
        five = made.branch(lambda y: convolution(made, convolution(made, convolution(made, y), 3), 3), x)
        pooled = convolution(made, made.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4))
        return convolution(made, made.node("Concat", one, three, five, pooled, axis=1), channels=4 * CHANNELS)

    return _model("inception", count, block, [1, CHANNELS, 8, 8])


def transformer(count: int) -> onnx.ModelProto:
    """Blocks of attention and of two linear layers with residual additions, and a gate beside each: 48 nodes."""

    def linear(made: _Writer, x: str) -> str:
        return made.node("Add", made.node("MatMul", x, made.matrix(WIDTH, WIDTH)), made.matrix(WIDTH))

    def normalization(made: _Writer, x: str) -> str:
        centred = made.node("Sub", x, made.node("ReduceMean", x, axes=[-1]))
        variance = made.node("ReduceMean", made.node("Pow", centred, made.constant(2.0)), axes=[-1])
        root = made.node("Sqrt", made.node("Add", variance, made.constant(1e-5)))
        scaled = made.node("Mul", made.node("Div", centred, root), made.matrix(WIDTH))
        return made.node("Add", scaled, made.matrix(WIDTH))

    def attention(made: _Writer, x: str) -> str:
        query, key, value = (linear(made, x) for _ in range(3))
        scores = made.node("MatMul", query, made.node("Transpose", key, perm=[1, 0]))
        weights = made.node("Softmax", made.node("Mul", scores, made.constant(0.25)), axis=-1)
        return linear(made, made.node("MatMul", weights, value))

    def gelu(made: _Writer, x: str) -> str:
        inner = made.node("Erf", made.node("Div", x, made.constant(2**0.5)))
        half = made.node("Mul", x, made.node("Add", inner, made.constant(1.0)))
        return made.node("Mul", half, made.constant(0.5))

    def gate(made: _Writer, x: str) -> str:
        opened = made.node("Sigmoid", linear(made, x))
        return made.node("Mul", made.node("Tanh", x), opened)

    def block(made: _Writer, x: str) -> str:
        beside = made.branch(lambda y: gate(made, y), x)
        x = made.node("Add", x, attention(made, normalization(made, x)))
        x = made.node("Add", x, linear(made, gelu(made, linear(made, normalization(made, x)))))
        return made.node("Add", x, beside)

    return _model("transformer", count, block, [WIDTH, WIDTH])


def control_flow(count: int) -> onnx.ModelProto:
    """Linear layers with an If and a Loop between them whose bodies read tensors from outside, 8 nodes each."""

    def body(name: str, op_type: str, outer: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(f"{name}_y", FLOAT, [WIDTH, WIDTH])
        return helper.make_graph([helper.make_node(op_type, [outer], [f"{name}_y"])], name, [], [result])

    def loop(name: str, outer: str) -> onnx.GraphProto:
        square = [WIDTH, WIDTH]
        inputs = [
            helper.make_tensor_value_info(f"{name}_i", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{name}_c", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{name}_x", FLOAT, square),
        ]
        outputs = [
            helper.make_tensor_value_info(f"{name}_d", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{name}_y", FLOAT, square),
        ]
        nodes = [
            helper.make_node("Identity", [f"{name}_c"], [f"{name}_d"]),
            helper.make_node("Add", [f"{name}_x", outer], [f"{name}_y"]),
        ]
        return helper.make_graph(nodes, name, inputs, outputs)

    def block(made: _Writer, x: str) -> str:
        x = made.node("Tanh", made.node("Add", made.node("MatMul", x, made.matrix(WIDTH, WIDTH)), made.matrix(WIDTH)))
        highest = made.branch(lambda y: made.node("ReduceMax", y, keepdims=0), x)
        positive = made.branch(lambda y: made.node("Greater", y, made.constant(0.0)), highest)
        name = f"body{len(made.nodes)}"
        then, other = body(f"{name}_then", "Relu", x), body(f"{name}_else", "Neg", x)
        chosen = made.node("If", positive, then_branch=then, else_branch=other)
        trips, going = made.constant(2, dtype="int64"), made.constant(True, dtype="bool")
        return made.node("Loop", trips, going, made.node("Sigmoid", chosen), body=loop(f"{name}_loop", x))

    return _model("control_flow", count, block, [WIDTH, WIDTH])


KINDS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "chain": chain,
    "inception": inception,
    "transformer": transformer,
    "control flow": control_flow,
}


def _model(name: str, count: int, block: Callable[[_Writer, str], str], shape: Sequence[int]) -> onnx.ModelProto:
    """Blocks one after the other, cut off after ``count`` nodes."""
    made = _Writer(count)
    x = "x"
    try:
        while True:
            x = block(made, x)
    except _FullError:
        return _finished(name, made, shape)


def _finished(name: str, made: _Writer, shape: Sequence[int]) -> onnx.ModelProto:
    read = {tensor for node in made.nodes for tensor in node.input}
    read.update(tensor for node in made.nodes for tensor in _captures(node))
    ends = [node.output[0] for node in made.nodes if node.output[0] not in read]
    graph = helper.make_graph(
        made.nodes,
        name,
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [onnx.ValueInfoProto(name=tensor) for tensor in ends],
        [weight for weight in made.weights if weight.name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    del model.graph.output[:]
    for info in inferred.graph.output:  # what a Loop computes has no shape by inference, but a result must have one
        declared = info.type.tensor_type.HasField("shape")
        model.graph.output.append(info if declared else helper.make_tensor_value_info(info.name, FLOAT, shape))
    return model


def _captures(node: onnx.NodeProto) -> list[str]:
    return [tensor for attribute in node.attribute for inner in attribute.g.node for tensor in inner.input]


def names(model: onnx.ModelProto) -> list[str]:
    """The names of the nodes, in order."""
    return [node.name for node in model.graph.node]


PATTERNS: dict[str, Callable[[list[str]], list[str]]] = {
    "start": lambda nodes: [nodes[0]],
    "middle": lambda nodes: [nodes[len(nodes) // 2]],
    "end": lambda nodes: [nodes[-1]],
    "on a branch": lambda nodes: [_middle([name for name in nodes if name.startswith("branch")])],
    "two far apart": lambda nodes: [nodes[len(nodes) // 10], nodes[-len(nodes) // 10]],
    "three": lambda nodes: [nodes[len(nodes) // 10], nodes[len(nodes) // 2], nodes[-len(nodes) // 10]],
}
"""Where the nodes stand that the failure needs, all of them: name of the pattern -> names of nodes."""


def _middle(found: list[str]) -> str:
    return found[len(found) // 2]


def big(folder: Path, layout: str = "beside", layers: int = 64, width: int = 4096) -> Path:
    """A model with ``layers`` times 64 MB of external weights in sparse files, which take no room on the disk.

    ``layout``: "beside" the model in one file, in a "sub-folder", or in "several files".
    """
    nodes, weights = [], []
    length = width * width * 4
    for number in range(layers):
        x = f"t{2 * number - 1}" if number else "x"
        nodes.append(helper.make_node("MatMul", [x, f"w{number}"], [f"t{2 * number}"], f"n{2 * number}"))
        nodes.append(helper.make_node("Tanh", [f"t{2 * number}"], [f"t{2 * number + 1}"], f"n{2 * number + 1}"))
        location, offset = _place(layout, number, length)
        weights.append(_external(f"w{number}", [width, width], location, offset, length))
        _grow(folder / location, offset + length)
    shape = [1, width]
    graph = helper.make_graph(
        nodes,
        "big",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, shape)],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "big.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def _place(layout: str, number: int, length: int) -> tuple[str, int]:
    if layout == "several files":
        return f"weights{number % 4}.bin", number // 4 * length
    return ("weights/all.bin" if layout == "sub-folder" else "weights.bin"), number * length


def _external(name: str, dims: Sequence[int], location: str, offset: int, length: int) -> onnx.TensorProto:
    made = TensorProto(name=name, data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": str(offset), "length": str(length)}.items():
        made.external_data.add(key=key, value=value)
    return made


def _grow(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab"):
        os.truncate(path, max(size, path.stat().st_size))
