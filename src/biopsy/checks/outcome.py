"""What a check is, what it can say, and what a run of it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from biopsy import events
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


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run of a check left: the facts from which an outcome is judged.

    ``status`` is the exit status, or minus the number of the signal that ended it. ``output`` is what it printed,
    stdout and stderr in one, any bytes, its middle cut out when it is very long. ``seconds`` is wall time.
    ``timed_out`` and ``out_of_memory``: it was ended because it reached that limit. ``candidate`` is the path of the
    model that it looked at, ``scripts`` the files that are the user's own program, or the ends of their paths; both are
    empty if nobody can tell. ``remark`` is what the check tells of itself that its user should know. ``machine`` is the
    other machine that it ran on, in words, "" for this one; ``may_be_kept``: another search may be told of the answer,
    since the machine is of a kind that the search knows of.
    """

    status: int
    output: bytes = b""
    verdict: VerdictFile = field(default_factory=VerdictFile)
    seconds: float = 0.0
    timed_out: bool = False
    out_of_memory: bool = False
    candidate: str = ""
    scripts: tuple[str, ...] = ()
    remark: str = ""
    machine: str = ""
    may_be_kept: bool = True


@dataclass(frozen=True)
class Judged:
    """An outcome with its reason in words, and the evidence it rests on."""

    outcome: Outcome
    reason: str
    evidence: Evidence

    def event(self, number: int, stage: str) -> events.Checked:
        """What listeners are told of this run of a check."""
        return events.Checked(
            number=number,
            stage=stage,
            outcome=self.outcome.value,
            reason=self.reason,
            seconds=self.evidence.seconds,
            output=self.evidence.output,
        )


class Check(ABC):
    """Whatever decides about one candidate: a command, a Python function, a person.

    A subclass has ``run`` and ``line``; all else has a default that fits most.
    """

    @property
    def automatic(self) -> bool:
        """Whether it costs nobody's attention, so that the program may check more than the search needs."""
        return True

    @property
    def stoppable(self) -> bool:
        """Whether a run takes note of ``stop``, so that it may run in another thread than who waits for it."""
        return False

    @property
    def sees_values(self) -> bool:
        """Whether it may depend on what the candidate computes."""
        return True

    @property
    def names_candidate(self) -> bool:
        """Whether it is told where the candidate stands; if not, it knows the usual place by itself."""
        return True

    def names_file(self, path: Path) -> bool:
        """Whether it is told where a file stands that it reads besides; if not, it knows the usual place by itself."""
        return False

    def with_files(self, files: Mapping[Path, Path]) -> Check:
        """The same check, told other files in place of those that it names. Only for files that it names."""
        return self

    @property
    def settings(self) -> Mapping[str, str]:
        """What its answers depend on, by the name of the option: its own words, and its limits."""
        return {"check": self.line(Path("{}"))}

    @property
    def files(self) -> Sequence[Path]:
        """Files and folders that its answers depend on, besides the candidate."""
        return ()

    @property
    def programs(self) -> Sequence[Path]:
        """Those of its files that it runs, rather than reads: its script, and what that imports of its own folder."""
        return ()

    @abstractmethod
    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Look at the model at ``candidate``, unless ``stop`` says that nobody waits for the answer any more.

        Raises CheckError if the check itself could not be run.
        """

    @abstractmethod
    def line(self, candidate: Path) -> str:
        """What a person types to repeat this check."""

    def start(self) -> None:  # noqa: B027 -- most have nothing to warm up
        """Begin to warm up, without waiting for it."""

    def expect(self, seconds: float) -> None:  # noqa: B027 -- most have no limit
        """Say how long the original took, so that a candidate that hangs can be told from one that is slow."""

    def fed(self, inputs: Path) -> Check:
        """The same check, which feeds candidates from another file. Only for one that feeds them."""
        raise NotImplementedError(f"{inputs}: this check feeds nothing")

    def glance(self) -> Check:
        """The same check, which may stop at the first thing that it finds wrong."""
        return self

    def arbiter(self) -> Check | None:
        """The same check, which judges a mismatch against float64 too; None if it cannot."""
        return None

    def cold(self) -> Check:
        """The same check without anything that was kept warm for it: for the final check."""
        return self

    def foresee_cold(self) -> None:  # noqa: B027 -- most have nothing to load
        """Say that the check of ``cold`` will be asked for soon: what it needs may be loaded meanwhile."""

    def close(self) -> None:  # noqa: B027 -- most keep nothing warm
        """End what was kept warm."""
