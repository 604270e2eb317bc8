"""A search over precisions: its settings, the order in which it tries layers, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from biopsy.processes.writing import write_whole
from biopsy.questions.precision.formats import Form, RangeLoss
from biopsy.questions.precision.plan import Cost, Layer
from biopsy.records import plain, plain_of
from biopsy.search.drive import Search
from biopsy.search.subset import in_turn, least, minimize_subset_singly
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import files_of
from biopsy.text import count, html_table, printable, some_of

Mode = Literal["minimal", "bisect", "linear"]
Direction = Literal["forward", "reverse"]


@dataclass(frozen=True)
class PrecisionProposal:
    """The numbers of high layers, all others being low, and a description for the progress line."""

    high: tuple[int, ...]
    description: str


LayerSearch: TypeAlias = Search[PrecisionProposal, PrecisionProposal, object]
"""Yields rounds of one proposal, and is sent the proposal if it passes. The last that passed is the result."""


def search_of(layers: Sequence[Layer], mode: Mode, direction: Direction, cost: Cost) -> LayerSearch:
    """The search of a mode; deterministic.

    ``bisect`` finds the fewest layers from one end of the network with log2(N) checks. If the failure comes and goes as
    more layers are raised, the result still passes, and one layer less fails. ``linear`` raises one layer more each
    time. For ``minimal``, see there.
    """
    if mode == "minimal":
        return minimal(by_cost(layers, cost))
    order = [layer.number for layer in layers]
    if direction == "reverse":
        order.reverse()
    side = "first" if direction == "forward" else "last"

    def beginning(length: int) -> PrecisionProposal:
        return PrecisionProposal(tuple(sorted(order[:length])), f"the {side} {length} of {len(order)} layers high")

    return least(0, len(order), beginning) if mode == "bisect" else in_turn(map(beginning, range(1, len(order))))


def by_cost(layers: Sequence[Layer], cost: Cost) -> list[int]:
    """The numbers of layers by cost, the cheapest first; equal ones in the order of the network."""
    price: dict[Cost, Callable[[Layer], int]] = {
        "flops": lambda layer: layer.flops,
        "bytes": lambda layer: layer.bytes,
        "count": lambda layer: 0,
    }
    return [layer.number for layer in sorted(layers, key=price[cost])]


def minimal(order: Sequence[int]) -> LayerSearch:
    """A 1-minimal set of high layers: sets by halves, then single layers until none can be lowered.

    Late layers of ``order`` are lowered first. Takes about 2k log2(N/k) + 2k checks for k needed layers.
    """

    def propose(high: Sequence[int]) -> PrecisionProposal:
        return PrecisionProposal(tuple(sorted(high)), f"{len(high)} of {len(order)} layers high")

    return minimize_subset_singly(order, propose)


def usual_checks(count: int, mode: Mode) -> int:
    """The number of checks if one layer is needed, as an estimate for the user."""
    halves = max(1, (count - 1).bit_length())
    return {"minimal": 2 * halves + 2, "bisect": halves, "linear": count}[mode]


@dataclass(frozen=True, kw_only=True)
class PrecisionJob:
    """The settings of a search; see the options of ``biopsy debug precision``.

    ``output`` is the file for the mixed model, ``external`` the name of the file beside it for weights, ``names`` the
    file for the names of high layers. ``write_report`` writes ``report``, possibly several times.
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
        """The files of the mixed model; empty if it is not written."""
        return () if self.output is None else files_of(self.output, self.external)

    def write_facts(self, result: PrecisionResult) -> None:
        """Write the report and the names, if wanted. Raises UsageError if one cannot be written."""
        if self.report is not None:
            self.write_report(result)
        if self.names is not None:
            write_names(result, self.names)


@dataclass(frozen=True, kw_only=True)
class PrecisionResult:
    """The result of a search over precisions.

    ``high`` are the layers that must be high, of ``layers`` in all; empty if all may be low. ``one_minimal``: the check
    fails if any one of them is lowered. ``verified`` counts passing checks of the final model in fresh processes; 0 if
    a person decides. ``stopped`` names the limit that ended the search. ``stays`` and ``passive`` count nodes that are
    no layers: see ``PrecisionPlan``. ``range_loss`` are weights of low layers that the low precision cannot hold.
    ``remembered`` counts runs of the check by an interrupted search.
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
        """The number of checks, including the first and the last."""
        return sum(self.outcomes.values())

    @property
    def names(self) -> list[str]:
        """The names of the layers that must be high, without layers that have no name."""
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
    """The result as plain values for a report."""
    return {
        "biopsy_precision": 1,
        **plain_of(result, "model low"),
        "high": result.precision,
        **plain_of(result, "form mode"),
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
                **plain_of(layer, "flops bytes"),
                "source": None if layer.source is None else layer.source.as_tree(),
            }
            for layer in result.high
        ],
        "nodes_to_exclude": result.names,
        "one_minimal": result.one_minimal,
        "fixed": plain(result.stays),
        "passive": plain(result.passive),
        "damaged_weights": plain(result.range_loss),
        **plain_of(result, "outcomes verified stopped output"),
        "seconds": round(result.seconds, 3),
    }


def write_names(result: PrecisionResult, path: Path) -> None:
    """Write the names of high layers, one per line; layers without a usable name become comments."""
    lines = []
    for layer in result.high:
        if not layer.name:
            lines.append(f"# {printable(layer.label)}, which has no name\n")
        elif layer.name.splitlines() != [layer.name]:  # it would read as several names
            lines.append(f"# {printable(layer.label)}, whose name has several lines: rename it first\n")
        else:
            lines.append(f"{layer.name}\n")
    write_whole(path, ["".join(lines).encode("utf-8", "surrogateescape")])
