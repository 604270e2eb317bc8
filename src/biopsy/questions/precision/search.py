"""A search over precisions: what it is asked for, which layers it tries next, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from biopsy.processes.writing import write_whole
from biopsy.questions.precision.formats import Form, RangeLoss
from biopsy.questions.precision.plan import Cost, Layer
from biopsy.records import plain
from biopsy.search.drive import Search
from biopsy.search.subset import in_turn, least, minimize_subset_singly
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import files_of
from biopsy.text import count, html_table, printable, some_of

Mode = Literal["minimal", "bisect", "linear"]
Direction = Literal["forward", "reverse"]


@dataclass(frozen=True)
class PrecisionProposal:
    """Layers to be high, by number, all others low; and words for the progress line."""

    high: tuple[int, ...]
    description: str


LayerSearch: TypeAlias = Search[PrecisionProposal, PrecisionProposal, None]
"""Yields rounds of one proposal, and is sent that if it passes. The last that passed is the result."""


def search_of(layers: Sequence[Layer], mode: Mode, direction: Direction, cost: Cost) -> LayerSearch:
    """The search of a mode; deterministic, so that the same answers give the same proposals."""
    if mode == "minimal":
        return minimal(by_cost(layers, cost))
    order = [layer.number for layer in layers]
    if direction == "reverse":
        order.reverse()
    side = "first" if direction == "forward" else "last"
    return bisect(order, side) if mode == "bisect" else linear(order, side)


def by_cost(layers: Sequence[Layer], cost: Cost) -> list[int]:
    """The layers, those first that may stay high with the least regret; equal ones in the order of the network."""
    price: dict[Cost, Callable[[Layer], int]] = {
        "flops": lambda layer: layer.flops,
        "bytes": lambda layer: layer.bytes,
        "count": lambda layer: 0,
    }
    return [layer.number for layer in sorted(layers, key=price[cost])]


def bisect(order: Sequence[int], side: str = "first") -> LayerSearch:
    """The fewest layers from one end of the network, by halves; log2(N) checks.

    If the failure comes and goes as more are raised, what is found passes, and one less fails.
    """
    yield from least(0, len(order), lambda length: _beginning(order, length, side))


def linear(order: Sequence[int], side: str = "first") -> LayerSearch:
    """One layer more each time, from one end of the network, until it passes."""
    yield from in_turn(_beginning(order, length, side) for length in range(1, len(order)))


def _beginning(order: Sequence[int], length: int, side: str) -> PrecisionProposal:
    return PrecisionProposal(tuple(sorted(order[:length])), f"the {side} {length} of {len(order)} layers high")


def minimal(order: Sequence[int]) -> LayerSearch:
    """Few layers of which none can be low: sets by halves, then one by one until none goes.

    ``order`` is of preference: what comes late is lowered first. About 2k log2(N/k) + 2k checks for k needed layers.
    """

    def propose(high: Sequence[int]) -> PrecisionProposal:
        return PrecisionProposal(tuple(sorted(high)), f"{len(high)} of {len(order)} layers high")

    yield from minimize_subset_singly(order, propose)


def usual_checks(count: int, mode: Mode) -> int:
    """Checks that a search takes if one layer is needed: what a person who waits is told."""
    halves = max(1, (count - 1).bit_length())
    return {"minimal": 2 * halves + 2, "bisect": halves, "linear": count}[mode]


# What a search over precisions leaves: the mixed model, the layers that must be high, and the facts about it.


@dataclass(frozen=True, kw_only=True)
class PrecisionJob:
    """What to search and how; see the options of ``biopsy debug precision``.

    ``output`` is the file of the mixed model, ``external`` the name of that for its weights beside it, ``names`` that
    of the names as text. ``write_report`` writes what is known into ``report``; it may be called several times.
    """

    output: Path | None = None
    external: str | None = None
    report: Path | None = None
    names: Path | None = None
    write_report: Callable[[PrecisionResult], None] = lambda result: None
    mode: Mode = "minimal"
    direction: Direction = "forward"
    cost: Cost = "count"
    search: SearchOptions = field(default_factory=SearchOptions)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the mixed model, none if it is not written."""
        return () if self.output is None else files_of(self.output, self.external)

    def write_facts(self, result: PrecisionResult) -> None:
        """Write the report and the names, where they are wanted. Raises UsageError if one cannot be written."""
        if self.report is not None:
            self.write_report(result)
        if self.names is not None:
            write_names(result, self.names)


