"""Frozen records that long work emits. The terminal and the report only listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, dataclass_transform


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event:
    """Anything that long work tells about itself: its subclasses are frozen dataclasses.

    ``kind`` is its name in a file of events.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None, kw_only: bool = True) -> None:
        cls.kind = kind or cls.__name__
        dataclass(frozen=True, kw_only=kw_only)(cls)


Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener that does nothing."""


def both(first: Listener, second: Listener) -> Listener:
    """A listener that hands each event on to two others, in this order."""

    def listener(event: Event) -> None:
        first(event)
        second(event)

    return listener


def without(kind: type[Event], listener: Listener) -> Listener:
    """A listener that hands on all events but those of one kind."""
    return lambda event: None if isinstance(event, kind) else listener(event)


class Remark(Event, kw_only=False):
    """Something worth knowing on the way; ``warning`` if it may make the result worth less; ``lines`` belong to it."""

    text: str
    warning: bool = False
    lines: tuple[str, ...] = ()


class ModelRead(Event):
    """The model to search was understood. ``weight_bytes`` counts external data too."""

    name: str
    nodes: int
    opset: int
    inputs: int
    outputs: int
    weight_bytes: int


class Recorded(Event):
    """Values of the original were recorded: with which engine, how many tensors of how many samples, in seconds.

    ``of``: how many tensors were wanted, where the engine has values of some only; else None.
    """

    engine: str
    tensors: int
    samples: int
    bytes: int
    seconds: float
    of: int | None = None


class OriginalFails(Event, kw_only=False):
    """The original fails its check: in which way, so what counts as the same failure; seconds the check took."""

    signature: str
    reason: str
    seconds: float


class EndChecked(Event, kw_only=False):
    """One end of a search over precisions was checked: every layer ``high``, or every layer ``low``."""

    end: str
    outcome: str
    reason: str
    seconds: float


class StageStarted(Event, kw_only=False):
    """A pass begins, with so many nodes left; ``usual`` is how many checks it takes if it finds one needed node."""

    stage: str
    nodes: int
    usual: int


class Checking(Event):
    """A check is about to run: ``description`` says what is tried, ``line`` is what a person types to repeat it."""

    number: int
    stage: str
    description: str
    line: str


class CheckingCandidate(Checking, kind="Checking"):
    """A check of a candidate of so many ``nodes``; ``left`` is the size of the best candidate so far.

    In a search over precisions both count layers that are high.
    """

    nodes: int
    left: int


class Checked(Event):
    """A check has answered: with which outcome, why, after how many seconds, and what it printed."""

    number: int
    stage: str
    outcome: str
    reason: str
    seconds: float
    output: bytes


class CheckedCandidate(Checked, kind="Checked"):
    """A check of a candidate of so many ``nodes`` has answered; ``left`` is the size of the best candidate so far."""

    nodes: int
    left: int


class Abandoned(Event, kw_only=False):
    """A check that was begun ahead is not waited for: another answer made it unnecessary."""

    number: int


class ChecksInFlight(Event):
    """What goes on while a search waits, where several checks may run at once or on other ``machines``.

    ``running`` checks are at work; ``waiting`` ones have begun, but no machine has room for them yet; ``ending`` ones
    were cancelled and have not ended yet. ``cancelled`` counts all of these since the beginning. ``machines`` have
    places for checks; None if only this one runs any.
    """

    running: int
    waiting: int
    ending: int
    cancelled: int
    machines: int | None = None


class Resumed(Event, kw_only=False):
    """A journal was found: so many runs of the check are remembered and will not be repeated."""

    journal: str
    runs: int


class FlakyFailure(Event, kw_only=False):
    """The failure is flaky: it showed in ``failed`` of ``runs`` runs on the same model.

    From now on, a candidate passes only after ``needed`` runs that do not reproduce, which is luck in less than
    1 - ``confidence`` of all cases.
    """

    failed: int
    runs: int
    needed: int
    confidence: float


class Verified(Event, kw_only=False):
    """The result as it was written fails in the same way: in ``failed`` of ``runs`` processes of its own.

    ``machine`` is the other machine that they ran on, in words; "" for this one.
    """

    path: str
    failed: int = 1
    runs: int = 1
    machine: str = ""


class Stopped(Event, kw_only=False):
    """The search ended before its end, with the best result so far: which limit was reached."""

    reason: str


class StageDone(Event):
    """A stage of long work can do no more: checks it took, seconds."""

    stage: str
    checks: int
    seconds: float


class PassDone(StageDone, kind="StageDone"):
    """A pass can do no more: nodes ``before`` and ``after``; in a search over precisions, layers that are high."""

    before: int
    after: int


class CommandEnded(Event):
    """The last event: the exit status, and the nodes of the result in order, by operator and name, if there is one."""

    status: int
    nodes: tuple[str, ...] = ()


class ReleaseTried(Event):
    """A check has answered with a release of a package, or the release could not be installed: ``outcome`` in words.

    ``date`` is the day of the release, as "2024-11-21"; "" if nobody knows. ``added`` are requirements that it was
    found to need, such as "numpy<2".
    """

    package: str
    version: str
    date: str
    outcome: str
    reason: str
    added: tuple[str, ...] = ()


class Measured(Event, kw_only=False):
    """So much of a stage of measuring layers is done: ``done`` of ``total`` batches, layers or runs."""

    stage: str
    done: int
    total: int


class Trusted(Event):
    """It is known what is right: by which engine, which other one agrees, on how many samples and fresh inputs."""

    engine: str
    confirmed_by: str | None
    samples: int
    fresh: int
    seconds: float


class PlacesFound(Event, kw_only=False):
    """It is known around which nodes of the model changes are tried."""

    nodes: tuple[str, ...]


class ChangeTried(Event):
    """A change that may be a workaround was tried: of which kind, whether the model is right with it, why not if not.

    ``latency``: how many times as long the model then takes, None where that is not known.
    """

    change: str
    text: str
    right: bool
    reason: str
    latency: float | None


class StepStarted(Event, kw_only=False):
    """A diagnosis asks a question: what the step is called, the question, which of how many it is."""

    name: str
    question: str
    number: int
    total: int


class StepDone(Event):
    """A question of a diagnosis: whether it was answered (``done``, ``skipped``, ``stopped``, ``failed``), the answer
    in one line, and what it took.
    """

    name: str
    outcome: str
    answer: str
    seconds: float
    checks: int


class InstallationStarted(Event):
    """Packages are about to be installed in an environment of their own: what is asked for, for which Python, by what.

    ``installer`` is "uv" or "pip".
    """

    requirements: tuple[str, ...]
    python: str
    installer: str


class InstallationDone(Event):
    """An environment is ready that holds what was asked for, and what was ``added`` since it is needed besides.

    ``packages`` are the versions of all distributions in it, by their names. ``bytes`` is its size, ``seconds`` what it
    took to make; ``cached``: it was there already.
    """

    requirements: tuple[str, ...]
    added: tuple[str, ...]
    python: str
    packages: dict[str, str]
    bytes: int
    seconds: float
    cached: bool
