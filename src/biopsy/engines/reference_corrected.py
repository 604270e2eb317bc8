"""Operators that onnx's reference evaluator computes otherwise than the ONNX standard says: corrected, or not computed.

In opsets before 13, Softmax, LogSoftmax and Hardmax work on a matrix, to which their input is flattened at ``axis``; in
opsets 7 to 13, a BatchNormalization with one output is that of inference. The evaluator takes the axis alone, and
trains (seen in onnx 1.23.2, ``onnx/reference/ops``). It also ignores what ``_IGNORED`` lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from biopsy.slow_imports import onnx
from biopsy.tensors.results import Array

_RECURRENT_INPUTS = {4: "sequence_lens"}
_RECURRENT = ("clip", "activation_alpha", "activation_beta")
_IGNORED: Mapping[str, tuple[Mapping[int, str], tuple[str, ...]]] = {
    "LSTM": (_RECURRENT_INPUTS, (*_RECURRENT, "activations", "input_forget")),
    "GRU": (_RECURRENT_INPUTS, (*_RECURRENT, "activations")),
    "RNN": (_RECURRENT_INPUTS, _RECURRENT),
    "MaxPool": ({}, ("storage_order",)),
}
"""Inputs, by number, and attributes that the evaluator does not look at, by operator."""

_DEFAULT_ACTIVATIONS = {"LSTM": [b"Sigmoid", b"Tanh", b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"]}
"""Some exporters write them; they are repeated for the other direction."""

_MISREAD: Mapping[tuple[str, str], bytes] = {
    ("MaxPool", "auto_pad"): b"SAME_LOWER",
    ("Resize", "coordinate_transformation_mode"): b"align_corners",
}
"""Values of attributes that the evaluator computes wrongly; for Resize only where scales are given."""

_SCALES = 2  # the number of that input of Resize


def misread(node: onnx.NodeProto) -> Iterator[str]:
    """The inputs and attributes of a node that the evaluator ignores or computes wrongly, as "'clip' of LSTM"."""
    inputs, attributes = _IGNORED.get(node.op_type, ({}, ()))
    if node.domain not in ("", "ai.onnx"):
        return
    names = [name for number, name in inputs.items() if number < len(node.input) and node.input[number]]
    for attribute in node.attribute:
        usual = _DEFAULT_ACTIVATIONS.get(node.op_type, [])
        is_usual = attribute.name == "activations" and list(attribute.strings) in (usual, usual * 2)
        is_set = not is_usual and (attribute.i != 0 or attribute.type != onnx.AttributeProto.INT)
        is_scaled = node.op_type != "Resize" or any(node.input[_SCALES : _SCALES + 1])
        wrong = _MISREAD.get((node.op_type, attribute.name))
        if (attribute.name in attributes and is_set) or (wrong is not None and attribute.s == wrong and is_scaled):
            names.append(attribute.name)
    yield from (f"{name!r} of {node.op_type}" for name in names)


@cache
def corrected_evaluator() -> Any:
    """The evaluator's class with corrected operators, defined at the first call, since onnx is imported only then."""
    from onnx.reference import ReferenceEvaluator

    class CorrectedEvaluator(ReferenceEvaluator):
        """Evaluates a model, a body or a function."""

        def _init(self) -> None:
            super()._init()
            for node in self.rt_nodes_:
                proto = getattr(node, "onnx_node", None)
                if proto is not None and proto.domain in ("", "ai.onnx"):
                    node.run = _corrected(node, proto, node.run_params["opsets"].get("", 1))

    return CorrectedEvaluator


def _corrected(node: Any, proto: onnx.NodeProto, opset: int) -> Callable[..., tuple[Array, ...]]:
    """The ``run`` of a node, as its opset wants it."""
    run: Callable[..., tuple[Array, ...]] = node.run
    if proto.op_type in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
        axis = next((each.i for each in proto.attribute if each.name == "axis"), 1)
        node.axis = 1

        def of_matrix(x: Array, **context: Any) -> tuple[Array, ...]:
            rows = math.prod(x.shape[: axis + x.ndim if axis < 0 else axis])
            matrix = x.reshape(rows, -1) if x.size else x
            return tuple(result.reshape(x.shape) for result in run(matrix, **context))

        return of_matrix
    if proto.op_type == "BatchNormalization" and 7 <= opset < 14 and sum(map(bool, proto.output)) == 1:

        def of_inference(x: Array, *channels: Array, **_: Any) -> tuple[Array]:
            scale, bias, mean, variance = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in channels)
            return ((scale * (x - mean) / np.sqrt(variance + node.epsilon) + bias).astype(x.dtype),)

        return of_inference
    return run
