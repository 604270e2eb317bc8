"""From nodes of an exported model to lines of the module: what its exporter wrote down, put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from biopsy.layerwise.findings import LayerFindings
from biopsy.model.index import ModelIndex
from biopsy.model.node_source import NodeSource, source_of_stack
from biopsy.model.sources import noted_source
from biopsy.torch.facts import ModuleLine

_QUOTED = re.compile(r"translating node %(\w+) :")


def lines_of(sources: Iterable[NodeSource | None]) -> tuple[ModuleLine, ...]:
    """The lines that some nodes come from, each with the operators that were translated there, in their order.

    An operator is named once where its line is called once, however many nodes it has become.
    """
    found: dict[tuple[str | None, int | None, str | None], list[NodeSource]] = {}
    for source in sources:
        if source is not None and (source.file is not None or source.operator is not None or source.scopes):
            found.setdefault((source.file, source.line, _module(source)), []).append(source)
    return tuple(_line(group) for group in found.values())


def lines_of_layers(found: LayerFindings, index: ModelIndex) -> tuple[ModuleLine, ...]:
    """The lines of the layers and groups that make errors, those of the worst first."""
    lines = (lines_of(noted_source(index, node) for node in suspect.nodes) for suspect in found.suspects)
    return tuple(dict.fromkeys(chain.from_iterable(lines)))


def line_of_node(program: Any, message: str) -> ModuleLine | None:
    """The line of the node of a captured program that a message of the exporter quotes; None if it quotes none."""
    found = _QUOTED.search(message)
    nodes = [node for node in program.graph.nodes if found is not None and node.name == found[1]]
    return line_of_program_node(nodes[0]) if len(nodes) == 1 else None


def line_of_program_node(node: Any) -> ModuleLine | None:
    """The line of a node of a captured program; None if it does not say."""
    if not node.meta.get("stack_trace"):
        return None
    classes = [name for _, name in (node.meta.get("nn_module_stack") or {}).values()]
    source = source_of_stack(node.meta["stack_trace"], str(node.target), list(map(str, classes)))
    return None if source is None else _line([source])


def _line(group: Sequence[NodeSource]) -> ModuleLine:
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
