"""Which value of a program each tensor of a model is.

The exporter names a tensor after the FX node that it was translated from, and writes that node, as FX prints it, into
the metadata of the ONNX node. A name alone proves nothing: every capture of a module numbers its nodes anew, so that
``add_3`` of one program is another value than ``add_3`` of the next. So a tensor has a value only if its node was
translated from a node that stands in the program word for word. Once one of them does not, the program is another one,
and the same words may speak of other values: then so must all stand there that a node takes.

Not every tensor is a value of the program. An operator may be translated into several ONNX nodes, of which only the
last gives what the operator gives, and what the optimizer of the exporter has fused keeps the last name.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from biopsy import errors
from biopsy.model.node_source import FX_NODE
from biopsy.torch.arrays import type_in_model
from biopsy.torch.randomness import random_nodes

_ORIGINAL_NAME = "pkg.torch.onnx.original_node_name"


@dataclass(frozen=True, kw_only=True)
class NamedValues:
    """The tensors of a model's main graph that are values of a program.

    ``names`` are the tensors of each FX node, by the node's name. ``refused`` are the others, with the reason. Tensors
    that nothing takes, and those of Constant nodes, are neither.
    """

    names: Mapping[str, tuple[str, ...]] = field(repr=False)
    refused: Mapping[str, str] = field(repr=False)

    @property
    def count(self) -> int:
        """How many tensors have a value."""
        return sum(map(len, self.names.values()))


def named_values(onnx_program: Any) -> NamedValues:
    """What can be recorded for a ``torch.onnx.ONNXProgram``; nothing is run.

    Raises UsageError if this is no such program.
    """
    program = program_of(onnx_program)
    graph = onnx_program.model.graph
    program_nodes = _ProgramNodes(program, {text for node in graph if (text := _text(node))})
    names: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for value in _tensors(graph):
        found = program_nodes.of(value)
        if isinstance(found, str):
            refused[str(value.name)] = found
        else:
            names.setdefault(found.name, []).append(str(value.name))
    return NamedValues(names={node: tuple(tensors) for node, tensors in names.items()}, refused=refused)


def program_of(onnx_program: Any) -> Any:
    """The program that an ONNXProgram was translated from. Raises UsageError if it has none."""
    program = getattr(onnx_program, "exported_program", None)
    if program is None or not hasattr(onnx_program, "model"):
        raise errors.UsageError(
            f"this is no program that was exported to ONNX, but a {type(onnx_program).__name__}",
            next_steps=["onnx_program = torch.onnx.export(module, args, dynamo=True)"],
        )
    return program


def _tensors(graph: Any) -> Iterator[Any]:
    """The tensors that the nodes of the main graph compute, and that something takes."""
    for node in graph:
        if node.op_type == "Constant" and not node.domain:
            continue
        for value in node.outputs:
            if value.name and (value.uses() or value.is_graph_output()):
                yield value


def _text(node: Any) -> str | None:
    """The FX node that an ONNX node was translated from, as FX prints it."""
    text: str | None = node.metadata_props.get(FX_NODE)
    return text


class _ProgramNodes:
    """The nodes of a program, for tensors whose nodes were translated from ``texts``."""

    def __init__(self, program: Any, texts: set[str]) -> None:
        nodes = list(program.graph.nodes)
        self._nodes = {node.name: node for node in nodes}
        self._inner = {
            str(node.format_node())
            for name, module in program.graph_module.named_modules()
            if name and hasattr(module, "graph")
            for node in module.graph.nodes
        }
        self._translated = _certain(nodes, texts - self._inner)
        self._random = random_nodes(nodes)

    def of(self, value: Any) -> Any:
        """The FX node that a tensor is the value of, or why it is that of none."""
        producer = value.producer()
        text = _text(producer)
        if text is None:
            return self._of_alias(producer)
        source = self._translated.get(text)
        if source is None:
            inner = "it is a step within a subgraph" if text in self._inner else None
            return inner or f"it was translated from a node of another program: {text}"
        node = self._nodes.get(value.metadata_props.get(_ORIGINAL_NAME, value.name))
        if node is None or not (node is source or (node.target is operator.getitem and node.args[0] is source)):
            return f"it is a step within {source.target}, which has no such value"
        if node in self._random:
            return f"it depends on random numbers, of {self._random[node]}"
        return node if (why := _mistyped(value, node)) is None else why

    def _of_alias(self, producer: Any) -> Any:
        """The optimizer gives a tensor that is two outputs a second name."""
        if producer.op_type == "Identity" and producer.inputs[0].producer() is not None:
            return self.of(producer.inputs[0])
        return "its node does not say what it was translated from: an optimizer has made it"


def _certain(nodes: Sequence[Any], texts: set[str]) -> dict[str, Any]:
    """The nodes of a program by what FX prints for them: those that are certain to be the ones of ``texts``."""
    printed = {str(node.format_node()): node for node in nodes}
    if texts <= printed.keys():
        return printed
    certain: dict[Any, str] = {}
    for text, node in printed.items():
        if node.op in ("placeholder", "get_attr") or (
            (text in texts or node.target is operator.getitem)
            and all(source in certain for source in node.all_input_nodes)
        ):
            certain[node] = text
    return {text: node for node, text in certain.items()}


def _mistyped(value: Any, node: Any) -> str | None:
    """Why the value of an FX node cannot be that tensor; None if it can."""
    if "val" not in node.meta:
        return "its program does not say of which type it is"
    dtype = type_in_model(node.meta["val"])
    if dtype is None:
        return f"it is no tensor that a file can hold, but a {_kind(node.meta['val'])}"
    declared = value.dtype
    if declared is not None and declared.numpy() != dtype:
        return f"it is {declared.name} in the model, and {_kind(node.meta['val'])} in PyTorch"
    return None


def _kind(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))
