"""What OpenVINO really did: its types, its layers and their times, and the inputs of nodes that it reads over
without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from biopsy.engines.base import Imports, LayerRecord
from biopsy.model.index import ModelIndex

_NUMPY_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool", "string": "string",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "i4": "int4",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "u4": "uint4", "u2": "uint2",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn",
}  # fmt: skip
"""OpenVINO's name of a type -> the one that NumPy or ml_dtypes has."""

_Known = TypeVar("_Known")

_FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
_NO_LAYERS = frozenset({"Const", "Input", "Output"})
"""What stands in a runtime model and is not computed."""


def precision_remarks(imports: Imports, read: Any, wanted: str, used: str, device: str) -> list[str]:
    """Where the types of the computation are not those asked for, or those of the model."""
    found = []
    if used != wanted:
        found.append(f"{wanted} was asked for, and OpenVINO computes in {used} on {device} here")
    nodes = list(read.get_ops())
    kinds = imports.gathered(nodes, "get_type_name()")
    computed = [node for node, kind in zip(nodes, kinds, strict=True) if kind != "Constant"]
    floats = {*imports.gathered(computed, "outputs()", "element_type", "get_type_name()")} & (_FLOATS - {used})
    return found + [f"OpenVINO computes the model's {name} tensors in {used}" for name in sorted(floats)]


def layer_records(compiled: Any, index: ModelIndex | None, times: Mapping[str, float]) -> list[LayerRecord]:
    """The layers that run in each inference. What depends on weights alone is computed once and is no layer.

    ``index`` is that of the model, None if it is not known; ``times`` has microseconds by the name of a layer.
    """
    labels = _labels(index)
    devices = compiled.get_property("EXECUTION_DEVICES")
    device = devices[0] if len(devices) == 1 else ""
    fixed: set[str] = set()
    records = []
    for op in compiled.get_runtime_model().get_ordered_ops():
        told = {key: str(value.astype(str)) for key, value in op.get_rt_info().items()}
        name, kind = str(op.friendly_name), told.get("layerType", "")
        sources = [port.get_source_output().get_node().friendly_name for port in op.inputs()]
        if kind == "Const" or (sources and fixed.issuperset(sources)):
            fixed.add(name)
        elif kind not in _NO_LAYERS:
            records.append(
                LayerRecord(
                    name,
                    kind,
                    implementation=told.get("primitiveType", ""),
                    precision=numpy_name(told.get("runtimePrecision", "")),
                    layout=told.get("outputLayouts", ""),
                    nodes=_nodes(told.get("originalLayersNames", ""), labels),
                    device=device,
                    time_us=times.get(name),
                )
            )
    return records


def numpy_name(name: str) -> str:
    """The name that NumPy or ml_dtypes has for a type of OpenVINO; empty for one that is no element type."""
    return _NUMPY_NAMES.get(name, "")


def _labels(index: ModelIndex | None) -> dict[str, str]:
    """What OpenVINO calls a node -> what a layer record does: it takes an output's name where a node has none."""
    if index is None:
        return {}
    found = {index.names[tensor]: node.name or node.label for node in index.nodes for tensor in node.writes}
    return found | {node.name: node.name for node in index.nodes if node.name}


def _nodes(originals: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The model's nodes among the names, joined by commas, that a layer was made of.

    A node that becomes several operations gives them its name and a suffix, such as ``conv/WithoutBiases``. A name
    that holds a comma itself is not told apart.
    """
    found = dict.fromkeys(label for name in originals.split(",") if (label := _original(name, labels)) is not None)
    return tuple(found)


def _original(name: str, known: Mapping[str, _Known]) -> _Known | None:
    """What is ``known`` by a name, or by what it begins with: operations made of one node have its name and more."""
    while name not in known and "/" in name:
        name = name.rpartition("/")[0]
    return known.get(name)


def refused_nodes(read: Any, supported: Mapping[str, str], device: str, index: ModelIndex) -> dict[int, str]:
    """Nodes, by number, that became an operation which is not among the ``supported`` ones of a query."""
    numbers = {index.names[tensor]: node.number for node in index.nodes for tensor in node.writes}
    numbers |= {node.name: node.number for node in index.nodes if node.name}
    found: dict[int, str] = {}
    for op in read.get_ops():
        name = op.friendly_name
        if name in supported or op.get_type_name() in {"Parameter", "Result", "Constant"}:
            continue
        number = _original(name, numbers)
        if number is not None:
            found.setdefault(number, f"{device} has no {op.get_type_name()} as it stands here")
    return found


def mean_times(profiles: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Mean microseconds by the name of a layer, from the profiles of several runs."""
    each: dict[str, list[float]] = {}
    for profile in profiles:
        for entry in profile:
            if str(entry.status) == "Status.EXECUTED":
                each.setdefault(entry.node_name, []).append(entry.real_time.total_seconds() * 1e6)
    return {name: sum(found) / len(found) for name, found in each.items()}


# Inputs of nodes that OpenVINO reads over without a word, so that its result is another one.
#
# Whether it does is asked of the installed version, with a model of one node, and only if a model has such an input.

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
            operator = node.op_type
            if (imports, operator) not in _ANSWERS:
                read = core.read_model(_single(operator))
                asked = {"asked"} & {name for port in read.inputs for name in port.get_names() if _is_used(read, port)}
                _ANSWERS[imports, operator] = not asked
            if _ANSWERS[imports, operator]:
                name = index.names[node.inputs[place]]
                found.append(f"OpenVINO ignores {what} of {node.label} (its input {name!r}): other engines do not")
    return found


_ANSWERS: dict[tuple[Imports, str], bool] = {}


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
