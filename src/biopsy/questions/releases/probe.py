"""Asking one release after the other: its environment is made, the check is run in it, and what it says is judged,
down to whether it is the same failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.judge import MeasuredRate, Rules, Signature, measured_rate, rate_of, signature_of
from biopsy.checks.message import Message, Raised
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.model.index import index_file
from biopsy.model.slice import identity_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.prepared import Environment
from biopsy.processes.environments.releases import Release
from biopsy.questions.releases.findings import TriedRelease
from biopsy.questions.releases.runs import ReleaseCheck, ReleaseRun, ReleaseRuns, RunsHere
from biopsy.session.trial import CheckRuns, until_no_pass

STAGE = "releases"

_EVERY_TIME = "whether it passes every time"


@dataclass(frozen=True, kw_only=True)
class ReleaseQuestion:
    """Which model fails which check. ``default_name`` stands for it in the words, as ``{}`` does.

    ``weights`` is the folder of its external weights, if that is not its own. ``operators`` are the types of its nodes:
    messages of releases are told apart by those that they name. ``timeout`` is in seconds; None for 20 times as long as
    the first run took, at least 60.
    """

    check: ReleaseCheck
    model: Path
    rules: Rules = field(default_factory=Rules)
    weights: Path | None = None
    operators: frozenset[str] = frozenset()
    default_name: str = "{}"
    timeout: float | None = None


class ReleaseProbe:
    """Has the check run with releases, and judges and counts what it says.

    The first failure is the one that all others are compared with.
    """

    def __init__(
        self, question: ReleaseQuestion, listener: events.Listener = events.ignore, runs: ReleaseRuns | None = None
    ) -> None:
        self.question = question
        self.asked = CheckRuns(STAGE, question.rules, listener)
        self.pythons: dict[str, str] = {}
        self.failure = ""
        self.failure_of = ""
        self._listener = listener
        self._runs = runs or RunsHere()
        self._timeout = question.timeout
        self._environment: Environment  # that of the last run

    @property
    def needed(self) -> int:
        """How many runs that pass make a pass."""
        return self.asked.rate.needed

    def again(self, whole: ReleaseQuestion) -> ReleaseProbe:
        """A probe that knows the failure, to ask releases once more with another question."""
        listener = events.without(events.ReleaseTried, self._listener)
        probe = ReleaseProbe(whole, listener, self._runs)
        probe.asked = self.asked.on_another_model(listener)
        probe.asked.checks = self.asked.checks
        probe.failure, probe.failure_of = self.failure, self.failure_of
        return probe

    def ask(self, release: Release) -> TriedRelease:
        """What the check says with a release: a failure at once, a pass after as many runs as it takes to believe it.

        Raises CheckError if the check cannot be run, CannotInstall if this machine can install nothing.
        """
        try:
            with self._opened(release):
                version = release.version
                once = partial(self._once, version)
                judged, runs = once(""), 1
                self.pythons[version] = str(self._environment.python)
                if judged.outcome is Outcome.REPRODUCES and not self.failure:
                    evidence = judged.evidence
                    self.failure, self.failure_of = judged.reason, version
                    self.asked.failure.original = evidence.verdict.mismatches
                    self.asked.take_failure(judged)
                    runs = self.asked.measure(judged, once, self._expecting(version)).runs
                elif judged.outcome is Outcome.PASSES and self.needed > 1:
                    self._expecting(version)(self.needed - 1)
                    judged, more = until_no_pass(partial(once, _EVERY_TIME), self.needed - 1)
                    runs += more
                environment = self._environment
                tried = TriedRelease(
                    release=release,
                    outcome=judged.outcome,
                    reason=judged.reason,
                    runs=runs,
                    packages=environment.packages,
                    added=environment.added,
                    hint=judged.evidence.verdict.hint,
                )
        except errors.CannotInstall as error:
            if error.concerns_all:  # to go on would be to say of every release what nobody knows
                raise
            tried = TriedRelease(
                release=release, outcome=Outcome.INFRASTRUCTURE, reason=error.summary, runs=0, obstacle=error.kind
            )
        self.tell(tried)
        return tried

    def foresee(self, releases: Iterable[Release]) -> None:
        """Say which releases may be asked next, the likeliest first."""
        self._runs.foresee([self._run(release.version) for release in releases])

    def tell(self, tried: TriedRelease) -> None:
        """Say what is known of a release."""
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

    def pass_again(self, tried: TriedRelease, runs: int) -> TriedRelease:
        """What the check says of a release that passed, in up to ``runs`` runs more. Raises as ``ask`` does.

        Of a failure it is measured how often it shows, since there were passes before.
        """
        with self._running(tried.release, runs) as once:
            judged, done = until_no_pass(partial(once, _EVERY_TIME), runs)
            passed = tried.runs + done - 1
            if judged.outcome is Outcome.REPRODUCES:
                measured = measured_rate(judged, once, expect=self._expecting(tried.release.version))
                self._believe_less(rate_of(measured.failed, measured.runs + passed))
                done += measured.runs - 1
        return _with(tried, judged, runs=tried.runs + done)

    def fail_again(self, tried: TriedRelease) -> TriedRelease:
        """What the check says of a release that failed, in as many runs as its failure may need to show. Raises so too.

        If it does not show, it is measured how often it does. One that never does again is unstable.
        """
        needed = self.needed
        with self._running(tried.release, needed) as once:
            judged, done = until_no_pass(partial(once, "whether it still fails"), needed)
            if judged.outcome is not Outcome.PASSES:
                return _with(tried, judged, runs=tried.runs + done)
            measured = measured_rate(judged, once, expect=self._expecting(tried.release.version))
        done += measured.runs - 1
        if measured.failed == 0:
            reason = f"it failed, and passed {done} times since"
            return replace(tried, outcome=Outcome.UNSTABLE, reason=reason, runs=tried.runs + done)
        self._believe_less(rate_of(measured.failed + 1, tried.runs + done))
        return replace(tried, runs=tried.runs + done)

    def _believe_less(self, rate: MeasuredRate) -> None:
        """Have a release pass more often before that is believed, if the failure is seldomer than it was taken for."""
        if rate.needed > self.needed:
            self.asked.believe(rate)

    @contextmanager
    def _running(self, release: Release, times: int) -> Iterator[Callable[[str], Judged]]:
        """What runs the check once with a release, about so many ``times``, and is told why."""
        with self._opened(release):
            self._runs.expect(self._run(release.version), times)
            yield partial(self._once, release.version)

    def _opened(
        self, release: Release, check: ReleaseCheck | None = None
    ) -> AbstractContextManager[Environment | None]:
        return self._runs.opened(check or self.question.check, release, self._listener)

    def _run(self, version: str) -> ReleaseRun:
        """A run of the check with a release, by what is known now."""
        return ReleaseRun(
            check=self.question.check,
            version=version,
            model=self.question.model,
            default_name=self.question.default_name,
            timeout=self._timeout,
            original=self.asked.failure.original,
        )

    def _expecting(self, version: str) -> Callable[[int], None]:
        return lambda times: self._runs.expect(self._run(version), times)

    def _once(self, version: str, why: str) -> Judged:
        run = self._run(version)
        check = self._runs.command(run)

        def left() -> Evidence:
            evidence, self._environment = self._runs.run(run)
            check.expect(evidence.seconds)
            self._timeout = check.timeout
            return evidence

        return self.asked.once(
            left,
            line=check.line(self.question.model),
            description=f"{self.question.check.package} {version}{f': {why}' if why else ''}",
            judged_by=partial(self._judged, version),
        )

    def _judged(self, version: str, evidence: Evidence) -> Judged:
        """The outcome with a release, as if it were the installed one; its words are understood by those of another."""
        evidence = self.question.check.as_if_installed(evidence, version)
        judged, reference = self.asked.failure.judge(evidence), self.asked.failure.reference
        lenient = self.question.rules.match in ("auto", "status") and not self.question.rules.decide_alone
        wanted = Outcome.REPRODUCES if reference is None and self.asked.checks > 1 else Outcome.OTHER_FAILURE
        if judged.outcome is not wanted or not lenient:
            return judged
        found = signature_of(evidence)
        if is_too_old(found, reference):
            return replace(judged, outcome=Outcome.INVALID, reason=f"it cannot read this model: {judged.reason}")
        if reference is not None and same_across_releases(found, reference, self.question.operators):
            return replace(judged, outcome=Outcome.REPRODUCES)
        return judged

    def fails_on_anything(self, release: Release) -> str:
        """Whether a model of one Identity node fails as the model does: then the check says nothing. How it fails."""
        with self._opened(release), temporary_folder("biopsy-") as folder:
            identity = folder / "identity.onnx"
            identity.write_bytes(identity_of(index_file(self.question.model, self.question.weights)))
            run = replace(self._run(release.version), model=identity, original=())
            # One that fails in some runs only passes by chance.
            judged, runs = until_no_pass(lambda: self._judged(run.version, self._runs.run(run)[0]), self.needed)
        self.asked.checks += runs
        return judged.reason if judged.outcome is Outcome.REPRODUCES else ""

    def fails_without_it(self, release: Release) -> str:
        """Whether the check fails as it does though the interpreter has no packages at all: then it uses no release.

        So it is where the folder of a script has a module of the same name, or any exception counts. How it fails.
        """
        check = self.question.check
        if check.is_own_run or not check.names_python:
            return ""
        run = replace(self._run(release.version), original=(), is_bare=True)
        with self._opened(release):
            judged = self._judged(run.version, self._runs.run(run)[0])
        self.asked.checks += 1
        return judged.reason if judged.outcome is Outcome.REPRODUCES else ""

    def is_right_by_float64(self, release: Release) -> bool:
        """Whether a release that fails is right all the same: alone, it errs by no more than rounding.

        Then what it is compared with is what is wrong. False where nobody can tell.
        """
        alone = self.question.check.by_itself()
        if alone is None or not self.asked.failure.original:
            return False
        run = replace(self._run(release.version), check=alone, original=())
        with self._opened(release, alone):
            return self._runs.run(run)[0].verdict.outcome == "passes"


def _with(tried: TriedRelease, judged: Judged, *, runs: int) -> TriedRelease:
    return replace(tried, outcome=judged.outcome, reason=judged.reason, runs=runs, hint=judged.evidence.verdict.hint)


# Whether failures of two releases are the same one: by stage and meaning, for words and codes change.
#
# ONNX Runtime reported the same refusal as RUNTIME_EXCEPTION up to 1.23.2 and as FAIL since 1.24: the status, its
# code, the line of its source and the Python class that it raises changed, and the sentence did not.

_ALIKE = 0.6
"""Two messages mean the same if so much of their words is the same, in the same order."""

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


def same_across_releases(found: Signature, reference: Signature, operators: Collection[str] = ()) -> bool:
    """Whether a failure with one release is the ``reference``, that of another one, in other words.

    ``operators`` are those of the model: messages that speak of different ones are different. What a comparison has
    found has no words that could change, so this is for failures of engines and for Python exceptions.
    """
    if _ended(found) != _ended(reference) or found.stage == "compare" or found.engine != reference.engine:
        return False
    if found.reported or reference.reported:
        same_stage = found.stage == reference.stage or {found.stage, reference.stage} <= _BEFORE_IT_RUNS
        return same_stage and _mean_the_same(found.message, reference.message, operators)
    if not found.raised or _frames(found.raised) != _frames(reference.raised):
        return False
    return _mean_the_same(found.words, reference.words, operators)


def is_too_old(found: Signature, reference: Signature | None) -> bool:
    """Whether a release cannot read the model at all, which is not what the ``reference`` failed at.

    Such a release says nothing of the failure: it came before the operators, or the version of the format. None: no
    failure is known by now.
    """
    if reference is not None and _TOO_NEW.search(_said(reference)):
        return False
    if found.stage not in _BEFORE_IT_RUNS and not found.raised:
        return False
    at_loading = reference is not None and found.stage == "load" and reference.stage != "load"
    return at_loading or bool(_TOO_NEW.search(_said(found)))


def _said(signature: Signature) -> str:
    return f"{signature.message.exact}\n{signature.words.exact}"


def _ended(signature: Signature) -> tuple[object, ...]:
    return signature.status, signature.timed_out, signature.out_of_memory


def _frames(raised: tuple[Raised, ...]) -> list[tuple[str, str]]:
    return [(one.function, one.line) for one in raised]


def _mean_the_same(one: Message, other: Message, operators: Collection[str]) -> bool:
    if bool(one.items) != bool(other.items) or (one.items and set(one.items).isdisjoint(other.items)):
        return False
    named = [(set(re.findall(r"\w+", message.exact)) & set(operators)) for message in (one, other)]
    if all(named) and named[0].isdisjoint(named[1]):
        return False
    said, expected = _words(one), _words(other)
    return said == expected or SequenceMatcher(None, said, expected, autojunk=False).ratio() >= _ALIKE


def _words(message: Message) -> list[str]:
    """The words of a message without names of codes and of the class that it was raised as."""
    return _WORD.findall(_CODE_NAMES.sub(" ", _CLASS.sub("", message.meaning)))
