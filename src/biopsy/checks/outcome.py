"""What a check can say, and what a run of it leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from biopsy.checks.verdict import VerdictFile
from biopsy.isolation.watch import Stop


class Outcome(Enum):
    """What a check said of one candidate. Only REPRODUCES advances a search."""

    REPRODUCES = "reproduced"
    OTHER_FAILURE = "another failure"
    PASSES = "passed"
    INVALID = "cannot say"
    TIMED_OUT = "timed out"
    UNSTABLE = "unstable"
    INFRASTRUCTURE = "could not be run"


@dataclass(frozen=True)
class Evidence:
    """What one run of a check left: the facts from which an outcome is judged.

    ``status`` is the exit status, or minus the number of the signal that ended it. ``output`` is what it printed,
    stdout and stderr in one, any bytes, its middle cut out when it is very long. ``seconds`` is wall time.
    ``timed_out`` and ``out_of_memory``: it was ended because it reached that limit. ``candidate`` is the path of the
    model that it looked at, ``scripts`` the files that are the user's own program, or the ends of their paths; both are
    empty if nobody can tell.
    """

    status: int
    output: bytes = b""
    verdict: VerdictFile = field(default_factory=VerdictFile)
    seconds: float = 0.0
    timed_out: bool = False
    out_of_memory: bool = False
    candidate: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """An outcome with its reason in words, and the evidence it rests on."""

    outcome: Outcome
    reason: str
    evidence: Evidence


class Check(Protocol):
    """Whatever decides about one candidate: a command, a Python function, a person.

    ``automatic``: it costs nobody's attention, so the program may check more than the search needs.
    ``names_candidate``: it is told where the candidate stands; if not, it knows the usual place by itself.
    ``stoppable``: a run of it takes note of ``stop``, so that it may run in another thread than who waits for it.
    """

    @property
    def automatic(self) -> bool: ...  # noqa: D102 -- see the class
    @property
    def names_candidate(self) -> bool: ...  # noqa: D102 -- see the class
    @property
    def stoppable(self) -> bool: ...  # noqa: D102 -- see the class

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Look at the model at ``candidate``, unless ``stop`` says that nobody wants to know any more.

        Raises CheckError if the check itself could not be run.
        """

    def expect(self, seconds: float) -> None:
        """Say how long the original took, so that a candidate that hangs can be told from one that is slow."""

    def glance(self) -> Check:
        """The same check, which may be content with the first thing that it finds wrong."""

    def cold(self) -> Check:
        """The same check without anything that was kept warm for it: for the last word."""

    def close(self) -> None:
        """End what was kept warm."""

    def line(self, candidate: Path) -> str:
        """What a person types to repeat this check."""
