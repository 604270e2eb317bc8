"""Putting one node into a model, in place of whatever stands between the tensors that it reads and those it writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from biopsy import errors
from biopsy.model import infer, sanitize, walk
from biopsy.model.known_names import listed
from biopsy.text import did_you_mean

if TYPE_CHECKING:
    import onnx

AttributeValue: TypeAlias = "int | float | str | list[int] | list[float] | list[str]"


@dataclass(frozen=True, kw_only=True)
class NewNode:
    """The node to insert; "" among ``inputs`` leaves an optional one out."""

    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


def insert(model: onnx.ModelProto, new: NewNode, *, infers: bool = True) -> None:
    """Put a node into the main graph; what nobody needs any more then is removed, as ``sanitize.clean_up`` does.

    A tensor that is among its inputs and its outputs is split: the node reads it, and whatever read it before reads the
    node's result. An output of the model keeps its name then, and what computes it gets another. Declared types and
    shapes of tensors behind the node are forgotten, those of the model's outputs too; outputs get the types that can be
    inferred, and keep their element type where none can, or where nothing ``infers``.

    Raises UsageError for a name that is no tensor of the main graph, an output that is an input of the model or a
    weight and not split, a name that another node or output of the node has, and a node that would depend on its own
    result.
    """
    from onnx import helper

    graph = model.graph
    known = _given(graph) | {name for node in graph.node for name in (*node.input, *node.output) if name}
    taken = walk.named(graph)
    for option, names in (("--inputs", new.inputs), ("--outputs", new.outputs)):
        _require_known(option, names, known)
    _require_single(graph, new)
    fixed = _given(graph)
    sources = {name: name for name in new.inputs}
    results: list[str] = []
    for name in new.outputs:
        if not name:
            results.append(name)
        elif name in sources:
            sources[name], result = _split(graph, name, taken, fixed)
            results.append(result)
        elif name in fixed:
            raise errors.UsageError(f"--outputs: {name!r} is an input or a weight of the model: no node computes it")
        else:
            for node in graph.node:  # its other outputs stay
                if name in node.output:
                    _rename(node.output, name, walk.free_name(f"{name}_replaced", taken))
            results.append(name)
    inputs = [sources[name] for name in new.inputs]
    node = helper.make_node(new.operator, inputs, results, name=new.name or None)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in new.attributes.items())
    graph.node.append(node)
    ends = _forget_types_behind(graph, results)
    sanitize.clean_up(model)
    try:
        sanitize.sort_nodes(model)
    except errors.ModelError as error:
        raise errors.UsageError(f"the node cannot stand there: {error.message}") from error
    if infers:
        infer.type_outputs(model, ends)


def _given(graph: onnx.GraphProto) -> set[str]:
    """Tensors that no node computes."""
    sparse = {weight.values.name for weight in graph.sparse_initializer}
    return {info.name for info in graph.input} | {weight.name for weight in graph.initializer} | sparse


def _require_single(graph: onnx.GraphProto, new: NewNode) -> None:
    """Raise UsageError if a name that may stand once would stand twice."""
    twice = next((name for name in new.outputs if name and new.outputs.count(name) > 1), None)
    if twice is not None:
        raise errors.UsageError(f"--outputs: a node computes {twice!r} only once")
    if new.name and any(node.name == new.name for node in graph.node):
        raise errors.UsageError(f"--name: the model has a node {new.name!r} already: engines refuse a second one")


def _require_known(option: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name and name not in known:
            steps = [*did_you_mean(name, known), f"its tensors are: {listed(sorted(known))}"]
            raise errors.UsageError(f"{option}: the model has no tensor {name!r} in its graph", next_steps=steps)


def _split(graph: onnx.GraphProto, name: str, taken: set[str], fixed: Collection[str]) -> tuple[str, str]:
    """Free the readers of a tensor for another one: (what is computed now, what they read from now on)."""
    is_output = any(info.name == name for info in graph.output)
    other = walk.free_name(f"{name}_polygraphy_surgeon_insert_output", taken)
    if is_output and name not in fixed:
        for node in graph.node:
            _rename(node.output, name, other)
        return other, name
    for node in graph.node:
        _rename_reads(node, name, other)
    for info in graph.output:
        info.name = other if info.name == name else info.name
    return name, other


def _rename_reads(node: onnx.NodeProto, old: str, new: str) -> None:
    """Let a node read another tensor, its bodies too where they mean that of the graph around them."""
    _rename(node.input, old, new)
    for body in walk.bodies(node):
        if old not in walk.defined(body):
            for inner in body.node:
                _rename_reads(inner, old, new)
            for info in body.output:
                info.name = new if info.name == old else info.name


def _rename(names: MutableSequence[str], old: str, new: str) -> None:
    for place, name in enumerate(names):
        if name == old:
            names[place] = new


def _forget_types_behind(graph: onnx.GraphProto, names: Sequence[str]) -> set[str]:
    """Drop what is declared of tensors that are computed from ``names``, and of those themselves.

    Outputs of the model among them keep their element types; their names are returned.
    """
    behind = {*names} - {""}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in walk.reads(node):
            readers.setdefault(name, []).append(node)
    waiting = list(behind)
    while waiting:
        new = {name for node in readers.get(waiting.pop(), ()) for name in node.output if name} - behind
        behind |= new
        waiting += new
    walk.keep(graph.value_info, lambda info: info.name not in behind)
    for info in graph.output:
        if info.name in behind and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return {info.name for info in graph.output if info.name in behind}
