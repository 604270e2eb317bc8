"""The course of a search, as its events tell it: passes and checks, with their times."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

from biopsy import events
from biopsy.findings.report import Tree
from biopsy.text import shortened

MOST_CHECKS = 4000
"""Of a longer search, the first and the last half of so many checks are listed; all are counted."""

_LONGEST_REASON = 300
_MOST_PASSES = 2000


@dataclass(frozen=True)
class _Announced:
    """A check that was begun: its words, and how many nodes the candidate has."""

    description: str
    nodes: int | None


class SearchHistory:
    """A listener that keeps what the report tells of a search; ``started`` is by ``time.monotonic``."""

    def __init__(self, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started
        self._announced: dict[int, _Announced] = {}
        self._passes: list[Tree] = []
        self._first: list[Tree] = []
        self._last: deque[Tree] = deque(maxlen=MOST_CHECKS // 2)
        self._outcomes: Counter[str] = Counter()
        self._facts: Tree = {}

    def __call__(self, event: events.Event) -> None:
        """Take note of one event."""
        if isinstance(event, events.Checking):
            nodes = event.nodes if isinstance(event, events.CheckingCandidate) else None
            self._announced[event.number] = _Announced(shortened(event.description, _LONGEST_REASON), nodes)
        elif isinstance(event, events.Checked):
            self._checked(event)
        elif isinstance(event, events.Abandoned):
            self._announced.pop(event.number, None)
        elif isinstance(event, events.StageDone):
            before, after = (event.before, event.after) if isinstance(event, events.PassDone) else (None, None)
            done = {
                "stage": event.stage,
                "before": before,
                "after": after,
                "checks": event.checks,
                "seconds": round(event.seconds, 4),
            }
            if len(self._passes) < _MOST_PASSES:
                self._passes.append(done)
        else:
            self._facts |= _facts_of(event)

    def _checked(self, event: events.Checked) -> None:
        known = self._announced.pop(event.number, _Announced("", None))
        nodes, left = (event.nodes, event.left) if isinstance(event, events.CheckedCandidate) else (known.nodes, None)
        self._outcomes[event.outcome] += 1
        check = {
            "number": event.number,
            "stage": event.stage,
            "description": known.description,
            "nodes": nodes,
            "left": left,
            "outcome": event.outcome,
            "reason": shortened(event.reason, _LONGEST_REASON),
            "at": round(time.monotonic() - self._started, 4),
            "seconds": round(event.seconds, 4),
        }
        (self._first if len(self._first) < MOST_CHECKS // 2 else self._last).append(check)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was checked."""
        return not self._outcomes

    @property
    def how_often(self) -> str:
        """In how many runs a flaky failure shows, in words; "" if it is not known to be flaky."""
        rate = self._facts.get("flaky")
        return f"it fails in {rate['failed']} of {rate['runs']} runs" if rate else ""

    def tree(self) -> Tree:
        """What is known so far, in the form of the key ``search``."""
        checks = [*self._first, *self._last]
        return {
            "passes": list(self._passes),
            "checks": checks,
            "more_checks": self._outcomes.total() - len(checks),
            "outcomes": dict(self._outcomes),
            "stopped": None,
            "flaky": None,
            "verified": None,
            **self._facts,
        }


def _facts_of(event: events.Event) -> Tree:
    """What one event alone tells."""
    if isinstance(event, events.ModelRead):
        return {"nodes": event.nodes}
    if isinstance(event, events.Stopped):
        return {"stopped": event.reason}
    if isinstance(event, events.Resumed):
        return {"remembered": event.runs}
    if isinstance(event, events.Verified):
        return {"verified": {"failed": event.failed, "runs": event.runs, "machine": event.machine or None}}
    if isinstance(event, events.FlakyFailure):
        rate = {"failed": event.failed, "runs": event.runs}
        return {"flaky": {**rate, "needed": event.needed, "confidence": event.confidence}}
    return {}
