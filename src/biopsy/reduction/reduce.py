"""A reduction as a search with a check: passes run, and the smallest candidate that reproduces is written and must
fail as the original does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Judged, Outcome
from biopsy.comparison.mismatch import ErrorSize, error_size
from biopsy.model.index import index_bytes
from biopsy.model.sources import sources_of
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.driver import Driver
from biopsy.reduction.passes.contract import NamedModelPass, NamedPass, PassContext
from biopsy.reduction.preflight import doubt, last_words, preflight
from biopsy.reduction.recorded_values import Feeding, Vouching
from biopsy.reduction.result import Reduction, Target, reads_of
from biopsy.reduction.schedule import Schedule
from biopsy.session.checked_search import trials_of_file
from biopsy.session.flakiness import Flakiness, require_confirmed
from biopsy.session.oracle import SearchInDoubtError
from biopsy.session.result_file import ResultFile, make_room, write_result
from biopsy.session.trial import CONFIRM, FINAL, ORIGINAL, Trial


class ReductionTask:
    """What a search with a check is told of a reduction: the driver's problem, and where the result goes.

    ``allow_vacuous``: it goes on where the check fails on anything.
    """

    def __init__(
        self,
        driver: Driver,
        context: PassContext,
        schedule: Schedule,
        *,
        target: Target,
        flakiness: Flakiness,
        feeding: Feeding,
        vouching: Vouching,
        allow_vacuous: bool,
    ) -> None:
        self._driver = driver
        self._context = context
        self._schedule = schedule
        self._target = target
        self._flakiness = flakiness
        self._feeding = feeding
        self._vouching = vouching
        self._allow_vacuous = allow_vacuous
        self._is_saved = False  # whether a result of this search stands on disk
        self._original: tuple[Judged | None, ErrorSize | None] = (None, None)
        self._verification = Verification()
        paths = (path for path in target.files if path not in target.streams)
        self.result = ResultFile(paths, self.write, driver.listener)

    @property
    def has_result(self) -> bool:
        """Whether the original is known to fail."""
        return self._driver.best is not None

    @property
    def is_worth_resuming(self) -> bool:
        """Whether any candidate was answered."""
        return bool(self._driver.passing) or self._driver.is_smaller

    @property
    def progress(self) -> str:
        """How many nodes are left."""
        driver = self._driver
        if driver.best is None:
            return "before the original was checked; nothing was written"
        if not driver.is_smaller:
            return "no node was removed yet"
        return f"{driver.left} of {len(driver.problem.index.nodes)} nodes are left so far"

    def preflight(self) -> None:
        """Check the original, which must fail, and a model of one Identity node, which must not."""
        beside = not self._feeding.is_wanted  # then another check is asked from the beginning of the search on
        self._original = preflight(self._driver, self._flakiness, allow_vacuous=self._allow_vacuous, beside=beside)

    def begin(self) -> None:
        """Have candidates fed with recorded values, where the check can be."""
        self._feeding.begin()

    def search(self) -> bool:
        """Run all passes once; False if that must be done again, knowing more."""
        driver = self._driver
        with driver.oracle.budget.enforced():
            assert driver.best is not None
            self._vouching.begin()
            try:
                left = driver.best
                for named in self._schedule.once:
                    left = self._run_pass(named, left)
                before = None
                while self._schedule.repeated and left != before and left.size > 1:
                    before = left
                    for named in self._schedule.repeated:
                        left = self._run_pass(named, left)
                self._driver.oracle.abandon_all()  # what was begun for a pass that does not follow
                driver.best = left
                driver.oracle.beside.settle()
            except SearchInDoubtError as doubt:
                self._begin_anew(doubt)
                return False
            if not self._vouching.holds():
                return False
            if not self._flakiness.holds(driver.best_trial(CONFIRM, "the smallest so far once more")):
                driver.doubt()
                return False
            self._refine(self._schedule.afterwards)
            self._require_confirmed()
        return True

    def undo(self, digest: bytes | None) -> bool:
        """Begin again from the original; True if its own answer was taken back."""
        driver = self._driver
        if digest is not None:
            driver.forget(digest)
        if driver.best is not None:
            driver.start_over()
        return digest == driver.original(ORIGINAL, "").digest

    def write(self) -> None:
        """Write the smallest model, and the passing one closest in size if that was asked for."""
        driver, target = self._driver, self._target
        try:
            driver.oracle.beside.settle()  # a limit may have ended the search before
        except SearchInDoubtError as doubt:
            self._begin_anew(doubt)
        self._vouching.settle()
        self._write_model(driver.best_parts(), target.output, target.external)
        if target.min_good is not None:
            assert driver.best is not None
            size = driver.best.size
            # The passing candidate closest in size; of several, the one met last.
            passing = min(reversed(driver.passing), key=lambda candidate: abs(candidate.size - size), default=None)
            if passing is None:
                driver.listener(events.Remark(f"no passing model was met, so {target.min_good} was not written"))
            else:
                self._write_model(driver.parts(passing), target.min_good, None)

    def rescue(self) -> str | None:
        """Write the smallest model so far, unless it is the original; returns what to tell of it."""
        driver, output = self._driver, self._target.output
        if self._vouching.is_open:
            self._vouching.go_back()
        if not driver.is_smaller or not driver.oracle.beside.is_settled:
            return None
        try:
            self._write_model(driver.best_parts(), output, self._target.external)
        except (errors.BiopsyError, OSError):
            is_ours = self._is_saved and output.exists()
            return f"{output}, an earlier result that fails in the same way" if is_ours else None
        try:
            self._feeding.settle(driver.best_parts(), output)
        except (errors.BiopsyError, OSError) as error:
            inputs = f" with recorded values as inputs, which could not be written: {error}"
        else:
            inputs = "" if self._feeding.inputs is None else f" with the inputs {self._feeding.inputs}"
        return f"{output}, which fails in the same way{inputs}"

    def verify(self) -> bool:
        """The file as it was written must fail in the same way. True if the search must be run again."""
        driver, output = self._driver, self._target.output
        if not driver.check.automatic:
            return False
        self._feeding.settle(driver.best_parts(), output)
        driver.oracle.pool.use(driver.check.cold())
        final = driver.best_trial(FINAL, f"the result {output}")
        with trials_of_file(output, final, driver.check, self.result.restore) as fresh:
            self._verification = verified(driver, output, self._flakiness, fresh, self.result.restore)
        tries = self._verification.tries
        confirm = driver.best_trial(CONFIRM, "the result once more")
        if driver.left == 1 or not self._flakiness.noticed_late(confirm, tries):
            return False  # a single node needs no proof that all of it is needed
        driver.doubt()
        return True

    def reduction(self, seconds: float, stopped: str | None) -> Reduction:
        """What was found, once the search has ended."""
        driver, tally = self._driver, self._driver.oracle.tally
        assert driver.best is not None
        others = tally.other_failures
        judged, error = self._original
        left = index_bytes(b"".join(driver.best_parts()))
        return Reduction(
            output=self._target.output,
            nodes_before=len(driver.problem.index.nodes),
            nodes=driver.labels(),
            kept=driver.best.nodes,
            signature=str(driver.reference),
            outcomes={outcome.value: tally.outcomes[outcome] for outcome in Outcome if tally.outcomes[outcome]},
            other_failures={reason: failure.times for reason, failure in others.items()},
            seconds=seconds,
            min_good=self._target.min_good if driver.passing else None,
            other_models={reason: other.model for reason, other in others.items() if other.model is not None},
            remembered=tally.remembered,
            stopped=stopped,
            last_words=self._verification.last_words,
            reads=reads_of(left),
            sources=sources_of(left, None if self._schedule.hides_origins else driver.problem.index),
            error_before=error,
            error_after=self._verification.error,
            judged_before=judged,
            judged_after=self._verification.judged,
            inputs=self._feeding.inputs,
            failure=driver.reference,
            values_free=self._context.are_values_free,
            cannot_say=dict(tally.cannot_say),
        )

    # The passes

    def _begin_anew(self, doubt: SearchInDoubtError) -> None:
        """Go back to the original, as if what makes the search doubtful had been known before it began."""
        self._driver.oracle.abandon_all()
        self._driver.start_over()
        self._driver.doubt()
        doubt.remedy()

    def _run_pass(self, named: NamedPass, left: Candidate) -> Candidate:
        then = self._schedule.foreseeable_after(named)
        smaller = self._driver.search(named, left, self._context, then)
        if smaller is not left:
            self._vouching.found(smaller)
            index, output = self._driver.problem.index, self._target.output
            in_place = index.path is not None and output.resolve() == index.path.resolve()
            # The best so far is on disk, in case that there is no room later; not where that costs copying weights.
            if not (index.has_external_data or in_place or self._vouching.is_open):
                with contextlib.suppress(errors.UsageError):  # the last one is written all the same, and tells
                    self._write_model(self._driver.best_parts(), output, self._target.external)
        return smaller

    def _refine(self, passes: Sequence[NamedModelPass]) -> None:
        """Run the passes over the model itself, again and again until none changes it; then what they could not do.

        They work on protobuf objects, which cannot hold every model that bytes can.
        """
        driver = self._driver
        try:
            driver.best_model()
        except errors.ModelError as error:
            driver.listener(events.Remark(f"only nodes were tried to be removed: {error.summary}"))
            return
        while passes:
            before = driver.refined
            for named in passes:
                driver.refine(named, self._context)
            if driver.refined is before:
                break
        for text in dict.fromkeys(text for named in passes for text in named.remarks(driver.best_model())):
            driver.listener(events.Remark(text))

    def _require_confirmed(self) -> None:
        driver, output = self._driver, self._target.output
        trial = driver.best_trial(CONFIRM, "the result: so far only the journal says that it fails")
        try:
            kept = f"{output}, not confirmed to fail" if self._is_saved else "the journal, as it is"
            require_confirmed(driver.oracle, trial, Outcome.REPRODUCES, "the result fails", kept)
        except errors.CheckError:
            driver.start_over()
            raise

    # What is written

    def _write_model(self, parts: Sequence[bytes], path: Path, external: str | None) -> None:
        if path not in self._target.streams:
            make_room(path)
        folder = self._driver.workspace.candidate.parent
        write_result(parts, path, folder, external, self._driver.problem.index.has_external_data)
        self._is_saved = True


# The last word on a reduction: the file as it was written must fail as the original does, and as often.


@dataclass(frozen=True)
class Verification:
    """What the last check has shown: in how many runs the result failed once, its error, and how it was judged.

    ``last_words`` are what the original and the result say at their end where these tell of different failures.
    """

    tries: int = 0
    error: ErrorSize | None = None
    last_words: tuple[str, str] | None = None
    judged: Judged | None = None


def verified(
    driver: Driver, output: Path, flakiness: Flakiness, fresh: Callable[[], Trial], restore: Callable[[], None]
) -> Verification:
    """Check the result, of which ``fresh`` makes a trial, in processes of its own.

    Raises CheckError if it does not fail, or more rarely than the original; ``restore`` has written it again by then.
    """
    judged, tries = flakiness.failure(fresh)
    rates = None
    if judged.outcome is Outcome.REPRODUCES and tries > 1:
        rates = flakiness.rarer(fresh, tries, driver.original(FINAL, "the original once more"))
    if rates is not None:
        restore()
        rate, rate_of_original = rates
        raise errors.CheckError(
            f"the original failed in {rate_of_original} runs, the result only in {rate}: perhaps it is another failure"
            " that looks the same",
            kept=f"{output}, which fails now and then",
            next_steps=[
                driver.check.line(output),
                "if it is the same failure: --repeat 10, which takes a candidate that fails in one of ten runs",
                "if not: --fail-regex or --match message, so that the check tells them apart",
            ],
        )
    if judged.outcome is not Outcome.REPRODUCES:
        restore()
        raise errors.CheckError(
            f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}"
            f"{f', in {tries} runs' if tries > 1 else ''}): the check does not always say the same",
            kept=f"{output}, which failed once",
            next_steps=[driver.check.line(output)],
        )
    verdict = judged.evidence.verdict
    driver.listener(events.Verified(str(output), 1, tries, judged.evidence.machine))
    assert driver.reference is not None
    result = signature_of(judged.evidence)
    words = last_words(driver.reference, result, driver.oracle.failure.rules)
    if words is not None:
        text, *lines = doubt(driver.reference, result)
        driver.listener(events.Remark(text, warning=True, lines=tuple(lines)))
    return Verification(tries, error_size(verdict.mismatches, verdict.rounding), words, judged)
