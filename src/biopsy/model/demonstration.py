"""The model of ``biopsy demo``: a transformer in which one branch triggers a real bug of ONNX Runtime.

In onnxruntime 1.17.3 to at least 1.32.0 on CPU, from the extended level of its optimizer on, the fusions for layer
normalization also match ReduceMean with ``keepdims=0``. On a square matrix such a model is valid, with the mean
broadcast along the other axis, and the fused kernel silently computes something else. In a variant of the bug, it
raises an error: github.com/microsoft/onnxruntime issue 30513.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 32
"""Tokens and channels. The matrices must be square for the model to be valid."""

BLOCKS = 10
CULPRITS = ("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul")
"""The operators of the six nodes that suffice for the failure, in order."""

SEARCHED_FOR = "Softplus"
"""An operator of a single node, which the second demonstration searches for."""

_SEED = 20


class _NodeWriter:
    """Collects nodes and weights; every method returns the name of the tensor that it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(_SEED)
        for name, value in {"two": 2.0, "eps": 1e-5, "half": 0.5, "one": 1.0, "root2": 2**0.5}.items():
            self._keep(name, np.array(value, np.float32))
        self._keep("scale", np.array(WIDTH**-0.5, np.float32))
        self._keep("last", np.array([-1], np.int64))

    def _keep(self, name: str, value: np.typing.NDArray[np.float32 | np.int64]) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, scope: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{scope}/{op_type}"
        taken = sum(node.name == name or node.name.startswith(f"{name}_") for node in self.nodes)
        name = f"{name}_{taken}" if taken else name
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def linear(self, scope: str, x: str) -> str:
        weight = self._random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        bias = self._random.normal(0, 0.1, WIDTH).astype(np.float32)
        product = self.node(scope, "MatMul", x, self._keep(f"{scope}.weight", weight))
        return self.node(scope, "Add", product, self._keep(f"{scope}.bias", bias))

    def normalization(self, scope: str, x: str, *, keepdims: int = 1) -> str:
        """Layer normalization in single operators; with ``keepdims=0``, the arithmetic that is mistaken for it."""
        gain = self._random.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        centred = self.node(scope, "Sub", x, self.node(scope, "ReduceMean", x, "last", keepdims=1))
        squares = self.node(scope, "Pow", centred, "two")
        variance = self.node(scope, "ReduceMean", squares, "last", keepdims=keepdims)
        root = self.node(scope, "Sqrt", self.node(scope, "Add", variance, "eps"))
        scaled = self.node(scope, "Mul", self.node(scope, "Div", centred, root), self._keep(f"{scope}.gain", gain))
        if not keepdims:
            return scaled
        return self.node(scope, "Add", scaled, self._keep(f"{scope}.bias", 0.1 * gain))

    def attention(self, scope: str, x: str) -> str:
        query, key, value = (self.linear(f"{scope}/{part}", x) for part in ("query", "key", "value"))
        scores = self.node(scope, "MatMul", query, self.node(scope, "Transpose", key, perm=[1, 0]))
        weights = self.node(scope, "Softmax", self.node(scope, "Mul", scores, "scale"), axis=-1)
        return self.linear(f"{scope}/out", self.node(scope, "MatMul", weights, value))

    def gelu(self, scope: str, x: str) -> str:
        inner = self.node(scope, "Erf", self.node(scope, "Div", x, "root2"))
        return self.node(scope, "Mul", self.node(scope, "Mul", x, self.node(scope, "Add", inner, "one")), "half")

    def block(self, scope: str, x: str) -> str:
        attended = self.attention(f"{scope}/attention", self.normalization(f"{scope}/norm1", x))
        x = self.node(scope, "Add", x, attended)
        hidden = self.gelu(f"{scope}/mlp/gelu", self.linear(f"{scope}/mlp/up", self.normalization(f"{scope}/norm2", x)))
        return self.node(scope, "Add", x, self.linear(f"{scope}/mlp/down", hidden))

    def gate(self, scope: str, x: str) -> str:
        opened = self.node(scope, "Sigmoid", self.linear(f"{scope}/in", x))
        return self.node(scope, "Mul", self.node(scope, "Tanh", self.linear(f"{scope}/value", x)), opened)


def demonstration_model() -> onnx.ModelProto:
    """The model, from float32 ``tokens`` [32, 32] to ``logits`` [32, 32]; the same bytes at every call."""
    writer = _NodeWriter()
    x = "tokens"
    for number in range(BLOCKS):
        scope = f"block{number}"
        if number % 3 == 1:  # a branch beside the block, added to its output
            branch = writer.gate(f"{scope}/gate", x)
            if number == 7:
                branch = writer.normalization(f"{scope}/adapter", branch, keepdims=0)
                branch = writer.linear(f"{scope}/adapter/out", branch)
            x = writer.node(scope, "Add", writer.block(scope, x), branch)
        else:
            x = writer.block(scope, x)
    logits = writer.node("head", SEARCHED_FOR, writer.linear("head", x))
    writer.nodes.append(helper.make_node("Identity", [logits], ["logits"], name="head/logits"))
    shape = [WIDTH, WIDTH]
    graph = helper.make_graph(
        writer.nodes,
        "transformer",
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
        writer.weights,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, producer_name="biopsy demo"
    )
