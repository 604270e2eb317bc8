"""The findings of a lint: what they are, which nodes they concern, and their form as JSON.

The JSON is that of Polygraphy's ``check lint``: ``summary`` with the names of passing and failing nodes, and
``lint_entries`` with ``level``, ``source``, ``message`` and, where nodes are to blame, ``nodes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from biopsy.model.node_source import NodeSource

Level: TypeAlias = Literal["exception", "warning", "info"]
"""An exception is an error: the model is invalid, or does not run. A warning or info leaves it usable."""

RULES, CHECKER, INFERENCE, LOADER = "biopsy", "onnx_checker", "onnx_shape_inference", "onnx_loader"
"""Sources of entries; an engine is the source called by its name, ONNX Runtime "onnxruntime"."""

ENGINE_SOURCES = {"onnxrt": "onnxruntime"}


@dataclass(frozen=True, kw_only=True)
class LintEntry:
    """One finding. ``nodes`` are numbers of nodes of the main graph; none if the whole model is meant."""

    level: Level
    source: str
    message: str
    nodes: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Report:
    """All findings. ``names`` is what each node is called; ``ran`` are the nodes that the engine has run.

    ``sources`` tell of nodes that something was found about where they come from, if an exporter says so.
    """

    names: Sequence[str] = ()
    entries: list[LintEntry] = field(default_factory=list)
    ran: set[int] = field(default_factory=set)
    sources: Mapping[int, NodeSource] = field(default_factory=dict)

    def add(self, entries: Iterable[LintEntry]) -> None:
        """Take in entries, none twice."""
        known = set(self.entries)
        for entry in entries:
            if entry not in known:
                known.add(entry)
                self.entries.append(entry)

    @property
    def failing(self) -> set[int]:
        """Nodes that an exception names."""
        return {node for entry in self.entries if entry.level == "exception" for node in entry.nodes}

    @property
    def passing(self) -> set[int]:
        """Nodes that the engine ran and that no exception names."""
        return self.ran - self.failing

    @property
    def is_valid(self) -> bool:
        """Whether there is no exception."""
        return all(entry.level != "exception" for entry in self.entries)

    def as_json(self) -> Mapping[str, Any]:
        """The report as a tree for ``json``."""
        return {
            "summary": {"passing": self._named(self.passing), "failing": self._named(self.failing)},
            "lint_entries": [self._entry(entry) for entry in self.entries],
        }

    def _named(self, nodes: Iterable[int]) -> list[str]:
        return list(dict.fromkeys(self.names[node] for node in sorted(nodes)))

    def _entry(self, entry: LintEntry) -> dict[str, Any]:
        tree: dict[str, Any] = {"level": entry.level, "source": entry.source, "message": entry.message}
        return {**tree, "nodes": self._named(entry.nodes)} if entry.nodes else tree


def node_names(nodes: Iterable[tuple[str, str]]) -> list[str]:
    """What each node is called in a report, by its (name, operator): ``Relu #3`` where it has no name."""
    return [name or f"{op_type} #{number}" for number, (name, op_type) in enumerate(nodes)]
