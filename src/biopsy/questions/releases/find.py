"""Which release of a package broke a model, and which one mended it: the search, with environments made ahead and
borders asked once more.
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
from biopsy.text import normalized


@dataclass(frozen=True, kw_only=True)
class FailingModel:
    """A model, and the words of a check that it fails. ``weights_folder`` has external weights that stand elsewhere."""

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
    whole: FailingModel | None = None,
) -> ReleaseSearch:
    """The search for the release of ``engine``'s package that broke ``model``, or mended it; its ``run`` begins it.

    ``check`` is a command that fails, with ``{}`` for the model and ``{engine}`` for the engine. What ends ``run``
    early, such as an exception of the listener when the time is up, leaves what is known in ``found``. ``whole`` is the
    model of which this one is a piece: by it, what was found is verified.

    Raises UsageError for an engine without releases and a check without a place for it, CannotInstall if the package
    index does not answer, ModelError.
    """
    packages = find_class(engine.name).distributions
    if not packages:
        raise errors.UsageError(f"the engine {engine.name!r} is no package with releases")
    package = packages[0]
    question = _question_of(FailingModel(model=model, check=check), engine, package, rules)
    of_whole = None if whole is None else _question_of(whole, engine, package, rules)
    options = ReleaseSearchOptions(whole=of_whole)
    return ReleaseSearch(question, span_of(package, releases(package), named), listener, options)


def _question_of(asked: FailingModel, engine: EngineSpec, package: str, rules: Rules | None) -> ReleaseQuestion:
    if not has_place(asked.check):
        raise errors.UsageError("the check does not say where the engine belongs", next_steps=["{engine}"])
    command = parse(asked.check)
    made = ReleaseCheck(package=package, words=command.words, spec=engine, is_own_run=isinstance(command, OwnRun))
    return ReleaseQuestion(
        check=made,
        model=asked.model,
        rules=Rules() if rules is None else rules,
        weights=asked.weights_folder,
    )


@dataclass(frozen=True, kw_only=True)
class ReleaseSearchOptions:
    """How a search for a release is done.

    ``every``: all releases are asked. ``whole`` is the question about the whole model, by which the borders are
    verified, if the search is with a piece of it. ``allow_vacuous``: a check that also fails on a model of one Identity
    node is accepted.
    """

    every: bool = False
    whole: ReleaseQuestion | None = None
    allow_vacuous: bool = False


class ReleaseSearch:
    """A search for the releases between which the answer of a check changes."""

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

        Raises OriginalPasses if the failure is there in no release that was tried; CheckError if the check cannot be
        run, or if nobody can tell whether it uses the releases; CannotInstall if this machine can install nothing.
        What is known by then is in ``found``.
        """
        started = time.monotonic()
        drive(self._search(self._row), self._answered)
        while self._confirmation.changes_something():
            drive(self._search(self._row), self._answered)
        self._require_an_answer()
        self._require_a_check_that_may_pass()
        self._borders = tuple(self._verified(border) for border in self._row.borders())
        if self._borders and not any(border.verified for border in self._borders):
            of_whole = "" if self._options.whole is None else ": the whole model answers otherwise than the piece"
            raise errors.CheckError(
                f"no change between releases was confirmed when it was asked again{of_whole}",
                details=[f"seen once: {border.text}" for border in self._borders],
                next_steps=["--all    asks every release"] if self._options.whole is None else ["leave out --reduce"],
            )
        if self._probe.is_right_by_float64(self._failing):
            name = f"{self._probe.question.check.package} {self._failing.version}"
            self._doubt = (
                f"float64 says that {name} errs by no more than rounding: what it is compared with is what is wrong"
            )
        found = self.found
        self._listener(events.StageDone(stage=STAGE, checks=found.checks, seconds=time.monotonic() - started))
        return found

    def failing(self) -> Release:
        """The first release that fails, of those that a search for changes asks. Raises as ``run`` does."""
        drive(first_that_holds(self._row, self._span.start, self._span.end), self._answered)
        self._require_an_answer()
        return self._failing

    @property
    def found(self) -> ReleaseFindings:
        """What is known by now."""
        check, probe = self._probe.question.check, self._probe
        python = check.python
        return ReleaseFindings(
            package=check.package,
            python="" if python is None else python.version,
            known=len(self._span.releases),
            failure=probe.failure,
            failure_of=probe.failure_of,
            failed=probe.asked.rate.failed,
            runs=probe.asked.rate.runs,
            tried=tuple(tried for _, tried in sorted(self._tried.items())),
            borders=self._borders or tuple(self._border(border.before, border.after) for border in self._row.borders()),
            checks=(self._verifying or probe).asked.checks,
            yardstick=check.yardstick,
            doubt=self._doubt,
        )

    # Asking

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
        return {place: self._asked(place) for place in places}

    def _likely_next(self, places: Sequence[int], most: int) -> Iterator[int]:
        """What is asked after a round of one place, whichever side that is; of longer ones nobody knows enough.

        The nearest first, about ``most`` of them.
        """
        supposed: deque[tuple[Sequence[int], Mapping[int, Side]]] = deque([(places, {})])
        while supposed and most > 0:
            asked, answers = supposed.popleft()
            for side in (True, False) if len(asked) == 1 else ():
                answered = {**answers, asked[0]: side}
                following = asked_next(self._search, self._row, answered)
                supposed.append((following, answered))
                most -= len(following)
                yield from following

    def _asked(self, place: int) -> Side:
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

    # Answers

    def _require_an_answer(self) -> None:
        found, start = self.found, self._tried[self._span.start]
        if found.answer is None or (found.answer == "no release tried fails" and start.side is None):
            raise errors.CheckError(
                f"nobody can tell whether {found.package} {start.release.version} fails, nor any other that was tried",
                details=[
                    f"{one.release.version}: {one.words}: {one.reason}" for one in found.tried if one.side is None
                ],
                next_steps=["--versions A..B    others", "--with 'numpy<2'    what they need besides"],
            )
        if found.answer != "changed" and len(found.tried) > 1 and not self._probe.question.check.names_release:
            raise errors.CheckError(
                f"the check answers alike with all {len(found.tried)} releases that were tried, and nothing in it says "
                "where the release belongs: it may use none of them",
                next_steps=["write {python} in it, in the place of python", "or have it run BIOPSY_PYTHON"],
            )
        if found.answer == "no release tried fails":
            raise errors.OriginalPasses(
                f"{found.text}: the failure is in none of them",
                next_steps=[f"run it by hand: {self._line(self._span.releases[self._span.start])}"],
            )

    def _require_a_check_that_may_pass(self) -> None:
        """Raise VacuousCheck if every release fails, and so do no release at all, or a model of one Identity node."""
        if self._options.allow_vacuous or self.found.answer != "every release tried fails":
            return
        failing, package = self._failing, self.found.package
        without = f"an interpreter in which {package} is not installed"
        for asked, does, why, look, unless in (
            (
                self._probe.fails_without_it,
                without,
                "use none of them",
                "what it imports, and from where",
                "if it fails in the same way whatever goes wrong",
            ),
            (
                self._probe.fails_on_anything,
                "a model of one Identity node",
                "fail on anything",
                "what it prints",
                "if it must fail on any other model",
            ),
        ):
            if reason := asked(failing):
                raise errors.VacuousCheck(
                    f"every release tried fails, and so does {does} ({reason}): the check may {why}",
                    next_steps=[f"look at {look}: {self._line(failing)}", f"--allow-vacuous-check    {unless}"],
                )

    @property
    def _failing(self) -> Release:
        """The first release that was seen to fail."""
        return next(tried.release for tried in self._tried.values() if tried.side)

    def _border(self, before: int, after: int) -> ReleaseBorder:
        releases = self._span.releases
        return ReleaseBorder(
            before=releases[before],
            after=releases[after],
            broke=self._row.known[after] is True,
            undecided=tuple(self._tried[place] for place in range(before + 1, after)),
            notes=notes_of(self._probe.question.check.package, releases[after].version),
        )

    def _verified(self, border: RowBorder) -> ReleaseBorder:
        """The border, which both sides have confirmed; with the original too, if the search was with a piece of it."""
        found, holds = self._border(border.before, border.after), self._confirmation.holds(border)
        if holds and self._options.whole is not None:
            self._verifying = self._verifying or self._probe.again(self._options.whole)
            fails, passes = (found.after, found.before) if found.broke else (found.before, found.after)
            holds = self._verifying.ask(fails).side is True and self._verifying.ask(passes).side is False
        return replace(found, verified=holds)


