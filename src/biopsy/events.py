"""Events: frozen records that long work emits. The terminal and the report only listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event:
    """An event of long work. Its subclasses are frozen dataclasses; ``kind`` is the name in a file of events."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None, kw_only: bool = True) -> None:
        cls.kind = kind or cls.__name__
        dataclass(frozen=True, kw_only=kw_only)(cls)


Listener: TypeAlias = Callable[[Event], None]


class _Silent:
    """A listener that does nothing; in the signature of a function, it shows its name and no address."""

    def __call__(self, event: Event) -> None:
        """Ignore the event."""

    def __repr__(self) -> str:
        return "biopsy.events.ignore"


ignore = _Silent()
"""A listener that does nothing."""


def both(first: Listener, second: Listener) -> Listener:
    """A listener that passes each event to two others, in this order."""

    def listener(event: Event) -> None:
        first(event)
        second(event)

    return listener


def without(kind: type[Event], listener: Listener) -> Listener:
    """A listener that passes on all events except those of one kind."""
    return lambda event: None if isinstance(event, kind) else listener(event)


class Remark(Event, kw_only=False):
    """Something worth knowing; ``warning``: it may make the result worth less. ``lines`` are details of the text."""

    text: str
    warning: bool = False
    lines: tuple[str, ...] = ()


class ModelRead(Event):
    """The model to search was read. ``weight_bytes`` counts external data too."""

    name: str
    nodes: int
    opset: int
    inputs: int
    outputs: int
    weight_bytes: int


class Recorded(Event):
    """Values of the original were recorded: by which engine, how many tensors and samples, in how many seconds.

    ``of``: how many tensors were wanted, if the engine has values of some only; else None.
    """

    engine: str
    tensors: int
    samples: int
    bytes: int
    seconds: float
    of: int | None = None


class OriginalFails(Event, kw_only=False):
    """The original fails its check. ``signature`` is what counts as the same failure; ``seconds`` the check took."""

    signature: str
    reason: str
    seconds: float


class EndChecked(Event, kw_only=False):
    """One end of a search over precisions was checked: all layers ``high``, or all layers ``low``."""

    end: str
    outcome: str
    reason: str
    seconds: float


class StageStarted(Event, kw_only=False):
    """A pass begins with this many ``nodes`` left; ``usual`` is how many checks it takes if one node is needed."""

    stage: str
    nodes: int
    usual: int


class Checking(Event):
    """A check is about to run: ``description`` says what is tried, ``line`` is the command that repeats it."""

    number: int
    stage: str
    description: str
    line: str


class CheckingCandidate(Checking, kind="Checking"):
    """A check of a candidate with this many ``nodes`` will run now; ``left`` is the size of the best candidate so far.

    In a search over precisions, both count layers in high precision.
    """

    nodes: int
    left: int


class Checked(Event):
    """A check has ended: its outcome, the reason, its seconds, and what it printed."""

    number: int
    stage: str
    outcome: str
    reason: str
    seconds: float
    output: bytes


class CheckedCandidate(Checked, kind="Checked"):
    """A check of a candidate with this many ``nodes`` has ended; ``left`` is the size of the best candidate so far."""

    nodes: int
    left: int


class Abandoned(Event, kw_only=False):
    """A check that was begun ahead is not waited for: another outcome made it unnecessary."""

    number: int


class ChecksInFlight(Event):
    """The checks in flight while a search waits, if several may run at once or on other ``machines``.

    ``running`` checks run; ``waiting`` ones have begun, but no machine has room for them yet; ``ending`` ones were
    cancelled and have not ended yet. ``cancelled`` counts all that ever were. ``machines`` is how many machines have
    places for checks; None if only this one runs them.
    """

    running: int
    waiting: int
    ending: int
    cancelled: int
    machines: int | None = None


class Resumed(Event, kw_only=False):
    """A journal was found: this many ``runs`` of the check are remembered and not repeated."""

    journal: str
    runs: int


