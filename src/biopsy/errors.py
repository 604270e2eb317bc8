"""Every exception that biopsy raises on purpose.

    BiopsyError                    status 4   nothing was concluded
    ├── UsageError                 status 2   the command line, or a file it names, cannot be used
    │   └── DoesNotFit             status 2   an option speaks of what this model does not have
    ├── ModelError                 status 4   a model file is damaged, or its weights are missing
    ├── DataError                  status 4   a file of tensors is damaged or of an unknown form
    ├── CannotCompare              status 4   inputs or golden values do not belong to this model
    │   └── TooMuchMemory          status 4   an engine was ended at its limit of memory
    ├── EngineMissing              status 4   an engine, or its package, is not installed
    │   └── UnknownEngine          status 2   no engine has this name
    ├── EngineFailure              status 1   an engine could not load, build or run the model
    │   └── EngineCrash            status 1   it ended the process that it ran in
    ├── InvalidResult              status 1   a changed model would be refused where the original is accepted
    ├── CannotInstall              status 4   packages could not be installed, or not be imported once they were
    ├── CheckError                 status 4   the check itself could not be run
    │   ├── CheckChanged           status 4   a file that the check runs was changed meanwhile
    │   └── VacuousCheck           status 4   the check fails on anything: its answers say nothing
    ├── OriginalPasses             status 3   the original does not fail: there is nothing to reduce
    ├── HighPrecisionFails         status 3   the check fails in the high precision too: there is nothing to find
    └── Interrupted                status 5   stopped on request; the best result so far is saved

The library raises; only ``cli`` turns an exception into text and an exit status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

Stage = Literal["load", "build", "run", "compare"]
"""Where an engine, or the comparison after it, failed."""

STAGE_VERBS: Mapping[str, str] = {"load": "loads", "build": "builds", "run": "runs"}
"""What an engine does with a model in each stage: ``crashes when it builds``."""


def is_crash(stage: str, kind: str) -> bool:
    """Whether a failure of this stage and kind is the death of an engine by a signal."""
    return stage in STAGE_VERBS and kind.startswith("SIG")


Obstacle = Literal[
    "no pypi-simple",
    "network",
    "no such release",
    "no wheel",
    "yanked",
    "disk full",
    "no cache folder",
    "conflict",
    "import fails",
    "other",
]
"""Why packages could not be installed, or not be used once they were."""


class BiopsyError(Exception):
    """The base of all errors that biopsy raises on purpose.

    ``message`` says what happened and names the file, node or option. ``summary`` is the message without ``details``,
    further lines in biopsy's own words; any line of it after the first was printed by another program. ``kept`` says
    what was saved nevertheless. ``next_steps`` are lines to type or things to do, best first.
    """

    status: ClassVar[int] = 4
    """The exit status of a command that this error ends."""
    quotes: ClassVar[bool] = True
    """Whether ``summary`` may quote several lines of another program; if not, a newline in it is part of a name."""
    facts: ClassVar[tuple[str, ...]] = ()
    """The attributes that a constructor takes besides those of ``BiopsyError``."""

    def __init__(
        self, message: str, *, details: Sequence[str] = (), kept: str | None = None, next_steps: Sequence[str] = ()
    ) -> None:
        self.summary = message
        self.details = tuple(details)
        self.message = "\n".join((message, *details))
        super().__init__(self.message)
        self.kept = kept
        self.next_steps = tuple(next_steps)


def status_of(error: BaseException) -> int:
    """The exit status of a command that this exception ends."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted.status
    return error.status if isinstance(error, BiopsyError) else BiopsyError.status


class UsageError(BiopsyError):
    """The command line, or a path on it, cannot be used."""

    status = 2
    quotes = False


class DoesNotFit(UsageError):
    """An option does not fit this model: it names a tensor that the model lacks, or a shape that contradicts it.

    A check that raises it is INVALID, as with CannotCompare: the option may fit the original but not this candidate.
    """


class ModelError(BiopsyError):
    """A model cannot be read: it is damaged, is not an ONNX model, or its external data is missing or unsafe."""


class DataError(BiopsyError):
    """A file of tensors cannot be read, or holds something that may not be read, such as a pickle."""

    quotes = False


class CannotCompare(BiopsyError):
    """The given values do not fit the model (an input or every golden value is missing), so no verdict is possible.

    A check that raises it is INVALID: it says nothing about this candidate.
    """

    quotes = False


class TooMuchMemory(CannotCompare):
    """An engine was ended because it took more memory than biopsy allows; this is not a failure of the model."""


class EngineMissing(BiopsyError):
    """The package that an engine needs is not installed, or does not work."""


class UnknownEngine(EngineMissing):
    """No engine has the name that was given."""

    status = 2
    quotes = False


class EngineFailure(BiopsyError):
    """An engine failed to load, build or run the model: the failure that ``biopsy run`` looks for.

    ``stage`` is "load", "build" or "run"; ``kind`` is the engine's own name of the error, such as "InvalidGraph".
    """

    status = 1
    facts = ("engine", "stage", "kind")

    def __init__(
        self,
        message: str,
        *,
        engine: str,
        stage: Stage,
        kind: str,
        details: Sequence[str] = (),
        kept: str | None = None,
        next_steps: Sequence[str] = (),
    ) -> None:
        super().__init__(message, details=details, kept=kept, next_steps=next_steps)
        self.engine = engine
        self.stage = stage
        self.kind = kind


class EngineCrash(EngineFailure):
    """An engine ended the process that it ran in. ``label`` is the engine as the user named it."""

    def __init__(self, message: str, *, label: str, stage: Stage, kind: str) -> None:
        super().__init__(message, engine=label.partition(":")[0], stage=stage, kind=kind)
        self.label = label


class CannotInstall(BiopsyError):
    """Packages could not be installed in an environment of their own, or not be imported there.

    ``kind`` is the reason. The requested packages are to blame for "no such release", "no wheel", "yanked", "conflict"
    and "import fails", so another release may work; the machine is to blame for the others.
    """

    facts = ("kind",)

    def __init__(self, message: str, *, kind: Obstacle, **more: Any) -> None:
        super().__init__(message, **more)
        self.kind: Obstacle = kind

    @property
    def concerns_all(self) -> bool:
        """Whether no other package could be installed: pypi-simple, the network, space or a cache folder is missing."""
        return self.kind in ("no pypi-simple", "network", "disk full", "no cache folder")


class InvalidResult(BiopsyError):
    """A command made an invalid model of a valid one; it is not written."""

    status = 1


class CheckError(BiopsyError):
    """The check could not be run (INFRASTRUCTURE): a missing program, a missing engine, a wrong option."""


class CheckChanged(CheckError):
    """A file that the check runs was changed during a search, so its answers are not those of one check."""


class VacuousCheck(CheckError):
    """The check fails on a model of one Identity node in the same way, so it says nothing about the original."""


class OriginalPasses(BiopsyError):
    """The original model does not fail its check: it passed in all ``runs`` on the file ``model``, if that is known."""

    status = 3
    facts = ("model", "runs")

    def __init__(self, message: str, *, model: str = "", runs: int = 0, **more: Any) -> None:
        super().__init__(message, **more)
        self.model, self.runs = model, runs


class HighPrecisionFails(BiopsyError):
    """The check fails even with every layer in high precision, so precision is not the cause."""

    status = 3


class Interrupted(BiopsyError):
    """Long work was stopped on request; ``kept`` says where the best result is, ``resume`` is the line to continue."""

    status = 5

    def __init__(self, message: str, *, resume: str | None = None, **more: Any) -> None:
        super().__init__(message, **more)
        self.resume = resume
