"""Where in their author's code the outputs that fail come from, as far as an exporter wrote that into the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biopsy import errors
from biopsy.text import printable

_MOST = 3


def origins(path: Path, names: Iterable[str]) -> list[str]:
    """A line for each of the first few tensors that a node computes of which that is known.

    A model that cannot be read any more has none.
    """
    from biopsy.model.index import index_file
    from biopsy.model.node_source import source_of

    try:
        index = index_file(path)
    except (errors.BiopsyError, OSError):
        return []
    lines = []
    for name in names:
        number = index.producer.get(index.ids.get(name, -1))
        source = None if number is None else source_of(index.node_payload(number))
        if number is not None and source is not None:
            lines.append(printable(f"{name!r} comes from {index.nodes[number].label}, {source.with_code}"))
    return lines[:_MOST]
