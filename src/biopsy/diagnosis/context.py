"""The steps of a diagnosis, and their context: it runs and counts checks, and limits their time."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from biopsy import errors, events
from biopsy.checks.command import ARBITER, CommandCheck
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate, signature_of
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.checks.warm import command_check
from biopsy.diagnosis.facts import FailureReport, KnownFacts, Steadiness
from biopsy.diagnosis.question import DiagnosisQuestion, Words
from biopsy.findings.report import as_json
from biopsy.processes.writing import write_whole
from biopsy.records import plain
from biopsy.session.trial import Budget, CheckRuns, cannot_run
from biopsy.text import first_line, shortened

TIME = "the time limit"
PERSON = "an interruption"
STEP_TIME = "the time for this question"


@dataclass(frozen=True)
class StepAnswer:
    """All facts known after a step, and what it learnt in one line.

    ``ended`` is TIME or PERSON if that cut the step short. The facts still count, and a resumed diagnosis asks the
    question again.
    """

    facts: KnownFacts
    line: str
    ended: str | None = None


@dataclass(frozen=True, kw_only=True)
class DiagnosisStep:
    """A question, and the function that answers it.

    ``unless`` gives reasons not to ask it, each with whether it holds. ``answer`` raises TimeUpError, or BiopsyError if
    the question cannot be answered. ``evidence`` is the report's key for the evidence, ``files`` are the names of the
    files that an answered step leaves in the folder. It may take ``share`` of the time left. ``warm``: it reuses the
    warm process of the previous step.
    """

    name: str
    question: str
    unless: Callable[[KnownFacts, StepContext], Mapping[str, object]]
    answer: Callable[[KnownFacts, StepContext], StepAnswer]
    evidence: str | None = None
    files: tuple[str, ...] = ()
    share: float = 1.0
    warm: bool = False

    def reason_to_skip(self, facts: KnownFacts, context: StepContext) -> str | None:
        """The first reason not to ask that holds; None if there is none."""
        return next((reason for reason, holds in self.unless(facts, context).items() if holds), None)


def diagnosis_step(name: str, question: str, **more: Any) -> Callable[[Callable[..., StepAnswer]], DiagnosisStep]:
    """Make the decorated function the ``answer`` of a DiagnosisStep."""
    return lambda answer: DiagnosisStep(name=name, question=question, answer=answer, **more)


REPORT_OPTION = "--report"

_LEAST_SECONDS = 5.0
"""The least timeout of a check, even if less time is left."""


class TimeUpError(Exception):
    """The time limit of a step or of the whole diagnosis is reached."""


def is_user_interrupt(stop: BaseException | None) -> bool:
    """Whether a person or a signal interrupted the work, not its own limit."""
    return stop is not None and (isinstance(stop, KeyboardInterrupt) or is_user_interrupt(stop.__cause__))


@contextlib.contextmanager
def limit_as_time_up() -> Iterator[None]:
    """Raise TimeUpError in place of Interrupted if a search was stopped by its limit, not by a person."""
    try:
        yield
    except errors.Interrupted as stop:
        if is_user_interrupt(stop):
            raise
        raise TimeUpError from stop


def fails(run: Judged) -> bool:
    """Whether a check failed."""
    return run.outcome in (Outcome.REPRODUCES, Outcome.OTHER_FAILURE)


def passes(run: Judged) -> bool:
    """Whether a check passed."""
    return run.outcome is Outcome.PASSES


def _is_other(verdict: VerdictFile, report: FailureReport) -> bool:
    """Whether a run failed in another stage than the failure that is known, or only one of them is a crash."""
    crashes = {errors.is_crash(verdict.stage, verdict.kind), errors.is_crash(report.stage, report.kind)}
    return verdict.stage != report.stage or len(crashes) > 1


_LONGEST_MESSAGE = 200
_PLACE_IN_SOURCE = re.compile(r"\.(?:cc|cpp|h|hpp):\d+ [^()]*\((?:[^()]|\([^()]*\))*\)(?: const)?:? (.+)")
"""What ONNX Runtime writes after a file, a line and the signature of a function."""


def essence(message: str) -> str:
    """What an engine says in the first line of a message, without the place in its own source that may precede it."""
    line = first_line(message)
    told = _PLACE_IN_SOURCE.search(line)
    return shortened((line if told is None else told[1]).rstrip(".: "), _LONGEST_MESSAGE)


def reason_in_full(run: Judged) -> str:
    """Why a run ends as it does, with the names and numbers of its message, which the signature leaves out."""
    meaning = str(signature_of(run.evidence).message)
    return run.reason.replace(meaning, essence(run.evidence.verdict.message)) if meaning else run.reason


class StepContext:
    """Runs the checks of a diagnosis. Use it in a ``with``, which closes the warm process.

    ``checks`` counts all runs of checks, including those of searches, which report them as events.
    """

    def __init__(self, question: DiagnosisQuestion, listener: events.Listener) -> None:
        self.question = question
        self.checks = 0
        self._listener = listener
        self._runs = CheckRuns("diagnose", question.judging.rules, self.listener)
        self._end = time.monotonic() + question.effort.seconds
        self._step_end = self._end
        self._warm: CommandCheck | None = None
        self._rates: dict[tuple[Words, Path], MeasuredRate] = {}
        self._failures: dict[tuple[Words, Path], list[Judged]] = {}
        self._heard: events.FlakyFailure | None = None
        self._searched = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close_warm_check()

    def close_warm_check(self) -> None:
        """Close the process that was kept warm, if any."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def keep(self, name: str, tree: Any) -> None:
        """Write ``tree`` as JSON to the file ``name`` in the folder of the evidence."""
        write_whole(self.question.folder / name, [as_json(plain(tree))])

    def begin_step(self, share: float = 1.0) -> None:
        """Give the next step a share of the time left. Raises TimeUpError if there is none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeUpError
        self._step_end = time.monotonic() + share * left

    @property
    def seconds_left(self) -> float:
        """The time left for the step, never less than 0."""
        return max(0.0, self._step_end - time.monotonic())

    def budget(self, *, share: float = 1.0, checks: int | None = None) -> Budget:
        """That of a search which may take a share of the step's time."""
        return Budget(checks=checks, seconds=share * self.seconds_left, time_name=STEP_TIME)

    @property
    def is_over(self) -> bool:
        """Whether the time of the whole diagnosis is over, not only that of a step."""
        return time.monotonic() >= self._end

    def listener(self, event: events.Event) -> None:
        """Pass on an event, and count its check."""
        self.checks += isinstance(event, events.Checked)
        if isinstance(event, events.OriginalFails):
            self._searched = event.signature
        if isinstance(event, events.FlakyFailure):
            self._heard = event
        self._listener(event)

    def limited_listener(self, event: events.Event) -> None:
        """``listener`` for work without a time limit: raises TimeUpError once the step's time is over."""
        self.listener(event)
        if isinstance(event, events.Checking | events.Measured | events.InstallationStarted) and self.seconds_left == 0:
            raise TimeUpError

    @contextlib.contextmanager
    def check_for_search(self, words: Words, jobs: int = 0) -> Iterator[CommandCheck]:
        """The check of a search, closed after it. Raises TimeUpError if the search is stopped by its limit."""
        check = command_check(words, str(self.question.candidate), jobs=jobs or self.question.effort.jobs)
        with limit_as_time_up(), contextlib.closing(check):
            yield check

    def run(self, words: Words, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        """Run a check once, for at most a ``share`` of the step's time.

        Raises CheckError if it could not be run, TimeUpError if the step's time was over before or while it ran.
        """
        command = parse(words)
        if not isinstance(command, OwnRun):
            check, asked = CommandCheck(words, str(self.question.candidate)), words
        else:  # our own runs share one warm process, which runs other words as well
            check = self._warm = self._warm or command_check(words, str(self.question.candidate))
            check.command = command
            asked = command.without_option([REPORT_OPTION, ARBITER]).words  # neither decides whether it passes
        judged = self.run_check(check, model, description=description, share=share)
        if fails(judged) or passes(judged):
            self._rates[asked, model] = self._rates.get((asked, model), UNKNOWN_RATE).with_runs(fails(judged), 1)
        if fails(judged):
            self._failures.setdefault((asked, model), []).append(judged)
        return judged

    def rate_of(self, words: Words, model: Path) -> MeasuredRate:
        """How often a check failed since this was last asked."""
        return self._rates.pop((words, model), UNKNOWN_RATE)

    def counted(self, facts: KnownFacts, question: str) -> KnownFacts:
        """The facts, with the runs that a ``question`` made of the failing check on the model added to the rate.

        A run that fails in another way belongs to no rate: it neither shows the failure nor passes.
        """
        heard, self._heard, known = self._heard, None, facts.steadiness
        if known is None or facts.failure is None:
            return facts
        asked, report = (facts.failure.check, self.question.model), facts.failure.report
        more, failures = self.rate_of(*asked), self._failures.pop(asked, [])
        others = [each.reason for each in failures if _is_other(each.evidence.verdict, report)]
        known = known.with_runs(more.failed - len(others), more.runs - len(others))
        if heard is not None and not known.is_flaky:
            failed, elsewise, other = heard.failed, heard.others, heard.other
            if other == report.signature:  # the search met the other failure first
                failed, elsewise, other = elsewise, failed, self._searched
            later = MeasuredRate(failed=failed, runs=heard.runs - elsewise)
            known, others = replace(known, later=later, question=question), [*others, *[other] * elsewise]
        return replace(facts, steadiness=replace(known, others=(*known.others, *others)))

    def with_passes(self, facts: KnownFacts, error: errors.BiopsyError) -> KnownFacts:
        """The facts after a step that ended by an error: runs in which the model passed count."""
        if not isinstance(error, errors.OriginalPasses) or error.model != str(self.question.model):
            return facts
        known = facts.steadiness or Steadiness(failed=1, runs=1)
        return replace(facts, steadiness=known.with_runs(0, error.runs))

    def run_check(self, check: CommandCheck, model: Path, *, description: str = "", share: float = 1.0) -> Judged:
        """``run`` for an existing check."""
        if self.seconds_left == 0:
            raise TimeUpError
        timeout, check.timeout = check.timeout, max(_LEAST_SECONDS, share * self.seconds_left)
        line = check.line(model)
        try:
            judged = self._runs.once(lambda: check.run(model), line=line, description=description, number=self.checks)
        finally:
            check.timeout = timeout
        if judged.evidence.timed_out and self.seconds_left == 0:
            raise TimeUpError(f"no answer in {judged.evidence.seconds:.0f} s: {description}" if description else "")
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise cannot_run(judged, line)
        return judged


TWO_ENGINES = "two engines would have to be compared"
UNKNOWN_ENGINE = (
    "the check does not say which engine it runs: write {engine} where it takes one, and name that with --engine "
    "before --check"
)
NO_PLACE = "the check has no place for settings: write {engine} where it takes an engine, and name that with --engine"
UNKNOWN_COMPARISON = "the check is not 'biopsy run', so it is not known what it compares"
NO_PIECE = "there is no smallest part to ask about"

NOT_THOROUGH = "it takes minutes: --thorough asks it"
NO_DOWNLOAD = "--no-download"

NOT_ASKED = "not asked: "
"""The beginning of the answer to each question that comes after the one that was cut short."""

LEAVES_OPEN = frozenset({TWO_ENGINES, UNKNOWN_ENGINE, NO_PLACE, UNKNOWN_COMPARISON})
"""Reasons that leave a question open, for the verdict to say. For any other reason, it needs no answer."""
