"""A whole reduction: the original is checked, passes run, the best candidate is written and checked again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.interactive import UndoError
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature, signature_of
from biopsy.checks.task import copies
from biopsy.comparison.mismatch import error_size
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.change import NamedModelPass
from biopsy.reduction.driver import Driver
from biopsy.reduction.last_words import doubt, last_words
from biopsy.reduction.named_pass import NamedPass
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.preflight import preflight
from biopsy.reduction.result import Reduction, Target, reads_of, write_result
from biopsy.reduction.result_file import ResultFile, make_room
from biopsy.reduction.schedule import Schedule
from biopsy.session.flakiness import Flakiness
from biopsy.session.trials import BudgetSpentError, Trial


def reduce_problem(
    driver: Driver, context: PassContext, schedule: Schedule, target: Target, flakiness: Flakiness
) -> Reduction:
    """Reduce the driver's problem and write the result.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run, fails on anything
    (unless the driver allows that), or the result written does not fail when it is checked again, Interrupted if it is
    stopped; what was found by then is written.
    """
    started = time.monotonic()
    result = ResultFile(target, lambda: _write(driver, target), driver.listener)
    try:
        stopped = _until_spent(driver, lambda: _preflight(driver, flakiness))
        if stopped is None:
            driver.feeding.begin()
        stopped = stopped or _search(driver, context, schedule, target, flakiness)
        result.write()
        if _flaky_after_all(driver, target.output, result, flakiness):
            driver.feeding.begin()
            stopped = _search(driver, context, schedule, target, flakiness)
            result.write()
            _flaky_after_all(driver, target.output, result, flakiness)
    except (KeyboardInterrupt, errors.Interrupted) as stop:
        raise errors.Interrupted(_left(driver), kept=_rescue(driver, target)) from stop
    finally:
        driver.trials.close()
    result.restore()
    return _reduction(driver, target, time.monotonic() - started, stopped)


def _preflight(driver: Driver, flakiness: Flakiness) -> None:
    """The preflight, again if the person who is asked takes an answer back in it."""
    while True:
        try:
            return preflight(driver, flakiness)
        except UndoError:
            driver.take_back()


def _until_spent(driver: Driver, work: Callable[[], None]) -> str | None:
    """Do something; returns which limit ended it, if one did."""
    try:
        work()
    except BudgetSpentError as spent:
        driver.listener(events.Stopped(str(spent)))
        return str(spent)
    finally:
        driver.trials.limited = False
    return None


def _search(
    driver: Driver, context: PassContext, schedule: Schedule, target: Target, flakiness: Flakiness
) -> str | None:
    """Run the passes from the best so far, and return what stopped them before their end, if anything did.

    When a check cannot be run any more, the best so far is written.
    """

    def search() -> None:
        driver.trials.limited = True
        while not _searched(driver, context, schedule, target, flakiness):
            pass

    try:
        return _until_spent(driver, search)
    except (errors.CheckError, errors.UsageError, errors.ModelError, OSError) as error:
        kept = _rescue(driver, target) or getattr(error, "kept", None)
        if isinstance(error, errors.BiopsyError):
            raise type(error)(error.summary, details=error.details, kept=kept, next_steps=error.next_steps) from error
        raise errors.CheckError(str(error), kept=kept) from error


def _searched(driver: Driver, context: PassContext, schedule: Schedule, target: Target, flakiness: Flakiness) -> bool:
    """Run all passes once; False if that must be done again, knowing more."""
    assert driver.best is not None
    try:
        driver.best = _run_schedule(driver, context, schedule, target, driver.best)
        if not flakiness.holds(driver.best_trial("confirm", "the smallest so far once more")):
            driver.doubt()
            return False
        _refine(driver, context, schedule.afterwards)
        _require_confirmed(driver, target.output)
    except UndoError:  # the search is run again, with every other answer remembered
        if driver.take_back() == driver.original("", "").digest:
            _preflight(driver, flakiness)
        driver.best, driver.refined = driver.problem.whole, None
        return False
    return True


def _require_confirmed(driver: Driver, output: Path) -> None:
    """Ask a person about a result that only a journal says they have seen fail: anybody may have written that.

    Raises CheckError if it does not fail. Other checks are asked about every result, once it is written.
    """
    trial = driver.best_trial("confirm", "the result: so far only the journal says that it fails")
    if driver.check.automatic or driver.trials.was_asked(trial):
        return
    judged = driver.trials.again(trial)
    if judged.outcome is not Outcome.REPRODUCES:
        from biopsy.checks.journal import FRESH

        driver.best, driver.refined = driver.problem.whole, None
        raise errors.CheckError(
            f"the journal says that the result fails, and you do not ({judged.outcome.value})",
            kept=f"{output}, of which nobody knows whether it fails" if driver.saved else "the journal, as it is",
            next_steps=[FRESH],
        )


def _run_schedule(
    driver: Driver, context: PassContext, schedule: Schedule, target: Target, left: Candidate
) -> Candidate:
    for named in schedule.once:
        left = _run_pass(driver, context, named, target, left)
    before = None
    while schedule.repeated and left != before and left.size > 1:
        before = left
        for named in schedule.repeated:
            left = _run_pass(driver, context, named, target, left)
    return left


def _run_pass(driver: Driver, context: PassContext, named: NamedPass, target: Target, left: Candidate) -> Candidate:
    found = driver.search(named, left, context)
    if found is not left:
        _save(driver, target)
    return found


def _save(driver: Driver, target: Target) -> None:
    """Have the best so far on disk, in case that there is no room later; not where that costs copying weights."""
    index = driver.problem.index
    in_place = index.path is not None and target.output.resolve() == index.path.resolve()
    if index.has_external_data or in_place:
        return
    with contextlib.suppress(errors.UsageError):  # the last one is written all the same, and tells
        _write_model(driver, driver.best_parts(), target, target.output, target.external)


def _refine(driver: Driver, context: PassContext, passes: Sequence[NamedModelPass]) -> None:
    """Run the passes over the model itself, again and again until none changes it; then what they could not do.

    They work on protobuf objects, which cannot hold every model that bytes can.
    """
    try:
        driver.best_model()
    except errors.ModelError as error:
        driver.listener(events.Remark(f"only nodes were tried to be removed: {error.summary}"))
        return
    while passes:
        before = driver.refined
        for named in passes:
            driver.refine(named, context)
        if driver.refined is before:
            break
    for text in dict.fromkeys(text for named in passes for text in named.remarks(driver.best_model())):
        driver.listener(events.Remark(text))


def _write(driver: Driver, target: Target) -> None:
    assert driver.best is not None
    _write_model(driver, driver.best_parts(), target, target.output, target.external)
    passing = closest_passing(driver.passing, driver.best)
    if target.min_good is not None:
        if passing is None:
            driver.listener(events.Remark(f"no passing model was met, so {target.min_good} was not written"))
        else:
            _write_model(driver, driver.parts(passing), target, target.min_good, None)


def _write_model(driver: Driver, parts: Sequence[bytes], target: Target, path: Path, external: str | None) -> None:
    if path not in target.streams:
        make_room(path)
    folder = driver.workspace.candidate.parent
    write_result(parts, path, folder, external, driver.problem.index.has_external_data)
    driver.saved = True


def closest_passing(passing: list[Candidate], best: Candidate) -> Candidate | None:
    """The passing candidate closest in size to the result; of several, the one met last."""
    return min(reversed(passing), key=lambda candidate: abs(candidate.size - best.size), default=None)


def _flaky_after_all(driver: Driver, output: Path, result: ResultFile, flakiness: Flakiness) -> bool:
    """The last word: the file as it was written must fail in the same way. True if the search must be run again."""
    assert driver.best is not None
    if not driver.check.automatic:
        return False
    driver.inputs = driver.feeding.settle(driver.best_parts(), output)
    driver.trials.use(driver.check.cold())
    with _trials(driver, output, result) as fresh:
        judged, tries = flakiness.failure(fresh)
        rates = None
        if judged.outcome is Outcome.REPRODUCES and tries > 1:
            rates = flakiness.rarer(fresh, tries, driver.original("final", "the original once more"))
    if rates is not None:
        result.restore()
        raise _rarer(driver, output, *rates)
    if judged.outcome is not Outcome.REPRODUCES:
        result.restore()
        raise _not_verified(driver, output, judged, tries)
    said = judged.evidence.verdict
    driver.error_after = error_size(said.mismatches, said.rounding)
    driver.listener(events.Verified(str(output), 1, tries))
    _compare_last_words(driver, signature_of(judged.evidence))
    if driver.left == 1 or not flakiness.noticed_late(driver.best_trial("confirm", "the result once more"), tries):
        return False  # a single node needs no proof that all of it is needed
    driver.doubt()
    return True


def _compare_last_words(driver: Driver, result: Signature) -> None:
    assert driver.reference is not None
    driver.last_words = last_words(driver.reference, result, driver.trials.rules)
    if driver.last_words is not None:
        text, *lines = doubt(driver.reference, result)
        driver.listener(events.Remark(text, warning=True, lines=tuple(lines)))


def _rarer(driver: Driver, output: Path, shown: str, original: str) -> errors.CheckError:
    return errors.CheckError(
        f"the original failed in {original} runs, the result only in {shown}: perhaps it is another failure that looks "
        "the same",
        kept=f"{output}, which fails now and then",
        next_steps=[
            driver.check.line(output),
            "if it is the same failure: --repeat 10, which takes a candidate that fails in one of ten runs",
            "if not: --fail-regex or --match message, so that the check tells them apart",
        ],
    )


def _not_verified(driver: Driver, output: Path, judged: Judged, tries: int) -> errors.CheckError:
    return errors.CheckError(
        f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}"
        f"{f', in {tries} runs' if tries > 1 else ''}): the check does not always say the same",
        kept=f"{output}, which failed once",
        next_steps=[driver.check.line(output)],
    )


@contextlib.contextmanager
def _trials(driver: Driver, output: Path, result: ResultFile) -> Iterator[Callable[[], Trial]]:
    """Trials of copies of the file, beside it so that they find its weights: a check may change what it is given.

    A check that knows by itself where candidates stand is given the same model there.
    """
    description = f"the result {output}"
    if not driver.check.names_candidate or not output.is_file():
        yield lambda: driver.best_trial("final", description)
        return
    with copies(output) as fresh:

        def trial() -> Trial:
            result.restore()
            return replace(driver.best_trial("final", description), place=fresh())

        yield trial


def _left(driver: Driver) -> str:
    if driver.best is None:
        return "before the original was checked; nothing was written"
    if not driver.is_smaller:
        return "no node was removed yet"
    return f"{driver.left} of {len(driver.problem.index.nodes)} nodes are left so far"


def _rescue(driver: Driver, target: Target) -> str | None:
    """Write the best candidate so far; returns what to tell of it."""
    if not driver.is_smaller:
        return None
    try:
        _write_model(driver, driver.best_parts(), target, target.output, target.external)
    except (errors.BiopsyError, OSError):
        is_ours = driver.saved and target.output.exists()
        return f"{target.output}, an earlier result that fails in the same way" if is_ours else None
    return f"{target.output}, which fails in the same way{_inputs_rescued(driver, target)}"


def _inputs_rescued(driver: Driver, target: Target) -> str:
    """Leave the recorded values that the result is fed beside it; returns what to tell of them."""
    try:
        driver.inputs = driver.feeding.settle(driver.best_parts(), target.output)
    except (errors.BiopsyError, OSError) as error:
        return f" with recorded values as inputs, which could not be written: {error}"
    return "" if driver.inputs is None else f" with the inputs {driver.inputs}"


def _reduction(driver: Driver, target: Target, seconds: float, stopped: str | None) -> Reduction:
    assert driver.best is not None
    index, tally = driver.problem.index, driver.trials.tally
    passing = target.min_good if target.min_good is not None and driver.passing else None
    return Reduction(
        output=target.output,
        nodes_before=len(index.nodes),
        nodes=driver.labels(),
        kept=driver.best.nodes,
        signature=str(driver.reference),
        outcomes={outcome.value: count for outcome, count in tally.outcomes.items() if count},
        other_failures={reason: found.times for reason, found in tally.other_failures.items()},
        seconds=seconds,
        min_good=passing,
        other_models={reason: found.model for reason, found in tally.other_failures.items() if found.model is not None},
        remembered=tally.remembered,
        stopped=stopped,
        last_words=driver.last_words,
        reads=reads_of(driver.best_parts()),
        error_before=driver.error_before,
        error_after=driver.error_after,
        inputs=driver.inputs,
        cannot_say=dict(tally.cannot_say),
    )