class FlakyFailure(Event, kw_only=False):
    """The failure is flaky: it showed in ``failed`` of ``runs`` runs on the same model.

    From now on, a candidate passes only after ``needed`` runs that do not reproduce, which happens by chance in less
    than 1 - ``confidence`` of all cases. ``others`` of the runs failed in another way, of which ``other`` is one.
    """

    failed: int
    runs: int
    needed: int
    confidence: float
    others: int = 0
    other: str = ""

    @property
    def beside(self) -> str:
        """What is to be added to the rate in words: the runs that failed in another way; "" if none did."""
        return f", and in another way in {self.others} of them ({self.other})" if self.others else ""


class Verified(Event, kw_only=False):
    """The result as it was written fails in the same way: in ``failed`` of ``runs`` separate processes.

    ``machine`` describes the other machine that they ran on; "" for this one.
    """

    path: str
    failed: int = 1
    runs: int = 1
    machine: str = ""


class Stopped(Event, kw_only=False):
    """The search ended early, with the best result so far; ``reason`` is the limit that was reached."""

    reason: str


class StageDone(Event):
    """A stage of long work has ended, after this many checks and seconds."""

    stage: str
    checks: int
    seconds: float


class PassDone(StageDone, kind="StageDone"):
    """A pass has ended: nodes ``before`` and ``after``; in a search over precisions, layers in high precision."""

    before: int
    after: int


class FormerNames(Event, kw_only=False):
    """What names in an anonymized result were before: not for a report, which may be sent with the result."""

    names: dict[str, str]


class CommandEnded(Event):
    """The last event: the exit status, and the nodes of the result, if any, by operator and name, in order."""

    status: int
    nodes: tuple[str, ...] = ()


class ReleaseTried(Event):
    """A release of a package was checked, or could not be installed: ``outcome`` in words.

    ``date`` is the day of the release, as "2024-11-21"; "" if unknown. ``added`` are requirements that it was found to
    need, such as "numpy<2".
    """

    package: str
    version: str
    date: str
    outcome: str
    reason: str
    added: tuple[str, ...] = ()


class Measured(Event, kw_only=False):
    """Progress of a stage that measures layers: ``done`` of ``total`` batches, layers or runs."""

    stage: str
    done: int
    total: int


class Trusted(Event):
    """The right values are known: from which engine, which other one agrees, on how many samples and fresh inputs."""

    engine: str
    confirmed_by: str | None
    samples: int
    fresh: int
    seconds: float


class PlacesFound(Event, kw_only=False):
    """The nodes around which changes are tried."""

    nodes: tuple[str, ...]


class ChangeTried(Event):
    """A change that may be a workaround was tried: its kind, whether the model is right with it, and why not.

    ``latency`` is the factor by which the model slows down; None if unknown, or if no difference was measured.
    """

    change: str
    text: str
    right: bool
    reason: str
    latency: float | None


class StepStarted(Event, kw_only=False):
    """A diagnosis begins a step: its name, its question, and its number among how many."""

    name: str
    question: str
    number: int
    total: int


class StepDone(Event):
    """A diagnosis has ended a step: ``outcome`` is ``done``, ``skipped``, ``stopped`` or ``failed``; ``answer`` is one
    line.
    """

    name: str
    outcome: str
    answer: str
    seconds: float
    checks: int


class ModelTried(Event):
    """A model of a hunt was tried in all engines; ``counts`` are the models by the worst that any engine makes of them.

    ``done`` of ``total`` models were tried, with those of earlier calls.
    """

    model: str
    worst: str
    done: int
    total: int
    counts: dict[str, int]


class InstallationStarted(Event):
    """Packages are about to be installed in a separate environment for a ``python``, by "uv" or "pip"."""

    requirements: tuple[str, ...]
    python: str
    installer: str


class InstallationDone(Event):
    """An environment is ready that holds the requirements, and ``added`` ones found to be needed.

    ``packages`` are the versions of all distributions in it, by name. ``bytes`` is its size, ``seconds`` the time to
    make it; ``cached``: it existed before.
    """

    requirements: tuple[str, ...]
    added: tuple[str, ...]
    python: str
    packages: dict[str, str]
    bytes: int
    seconds: float
    cached: bool
