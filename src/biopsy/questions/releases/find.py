"""The search for the release of a package that broke a model, and the one that mended it.

Answers are confirmed by further runs, because a flaky failure misleads once. A release that fails once, fails. A pass
may be chance: a release that passed before the failure was known, or was known to be flaky, is run again until it has
as many passes as the measured rate requires. Both sides of each border are run again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Outcome
from biopsy.engines.registry import EngineSpec, find_class
from biopsy.processes.environments.releases import Release, releases
from biopsy.questions.releases.findings import ReleaseBorder, ReleaseFindings, TriedRelease
from biopsy.questions.releases.probe import STAGE, ReleaseProbe
from biopsy.questions.releases.question import (
    PYTHON_PLACE,
    NamedReleases,
    ReleaseCheck,
    ReleaseQuestion,
    ReleaseSpan,
    has_place,
    span_of,
)
from biopsy.questions.releases.runs import ReleaseRuns, RunsHere
from biopsy.search.borders import (
    ANOTHER,
    AnswerRow,
    Asking,
    RowBorder,
    Side,
    all_changes,
    asked_next,
    change_between,
    changes_around,
    first_that_holds,
)
from biopsy.search.drive import drive
from biopsy.text import count, first_of, normalized

_RUNS_WITHOUT_FAILURE = 8
"""Runs of the release that should fail before it is said that none does: a failure that shows in half of the runs is
missed in 1 of 256 cases."""

_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class FailingModel:
    """A model and the words of a check that it fails; ``weights_folder`` is that of its weights, if not its own."""

    model: Path
    check: Sequence[str]
    weights_folder: Path | None = None


def search_of_engine(
    model: Path,
    engine: EngineSpec,
    check: Sequence[str],
    listener: events.Listener = events.ignore,
    *,
    rules: Rules | None = None,
    named: NamedReleases = NamedReleases(),  # noqa: B008 -- frozen
    whole_model: FailingModel | None = None,
) -> ReleaseSearch:
    """A search for the release of ``engine``'s package that broke ``model``, or mended it; start it with ``run``.

    ``check`` is a command that fails, with ``{}`` for the model and ``{engine}`` for the engine. If ``run`` ends early,
    for example by an exception of the listener, ``findings`` are those so far. If ``model`` is a piece of
    ``whole_model``, the result is verified with that.

    Raises UsageError for an engine that is not a package or a check without a placeholder for it, CannotInstall if the
    package index does not answer, ModelError.
    """
    packages = find_class(engine.name).distributions
    if not packages:
        raise errors.UsageError(f"the engine {engine.name!r} is not a package with releases")
    package = packages[0]

    def question_of(failing: FailingModel) -> ReleaseQuestion:
        if not has_place(failing.check):
            raise errors.UsageError("the check does not say where the engine belongs", next_steps=["{engine}"])
        command = parse(failing.check)
        return ReleaseQuestion(
            check=ReleaseCheck(
                package=package, words=command.words, spec=engine, is_own_run=isinstance(command, OwnRun)
            ),
            model=failing.model,
            rules=Rules() if rules is None else rules,
            weights=failing.weights_folder,
        )

    question = question_of(FailingModel(model=model, check=check))
    options = ReleaseSearchOptions(whole_model=None if whole_model is None else question_of(whole_model))
    return ReleaseSearch(question, span_of(package, releases(package), named), listener, options)


@dataclass(frozen=True, kw_only=True)
class ReleaseSearchOptions:
    """How to search for a release.

    ``every``: all releases are tried. ``whole_model``: the question about the whole model, which verifies the borders
    if the search is about a piece of it. ``allow_vacuous``: a check may also fail on a model of one Identity node.
    """

    every: bool = False
    whole_model: ReleaseQuestion | None = None
    allow_vacuous: bool = False


class ReleaseSearch:
    """A search for the releases at which the outcome of a check changes."""

    def __init__(
        self,
        question: ReleaseQuestion,
        span: ReleaseSpan,
        listener: events.Listener = events.ignore,
        options: ReleaseSearchOptions | None = None,
        *,
        runs: ReleaseRuns | None = None,
    ) -> None:
        self._span = span
        self._listener, self._runs = listener, runs or RunsHere()
        self._options = options or ReleaseSearchOptions()
        self._probe = ReleaseProbe(question, listener, self._runs)
        self._row = AnswerRow(len(span.releases))
        self._tried: dict[int, TriedRelease] = {}
        self._confirmation = Confirmation(self._probe, self._row, self._tried)
        self._borders: tuple[ReleaseBorder, ...] = ()
        self._doubt = ""
        self._verifying: ReleaseProbe | None = None

    def run(self) -> ReleaseFindings:
        """Search to the end.

        Raises OriginalPasses if no release that was tried fails, CheckError if the check cannot be run or it is unknown
        whether it uses the releases, CannotInstall if this machine can install nothing. ``findings`` are then those so
        far.
        """
        started = time.monotonic()
        drive(self._search(self._row), self._answered)
        is_start_right = self._tried[self._span.start].side is False
        if self.findings.answer == "no release tried fails" and is_start_right:  # by chance, if the failure is flaky
            self._confirmation.repeat(self._span.start, _RUNS_WITHOUT_FAILURE - 1)
            drive(self._search(self._row), self._answered)
        while self._confirmation.changes_something():
            drive(self._search(self._row), self._answered)
        self._require_an_answer()
        self._require_a_check_that_may_pass()
        self._borders = tuple(self._verified(border) for border in self._row.borders())
        if self._borders and not any(border.verified for border in self._borders):
            because = (
                "" if self._options.whole_model is None else ": the whole model behaves differently from the piece"
            )
            raise errors.CheckError(
                f"no change between releases was confirmed when the releases were tried again{because}",
                details=[f"seen once: {border.text}" for border in self._borders],
                next_steps=["--all    tries every release"]
                if self._options.whole_model is None
                else ["leave out --reduce"],
            )
        if self._probe.is_right_by_float64(self._failing):
            name = f"{self._probe.question.check.package} {self._failing.version}"
            self._doubt = (
                f"compared with float64, {name} errs by no more than rounding: what it is compared with is wrong"
            )
        findings = self.findings
        self._listener(events.StageDone(stage=STAGE, checks=findings.checks, seconds=time.monotonic() - started))
        return findings

    def failing(self) -> Release:
        """The first release that fails, in the order in which ``run`` tries them. Raises what ``run`` raises."""
        drive(first_that_holds(self._row, self._span.start, self._span.end), self._answered)
        self._require_an_answer()
        return self._failing

    @property
    def findings(self) -> ReleaseFindings:
        """The findings so far."""
        check, probe = self._probe.question.check, self._probe
        python = check.python
        return ReleaseFindings(
            package=check.package,
            python="" if python is None else python.version,
            known=len(self._span.releases),
            failure=probe.failure,
            failure_of=probe.failure_of,
            failed=probe.check_runs.rate.failed,
            runs=probe.check_runs.rate.runs,
            tried=tuple(tried for _, tried in sorted(self._tried.items())),
            borders=self._borders or tuple(self._border(border.before, border.after) for border in self._row.borders()),
            checks=(self._verifying or probe).check_runs.checks,
            yardstick=check.yardstick,
            doubt=self._doubt,
        )

    def _search(self, row: AnswerRow) -> Asking[None]:
        if self._options.every:
            return all_changes(row, self._span.start)
        if self._span.end is not None:
            return change_between(row, self._span.start, self._span.end)
        return changes_around(row, self._span.start)

    def _answered(self, round_: Iterable[int]) -> Mapping[int, Side]:
        places = list(round_)
        if self._runs.ahead > 1:
            expected = dict.fromkeys([*places, *self._likely_next(places, self._runs.ahead)])
            self._probe.foresee(self._span.releases[place] for place in expected)
        return {place: self._ask(place) for place in places}

    def _likely_next(self, places: Sequence[int], most: int) -> Iterator[int]:
        """About ``most`` places that may be asked after a round of one place, the nearest first; none after others."""
        suppositions: deque[tuple[Sequence[int], Mapping[int, Side]]] = deque([(places, {})])
        while suppositions and most > 0:
            asked, supposed = suppositions.popleft()
            for side in (True, False) if len(asked) == 1 else ():
                answers = {**supposed, asked[0]: side}
                following = asked_next(self._search, self._row, answers)
                suppositions.append((following, answers))
                most -= len(following)
                yield from following

    def _ask(self, place: int) -> Side:
        release, is_first = self._span.releases[place], not self._tried
        tried = self._tried[place] = self._probe.ask(release)
        if is_first and tried.outcome is Outcome.INFRASTRUCTURE and tried.obstacle is None:
            named = f"{self._probe.question.check.package} {release.version}"
            raise errors.CheckError(
                f"the check could not be run with {named}: {tried.reason}",
                next_steps=[f"run it by hand: {self._line(release)}"],
            )
        return tried.side

    def _line(self, release: Release) -> str:
        question = self._probe.question
        words = question.check.words_of(release.version, self._probe.pythons.get(release.version, PYTHON_PLACE))
        return CommandCheck(words, question.default_name).line(question.model)

    def _require_an_answer(self) -> None:
        findings, start = self.findings, self._tried[self._span.start]
        if findings.answer is None or (findings.answer == "no release tried fails" and start.side is None):
            raise errors.CheckError(
                f"{findings.package} {start.release.version} could not be tested, and no other that was tried fails",
                details=[
                    f"{tried.release.version}: {tried.words}: {tried.reason}"
                    for tried in findings.tried
                    if tried.side in (None, ANOTHER)
                ],
                next_steps=["--versions A..B    other releases", "--with 'numpy<2'    packages that they need"],
            )
        if findings.answer != "changed" and len(findings.tried) > 1 and not self._probe.question.check.names_release:
            raise errors.CheckError(
                f"the check has the same outcome with all {len(findings.tried)} releases that were tried, and no "
                "placeholder for the release: it may use none of them",
                next_steps=["write {python} in it, in the place of python", "or have it run BIOPSY_PYTHON"],
            )
        if findings.answer == "no release tried fails":
            others = " or in one run of each other release" if len(findings.tried) > 1 else ""
            ends = findings.tried[0].release, findings.tried[-1].release
            left_out = first_of([release.version for release in self._span.left_out_between(*ends)], _MOST_NAMED)
            raise errors.OriginalPasses(
                f"{findings.text}{f'; not tried: {left_out}' if left_out else ''}: the failure did not show in "
                f"{count(start.runs, 'run')} of {start.release.version}{others}; a rare failure may still be there",
                next_steps=[start.hint or f"run it by hand: {self._line(self._span.releases[self._span.start])}"],
            )

    def _require_a_check_that_may_pass(self) -> None:
        """Raise VacuousCheck if the check fails with every release, and also without any or on one Identity node."""
        if self._options.allow_vacuous or any(tried.side is False for tried in self._tried.values()):
            return
        failing = self._failing
        every = (
            "every release tried"
            if self.findings.answer != "changed"
            else "every release tried, in one way or another,"
        )
        for failure_with, culprit, suspicion, look, unless in (
            (
                self._probe.failure_without_packages,
                f"an interpreter in which {self.findings.package} is not installed",
                "use none of them",
                "what it imports, and from where",
                "if it fails in the same way whatever goes wrong",
            ),
            (
                self._probe.failure_on_identity,
                "a model of one Identity node",
                "fail on anything",
                "what it prints",
                "if it must fail on any other model",
            ),
        ):
            if reason := failure_with(failing):
                raise errors.VacuousCheck(
                    f"{every} fails, and so does {culprit} ({reason}): the check may {suspicion}",
                    next_steps=[f"look at {look}: {self._line(failing)}", f"--allow-vacuous-check    {unless}"],
                )

    @property
    def _failing(self) -> Release:
        """The first release that was tried and fails."""
        return next(tried.release for tried in self._tried.values() if tried.side is True)

    def _border(self, before: int, after: int) -> ReleaseBorder:
        releases, known = self._span.releases, self._row.known
        return ReleaseBorder(
            before=releases[before],
            after=releases[after],
            was=known[before],
            became=known[after],
            other=next((self._tried[place].reason for place in (before, after) if known[place] == ANOTHER), ""),
            undecided=tuple(self._tried[place] for place in range(before + 1, after)),
            left_out=tuple(self._span.left_out_between(releases[before], releases[after])),
            notes=notes_of(self._probe.question.check.package, releases[after].version),
        )

    def _verified(self, place: RowBorder) -> ReleaseBorder:
        """The border, verified by both sides, and by the whole model if the search was about a piece of it."""
        border, holds = self._border(place.before, place.after), self._confirmation.holds(place)
        if holds and self._options.whole_model is not None:
            self._verifying = self._verifying or self._probe.for_question(self._options.whole_model)
            sides = ((border.after, border.became), (border.before, border.was))
            holds = all(self._verifying.ask(release).side == side for release, side in sides)
        return replace(border, verified=holds)


class Confirmation:
    """Runs releases of a row again, and writes the new answers to ``row`` and ``tried``."""

    def __init__(self, probe: ReleaseProbe, row: AnswerRow, tried: dict[int, TriedRelease]) -> None:
        self._probe, self._row, self._tried = probe, row, tried
        self._confirmed: dict[int, int] = {}

    def repeat(self, place: int, runs: int) -> None:
        """Run a release that passed as often again, or until it fails."""
        self._keep(place, self._probe.recheck_pass(self._tried[place], runs))

    def changes_something(self) -> bool:
        """Run uncertain releases again. Returns whether an answer has changed, so that the search must go on."""
        probe, before = self._probe, dict(self._row.known)
        for place, tried in self._tried.items():  # some passed fewer times than are needed by now
            if tried.side is False and tried.runs < probe.needed:
                self._keep(place, probe.recheck_pass(tried, probe.needed - tried.runs))
        if self._row.known != before:
            return True
        needed = probe.needed
        for place in (place for border in self._row.borders() for place in (border.before, border.after)):
            if self._is_confirmed(place):
                continue
            tried = self._tried[place]
            if tried.side == ANOTHER:
                rechecked = probe.recheck_other(tried)
            elif tried.side:
                rechecked = probe.recheck_failure(tried)
            else:
                rechecked = probe.recheck_pass(tried, max(probe.check_runs.rate.proof - 1, probe.needed))
            if rechecked.side is tried.side:
                self._confirmed[place] = probe.needed
            self._keep(place, rechecked)
        return self._row.known != before or probe.needed != needed

    def holds(self, border: RowBorder) -> bool:
        """Whether both sides of a border are confirmed."""
        return all(self._is_confirmed(place) for place in (border.before, border.after))

    def _is_confirmed(self, place: int) -> bool:
        return self._confirmed.get(place, 0) >= self._probe.needed

    def _keep(self, place: int, tried: TriedRelease) -> None:
        """Keep an answer; a release that now fails in another way, or of which nobody can tell, is unstable."""
        before = self._tried[place]
        is_unlike = tried.side is not before.side and ANOTHER in (tried.side, before.side)
        if is_unlike or (tried.side is None and tried.outcome is not Outcome.UNSTABLE):
            reason = f"first it {before.words}, then: {tried.words}, {tried.reason}"
            tried = replace(tried, outcome=Outcome.UNSTABLE, reason=reason)
        self._tried[place] = tried
        self._row.known[place] = tried.side
        if tried.side is not before.side:
            self._probe.report(tried)


_NOTES: Mapping[str, str] = {
    "onnxruntime": "https://github.com/microsoft/onnxruntime/releases/tag/v{version}",
    "onnxruntime-gpu": "https://github.com/microsoft/onnxruntime/releases/tag/v{version}",
    "openvino": "https://github.com/openvinotoolkit/openvino/releases/tag/{version}",
    "onnx": "https://github.com/onnx/onnx/releases/tag/v{version}",
    "onnxscript": "https://github.com/microsoft/onnxscript/releases/tag/v{version}",
    "onnxslim": "https://github.com/inisis/OnnxSlim/releases/tag/v{version}",
    "onnxsim": "https://github.com/daquexian/onnx-simplifier/releases/tag/v{version}",
    "torch": "https://github.com/pytorch/pytorch/releases/tag/v{version}",
    "numpy": "https://github.com/numpy/numpy/releases/tag/v{version}",
    "tensorrt": "https://docs.nvidia.com/deeplearning/tensorrt/latest/getting-started/release-notes.html",
}
"""Distribution -> the address of its release notes."""


def notes_of(package: str, version: str) -> str:
    """The address of the release notes; the page at the package index if their address is not known."""
    name = normalized(package)
    return _NOTES.get(name, "https://pypi.org/project/{name}/{version}/").format(name=name, version=version)
