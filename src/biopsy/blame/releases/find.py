"""Which release of a package broke a model, and which one mended it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from biopsy import errors, events
from biopsy.blame.releases.confirmation import Confirmation
from biopsy.blame.releases.environments_ahead import EnvironmentsAhead
from biopsy.blame.releases.findings import ReleaseBorder, ReleaseFindings, TriedRelease
from biopsy.blame.releases.notes import notes_of
from biopsy.blame.releases.probe import STAGE, ReleaseProbe, ReleaseQuestion
from biopsy.blame.releases.release_check import PYTHON_PLACE
from biopsy.blame.releases.runs import ReleaseRuns, RunsHere
from biopsy.blame.releases.span import ReleaseSpan
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Outcome
from biopsy.environments.releases import Release
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


@dataclass(frozen=True, kw_only=True)
class ReleaseSearchOptions:
    """How a search for a release is done.

    ``every``: all releases are asked. ``jobs`` environments are made at once on this machine; checks run one at a time
    here. ``whole`` is the question about the whole model, by which the borders are verified, if the search is with a
    piece of it. ``allow_vacuous``: a check that also fails on a model of one Identity node is accepted.
    """

    every: bool = False
    jobs: int = 1
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
        self._ahead: EnvironmentsAhead | None = None

    def run(self) -> ReleaseFindings:
        """Search to the end.

        Raises OriginalPasses if the failure is there in no release that was tried; CheckError if the check cannot be
        run, or if nobody can tell whether it uses the releases; CannotInstall if this machine can install nothing.
        What is known by then is in ``found``.
        """
        started = time.monotonic()
        with self._environments():
            drive(self._search(self._row), self._answered)
            while self._confirmation.changes_something():
                drive(self._search(self._row), self._answered)
        self._require_an_answer()
        self._require_a_check_that_may_pass()
        self._borders = tuple(self._verified(border) for border in self._row.borders())
        self._require_a_border_that_holds()
        self._doubt = self._blamed_on_the_yardstick()
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
            failed=probe.rate.failed,
            runs=probe.rate.runs,
            tried=tuple(tried for _, tried in sorted(self._tried.items())),
            borders=self._borders or tuple(self._border(border.before, border.after) for border in self._row.borders()),
            checks=(self._verifying or probe).checks,
            yardstick=check.yardstick,
            doubt=self._doubt,
        )

    # Asking

    @contextmanager
    def _environments(self) -> Iterator[None]:
        """Have environments made ahead, if several may be made at once."""
        if self._options.jobs > 1 and isinstance(self._runs, RunsHere):
            self._ahead = EnvironmentsAhead(self._probe.question.check, self._runs.preparing, self._options.jobs)
        try:
            yield
        finally:
            if self._ahead is not None:
                self._ahead.close()
            self._ahead = None

    def _search(self, row: AnswerRow) -> Asking[None]:
        if self._options.every:
            return all_changes(row, self._span.start)
        if self._span.end is not None:
            return change_between(row, self._span.start, self._span.end)
        return changes_around(row, self._span.start)

    def _answered(self, round_: Iterable[int]) -> Mapping[int, Side]:
        places = list(round_)
        if self._ahead is not None:
            self._ahead.make(self._releases([*places, *self._likely_next(places, 2)]))
        elif self._runs.ahead > 1:
            self._probe.foresee(self._releases([*places, *self._likely_next(places, self._runs.ahead)]))
        return {place: self._asked(place) for place in places}

    def _releases(self, places: Iterable[int]) -> list[Release]:
        return [self._span.releases[place] for place in dict.fromkeys(places)]

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
        release = self._span.releases[place]
        if self._ahead is not None:
            self._ahead.wait_for(release)
        tried = self._probe.ask(release)
        first = not self._tried
        self._tried[place] = tried
        if first and tried.outcome is Outcome.INFRASTRUCTURE and tried.obstacle is None:
            raise self._cannot_run(tried)
        return tried.side

    def _cannot_run(self, tried: TriedRelease) -> errors.CheckError:
        named = f"{self._probe.question.check.package} {tried.release.version}"
        return errors.CheckError(
            f"the check could not be run with {named}: {tried.reason}",
            next_steps=[f"run it by hand: {self._line(tried.release)}"],
        )

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
        reason = self._probe.fails_without_it(self._failing)
        if reason:
            raise errors.VacuousCheck(
                f"every release tried fails, and so does an interpreter in which {self.found.package} is not installed "
                f"({reason}): the check may use none of them",
                next_steps=[
                    f"look at what it imports, and from where: {self._line(self._failing)}",
                    "--allow-vacuous-check    if it fails in the same way whatever goes wrong",
                ],
            )
        reason = self._probe.fails_on_anything(self._failing)
        if reason:
            raise errors.VacuousCheck(
                f"every release tried fails, and so does a model of one Identity node ({reason}): the check may fail "
                "on anything",
                next_steps=[
                    f"look at what it prints: {self._line(self._failing)}",
                    "--allow-vacuous-check    if it must fail on any other model",
                ],
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

    def _require_a_border_that_holds(self) -> None:
        """Raise CheckError if there are borders, and none is confirmed."""
        if self._borders and not any(border.verified for border in self._borders):
            of_whole = "" if self._options.whole is None else ": the whole model answers otherwise than the piece"
            raise errors.CheckError(
                f"no change between releases was confirmed when it was asked again{of_whole}",
                details=[f"seen once: {border.text}" for border in self._borders],
                next_steps=["--all    asks every release"] if self._options.whole is None else ["leave out --reduce"],
            )

    def _blamed_on_the_yardstick(self) -> str:
        """What float64 says against the answer: that what fails is right, and what it is compared with is not."""
        failing = self._failing
        if not self._probe.is_right_by_float64(failing):
            return ""
        name = f"{self._probe.question.check.package} {failing.version}"
        return f"float64 says that {name} errs by no more than rounding: what it is compared with is what is wrong"
