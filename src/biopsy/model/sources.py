"""Where the nodes of a model come from: what is noted of each, or else of the same node in the model it was made of.

Passes of optimizers, and ours, make nodes anew and drop what an exporter noted. The node is then looked up in the
original, by the tensors that it writes, its name and its operator. Two answers are none: nothing is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from biopsy.model.index import ModelIndex, Node
from biopsy.model.node_source import NodeSource, source_of
from biopsy.quantities import count


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """A place in the code of a model's author, in words, and the nodes that come from it, by their order from 0."""

    text: str
    nodes: tuple[int, ...]


def sources_of(index: ModelIndex, original: ModelIndex | None = None) -> tuple[NodeSource | None, ...]:
    """For each node of a model, where an exporter says that it comes from.

    ``original``: the model that it was made of, in which those are looked up of which nothing is noted.
    """
    noted = [noted_source(index, node.number) for node in index.nodes]
    if original is None or all(noted):
        return tuple(noted)
    counterparts = _Counterparts(index, original)
    pairs = zip(index.nodes, noted, strict=True)
    return tuple(source or counterparts.source(node) for node, source in pairs)


def noted_source(index: ModelIndex, number: int) -> NodeSource | None:
    """What is noted of one node."""
    return source_of(index.node_payload(number))


def places_of(sources: Iterable[NodeSource | None]) -> list[CodePlace]:
    """The places that some nodes come from, each once, in the order of the nodes."""
    found: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        if source is not None:
            found.setdefault(source.with_code, []).append(number)
    return [CodePlace(text=text, nodes=tuple(numbers)) for text, numbers in found.items()]


def group_name(sources: Sequence[NodeSource | None]) -> str:
    """What nodes are together, in the words of their author: ``module blocks.0.attention: aten.softmax.int``.

    The innermost module that all are in, or else the class of the whole model, and the operators that were translated
    into them. Of nodes without a source, such as an optimizer makes, it says how many there are; "" if they are half of
    them or more.
    """
    known = [source for source in sources if source is not None]
    others = len(sources) - len(known)
    if others >= len(known):
        return ""
    module = _common([source.scopes for source in known])
    models = {source.classes[0].rpartition(".")[2] if source.classes else "" for source in known}
    model = models.pop() if len(models) == 1 else ""
    where = f"module {module}" if module else f"class {model}" if model else ""
    operators = ", ".join(dict.fromkeys(source.operator for source in known if source.operator))
    name = ": ".join(filter(None, (where, operators)))
    return f"{name}, and {count(others, 'more node')}" if name and others else name


def _common(paths: Sequence[Sequence[str]]) -> str:
    """The innermost of what all paths begin with; "" if they have nothing in common."""
    shared = ""
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        shared = names[0]
    return shared


class _Counterparts:
    """The nodes of a model in the one that it was made of."""

    def __init__(self, index: ModelIndex, original: ModelIndex) -> None:
        self._index = index
        self._original = original
        here = Counter(node.name for node in index.nodes)
        there = Counter(node.name for node in original.nodes)
        self._named = {
            node.name: node for node in original.nodes if node.name and here[node.name] == there[node.name] == 1
        }

    def source(self, node: Node) -> NodeSource | None:
        """What the original says of a node, or of the one in whose place it stands; None if that is not one node."""
        found = self._writers(node)
        named = self._named.get(node.name)
        if named is not None and _is_alike(node, named) and self._shares_an_input(node, named):
            found[named.number] = named
        if len(found) != 1:
            return None
        (there,) = found.values()
        source = noted_source(self._original, there.number)
        is_same = _is_alike(node, there) and (node.name == there.name or not (node.name and there.name))
        return source if source is None or is_same else replace(source, stands_for=there.label)

    def _writers(self, node: Node) -> dict[int, Node]:
        """The nodes of the original that compute what a node computes here, by name."""
        ids = (self._original.ids.get(self._index.names[tensor], -1) for tensor in node.writes)
        numbers = (self._original.producer.get(tensor) for tensor in ids)
        return {number: self._original.nodes[number] for number in numbers if number is not None}

    def _shares_an_input(self, node: Node, other: Node) -> bool:
        """Whether both read the same tensor at the same place; else an equal name may be chance."""
        pairs = zip(node.inputs, other.inputs, strict=False)
        return any(
            here >= 0 and there >= 0 and self._index.names[here] == self._original.names[there] for here, there in pairs
        )


def _is_alike(one: Node, other: Node) -> bool:
    return (one.op_type, one.domain or "ai.onnx") == (other.op_type, other.domain or "ai.onnx")
