"""The passes and checks of a search with their times, collected from its events."""

from __future__ import annotations

import time
from collections import Counter, deque

from biopsy import events
from biopsy.findings.report import Tree
from biopsy.text import shortened

MOST_CHECKS = 4000
"""The most checks that are listed, half of them the first ones and half the last ones; all are counted."""

_LONGEST_REASON = 300
_MOST_PASSES = 2000


class SearchHistory:
    """A listener that keeps what the report says about a search; ``started`` is a time of ``time.monotonic``."""

    def __init__(self, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started
        self._announced: dict[int, tuple[str, int | None]] = {}
        """The description of each running check, and how many nodes the candidate has; by the check's number."""
        self._passes: list[Tree] = []
        self._first: list[Tree] = []
        self._last: deque[Tree] = deque(maxlen=MOST_CHECKS // 2)
        self._outcomes: Counter[str] = Counter()
        self._facts: Tree = {}

    def __call__(self, event: events.Event) -> None:
        """Record one event."""
        match event:
            case events.Checking():
                nodes = event.nodes if isinstance(event, events.CheckingCandidate) else None
                self._announced[event.number] = shortened(event.description, _LONGEST_REASON), nodes
            case events.Checked():
                self._checked(event)
            case events.Abandoned():
                self._announced.pop(event.number, None)
            case events.StageDone() if len(self._passes) < _MOST_PASSES:
                sizes = {key: getattr(event, key, None) for key in ("before", "after")}
                seconds = round(event.seconds, 4)
                self._passes.append({"stage": event.stage, **sizes, "checks": event.checks, "seconds": seconds})
            case events.ModelRead():
                self._facts["nodes"] = event.nodes
            case events.Stopped():
                self._facts["stopped"] = event.reason
            case events.Resumed():
                self._facts["remembered"] = event.runs
            case events.Verified():
                rate = {"failed": event.failed, "runs": event.runs}
                self._facts["verified"] = {**rate, "machine": event.machine or None}
            case events.FlakyFailure():
                rate = {"failed": event.failed, "runs": event.runs}
                self._facts["flaky"] = {**rate, "needed": event.needed, "confidence": event.confidence}

    def _checked(self, event: events.Checked) -> None:
        description, nodes = self._announced.pop(event.number, ("", None))
        self._outcomes[event.outcome] += 1
        check = {
            "number": event.number,
            "stage": event.stage,
            "description": description,
            "nodes": getattr(event, "nodes", nodes),
            "left": getattr(event, "left", None),
            "outcome": event.outcome,
            "reason": shortened(event.reason, _LONGEST_REASON),
            "at": round(time.monotonic() - self._started, 4),
            "seconds": round(event.seconds, 4),
        }
        (self._first if len(self._first) < MOST_CHECKS // 2 else self._last).append(check)

    @property
    def is_empty(self) -> bool:
        """Whether no check has ended."""
        return not self._outcomes

    @property
    def how_often(self) -> str:
        """How many runs a flaky failure shows in, in words; "" if the failure is not known to be flaky."""
        rate = self._facts.get("flaky")
        return f"it fails in {rate['failed']} of {rate['runs']} runs" if rate else ""

    def tree(self) -> Tree:
        """The search so far, in the form of the key ``search``."""
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
