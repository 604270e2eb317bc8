"""Inputs of nodes that OpenVINO reads over without a word, so that its result is another one.

Whether it does is asked of the installed version, with a model of one node, and only if a model has such an input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from biopsy.engines.imports import Imports
from biopsy.model.index import ModelIndex

_SUSPECTS: Mapping[str, tuple[int, str]] = {"LSTM": (7, "the peepholes"), "DFT": (2, "the axis")}
"""Operator -> the place of an input that some version of OpenVINO ignores, and what it is."""


def ignored_inputs(core: Any, index: ModelIndex, imports: Imports) -> list[str]:
    """A line for each node of the main graph that has an input which OpenVINO ignores; ``imports`` tell which one."""
    found = []
    for node in index.nodes:
        place, what = _SUSPECTS.get(node.op_type, (0, ""))
        if what and not node.domain and node.inputs[place : place + 1] and node.inputs[place] >= 0:
            if node.op_type == "DFT" and index.opset < 20:
                continue  # it was an attribute, and is read
            if _ignores(core, node.op_type, imports):
                name = index.names[node.inputs[place]]
                found.append(f"OpenVINO ignores {what} of {node.label} (its input {name!r}): other engines do not")
    return found


_ANSWERS: dict[tuple[Imports, str], bool] = {}


def _ignores(core: Any, operator: str, imports: Imports) -> bool:
    if (imports, operator) not in _ANSWERS:
        read = core.read_model(_single(operator))
        asked = {"asked"} & {name for port in read.inputs for name in port.get_names() if _is_used(read, port)}
        _ANSWERS[imports, operator] = not asked
    return _ANSWERS[imports, operator]


def _is_used(read: Any, port: Any) -> bool:
    """Whether a result depends on an input."""
    waiting = [*read.get_results()]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.get_name() not in seen:
            seen.add(node.get_name())
            waiting += [each.get_source_output().get_node() for each in node.inputs()]
    return port.get_node().get_name() in seen


@cache
def _single(operator: str) -> bytes:
    """A model of one node whose input in question is called ``asked``."""
    from onnx import TensorProto, helper

    shapes: dict[str, tuple[int, tuple[int, ...]]]
    if operator == "LSTM":
        shapes = {"x": (1, (1, 1, 1)), "w": (1, (1, 4, 1)), "r": (1, (1, 4, 1)), "asked": (1, (1, 3))}
        node = helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", "asked"], ["y"], hidden_size=1)
    else:
        shapes = {"x": (1, (1, 2, 2, 1)), "asked": (TensorProto.INT64, ())}
        node = helper.make_node("DFT", ["x", "", "asked"], ["y"])
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in shapes.items()]
    graph = helper.make_graph([node], "asked", inputs, [helper.make_tensor_value_info("y", 1, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    data: bytes = made.SerializeToString()
    return data
