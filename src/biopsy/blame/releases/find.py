"""Which release of a package broke a model, and which one mended it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from biopsy import errors, events
from biopsy.blame.releases.findings import ReleaseBorder, ReleaseFindings, TriedRelease
from biopsy.blame.releases.notes import notes_of
from biopsy.blame.releases.probe import STAGE, Preparing, ReleaseProbe, ReleaseQuestion, installed
from biopsy.blame.releases.release_check import PYTHON_PLACE
from biopsy.blame.releases.span import ReleaseSpan
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Outcome
from biopsy.environments.releases import Release
from biopsy.search.borders import AnswerRow, Asking, Side, all_changes, change_between, changes_around, first_that_holds
from biopsy.search.drive import drive


class ReleaseSearch:
    """A search for the releases between which the answer of a check changes.

    ``every``: all releases are asked. ``jobs`` environments are made at once; checks run one at a time. ``whole`` is
    the question about the whole model, by which the borders are verified, if the search is with a piece of it.
    """

    def __init__(
        self,
        question: ReleaseQuestion,
        span: ReleaseSpan,
        listener: events.Listener = events.ignore,
        *,
        every: bool = False,
        jobs: int = 1,
        whole: ReleaseQuestion | None = None,
        preparing: Preparing = installed,
    ) -> None:
        self._span = span
        self._listener, self._preparing = listener, preparing
        self._every, self._jobs, self._whole = every, jobs, whole
        self._probe = ReleaseProbe(question, listener, preparing)
        self._row = AnswerRow(len(span.releases))
        self._tried: dict[int, TriedRelease] = {}
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
        drive(self._search(), self._answered)
        self._require_an_answer()
        self._borders = tuple(self._border(border.before, border.after) for border in self._row.borders())
        self._borders = tuple(self._verified(border) for border in self._borders)
        self._doubt = self._blamed_on_the_yardstick()
        found = self.found
        self._listener(events.StageDone(stage=STAGE, checks=found.checks, seconds=time.monotonic() - started))
        return found

    def failing(self) -> Release:
        """The first release that fails, of those that a search for changes asks. Raises as ``run`` does."""
        row = self._row
        drive(first_that_holds(row, self._span.start, self._span.end), self._answered)
        self._require_an_answer()
        return next(self._span.releases[place] for place in self._tried if row.known[place])

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

    def _search(self) -> Asking[None]:
        if self._every:
            return all_changes(self._row, self._span.start)
        if self._span.end is not None:
            return change_between(self._row, self._span.start, self._span.end)
        return changes_around(self._row, self._span.start)

    def _answered(self, round_: Iterable[int]) -> Mapping[int, Side]:
        places = list(round_)
        self._make_environments([self._span.releases[place] for place in places])
        return {place: self._asked(place) for place in places}

    def _asked(self, place: int) -> Side:
        tried = self._probe.ask(self._span.releases[place])
        first = not self._tried
        self._tried[place] = tried
        if first and tried.outcome is Outcome.INFRASTRUCTURE and tried.obstacle is None:
            raise self._cannot_run(tried)
        return tried.side

    def _make_environments(self, releases: Sequence[Release]) -> None:
        """Make several at once; what hinders that is told by who asks for them."""
        if self._jobs < 2 or len(releases) < 2:
            return
        pool = ThreadPoolExecutor(min(self._jobs, len(releases)))
        try:
            list(pool.map(self._make_environment, releases))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _make_environment(self, release: Release) -> None:
        with suppress(errors.CannotInstall), self._preparing(self._probe.question.check, release, events.ignore):
            return

    def _cannot_run(self, tried: TriedRelease) -> errors.CheckError:
        named = f"{self._probe.question.check.package} {tried.release.version}"
        return errors.CheckError(
            f"the check could not be run with {named}: {tried.reason}",
            next_steps=[f"run it by hand: {self._line(tried.release)}"],
        )

    def _line(self, release: Release) -> str:
        question = self._probe.question
        words = question.check.words_of(release.version, PYTHON_PLACE)
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

    def _border(self, before: int, after: int) -> ReleaseBorder:
        releases = self._span.releases
        return ReleaseBorder(
            before=releases[before],
            after=releases[after],
            broke=self._row.known[after] is True,
            untold=tuple(self._tried[place] for place in range(before + 1, after)),
            notes=notes_of(self._probe.question.check.package, releases[after].version),
        )

    def _verified(self, border: ReleaseBorder) -> ReleaseBorder:
        """The border, asked once more on both sides: with the original, if the search was with a piece of it."""
        if self._verifying is None:
            self._verifying = self._probe.again(self._whole)
        fails, passes = (border.after, border.before) if border.broke else (border.before, border.after)
        holds = self._verifying.ask(fails).side is True and self._verifying.ask(passes).side is False
        return replace(border, verified=holds)

    def _blamed_on_the_yardstick(self) -> str:
        """What float64 says against the answer: that what fails is right, and what it is compared with is not."""
        failing = [one.release for one in self._tried.values() if one.side]
        if not failing or not self._probe.is_right_by_float64(failing[-1]):
            return ""
        name = f"{self._probe.question.check.package} {failing[-1].version}"
        return f"float64 says that {name} errs by no more than rounding: what it is compared with is what is wrong"
