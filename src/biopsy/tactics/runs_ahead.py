"""Runs of a check with changed settings on other machines, several at once, begun before anybody asks for them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path

from biopsy.checks.outcome import Evidence
from biopsy.checks.task import NO_CANDIDATE, Task
from biopsy.session.workers import Workers
from biopsy.tactics.setting_changes import SettingChange, VariedCheck


class RunsAhead:
    """Has ``workers`` run a check of ``model``. Each run is a process of its own; who asks gets the oldest of a change.

    What was foreseen is only begun sooner: what is asked, and in which order, is up to who asks.
    """

    def __init__(self, check: VariedCheck, model: Path, workers: Workers) -> None:
        self._check = check
        self._model = model
        self._workers = workers
        self._begun: defaultdict[str, deque[Future[Evidence]]] = defaultdict(deque)

    def foresee(self, changes: Iterable[SettingChange], times: int = 1) -> None:
        """Begin so many runs of each change, once there is a machine for them."""
        for change in changes:
            self._begun[change.text] += (self._run(change) for _ in range(times))

    def evidence(self, change: SettingChange) -> Evidence:
        """What the next run of a change leaves. Raises CheckError if it cannot be run, UsageError if not elsewhere."""
        begun = self._begun[change.text]
        if not begun:
            begun.append(self._run(change))
        self._workers.wait([begun[0]], None)
        return begun.popleft().result()

    def forget(self, change: SettingChange) -> None:
        """Stop the runs of a change that nobody will ask for."""
        for run in self._begun.pop(change.text, ()):
            self._workers.stop(run)

    def _run(self, change: SettingChange) -> Future[Evidence]:
        check = self._check.elsewhere(change)
        # The words may name the model instead of a place for it; then it goes with the other files that they name.
        named = not check.names_candidate and check.names_file(self._model)
        return self._workers.begin(Task(check, NO_CANDIDATE if named else self._model, None))
