"""Where in their author's code the outputs that fail come from, as far as an exporter wrote that into the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.model.node_source import NodeSource

_MOST_SHOWN = 3
_MOST_TOLD = 200


@dataclass(frozen=True, kw_only=True)
class OutputOrigin:
    """The node that computes an output, and where that comes from."""

    output: str
    number: int
    label: str
    source: NodeSource

    def as_tree(self) -> dict[str, Any]:
        """As plain values, for a report."""
        node = {"output": self.output, "number": self.number, "label": self.label}
        return {**node, "source": self.source.as_tree()}


def origins(path: Path, names: Iterable[str]) -> Iterator[OutputOrigin]:
    """Of each of some tensors, of which it is known. A model that cannot be read any more has none."""
    from biopsy.model.index import index_file
    from biopsy.model.sources import noted_source

    try:
        index = index_file(path)
    except (errors.BiopsyError, OSError):
        return
    for name in names:
        number = index.producer.get(index.ids.get(name, -1))
        source = None if number is None else noted_source(index, number)
        if number is not None and source is not None:
            yield OutputOrigin(output=name, number=number, label=index.nodes[number].label, source=source)


def origin_lines(path: Path, names: Iterable[str]) -> list[str]:
    """A line for each of the first few."""
    shown = list(origins(path, names))[:_MOST_SHOWN]
    return [f"{one.output!r} comes from {one.label}, {one.source.with_code}" for one in shown]


def origin_trees(path: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Each of them, for a report."""
    return [one.as_tree() for one in list(origins(path, names))[:_MOST_TOLD]]
