"""Asking one release after the other: its environment is made, the check is run in it, what it says is judged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from biopsy import errors, events
from biopsy.blame.releases.findings import TriedRelease
from biopsy.blame.releases.likeness import is_too_old, same_across_releases
from biopsy.blame.releases.release_check import ReleaseCheck
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.repetition import MeasuredRate, measured_rate
from biopsy.checks.signature import signature_of
from biopsy.checks.task import Task, run_check
from biopsy.environments.prepared import Environment, prepared
from biopsy.environments.releases import Release
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.identity import identity_of
from biopsy.model.index import index_file
from biopsy.session.failure_judge import FailureJudge

STAGE = "releases"

Preparing: TypeAlias = Callable[[ReleaseCheck, Release, events.Listener], AbstractContextManager[Environment]]
"""Makes the environment that holds a release. Raises CannotInstall."""


def installed(check: ReleaseCheck, release: Release, listener: events.Listener) -> AbstractContextManager[Environment]:
    """The environment of a release, from the package index or from the cache."""
    return prepared(check.requirements(release.version), python=check.python, listener=listener)


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
    """Runs the check with releases, and judges and counts what it says.

    The first failure is the one that all others are compared with.
    """

    def __init__(
        self, question: ReleaseQuestion, listener: events.Listener = events.ignore, preparing: Preparing = installed
    ) -> None:
        self.question = question
        self._listener = listener
        self._preparing = preparing
        self._judge = FailureJudge(question.rules, listener)
        self._timeout = question.timeout
        self.checks = 0
        self.pythons: dict[str, str] = {}
        self.failure = ""
        self.failure_of = ""
        self.rate = MeasuredRate(failed=0, runs=0)

    def again(self, whole: ReleaseQuestion | None = None) -> ReleaseProbe:
        """A probe that knows the failure, to ask releases once more; with another question, if one is given."""
        question = self.question if whole is None else whole
        probe = ReleaseProbe(question, events.without(events.ReleaseTried, self._listener), self._preparing)
        probe.checks, probe.rate = self.checks, self.rate
        probe.failure, probe.failure_of = self.failure, self.failure_of
        probe._judge.reference = self._judge.reference
        if whole is None:
            probe._judge.original, probe._timeout = self._judge.original, self._timeout
        return probe

    def ask(self, release: Release) -> TriedRelease:
        """What the check says with a release: a failure at once, a pass after as many runs as it takes to believe it.

        Raises CheckError if the check cannot be run, CannotInstall if this machine can install nothing.
        """
        try:
            with self._preparing(self.question.check, release, self._listener) as environment:
                tried = self._asked(release, environment)
        except errors.CannotInstall as error:
            if error.concerns_all:  # to go on would be to say of every release what nobody knows
                raise
            tried = TriedRelease(
                release=release, outcome=Outcome.INFRASTRUCTURE, reason=error.summary, runs=0, obstacle=error.kind
            )
        self._listener(
            events.ReleaseTried(
                package=self.question.check.package,
                version=release.version,
                date="" if release.date is None else release.date.isoformat(),
                outcome=tried.words,
                reason=tried.reason,
                added=tried.added,
            )
        )
        return tried

    def _asked(self, release: Release, environment: Environment) -> TriedRelease:
        version = release.version
        self.pythons[version] = str(environment.python)

        def once(why: str = "") -> Judged:
            check = self.question.check.command(version, environment, self.question.default_name, self._timeout)
            return self._once(check, version, why)

        judged, runs = once(), 1
        if judged.outcome is Outcome.REPRODUCES and not self.failure:
            runs = self._first_failure(judged, version, once)
        while judged.outcome is Outcome.PASSES and runs < self.rate.needed:
            judged, runs = once("whether it passes every time"), runs + 1
        return TriedRelease(
            release=release,
            outcome=judged.outcome,
            reason=judged.reason,
            runs=runs,
            packages=environment.packages,
            added=environment.added,
            hint=judged.evidence.verdict.hint,
        )

    def _first_failure(self, judged: Judged, version: str, once: Callable[[str], Judged]) -> int:
        """Take a failure for the one that is looked for, and see how often it shows; the number of runs."""
        evidence = judged.evidence
        self._judge.reference, self._judge.original = signature_of(evidence), evidence.verdict.mismatches
        self.failure, self.failure_of = judged.reason, version
        self._listener(events.OriginalFails(str(self._judge.reference), judged.reason, evidence.seconds))
        self.rate = rate = measured_rate(judged, once)
        if rate.needed > 1:
            self._listener(events.FlakyFailure(rate.failed, rate.runs, rate.needed, 0.99))
        return rate.runs

    def _once(self, check: CommandCheck, version: str, why: str) -> Judged:
        number, self.checks = self.checks, self.checks + 1
        about = f"{self.question.check.package} {version}{f': {why}' if why else ''}"
        line = check.line(self.question.model)
        self._listener(events.Checking(number=number, stage=STAGE, description=about, line=line))
        found = run_check(Task(check, self.question.model, None, self._judge.original))
        check.expect(found.seconds)
        self._timeout = check.timeout
        judged = self._judged(self.question.check.as_if_installed(found, version))
        self._listener(replace(judged.event(number, STAGE), output=found.output))
        return judged

    def _judged(self, evidence: Evidence) -> Judged:
        """The outcome, with the words of one release understood by those of another."""
        judged, reference = self._judge.judge(evidence), self._judge.reference
        lenient = self.question.rules.match in ("auto", "status") and not self.question.rules.decide_alone
        wanted = Outcome.REPRODUCES if reference is None and self.checks > 1 else Outcome.OTHER_FAILURE
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
        with (
            self._preparing(self.question.check, release, self._listener) as environment,
            temporary_folder("biopsy-") as folder,
        ):
            check = self.question.check.command(release.version, environment, self.question.default_name, self._timeout)
            identity = folder / "identity.onnx"
            identity.write_bytes(identity_of(index_file(self.question.model, self.question.weights)))
            judged = self._judged(self.question.check.as_if_installed(check.run(identity), release.version))
        self.checks += 1
        return judged.reason if judged.outcome is Outcome.REPRODUCES else ""

    def is_right_by_float64(self, release: Release) -> bool:
        """Whether a release that fails is right all the same: alone, it errs by no more than rounding.

        Then what it is compared with is what is wrong. False where nobody can tell.
        """
        alone = self.question.check.by_itself()
        if alone is None or not self._judge.original:
            return False
        with self._preparing(alone, release, self._listener) as environment:
            check = alone.command(release.version, environment, self.question.default_name, self._timeout)
            return check.run(self.question.model).verdict.outcome == "passes"
