"""The result of a search for workarounds: the changes that help, those that do not, and how the outputs were judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from biopsy.engines.latency import Latency
from biopsy.questions.workarounds.question import COST, Kind
from biopsy.records import plain, plain_of
from biopsy.text import count, html_table, printable

SHOWN = 3
"""How many workarounds are shown as the best."""


@dataclass(frozen=True, kw_only=True)
class VerifiedChange:
    """A change with which the whole model is right.

    ``engine`` is the spec to use, with the ``environment`` variables. ``nodes`` are the labels of the changed nodes of
    the original, ``difference`` the lines that differ between the original and the patched model; both are empty if the
    model is not changed. ``holds`` are the values for which the patched nodes compute the same, a line for each patch
    that is limited. ``model`` are the bytes of the patched model. ``runs`` is in how many fresh processes the check
    passed.
    """

    kind: Kind
    text: str
    engine: str
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    difference: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    model: bytes | None = field(default=None, repr=False)
    latency: Latency | None = None
    runs: int = 1

    @property
    def changes_model(self) -> bool:
        """Whether it patches the model, and does not change the engine."""
        return self.model is not None

    def as_json(self) -> dict[str, Any]:
        """Its fields as plain values, without the model."""
        tree: dict[str, Any] = plain(replace(self, model=None))
        del tree["model"]
        return tree


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """A change that was tried; ``reason`` says why the model is not ``right`` with it."""

    kind: Kind
    text: str
    right: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """The failure of the original in words, seen in ``failed`` of ``runs`` runs."""

    text: str
    failed: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whose values count as right: those of ``reference``; ``confirmed_by`` is another package's engine that agrees.

    A workaround is right on ``samples`` samples of the check and on ``fresh`` others.
    """

    reference: str
    confirmed_by: str | None
    samples: int
    fresh: int


@dataclass(frozen=True, kw_only=True)
class Workarounds:
    """The workarounds of a failure.

    ``piece`` names the nodes at which changes were searched for. ``output`` is the file of the best patched model, if
    it was written. ``stopped`` says what ended the search early, ``interrupted`` whether that was Ctrl-C.
    """

    model: str
    engine: str
    failure: FailureRate
    trust: Trust
    found: tuple[VerifiedChange, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    piece: tuple[str, ...] = ()
    output: Path | None = None
    checks: int = 0
    seconds: float = 0.0
    stopped: str | None = None
    interrupted: bool = False

    @property
    def ordered(self) -> tuple[VerifiedChange, ...]:
        """All workarounds, the best first: by their cost for the user, then by the number of nodes, then by latency."""
        groups: dict[tuple[int, int], list[VerifiedChange]] = {}
        for change in self.found:
            groups.setdefault((COST[change.kind], len(change.nodes)), []).append(change)
        return tuple(change for rank in sorted(groups) for change in _fastest_first(groups[rank]))

    @property
    def best(self) -> tuple[VerifiedChange, ...]:
        """The best three, in order: the best one of each cost before the second one of any."""
        ordered = self.ordered
        costs = [COST[change.kind] for change in ordered]
        turns = sorted(range(len(ordered)), key=lambda place: (costs[:place].count(costs[place]), place))
        return tuple(ordered[place] for place in sorted(turns[:SHOWN]))

    @property
    def patched(self) -> VerifiedChange | None:
        """The best one that patches the model; None if there is none."""
        return next((change for change in self.ordered if change.changes_model), None)

    def __repr__(self) -> str:
        best = "; ".join(printable(each.text) for each in self.best) or f"none of {count(len(self.tried), 'change')}"
        return f"<Workarounds for {printable(self.failure.text)}: {best}>"

    def _repr_html_(self) -> str:
        rows = [
            (change.kind, change.text, "right", change.latency.text if change.latency is not None else "")
            for change in self.best
        ]
        rows += [(tried.kind, tried.text, "not right", tried.reason) for tried in self.tried if not tried.right]
        return html_table(f"{self.model} in {self.engine}: {self.failure.text}", ["kind", "change", "", ""], rows)

    def as_json(self) -> dict[str, Any]:
        """The part of a report with this result."""
        trust = self.trust
        return {
            "engine": self.engine,
            "failure": self.failure.text,
            "rate": plain_of(self.failure, "failed runs"),
            **plain_of(trust, "reference confirmed_by samples"),
            "fresh_samples": plain(trust.fresh),
            "best": [change.as_json() for change in self.best],
            "found": [change.as_json() for change in self.ordered],
            **plain_of(self, "tried piece checks stopped output"),
        }


def _fastest_first(changes: Sequence[VerifiedChange]) -> list[VerifiedChange]:
    """The changes by latency; those that may be as fast as the fastest come first, in their order, then the others."""

    def ratio(change: VerifiedChange, bound: Literal["ratio", "low", "high"], unknown: float) -> float:
        value = None if change.latency is None else getattr(change.latency, bound)
        return unknown if value is None else value

    left, ordered = list(changes), list[VerifiedChange]()
    while left:
        fastest = min(left, key=lambda change: ratio(change, "ratio", math.inf))
        equal = [change for change in left if ratio(change, "low", 0.0) <= ratio(fastest, "high", math.inf)]
        ordered += equal
        left = [change for change in left if change not in equal]
    return ordered


def labels(nodes: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """The names of the nodes at these places; ``names`` are those of all nodes."""
    return tuple(names[node] for node in nodes if node < len(names))
