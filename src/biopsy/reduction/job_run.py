"""A job from its beginning to its end: workspace, driver, journal, result."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.artifacts import require_distinct
from biopsy.checks.outcome import Check
from biopsy.filesystem.privacy import as_private_as
from biopsy.filesystem.write import require_writable
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.index import ModelIndex
from biopsy.model.input_shapes import override_input_shapes
from biopsy.recording.cut_types import CutTypes
from biopsy.recording.random_samples import random_samples
from biopsy.recording.reference_run import Recording
from biopsy.reduction.driver import Driver
from biopsy.reduction.fault_localization import suspected
from biopsy.reduction.feeding import Feeding
from biopsy.reduction.job import Job
from biopsy.reduction.journal_identity import open_journal
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.reduction.reduce import reduce_problem
from biopsy.reduction.result import Reduction, write_result
from biopsy.reduction.schedule import Schedule, schedule_of
from biopsy.reduction.values import may_change_values
from biopsy.session.flakiness import Flakiness
from biopsy.session.iteration import write_inputs
from biopsy.session.trials import Trial, Trials
from biopsy.session.workspace import Workspace, sources, workspace

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal


def run_job(index: ModelIndex, check: Check, job: Job, listener: events.Listener = events.ignore) -> Reduction:
    """Reduce an indexed model. Raises what ``reduce_problem`` raises, and UsageError for a job that cannot be done."""
    for path in (job.target.output, job.target.min_good, job.resume.save):
        if path is not None:
            require_writable(path)
    require_distinct(job.files.artifacts.files, job.target.output)
    if job.selection.anonymize and job.target.min_good is not None:
        raise errors.UsageError(
            f"--anonymize cannot be had with --min-good: {job.target.min_good} would hold the original"
        )
    selection = replace(job.selection, keep_inputs=job.keep_inputs, keep_outputs=job.keep_outputs)
    schedule = schedule_of(job.mode, selection)
    override_input_shapes(index, job.input_shapes)
    listener(
        events.ModelRead(
            str(index.path or "model"),
            len(index.nodes),
            index.opset,
            len(index.fed_inputs()),
            len(index.outputs),
            index.weight_bytes,
        )
    )
    place = workspace(index, job.candidate, may_move=check.names_candidate and not job.files.artifacts.files)
    if place.remark is not None:
        listener(events.Remark(place.remark))
    with contextlib.ExitStack() as stack:
        stack.enter_context(as_private_as(sources(index)))
        stack.callback(_leave, place, listener)
        folder = stack.enter_context(temporary_folder("biopsy-"))
        driver = _driver(index, check, job, listener, place, folder)
        if check.stoppable:
            driver.trials.ahead(iter([driver.original("original", "the original model")]))
        try:
            journal = open_journal(index, check, job)  # while the original is checked
        except BaseException:
            driver.trials.close()
            raise
        if journal is None:
            return _reduce(driver, schedule, job)
        stack.callback(journal.close)
        return _remembered(driver, schedule, job, journal)


def _leave(place: Workspace, listener: events.Listener) -> None:
    told = place.leave()
    if told is not None:
        listener(events.Remark(told, warning=True))


def _remembered(driver: Driver, schedule: Schedule, job: Job, journal: Journal) -> Reduction:
    """Reduce with a journal. It stays if there is something to go on from.

    Not after the end: the same line typed again is a new question, for the engine may have been mended meanwhile.
    """
    driver.trials.journal = journal
    if journal.found:
        driver.listener(events.Resumed(str(journal.path), journal.found))
    finished = interrupted = False
    try:
        found = _reduce(driver, schedule, job)
        finished, interrupted = found.stopped is None, found.stopped is not None
        return found
    except errors.Interrupted as stop:
        interrupted = True
        kept = [*filter(None, [stop.kept]), *([_answers_in(journal)] if journal.count else [])]
        raise errors.Interrupted(stop.message, kept=", and ".join(kept) or None) from stop
    finally:
        try:
            job.resume.export(journal)
        finally:
            worth = journal.found or driver.passing or driver.is_smaller or (interrupted and journal.count)
            if finished or not worth:
                journal.remove()


def _answers_in(journal: Journal) -> str:
    return f"{journal.count} answer{'' if journal.count == 1 else 's'} in {journal.path}"


def _reduce(driver: Driver, schedule: Schedule, job: Job) -> Reduction:
    flakiness = Flakiness(driver.trials, job.repeating)
    context = PassContext(
        driver.problem,
        may_change_values=partial(may_change_values, driver, job.values, job.compares_recorded),
        suspects=tuple if job.ranking else partial(suspected, driver),
        ranking=job.ranking,
    )
    return reduce_problem(driver, context, schedule, job.target, flakiness)


def _driver(
    index: ModelIndex, check: Check, job: Job, listener: events.Listener, place: Workspace, folder: Path
) -> Driver:
    """The driver of a job; what is recorded goes into ``folder``."""
    recording = Recording(
        index,
        (lambda: random_samples(index)) if job.samples is None else job.samples,
        folder,
        listener,
        every_tensor=job.files.inputs is not None or job.cut == "constant" or job.types_by_running,
        made_up=job.samples is None,
        engines=job.record_with,
    )
    types = CutTypes(index, recording, infer=job.infer_types, recorded_first=job.types_by_running)
    problem = Problem(
        index,
        types,
        recording,
        cut=job.cut,
        keep_inputs=job.keep_inputs,
        keep_outputs=job.keep_outputs,
        mark_intermediate=job.mark_intermediate,
    )

    def keep_other(trial: Trial, number: int) -> Path | None:
        if job.keep_other is None:
            return None
        path = job.keep_other / f"other_failure_{number}.onnx"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.UsageError(f"cannot make the folder {path.parent}: {error.strerror or error}") from error
        write_result(trial.parts, path, place.candidate.parent, None, index.has_external_data)
        return path

    files = replace(job.files, write_inputs=lambda model, path: write_inputs(index, recording, model, path))
    trials = Trials(check, job.rules, place.candidate, listener, files, job.parallelism, job.budget, keep_other)
    trials.model = index.path
    driver = Driver(problem, trials, place, listener, Feeding(problem, trials, folder, wanted=job.feeds_recorded))
    driver.allow_vacuous = job.allow_vacuous_check
    return driver
