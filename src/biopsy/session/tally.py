"""What a search has cost and met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.checks.outcome import Judged, Outcome
from biopsy.session.trial import Trial

KeepOther = Callable[[Trial, int], Path | None]
"""Keeps a model that shows the so manieth other failure; where, or None if it is not kept."""


def keep_nothing(trial: Trial, number: int) -> Path | None:
    """Keep no model of another failure."""
    return None


@dataclass
class OtherFailure:
    """A failure that is not the original's: how often it was met, and where one model that shows it was kept."""

    times: int = 0
    model: Path | None = None


@dataclass(kw_only=True)
class SearchTally:
    """Counts what a search has cost and met.

    ``outcomes`` counts runs of checks that were waited for. ``cannot_say`` counts models of which a check could not
    say anything, by the reason; ``other_failures`` has the failures that are not the original's, by how they look.
    ``remembered`` counts runs that the journal gave, ``beside`` those of ``checks`` that the search did not ask for.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    other_failures: dict[str, OtherFailure] = field(default_factory=dict)
    cannot_say: Counter[str] = field(default_factory=Counter)
    remembered: int = 0
    beside: int = 0
    keep_other: KeepOther = keep_nothing
    _met: set[bytes] = field(default_factory=set)

    @property
    def checks(self) -> int:
        """Runs of checks that were waited for."""
        return self.outcomes.total()

    @property
    def asked(self) -> int:
        """Runs of checks that the search asked for and waited for."""
        return self.checks - self.beside

    def undo(self, outcome: Outcome) -> bool:
        """Count one run with this outcome no more; False if none was counted, as for one that the journal gave."""
        if not self.outcomes[outcome]:
            return False
        self.outcomes[outcome] -= 1
        return True

    def meet(self, trial: Trial, judged: Judged) -> None:
        """Count a model, once, whose answer is another failure or that the check cannot say."""
        if judged.outcome not in {Outcome.OTHER_FAILURE, Outcome.INVALID} or trial.digest in self._met:
            return
        self._met.add(trial.digest)
        if judged.outcome is Outcome.INVALID:
            self.cannot_say[judged.reason] += 1
            return
        failure = self.other_failures.setdefault(judged.reason, OtherFailure())
        failure.times += 1
        if failure.times == 1:
            failure.model = self.keep_other(trial, len(self.other_failures))
