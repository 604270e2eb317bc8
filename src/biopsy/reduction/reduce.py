"""A whole reduction: the original is checked, passes run, the best candidate is written and checked again."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.model.write import cannot_write, require_writable
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.change import NamedModelPass
from biopsy.reduction.driver import Driver, RestartError
from biopsy.reduction.preflight import preflight
from biopsy.reduction.result import Reduction, Target, write_result
from biopsy.reduction.schedule import Schedule


def reduce_problem(driver: Driver, schedule: Schedule, target: Target) -> Reduction:
    """Reduce the driver's problem and write the result.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run or the result written
    does not fail when it is checked again, Interrupted if it is stopped; what was found by then is written.
    """
    started = time.monotonic()
    for path in (target.output, target.min_good):
        if path is not None:
            require_writable(path)
    try:
        preflight(driver)
        _search(driver, schedule, target)
        _write(driver, target)
        _check_written(driver, target.output)
    except (KeyboardInterrupt, errors.Interrupted) as stop:
        raise errors.Interrupted(_left(driver), kept=_rescue(driver, target)) from stop
    finally:
        driver.tidy()
    return _reduction(driver, target, time.monotonic() - started)


def _search(driver: Driver, schedule: Schedule, target: Target) -> None:
    """Run the passes from the whole model; when a check cannot be run any more, the best so far is written."""
    while True:
        try:
            left = _run_schedule(driver, schedule)
        except RestartError:
            driver.best, driver.refined = driver.problem.whole, None
            continue
        except errors.CheckError as error:
            kept = _rescue(driver, target) or error.kept
            raise errors.CheckError(error.message, kept=kept, next_steps=error.next_steps) from error
        driver.best = left
        return


def _run_schedule(driver: Driver, schedule: Schedule) -> Candidate:
    left = driver.problem.whole
    for named in schedule.once:
        left = driver.search(named, left)
    before = None
    while schedule.repeated and left != before and left.size > 1:
        before = left
        for named in schedule.repeated:
            left = driver.search(named, left)
    driver.best = left
    _refine(driver, schedule.afterwards)
    return left


def _refine(driver: Driver, passes: Sequence[NamedModelPass]) -> None:
    """Run the passes over the model itself, again and again until none changes it; then what they could not do."""
    while passes:
        before = driver.refined
        for named in passes:
            driver.refine(named)
        if driver.refined is before:
            break
    for named in passes:
        for text in named.remarks(driver.best_model()):
            driver.listener(events.Remark(text))


def _write(driver: Driver, target: Target) -> None:
    assert driver.best is not None
    _write_model(driver, driver.best_parts(), target.output, target.external)
    passing = closest_passing(driver.passing, driver.best)
    if target.min_good is not None:
        if passing is None:
            driver.listener(events.Remark(f"no passing model was met, so {target.min_good} was not written"))
        else:
            _write_model(driver, driver.parts(passing), target.min_good, None)


def _write_model(driver: Driver, parts: Sequence[bytes], path: Path, external: str | None) -> None:
    folder = driver.workspace.candidate.parent
    write_result(parts, path, folder, external, driver.problem.index.has_external_data)


def closest_passing(passing: list[Candidate], best: Candidate) -> Candidate | None:
    """The passing candidate closest in size to the result; of several, the one met last."""
    return min(reversed(passing), key=lambda candidate: abs(candidate.size - best.size), default=None)


def _check_written(driver: Driver, output: Path) -> None:
    """The last word: the file as it was written must fail in the same way."""
    assert driver.best is not None
    if not driver.check.automatic:
        return
    driver.check.close()
    driver.check = driver.check.cold()
    judged = _judge_copy(driver, output)
    if judged.outcome is not Outcome.REPRODUCES:
        raise errors.CheckError(
            f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}):"
            " the check does not always say the same",
            kept=f"{output}, which failed once",
            next_steps=[driver.check.line(output)],
        )
    driver.listener(events.Verified(str(output)))


def _judge_copy(driver: Driver, output: Path) -> Judged:
    """Check a copy of the file, beside it so that it finds its weights: a check may change or delete what it is given.

    A check that knows by itself where candidates stand is given the same model there.
    """
    if not driver.check.names_candidate or not output.is_file():
        return driver.check_bytes(driver.best_parts(), driver.left, "final", f"the result {output}")
    copy = output.with_name(f".{output.stem}.{os.getpid()}{output.suffix}")
    try:
        shutil.copyfile(output, copy)
        return driver.check_file(copy, driver.left, "final", f"the result {output}")
    except OSError as error:
        raise cannot_write(copy, error) from error
    finally:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)


def _left(driver: Driver) -> str:
    if driver.best is None:
        return "before the original was checked; nothing was written"
    return f"{driver.left} of {len(driver.problem.index.nodes)} nodes are left so far"


def _rescue(driver: Driver, target: Target) -> str | None:
    """Write the best candidate so far; returns what to tell of it."""
    if driver.best is None or driver.best == driver.problem.whole:
        return None
    _write_model(driver, driver.best_parts(), target.output, target.external)
    return f"{target.output}, which fails in the same way"


def _reduction(driver: Driver, target: Target, seconds: float) -> Reduction:
    assert driver.best is not None
    index = driver.problem.index
    passing = target.min_good if target.min_good is not None and driver.passing else None
    return Reduction(
        target.output,
        len(index.nodes),
        driver.labels(),
        driver.best.nodes,
        str(driver.reference),
        {outcome.value: count for outcome, count in driver.tally.outcomes.items() if count},
        dict(driver.tally.other_failures),
        seconds,
        passing,
    )
