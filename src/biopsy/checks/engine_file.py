"""Checks that look at what an engine has built from a candidate, and not at the candidate itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.verdict import VerdictFile
from biopsy.isolation.cleanup import take_what_stands_at
from biopsy.isolation.watch import Stop


class EngineFileCheck(Check):
    """Has ``builder`` make ``built`` of each candidate, and asks ``check`` about that.

    What cannot be built says nothing of precision: the candidate is invalid. One at a time, for there is one file.
    """

    def __init__(self, builder: Check, check: Check, built: Path, *, keep: bool = False) -> None:
        """``keep``: the last engine is left there."""
        self.builder = builder
        self.check = check
        self._keep = keep
        self._made = False
        self.built = built

    @property
    def automatic(self) -> bool:
        """As the check is: building costs nobody's attention."""
        return self.check.automatic

    @property
    def stoppable(self) -> bool:
        """As both are."""
        return self.builder.stoppable and self.check.stoppable

    @property
    def settings(self) -> Mapping[str, str]:
        """Those of the builder, and those of the check under names of their own."""
        return {**self.check.settings, **{f"builder {name}": text for name, text in self.builder.settings.items()}}

    @property
    def files(self) -> Sequence[Path]:
        """Those of both."""
        return (*self.builder.files, *self.check.files)

    def start(self) -> None:
        """Warm both up."""
        self.builder.start()
        self.check.start()

    def expect(self, seconds: float) -> None:
        """Pass it on to both."""
        self.builder.expect(seconds)
        self.check.expect(seconds)

    def glance(self) -> Check:
        """The same, with a check that may be content with the first thing that it finds wrong."""
        return EngineFileCheck(self.builder, self.check.glance(), self.built, keep=self._keep)

    def cold(self) -> Check:
        """The same without anything that was kept warm."""
        return EngineFileCheck(self.builder.cold(), self.check.cold(), self.built, keep=self._keep)

    def close(self) -> None:
        """End what was kept warm, and remove the last engine unless it is to be kept."""
        self.builder.close()
        self.check.close()
        if self._made and not self._keep:  # what stands there otherwise is somebody else's
            self.built.unlink(missing_ok=True)
        self._made = False

    def line(self, candidate: Path) -> str:
        """Both commands."""
        return f"{self.builder.line(candidate)} && {self.check.line(self.built)}"

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Build, then ask. Raises CheckError if either cannot be run."""
        started, self._made = time.monotonic(), True
        self.built.unlink(missing_ok=True)
        building = self.builder.run(candidate, stop)
        take_what_stands_at(self.built)
        if building.status != 0 or not self.built.exists():
            if building.verdict.outcome == "infrastructure":
                return building
            said = building.verdict.message or f"exit status {building.status}"
            verdict = VerdictFile(outcome="invalid", message=f"no engine could be built: {said}")
            return replace(building, status=125, verdict=verdict, timed_out=False, out_of_memory=False)
        return replace(self.check.run(self.built, stop), seconds=time.monotonic() - started)
