"""From nodes of an exported model to lines of the module: what its exporter wrote down, put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from biopsy.layerwise.findings import LayerFindings
from biopsy.model.index import ModelIndex
from biopsy.model.node_source import NodeSource, source_of, source_of_stack
from biopsy.torch.facts import ModuleLine

_QUOTED = re.compile(r"translating node %(\w+) :")


def places_of(sources: Iterable[NodeSource | None]) -> tuple[ModuleLine, ...]:
    """The lines that some nodes come from, each with the operators that were translated there, in their order.

    An operator is named once where its line is called once, however many nodes it has become.
    """
    found: dict[tuple[str | None, int | None, str | None], list[NodeSource]] = {}
    for source in sources:
        if source is not None and (source.file is not None or source.operator is not None or source.scopes):
            found.setdefault((source.file, source.line, _module(source)), []).append(source)
    return tuple(_place(group) for group in found.values())


def places_of_layers(found: LayerFindings, index: ModelIndex) -> tuple[ModuleLine, ...]:
    """The lines of the layers and groups that make errors, those of the worst first."""
    return _once(place for suspect in found.suspects for place in places_of(sources_of_nodes(index, suspect.nodes)))


def sources_of_nodes(index: ModelIndex, nodes: Sequence[int]) -> list[NodeSource | None]:
    """What the exporter says of some nodes of a model, by their numbers."""
    return [source_of(index.node_payload(number)) for number in nodes]


def place_of_node(program: Any, message: str) -> ModuleLine | None:
    """The line of the node of a captured program that a message of the exporter quotes; None if it quotes none."""
    found = _QUOTED.search(message)
    nodes = [node for node in program.graph.nodes if found is not None and node.name == found[1]]
    return place_of_program_node(nodes[0]) if len(nodes) == 1 else None


def place_of_program_node(node: Any) -> ModuleLine | None:
    """The line of a node of a captured program; None if it does not say."""
    if not node.meta.get("stack_trace"):
        return None
    classes = [name for _, name in (node.meta.get("nn_module_stack") or {}).values()]
    source = source_of_stack(node.meta["stack_trace"], str(node.target), list(map(str, classes)))
    return None if source is None else _place([source])


def _place(group: Sequence[NodeSource]) -> ModuleLine:
    first = group[0]
    operators = (source.operator for source in group if source.operator is not None)
    return ModuleLine(
        file=first.file,
        line=first.line,
        function=f"{first.owner}.{first.function}" if first.owner else first.function,
        code=first.code,
        module=_module(first),
        operators=tuple(dict.fromkeys(operators)),
    )


def _module(source: NodeSource) -> str | None:
    return source.scopes[-1] if source.scopes else None


def _once(places: Iterable[ModuleLine]) -> tuple[ModuleLine, ...]:
    def each() -> Iterator[ModuleLine]:
        seen: set[ModuleLine] = set()
        for place in places:
            if place not in seen:
                seen.add(place)
                yield place

    return tuple(each())