# Releases that are asked once more before it is told what they answer: a failure that comes and goes misleads once.
#
# Who fails once, fails: a pass is chance if the failure shows in some runs only. So what was taken for a pass while
# the failure was taken for a steady one, or before it was met, is asked as often as the measured rate wants, and both
# sides of each border are asked anew.

_PASSES_AT_A_BORDER = 3
"""Passes that the side without the failure must show once more: as many as it takes to call a failure steady."""


class Confirmation:
    """Asks releases of a row once more; what they say now goes into ``row`` and ``tried``."""

    def __init__(self, probe: ReleaseProbe, row: AnswerRow, tried: dict[int, TriedRelease]) -> None:
        self._probe, self._row, self._tried = probe, row, tried
        self._confirmed: dict[int, int] = {}

    def changes_something(self) -> bool:
        """Ask what is not sure; whether an answer is another one now, and the search has to go on."""
        probe, before = self._probe, dict(self._row.known)
        for place, tried in self._tried.items():  # some passed less often than it takes, by what is known now
            if tried.side is False and tried.runs < probe.needed:
                self._know(place, probe.pass_again(tried, probe.needed - tried.runs))
        if self._row.known != before:
            return True
        needed = probe.needed
        for place in (place for border in self._row.borders() for place in (border.before, border.after)):
            if self._is_confirmed(place):
                continue
            tried = self._tried[place]
            if tried.side:
                again = probe.fail_again(tried)
            else:
                again = probe.pass_again(tried, max(_PASSES_AT_A_BORDER, probe.needed))
            if again.side is tried.side:
                self._confirmed[place] = probe.needed
            self._know(place, again)
        return self._row.known != before or probe.needed != needed

    def holds(self, border: RowBorder) -> bool:
        """Whether both sides of a border have said the same again."""
        return all(self._is_confirmed(place) for place in (border.before, border.after))

    def _is_confirmed(self, place: int) -> bool:
        return self._confirmed.get(place, 0) >= self._probe.needed

    def _know(self, place: int, found: TriedRelease) -> None:
        """Keep an answer. Of a release that now says neither of both, nobody can tell."""
        before = self._tried[place]
        if found.side is None and found.outcome is not Outcome.UNSTABLE:
            reason = f"first it {before.words}, then: {found.words}, {found.reason}"
            found = replace(found, outcome=Outcome.UNSTABLE, reason=reason)
        self._tried[place] = found
        self._row.known[place] = found.side
        if found.side is not before.side:
            self._probe.tell(found)


# Where the notes of a release stand.

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
"""Distribution -> the address of the notes of a release."""

_OF_ANY = "https://pypi.org/project/{name}/{version}/"


def notes_of(package: str, version: str) -> str:
    """The address of the notes of a release; its page at the package index where nobody knows of any."""
    name = normalized(package)
    return _NOTES.get(name, _OF_ANY).format(name=name, version=version)
