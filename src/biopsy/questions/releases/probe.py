"""Running the check with one release after the other, and judging whether their failures are the same.

Failures of two releases are compared by stage and meaning, because words and codes change. For example, ONNX Runtime
reported the same refusal as RUNTIME_EXCEPTION up to 1.23.2 and as FAIL since 1.24: the status, its code, the line of
its source and the Python class of the exception changed, and the sentence did not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial

from biopsy import errors, events
from biopsy.checks.judge import MeasuredRate, Signature, measured_rate, signature_of
from biopsy.checks.message import Message
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.model.index import index_file
from biopsy.model.slice import identity_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.prepared import Environment
from biopsy.processes.environments.releases import Release
from biopsy.questions.releases.findings import TriedRelease
from biopsy.questions.releases.question import PYTHON_PLACE, ReleaseCheck, ReleaseQuestion
from biopsy.questions.releases.runs import ReleaseRun, ReleaseRuns, RunsHere
from biopsy.session.trial import CheckRuns, until_no_pass

STAGE = "releases"

_EVERY_TIME = "whether it passes every time"


class ReleaseProbe:
    """Runs the check with releases, and judges and counts the runs. The first failure is the reference."""

    def __init__(
        self, question: ReleaseQuestion, listener: events.Listener = events.ignore, runs: ReleaseRuns | None = None
    ) -> None:
        self.question = question
        self.check_runs = CheckRuns(STAGE, question.rules, listener)
        self.pythons: dict[str, str] = {}
        self.failure = ""
        self.failure_of = ""
        self._listener = listener
        self._runs = runs or RunsHere()
        self._timeout = question.timeout
        self._environment: Environment  # that of the last run

    @property
    def needed(self) -> int:
        """How many runs must pass before a release counts as passing."""
        return self.check_runs.rate.needed

    def for_question(self, question: ReleaseQuestion) -> ReleaseProbe:
        """A probe with another question that knows the failure of this one, to try releases again."""
        listener = events.without(events.ReleaseTried, self._listener)
        probe = ReleaseProbe(question, listener, self._runs)
        probe.check_runs = self.check_runs.on_another_model(listener)
        probe.check_runs.checks = self.check_runs.checks
        probe.failure, probe.failure_of = self.failure, self.failure_of
        return probe

    def ask(self, release: Release) -> TriedRelease:
        """The outcome with a release: a failure after one run, a pass after ``needed`` ones.

        Raises CheckError if the check cannot be run, CannotInstall if this machine can install nothing.
        """
        try:
            with self._opened(release):
                once, runs = partial(self._once, release), 1
                judged = once("")
                self.pythons[release.version] = str(self._environment.python)
                if judged.outcome is Outcome.REPRODUCES and not self.failure:
                    self.failure, self.failure_of = judged.reason, release.version
                    self.check_runs.failure.original = judged.evidence.verdict.mismatches
                    self.check_runs.take_failure(judged)
                    runs = self.check_runs.measure(judged, once, self._expecting(release)).runs
                elif judged.outcome is Outcome.PASSES and self.needed > 1:
                    self._expecting(release)(self.needed - 1)
                    judged, more = until_no_pass(partial(once, _EVERY_TIME), self.needed - 1)
                    runs += more
            tried = TriedRelease(
                release=release,
                outcome=judged.outcome,
                reason=judged.reason,
                runs=runs,
                packages=self._environment.packages,
                added=self._environment.added,
                hint=judged.evidence.verdict.hint,
            )
        except errors.CannotInstall as error:
            if error.concerns_all:  # every other release would fail to install too
                raise
            tried = TriedRelease(
                release=release, outcome=Outcome.INFRASTRUCTURE, reason=error.summary, runs=0, obstacle=error.kind
            )
        self.report(tried)
        return tried

    def foresee(self, releases: Iterable[Release]) -> None:
        """Announce releases that may be tried next, the likeliest first."""
        self._runs.foresee(list(map(self._run, releases)))

    def report(self, tried: TriedRelease) -> None:
        """Emit the outcome of a release as an event."""
        date = tried.release.date
        self._listener(
            events.ReleaseTried(
                package=self.question.check.package,
                version=tried.release.version,
                date="" if date is None else date.isoformat(),
                outcome=tried.words,
                reason=tried.reason,
                added=tried.added,
            )
        )

    def recheck_pass(self, tried: TriedRelease, runs: int) -> TriedRelease:
        """Run a release that passed up to ``runs`` times more. Raises what ``ask`` raises.

        If it fails now, the rate of the failure is measured.
        """
        with self._running(tried.release, runs) as once:
            judged, done = until_no_pass(partial(once, _EVERY_TIME), runs)
            passed = tried.runs + done - 1
            if judged.outcome is Outcome.REPRODUCES:
                measured = measured_rate(judged, once, expect=self._expecting(tried.release))
                self._believe_less(measured.with_runs(0, passed))
                done += measured.runs - 1
        return _with(tried, judged, runs=tried.runs + done)

    def recheck_failure(self, tried: TriedRelease) -> TriedRelease:
        """Run a release that failed up to ``needed`` times more. Raises what ``ask`` raises.

        If all runs pass, the rate of the failure is measured. A release that never fails again is unstable.
        """
        needed = self.needed
        with self._running(tried.release, needed) as once:
            judged, done = until_no_pass(partial(once, "whether it still fails"), needed)
            if judged.outcome is not Outcome.PASSES:
                return _with(tried, judged, runs=tried.runs + done)
            measured = measured_rate(judged, once, expect=self._expecting(tried.release))
        done += measured.runs - 1
        if measured.failed == 0:
            reason = f"it failed once, and then passed {done} times"
            return replace(tried, outcome=Outcome.UNSTABLE, reason=reason, runs=tried.runs + done)
        self._believe_less(MeasuredRate(failed=measured.failed + 1, runs=tried.runs + done))
        return replace(tried, runs=tried.runs + done)

    def recheck_other(self, tried: TriedRelease) -> TriedRelease:
        """Run a release that fails in another way once more. Raises what ``ask`` raises."""
        with self._running(tried.release, 1) as once:
            return _with(tried, once("whether it still fails in another way"), runs=tried.runs + 1)

    def _believe_less(self, rate: MeasuredRate) -> None:
        """Require more passing runs, if the failure is rarer than was known."""
        if rate.needed > self.needed:
            self.check_runs.believe(rate)

    @contextmanager
    def _running(self, release: Release, times: int) -> Iterator[Callable[[str], Judged]]:
        """A function that runs the check once, given why; it is called about ``times`` times."""
        with self._opened(release):
            self._expecting(release)(times)
            yield partial(self._once, release)

    def _opened(
        self, release: Release, check: ReleaseCheck | None = None
    ) -> AbstractContextManager[Environment | None]:
        return self._runs.opened(check or self.question.check, release, self._listener)

    def _run(self, release: Release) -> ReleaseRun:
        """A run of the check with a release."""
        return ReleaseRun(
            check=self.question.check,
            release=release,
            model=self.question.model,
            default_name=self.question.default_name,
            timeout=self._timeout,
            original=self.check_runs.failure.original,
        )

    def _expecting(self, release: Release) -> Callable[[int], None]:
        return lambda times: self._runs.expect(self._run(release), times)

    def _once(self, release: Release, why: str) -> Judged:
        run = self._run(release)
        check = self._runs.command(run)

        def evidence_of_run() -> Evidence:
            evidence, self._environment = self._runs.run(run)
            check.expect(evidence.seconds)
            self._timeout = check.timeout
            return evidence

        return self.check_runs.once(
            evidence_of_run,
            line=check.line(self.question.model),
            description=f"{self.question.check.package} {release.version}{f': {why}' if why else ''}",
            judged_by=partial(self._judged, release.version),
        )

    def _judged(self, version: str, evidence: Evidence) -> Judged:
        """The outcome with a release, compared with the reference across the different wording of releases."""
        evidence = self.question.check.as_if_installed(evidence, version)
        judged, reference = self.check_runs.failure.judge(evidence), self.check_runs.failure.reference
        lenient = self.question.rules.match in ("auto", "status") and not self.question.rules.decide_alone
        unclear = Outcome.REPRODUCES if reference is None and self.check_runs.checks > 1 else Outcome.OTHER_FAILURE
        if judged.outcome is not unclear or not lenient:
            return judged
        signature = signature_of(evidence)
        if is_too_old(signature, reference):
            return replace(judged, outcome=Outcome.INVALID, reason=f"it cannot read this model: {judged.reason}")
        if reference is not None and same_across_releases(signature, reference, self.question.operators):
            return replace(judged, outcome=Outcome.REPRODUCES)
        return judged

    def failure_on_identity(self, release: Release) -> str:
        """How the check fails on a model of one Identity node, which makes it vacuous; "" if it does not."""
        with temporary_folder("biopsy-") as folder:
            identity = folder / "identity.onnx"
            identity.write_bytes(identity_of(index_file(self.question.model, self.question.weights)))
            return self._failure_of(replace(self._run(release), model=identity, original=()), self.needed)

    def failure_without_packages(self, release: Release) -> str:
        """How the check fails in an interpreter without packages, so that it uses no release; "" if it does not.

        For example, a script's folder may have a module of the same name, or any exception may count as the failure.
        """
        check = self.question.check
        if check.is_own_run or not any(PYTHON_PLACE in word for word in check.words):
            return ""
        return self._failure_of(replace(self._run(release), original=(), is_bare=True), 1)

    def _failure_of(self, run: ReleaseRun, times: int) -> str:
        """How a run fails in up to ``times`` tries; "" if it does not."""
        with self._opened(run.release):
            judged, runs = until_no_pass(lambda: self._judged(run.release.version, self._runs.run(run)[0]), times)
        self.check_runs.checks += runs
        return judged.reason if judged.outcome is Outcome.REPRODUCES else ""

    def is_right_by_float64(self, release: Release) -> bool:
        """Whether a release that fails errs by no more than rounding: then what it is compared with is wrong.

        False if that is unknown.
        """
        alone = self.question.check.by_itself()
        if alone is None or not self.check_runs.failure.original:
            return False
        run = replace(self._run(release), check=alone, original=())
        with self._opened(release, alone):
            return self._runs.run(run)[0].verdict.outcome == "passes"


def _with(tried: TriedRelease, judged: Judged, *, runs: int) -> TriedRelease:
    return replace(tried, outcome=judged.outcome, reason=judged.reason, runs=runs, hint=judged.evidence.verdict.hint)


_LEAST_RATIO = 0.6
"""The least similarity (``SequenceMatcher.ratio``) of the words of two messages that mean the same."""

_BEFORE_IT_RUNS = frozenset({"load", "build"})

_CODE_NAMES = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b")
_CLASS = re.compile(r"^(?:\w+\.)*\w+: ")
_WORD = re.compile(r"[A-Za-z]{2,}")

_TOO_NEW = re.compile(
    r"opset \d+ is under development|IR version|IR_VERSION|is not a registered function/op|No Op registered for"
    r"|opset (?:import|version)\S* .*(?:support|greater|higher|newer)|unsupported (?:model )?opset"
    r"|unrecognized attribute"
    r"|(?:does not|doesn't) support the following ONNX operations|Ops? (?:is|are) not supported",
    re.IGNORECASE,
)


def same_across_releases(failure: Signature, reference: Signature, operators: Collection[str] = ()) -> bool:
    """Whether a failure with one release is the ``reference`` of another release, in other words.

    Meant for failures of engines and Python exceptions; mismatches have no words that could change. ``operators`` are
    those of the model: messages that name different ones are different.
    """
    ends = [(each.status, each.timed_out, each.out_of_memory) for each in (failure, reference)]
    if ends[0] != ends[1] or failure.stage == "compare" or failure.engine != reference.engine:
        return False
    if failure.reported or reference.reported:
        same_stage = failure.stage == reference.stage or {failure.stage, reference.stage} <= _BEFORE_IT_RUNS
        return same_stage and _mean_the_same(failure.message, reference.message, operators)
    frames = [[(frame.function, frame.line) for frame in each.raised] for each in (failure, reference)]
    return bool(frames[0]) and frames[0] == frames[1] and _mean_the_same(failure.words, reference.words, operators)


def is_too_old(failure: Signature, reference: Signature | None) -> bool:
    """Whether a release fails because it cannot read the model, which is not how the ``reference`` fails.

    Such a release is older than the operators or the file format of the model. ``reference`` is None before the first
    failure.
    """

    def names_something_new(signature: Signature) -> bool:
        return _TOO_NEW.search(f"{signature.message.exact}\n{signature.words.exact}") is not None

    if reference is not None and names_something_new(reference):
        return False
    if failure.stage not in _BEFORE_IT_RUNS and not failure.raised:
        return False
    at_loading = reference is not None and failure.stage == "load" and reference.stage != "load"
    return at_loading or names_something_new(failure)


def _mean_the_same(first: Message, second: Message, operators: Collection[str]) -> bool:
    if bool(first.items) != bool(second.items) or (first.items and set(first.items).isdisjoint(second.items)):
        return False
    named = [(set(re.findall(r"\w+", message.exact)) & set(operators)) for message in (first, second)]
    if all(named) and named[0].isdisjoint(named[1]):
        return False
    # names of codes and the class of the exception change from release to release
    words = [_WORD.findall(_CODE_NAMES.sub(" ", _CLASS.sub("", message.meaning))) for message in (first, second)]
    return words[0] == words[1] or SequenceMatcher(None, words[0], words[1], autojunk=False).ratio() >= _LEAST_RATIO
