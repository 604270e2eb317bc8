"""What a search for workarounds has found: those that are right, those that are not, and how that was told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from biopsy.questions.workarounds.latency import Latency
from biopsy.questions.workarounds.question import COST, Kind
from biopsy.records import plain
from biopsy.text import count, html_table, printable

SHOWN = 3
"""Workarounds that are named as the best."""


@dataclass(frozen=True, kw_only=True)
class VerifiedChange:
    """A change with which the whole model is right.

    ``engine`` is the spec to use, ``environment`` variables to set with it. ``nodes`` are those of the original that
    are changed, as people call them; ``difference`` the lines of what is in the patched model and not in the original,
    or the other way round; both are empty where the model stays as it is. ``holds`` says for which values only it is
    known to be the same function, a line for each change that is not for all. ``model`` are its bytes. ``runs``: in so
    many fresh processes the check passed.
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
        """Whether another model is to be used, and not another engine."""
        return self.model is not None

    def as_json(self) -> dict[str, Any]:
        """As plain values; the model itself is left out."""
        tree: dict[str, Any] = plain(replace(self, model=None))
        del tree["model"]
        return tree


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """A change that was tried: whether the model is ``right`` with it, and if not, why not."""

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

    They are known for ``samples`` samples of the check and for ``fresh`` others, and a workaround is right on all.
    """

    reference: str
    confirmed_by: str | None
    samples: int
    fresh: int


@dataclass(frozen=True, kw_only=True)
class Workarounds:
    """What was found.

    ``piece`` names the nodes around which changes were sought. ``output`` is the file of the best patched model, if it
    was to be written. ``stopped`` says what has ended the search early, ``interrupted`` whether that was a person.
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
        """All of them, the best first: by what they cost the user, by how many nodes they change, by latency."""
        groups: dict[tuple[int, int], list[VerifiedChange]] = {}
        for one in self.found:
            groups.setdefault((COST[one.kind], len(one.nodes)), []).append(one)
        return tuple(one for rank in sorted(groups) for one in _fastest_first(groups[rank]))

    @property
    def best(self) -> tuple[VerifiedChange, ...]:
        """The best three in the order of what they cost the user: the best one for each cost, before any second one."""
        ordered = self.ordered
        costs = [COST[one.kind] for one in ordered]
        turns = sorted(range(len(ordered)), key=lambda place: (costs[:place].count(costs[place]), place))
        return tuple(ordered[place] for place in sorted(turns[:SHOWN]))

    @property
    def patched(self) -> VerifiedChange | None:
        """The best one that changes the model; None if there is none."""
        return next((one for one in self.ordered if one.changes_model), None)

    def __repr__(self) -> str:
        best = "; ".join(printable(one.text) for one in self.best) or f"none of {count(len(self.tried), 'change')}"
        return f"<Workarounds for {printable(self.failure.text)}: {best}>"

    def _repr_html_(self) -> str:
        rows = [(one.kind, one.text, "right", one.latency.text if one.latency is not None else "") for one in self.best]
        rows += [(one.kind, one.text, "not right", one.reason) for one in self.tried if not one.right]
        return html_table(f"{self.model} in {self.engine}: {self.failure.text}", ["kind", "change", "", ""], rows)

    def as_json(self) -> dict[str, Any]:
        """The part of a report that tells what was found."""
        trust = self.trust
        tree: dict[str, Any] = plain(
            {
                "engine": self.engine,
                "failure": self.failure.text,
                "rate": {"failed": self.failure.failed, "runs": self.failure.runs},
                "reference": trust.reference,
                "confirmed_by": trust.confirmed_by,
                "samples": trust.samples,
                "fresh_samples": trust.fresh,
                "best": [change.as_json() for change in self.best],
                "found": [change.as_json() for change in self.ordered],
                **{name: getattr(self, name) for name in ("tried", "piece", "checks", "stopped", "output")},
            }
        )
        return tree


def _fastest_first(changes: Sequence[VerifiedChange]) -> list[VerifiedChange]:
    """Those first that are as fast as the fastest, as far as could be measured: they stay in their order."""
    measured = [change.latency for change in changes if change.latency is not None and change.latency.ratio is not None]
    fastest = min(measured, key=lambda latency: latency.ratio or 0.0, default=None)
    least = math.inf if fastest is None or fastest.high is None else fastest.high

    def time(change: VerifiedChange) -> float:
        """How many times as long the model takes; 0 if that may be as little as the least, or is not known."""
        latency = change.latency
        is_slower = latency is not None and latency.low is not None and latency.low > least
        return latency.ratio or 0.0 if latency is not None and is_slower else 0.0

    return sorted(changes, key=time)


def labels(nodes: Sequence[int], names: Sequence[str]) -> tuple[str, ...]:
    """What people call nodes of these places; ``names`` are those of all nodes."""
    return tuple(names[node] for node in nodes if node < len(names))
