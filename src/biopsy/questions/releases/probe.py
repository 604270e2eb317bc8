"""Asking one release after the other: its environment is made, the check is run in it, and what it says is judged,
down to whether it is the same failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial

from biopsy import errors, events
from biopsy.checks.judge import MeasuredRate, Signature, measured_rate, rate_of, signature_of
from biopsy.checks.message import Message
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.model.index import index_file
from biopsy.model.slice import identity_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.environments.prepared import Environment
from biopsy.processes.environments.releases import Release
from biopsy.questions.releases.findings import TriedRelease
from biopsy.questions.releases.question import ReleaseCheck, ReleaseQuestion
from biopsy.questions.releases.runs import ReleaseRun, ReleaseRuns, RunsHere
from biopsy.session.trial import CheckRuns, until_no_pass

STAGE = "releases"

_EVERY_TIME = "whether it passes every time"


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
                once, runs = partial(self._once, release), 1
                judged = once("")
                self.pythons[release.version] = str(self._environment.python)
                if judged.outcome is Outcome.REPRODUCES and not self.failure:
                    self.failure, self.failure_of = judged.reason, release.version
                    self.asked.failure.original = judged.evidence.verdict.mismatches
                    self.asked.take_failure(judged)
                    runs = self.asked.measure(judged, once, self._expecting(release)).runs
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
            if error.concerns_all:  # to go on would be to say of every release what nobody knows
                raise
            tried = TriedRelease(
                release=release, outcome=Outcome.INFRASTRUCTURE, reason=error.summary, runs=0, obstacle=error.kind
            )
        self.tell(tried)
        return tried

    def foresee(self, releases: Iterable[Release]) -> None:
        """Say which releases may be asked next, the likeliest first."""
        self._runs.foresee(list(map(self._run, releases)))

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
                measured = measured_rate(judged, once, expect=self._expecting(tried.release))
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
            measured = measured_rate(judged, once, expect=self._expecting(tried.release))
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
            self._expecting(release)(times)
            yield partial(self._once, release)

    def _opened(
        self, release: Release, check: ReleaseCheck | None = None
    ) -> AbstractContextManager[Environment | None]:
        return self._runs.opened(check or self.question.check, release, self._listener)

    def _run(self, release: Release) -> ReleaseRun:
        """A run of the check with a release, by what is known now."""
        return ReleaseRun(
            check=self.question.check,
            release=release,
            model=self.question.model,
            default_name=self.question.default_name,
            timeout=self._timeout,
            original=self.asked.failure.original,
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

        return self.asked.once(
            evidence_of_run,
            line=check.line(self.question.model),
            description=f"{self.question.check.package} {release.version}{f': {why}' if why else ''}",
            judged_by=partial(self._judged, release.version),
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
        with temporary_folder("biopsy-") as folder:
            identity = folder / "identity.onnx"
            identity.write_bytes(identity_of(index_file(self.question.model, self.question.weights)))
            # One that fails in some runs only passes by chance.
            return self._failure_of(replace(self._run(release), model=identity, original=()), self.needed)

    def fails_without_it(self, release: Release) -> str:
        """Whether the check fails as it does though the interpreter has no packages at all: then it uses no release.

        So it is where the folder of a script has a module of the same name, or any exception counts. How it fails.
        """
        check = self.question.check
        if check.is_own_run or not check.names_python:
            return ""
        return self._failure_of(replace(self._run(release), original=(), is_bare=True), 1)

    def _failure_of(self, run: ReleaseRun, times: int) -> str:
        """How a run fails, if it does in up to ``times`` times."""
        with self._opened(run.release):
            judged, runs = until_no_pass(lambda: self._judged(run.release.version, self._runs.run(run)[0]), times)
        self.asked.checks += runs
        return judged.reason if judged.outcome is Outcome.REPRODUCES else ""

    def is_right_by_float64(self, release: Release) -> bool:
        """Whether a release that fails is right all the same: alone, it errs by no more than rounding.

        Then what it is compared with is what is wrong. False where nobody can tell.
        """
        alone = self.question.check.by_itself()
        if alone is None or not self.asked.failure.original:
            return False
        run = replace(self._run(release), check=alone, original=())
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
    ended, expected = ((one.status, one.timed_out, one.out_of_memory) for one in (found, reference))
    if ended != expected or found.stage == "compare" or found.engine != reference.engine:
        return False
    if found.reported or reference.reported:
        same_stage = found.stage == reference.stage or {found.stage, reference.stage} <= _BEFORE_IT_RUNS
        return same_stage and _mean_the_same(found.message, reference.message, operators)
    frames, wanted = ([(each.function, each.line) for each in one.raised] for one in (found, reference))
    return bool(frames) and frames == wanted and _mean_the_same(found.words, reference.words, operators)


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


def _mean_the_same(one: Message, other: Message, operators: Collection[str]) -> bool:
    if bool(one.items) != bool(other.items) or (one.items and set(one.items).isdisjoint(other.items)):
        return False
    named = [(set(re.findall(r"\w+", message.exact)) & set(operators)) for message in (one, other)]
    if all(named) and named[0].isdisjoint(named[1]):
        return False
    # Names of codes, and the class that it was raised as, change.
    said, expected = (_WORD.findall(_CODE_NAMES.sub(" ", _CLASS.sub("", message.meaning))) for message in (one, other))
    return said == expected or SequenceMatcher(None, said, expected, autojunk=False).ratio() >= _ALIKE
