"""The memory of a search: every run of the check on every model, so that no question is asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.outcome import Judged, Outcome
from biopsy.session.stage import Stage
from biopsy.session.tally import SearchTally
from biopsy.session.trial import Trial

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal

_SAID_ONCE = frozenset({Outcome.INVALID, Outcome.TIMED_OUT})
"""Outcomes that are not asked for again, however flaky the failure is."""


class OutcomeMemory:
    """Remembers what a check said of each model, by the digest of its bytes.

    With a ``journal``, it also holds what an interrupted search was told, and writes down what this one is told.
    ``repetitions`` is how many runs that do not reproduce make a model pass: one, unless the failure is flaky.
    """

    def __init__(self, tally: SearchTally) -> None:
        self.journal: Journal | None = None
        self.repetitions = 1
        self._tally = tally
        self._runs: dict[bytes, list[Judged]] = {}
        self._stages: dict[bytes, list[Stage]] = {}
        self._asked: list[bytes] = []

    def runs(self, trial: Trial) -> Sequence[Judged]:
        """What is remembered of a model, the oldest run first."""
        return self._of(trial.digest)

    def conclusion(self, trial: Trial) -> Judged | None:
        """What the runs on a model say together; None if more are needed."""
        return concluded(self._of(trial.digest), self.repetitions)

    def add(self, trial: Trial, judged: Judged) -> None:
        """Remember one run, without its output. Raises CheckError if the journal cannot be written."""
        self._of(trial.digest).append(replace(judged, evidence=replace(judged.evidence, output=b"")))
        self._stages.setdefault(trial.digest, []).append(trial.stage)
        if self.journal is not None and trial.stage.is_remembered and judged.evidence.may_be_kept:
            self.journal.add(
                trial.digest, judged, stage=trial.stage.name, description=trial.description, nodes=trial.size
            )
        self._asked.append(trial.digest)

    def was_asked(self, trial: Trial) -> bool:
        """Whether this process asked about a model, rather than one that left a journal."""
        return trial.digest in self._asked

    def undo(self) -> tuple[bytes, Sequence[tuple[Judged, Stage]]] | None:
        """Forget the model that was asked about last; None if none was.

        Returns its digest, and the runs of this process that are forgotten, each with what it was for.
        """
        if not self._asked:
            return None
        digest = self._asked.pop()
        stages = self._stages.pop(digest, [])
        runs = self._runs.pop(digest, [])
        if self.journal is not None:
            self.journal.forget(digest)
        return digest, list(zip(runs[len(runs) - len(stages) :], stages, strict=True))  # a journal's stand first

    def note(self, key: str, value: str) -> None:
        """Write a small fact into the journal, if there is one. Raises CheckError if it cannot be written."""
        if self.journal is not None:
            self.journal.note(key, value)

    def noted(self, key: str) -> str | None:
        """What an interrupted search, or this one, wrote down under a key."""
        return None if self.journal is None else self.journal.noted(key)

    @property
    def journal_path(self) -> Path | None:
        """Where the journal stands, for a message."""
        return None if self.journal is None else self.journal.path

    def _of(self, digest: bytes) -> list[Judged]:
        if digest not in self._runs:
            self._runs[digest] = [] if self.journal is None else self.journal.runs(digest)
            self._tally.remembered += len(self._runs[digest])
        return self._runs[digest]


def concluded(runs: Sequence[Judged], needed: int) -> Judged | None:
    """What several runs on one model say together; None if more are needed.

    One that reproduces is enough. Otherwise ``needed`` of them must not, unless the check cannot say.
    """
    for judged in runs:
        if judged.outcome is Outcome.REPRODUCES:
            return judged
    if not runs or (len(runs) < needed and runs[-1].outcome not in _SAID_ONCE):
        return None
    counts = Counter(judged.outcome for judged in runs)
    if len(counts) == 1:
        return runs[-1]
    summary = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    return replace(runs[-1], outcome=Outcome.UNSTABLE, reason=f"{len(runs)} runs: {summary}")
