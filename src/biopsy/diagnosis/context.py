"""What the steps of a diagnosis are and what they work with: checks that are run, counted and bounded, the time that
is left, and why a question could not be asked.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.warm import command_check
from biopsy.diagnosis.facts import KnownFacts
from biopsy.diagnosis.question import DiagnosisQuestion, Words
from biopsy.findings.report import as_json
from biopsy.processes.writing import write_whole
from biopsy.records import plain
from biopsy.session.trial import CheckRuns, cannot_run

TIME = "the time limit"
PERSON = "an interruption"


@dataclass(frozen=True)
class StepAnswer:
    """What is known after a step, and the line that says what was learnt. ``line`` is "" if nothing was.

    ``ended`` is what ended it before its end, TIME or PERSON: what is known by then counts, and the question is asked
    again when the diagnosis goes on.
    """

    facts: KnownFacts
    line: str
    ended: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiagnosisStep:
    """A question, the reasons not to ask it, each with whether it holds, and what answers it.

    ``evidence`` is the key of the report that holds the evidence. ``answer`` raises TimeUpError, and BiopsyError where
    the question cannot be answered. ``files`` are what it leaves in the folder of the evidence, if it has an answer.
    ``share`` is how much of the time that is left it may take; with ``warm`` it goes on with the process of the step
    before it.
    """

    name: str
    question: str
    unless: Callable[[KnownFacts, StepContext], Mapping[str, object]]
    answer: Callable[[KnownFacts, StepContext], StepAnswer]
    evidence: str | None = None
    files: tuple[str, ...] = ()
    share: float = 1.0
    warm: bool = False

    def not_asked(self, facts: KnownFacts, context: StepContext) -> str | None:
        """The first reason not to ask it that holds; None: it is asked."""
        return next((reason for reason, holds in self.unless(facts, context).items() if holds), None)


def asked(name: str, question: str, **more: Any) -> Callable[[Callable[..., StepAnswer]], DiagnosisStep]:
    """A decorator that makes a step of the function that answers its question."""
    return lambda answer: DiagnosisStep(name=name, question=question, answer=answer, **more)


CANDIDATE = "candidate.onnx"
"""The name of the file in which candidates stand."""

_LEAST_SECONDS = 5.0
"""A check is given so long even where less is left: it was begun in time."""


class TimeUpError(Exception):
    """The time that a step or the whole diagnosis may take is over."""


def was_asked_for(stop: BaseException | None) -> bool:
    """Whether a person, or a signal, is what ended long work, and not its limit."""
    return stop is not None and (isinstance(stop, KeyboardInterrupt) or was_asked_for(stop.__cause__))


@contextlib.contextmanager
def limit_as_time_up() -> Iterator[None]:
    """Raise TimeUpError where a search inside is stopped by its limit, and not by a person."""
    try:
        yield
    except errors.Interrupted as stop:
        if was_asked_for(stop):
            raise
        raise TimeUpError from stop


def fails(run: Judged) -> bool:
    """Whether a check failed."""
    return run.outcome in (Outcome.REPRODUCES, Outcome.OTHER_FAILURE)


def passes(run: Judged) -> bool:
    """Whether a check passed."""
    return run.outcome is Outcome.PASSES


class StepContext:
    """Runs checks of a question. Use it in a ``with``: what was kept warm ends there.

    ``checks`` counts all runs of checks, also those of searches, which say so by events.
    """

    def __init__(self, question: DiagnosisQuestion, listener: events.Listener) -> None:
        self.question = question
        self.checks = 0
        self._listener = listener
        self._runs = CheckRuns("diagnose", question.judging.rules, self.listener)
        self._end = time.monotonic() + question.effort.seconds
        self._step_end = self._end
        self._warm: CommandCheck | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cool()

    def cool(self) -> None:
        """End what was kept warm."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    @property
    def candidate(self) -> Path:
        """Where the candidates of a search stand."""
        return self.question.folder / CANDIDATE

    def keep(self, name: str, tree: Any) -> None:
        """Write what was found, as JSON, to a file in the folder of the evidence."""
        write_whole(self.question.folder / name, [as_json(plain(tree))])

    # Time

    def begin_step(self, share: float = 1.0) -> None:
        """Give the next step a share of the time that is left. Raises TimeUpError if none is."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeUpError
        self._step_end = time.monotonic() + share * left

    @property
    def seconds_left(self) -> float:
        """Of the step, never less than 0."""
        return max(0.0, self._step_end - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time of the whole diagnosis is over, and not only that of a step."""
        return time.monotonic() >= self._end

    def listener(self, event: events.Event) -> None:
        """Hand on what long work tells, and count its checks."""
        self.checks += isinstance(event, events.Checked)
        self._listener(event)

    def bounded(self, event: events.Event) -> None:
        """The same for work that knows of no time limit: raises TimeUpError once the step's time is over."""
        self.listener(event)
        if isinstance(event, events.Checking | events.Measured) and self.seconds_left == 0:
            raise TimeUpError

    # Checks

    @contextlib.contextmanager
    def check_for_search(self, words: Words, jobs: int = 0) -> Iterator[CommandCheck]:
        """The check of a search, closed after it. Raises TimeUpError where the search is stopped by its limit."""
        made = command_check(words, str(self.candidate), jobs=jobs or self.question.effort.jobs)
        with limit_as_time_up(), contextlib.closing(made) as check:
            yield check

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        """Run a check once, for at most a ``share`` of the step's time.

        Raises CheckError if it could not be run, TimeUpError if the time of the step was over before, or while it ran.
        """
        command = parse(words)
        if not isinstance(command, OwnRun):
            check = CommandCheck(words, str(self.candidate))
        else:  # our own runs share one warm process, which runs other words as well
            check = self._warm = self._warm or command_check(words, str(self.candidate))
            check.command = command
        return self.run_check(check, model, description=description, share=share)

    def run_check(self, check: CommandCheck, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        """The same for a check that is made already."""
        if self.seconds_left == 0:
            raise TimeUpError
        given, check.timeout = check.timeout, max(_LEAST_SECONDS, share * self.seconds_left)
        line = check.line(model)
        try:
            judged = self._runs.once(lambda: check.run(model), line=line, description=description, number=self.checks)
        finally:
            check.timeout = given
        if judged.evidence.timed_out and self.seconds_left == 0:
            raise TimeUpError
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise cannot_run(judged, line)
        return judged


# Why a question could not be asked: what a verdict must then leave open.

TWO_ENGINES = "two engines would have to be compared"
UNKNOWN_ENGINE = "the check does not say which engine it runs: name it with --engine before --check"
NO_PLACE = "the check has no place for settings: write {engine} where it takes an engine, and name that with --engine"
UNKNOWN_COMPARISON = "the check is not 'biopsy run', so nobody knows what it compares"
NO_PIECE = "there is no smallest part to ask about"

NOT_THOROUGH = "it takes minutes: --thorough asks it"
NO_DOWNLOAD = "--no-download"

UNABLE = frozenset({TWO_ENGINES, UNKNOWN_ENGINE, NO_PLACE, UNKNOWN_COMPARISON})
"""A question that was not asked for one of these has no answer; for any other reason it needs none."""
