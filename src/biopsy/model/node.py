"""What a serialized node reads, writes and calls, its subgraphs included.

Field numbers: onnx.proto3, messages NodeProto, AttributeProto, GraphProto, FunctionProto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from biopsy import errors
from biopsy.model.wire import fields, payloads, text

FunctionKey: TypeAlias = tuple[str, str, str]
"""(domain, name, overload) of a model-local function; the domain "ai.onnx" is written ""."""

_GRAPH, _GRAPHS = bytes((6 << 3 | 2,)), bytes((11 << 3 | 2,))
"""The tags of AttributeProto.g and .graphs: an attribute without these bytes, nearly every one, has no body."""

DEEPEST_NESTING = 100
"""Protobuf's own limit."""


class NodeText(NamedTuple):
    """One node as read from its bytes: names, not numbers.

    ``captures`` are tensors that bodies of the node (If, Loop, Scan) read from outside; ``calls`` are the operators,
    its own and those in its bodies, that may be model-local functions.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...]
    calls: tuple[FunctionKey, ...]


def read_node(payload: bytes, depth: int = 0) -> NodeText:
    """The node in a serialized NodeProto. Raises ModelError if it is damaged or nested too deep."""
    inputs: list[str] = []
    outputs: list[str] = []
    texts: dict[int, bytes] = {}
    captures: dict[str, None] = {}
    calls: dict[FunctionKey, None] = {}
    for number, start, end in payloads(payload):
        if number == 1:
            inputs.append(payload[start:end].decode("utf-8", "surrogateescape"))
        elif number == 2:
            outputs.append(payload[start:end].decode("utf-8", "surrogateescape"))
        elif number != 5:
            texts[number] = payload[start:end]
        elif payload.find(_GRAPH, start, end) >= 0 or payload.find(_GRAPHS, start, end) >= 0:
            for body in _bodies(payload, start, end):
                _read_body(body, captures, calls, depth + 1)
    op_type, domain = text(texts.get(4, b"")), text(texts.get(7, b""))
    domain = "" if domain == "ai.onnx" else domain
    own = (domain, op_type, text(texts[8]) if 8 in texts else "")
    calls.pop(own, None)
    return NodeText(
        name=text(texts.get(3, b"")),
        op_type=op_type,
        domain=domain,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        captures=tuple(captures),
        calls=(own, *calls),
    )


def _bodies(payload: bytes, start: int, end: int) -> Iterator[bytes]:
    """The graphs in the attribute at ``payload[start:end]`` (AttributeProto.g and .graphs)."""
    for number, kind, _, value, stop in fields(payload, start, end):
        if kind == 2 and number in {6, 11}:
            yield payload[value:stop]


def _read_body(graph: bytes, captures: dict[str, None], calls: dict[FunctionKey, None], depth: int) -> None:
    """Add what a body reads from outside to ``captures``, and what it may call to ``calls``."""
    if depth > DEEPEST_NESTING:
        raise errors.ModelError(f"the model is damaged: graphs are nested more than {DEEPEST_NESTING} deep")
    own: set[str] = {""}
    read: dict[str, None] = {}
    results: list[str] = []
    for number, kind, _, start, end in fields(graph):
        if kind != 2:
            continue
        if number == 1:
            node = read_node(graph[start:end], depth)
            own.update(node.outputs)
            read.update(dict.fromkeys((*node.inputs, *node.captures)))
            calls.update(dict.fromkeys(node.calls))
        elif number in {5, 11, 12, 15}:
            name = _name_of_part(graph, number, start, end)
            if number == 12:
                results.append(name)
            else:
                own.add(name)
    captures.update(dict.fromkeys(name for name in (*read, *results) if name not in own))


def _name_of_part(graph: bytes, number: int, start: int, end: int) -> str:
    """The name of an initializer (5), input (11), output (12) or sparse initializer (15) of a graph."""
    if number == 15:
        for part, kind, _, value, stop in fields(graph, start, end):
            if part == 1 and kind == 2:
                return string_in(graph, 8, value, stop)
        return ""
    return string_in(graph, 8 if number == 5 else 1, start, end)


def string_in(payload: bytes, wanted: int, start: int, end: int) -> str:
    """The last string field with number ``wanted`` in a message, as protobuf reads it; "" if there is none."""
    found = ""
    for number, kind, _, value, stop in fields(payload, start, end):
        if number == wanted and kind == 2:
            found = text(payload[value:stop])
    return found


class FunctionText(NamedTuple):
    """A model-local function: its key and the operators that its body may call."""

    key: FunctionKey
    calls: tuple[FunctionKey, ...]


def read_function(payload: bytes) -> FunctionText:
    """The function in a serialized FunctionProto. Raises ModelError if it is damaged."""
    texts = {1: "", 10: "", 13: ""}
    calls: dict[FunctionKey, None] = {}
    for number, kind, _, start, end in fields(payload):
        if kind != 2:
            continue
        if number in texts:
            texts[number] = text(payload[start:end])
        elif number == 7:
            calls.update(dict.fromkeys(read_node(payload[start:end]).calls))
    domain = "" if texts[10] == "ai.onnx" else texts[10]
    return FunctionText((domain, texts[1], texts[13]), tuple(calls))
