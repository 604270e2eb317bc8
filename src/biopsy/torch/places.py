"""From nodes of an exported model to lines of the module: what its exporter wrote down, put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from biopsy.layerwise.findings import LayerFindings
from biopsy.model.index import ModelIndex
from biopsy.model.node_source import NodeSource, source_of
from biopsy.torch.facts import Place


def places_of(sources: Iterable[NodeSource | None]) -> tuple[Place, ...]:
    """The lines that some nodes come from, each with the operators that were translated there, in their order.

    An operator is named once where its line is called once, however many nodes it has become.
    """
    found: dict[tuple[str | None, int | None, str | None], list[NodeSource]] = {}
    for source in sources:
        if source is not None and (source.file is not None or source.operator is not None or source.scopes):
            found.setdefault((source.file, source.line, _module(source)), []).append(source)
    return tuple(_place(group) for group in found.values())


def places_of_layers(found: LayerFindings, index: ModelIndex) -> tuple[Place, ...]:
    """The lines of the layers and groups that make errors, those of the worst first."""
    return _once(place for suspect in found.suspects for place in places_of(sources_of_nodes(index, suspect.nodes)))


def sources_of_nodes(index: ModelIndex, nodes: Sequence[int]) -> list[NodeSource | None]:
    """What the exporter says of some nodes of a model, by their numbers."""
    return [source_of(index.node_payload(number)) for number in nodes]


def _place(group: Sequence[NodeSource]) -> Place:
    first = group[0]
    operators = (source.operator for source in group if source.operator is not None)
    return Place(
        file=first.file,
        line=first.line,
        function=f"{first.owner}.{first.function}" if first.owner else first.function,
        code=first.code,
        module=_module(first),
        operators=tuple(dict.fromkeys(operators)),
    )


def _module(source: NodeSource) -> str | None:
    return source.scopes[-1] if source.scopes else None


def _once(places: Iterable[Place]) -> tuple[Place, ...]:
    def each() -> Iterator[Place]:
        seen: set[Place] = set()
        for place in places:
            if place not in seen:
                seen.add(place)
                yield place

    return tuple(each())