@dataclass(frozen=True, kw_only=True)
class PrecisionResult:
    """What a search over precisions found.

    ``high`` are the layers that must be high, of ``layers`` in all; none if all may be low.
    ``one_minimal``: lowering any one of them alone makes the check fail. ``verified`` counts passing checks of the
    final model, each in a process of its own; 0 where a person decides. ``stopped`` names the limit that ended the
    search. ``stays`` and ``passive`` are nodes that are no layers: see ``PrecisionPlan``. ``range_loss`` are weights
    that the low precision cannot hold, of layers that are low. ``remembered`` counts runs of the check that an
    interrupted search had done.
    """

    model: str
    low: str
    precision: str
    form: Form | None
    mode: Mode
    direction: Direction
    cost: Cost
    layers: int
    high: tuple[Layer, ...]
    one_minimal: bool
    outcomes: Mapping[str, int]
    seconds: float
    verified: int = 0
    output: Path | None = None
    stopped: str | None = None
    range_loss: tuple[RangeLoss, ...] = ()
    stays: Mapping[str, int] = field(default_factory=dict)
    passive: Mapping[str, int] = field(default_factory=dict)
    remembered: int = 0

    @property
    def checks(self) -> int:
        """Checks that were run, the first and the last included."""
        return sum(self.outcomes.values())

    @property
    def names(self) -> list[str]:
        """The names of the layers that must be high, for other tools; what has no name is left out."""
        return [layer.name for layer in self.high if layer.name]

    def __repr__(self) -> str:
        high = f": {some_of(layer.label for layer in self.high)}" if self.high else ""
        ended = f", ended by {printable(self.stopped)}" if self.stopped else ""
        return f"<PrecisionResult: {self._counted}{high}; {count(self.checks, 'check')}{ended}>"

    def _repr_html_(self) -> str:
        rows = [(layer.label, layer.op_type, layer.flops, layer.bytes) for layer in self.high]
        return html_table(self._counted, ["layer", "operator", "flops", "bytes"], rows)

    @property
    def _counted(self) -> str:
        return f"{len(self.high)} of {count(self.layers, 'layer')} must be {self.precision}, the others {self.low}"


def precision_tree(result: PrecisionResult) -> dict[str, object]:
    """All that was found, as plain values."""
    return {
        "biopsy_precision": 1,
        "model": result.model,
        "low": result.low,
        "high": result.precision,
        "form": result.form,
        "mode": result.mode,
        "direction": None if result.mode == "minimal" else result.direction,
        "cost": result.cost if result.mode == "minimal" else None,
        "layers": result.layers,
        "high_layers": [
            {
                "name": layer.name or None,
                "op": layer.op_type,
                "node": layer.place,
                "inside": list(layer.where),
                "output": layer.writes,
                "flops": layer.flops,
                "bytes": layer.bytes,
                "source": None if layer.source is None else layer.source.as_tree(),
            }
            for layer in result.high
        ],
        "nodes_to_exclude": result.names,
        "one_minimal": result.one_minimal,
        "fixed": plain(result.stays),
        "passive": plain(result.passive),
        "damaged_weights": plain(result.range_loss),
        "outcomes": dict(result.outcomes),
        "verified": result.verified,
        "stopped": result.stopped,
        "output": None if result.output is None else str(result.output),
        "seconds": round(result.seconds, 3),
    }


def write_names(result: PrecisionResult, path: Path) -> None:
    """Write one name a line, as lists of nodes to exclude are; a layer that has none for a line is a comment."""
    lines = []
    for layer in result.high:
        if not layer.name:
            lines.append(f"# {printable(layer.label)}, which has no name\n")
        elif layer.name.splitlines() != [layer.name]:  # whoever reads the list would take it for several names
            lines.append(f"# {printable(layer.label)}, whose name has several lines: rename it first\n")
        else:
            lines.append(f"{layer.name}\n")
    write_whole(path, ["".join(lines).encode("utf-8", "surrogateescape")])
