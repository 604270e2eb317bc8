"""A reduction job from its beginning to its end: workspace, driver, journal, result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.artifacts import require_distinct
from biopsy.checks.outcome import Check
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
from biopsy.reduction.inputs_file import inputs_file
from biopsy.reduction.job import RecordingOptions, ReductionJob
from biopsy.reduction.pass_context import PassContext
from biopsy.reduction.problem import Problem
from biopsy.reduction.reduce import ReductionTask
from biopsy.reduction.result import Reduction
from biopsy.reduction.schedule import Schedule, schedule_of
from biopsy.reduction.values import FOUND_OUT, may_change_values
from biopsy.reduction.vouching import Vouching, compares_with_golden
from biopsy.session.checked_search import CheckedSearch
from biopsy.session.flakiness import Flakiness
from biopsy.session.iteration import write_inputs
from biopsy.session.journal_identity import JournalIdentity
from biopsy.session.setup import oracle_of, prepared, run_resumable
from biopsy.session.stage import ORIGINAL
from biopsy.tensors.results import Feed


def run_job(
    index: ModelIndex,
    check: Check,
    job: ReductionJob,
    listener: events.Listener = events.ignore,
    *,
    tells_values: bool = False,
) -> Reduction:
    """Reduce an indexed model and write the result.

    ``tells_values``: the result is to tell whether values may change, also where no pass wants to know.

    Raises OriginalPasses if the original does not fail, CheckError if the check cannot be run, fails on anything
    (unless the job allows that), or the result written does not fail when it is checked again, Interrupted if it is
    stopped, with the best result by then written, and UsageError for a job that cannot be done.
    """
    schedule = _schedule(job)
    if tells_values:
        schedule = replace(schedule, afterwards=(*schedule.afterwards, FOUND_OUT))
    opened = override_input_shapes(index, job.input_shapes)
    with prepared(index, check, job.search, listener) as place, temporary_folder("biopsy-") as folder:
        recording = _recording(index, opened, job, listener, folder)
        problem = _problem(index, recording, opened, job)
        files = replace(job.search.files, write_inputs=partial(_write_inputs, problem))
        oracle = oracle_of(index, check, job.search, place, listener, files=files)
        driver = Driver(problem, oracle, place)
        task = _task(driver, schedule, job, Feeding(driver.problem, oracle, folder, wanted=job.feeds_recorded))
        if check.stoppable:  # it is checked while the journal is read
            oracle.ahead(iter([driver.original(ORIGINAL, "the original model")]))
        search = CheckedSearch(task, oracle, task.result)
        stopped = run_resumable(search, _identity(index, check, job))
        return task.reduction(search.seconds, stopped)


def _schedule(job: ReductionJob) -> Schedule:
    """The passes to run. Raises UsageError for a job that cannot be done."""
    for path in (job.target.output, job.target.min_good, job.search.resume.save):
        if path is not None:
            require_writable(path)
    require_distinct(job.search.files.artifacts.files, job.target.output)
    if job.passes.anonymize and job.target.min_good is not None:
        raise errors.UsageError(
            f"--anonymize cannot be combined with --min-good: {job.target.min_good} would hold the original"
        )
    border = job.border
    return schedule_of(job.mode, job.passes, keep_inputs=border.keep_inputs, keep_outputs=border.keep_outputs)


def _samples(index: ModelIndex, options: RecordingOptions, listener: events.Listener) -> Callable[[], Sequence[Feed]]:
    """The samples to record with: random ones, or the given ones in the types of the model, which is told."""
    given = options.samples
    if given is None:
        return lambda: random_samples(index, options.draws)

    def samples() -> Sequence[Feed]:
        from biopsy.engines.casting import casts_told, in_declared_types

        feeds, changes = in_declared_types(given(), index.declared_type)
        if changes:
            listener(events.Remark(casts_told(changes), warning=True))
        return feeds

    return samples


def _recording(
    index: ModelIndex, opened: frozenset[int], job: ReductionJob, listener: events.Listener, folder: Path
) -> Recording:
    """Values of the original, recorded into ``folder`` once they are needed; ``opened`` are sizes that it tells."""
    options = job.recording
    fed = job.search.files.inputs is not None
    every_tensor = fed or job.border.cut == "constant" or options.types_by_running or bool(opened)
    return Recording(
        index,
        _samples(index, options, listener),
        folder,
        listener,
        every_tensor=every_tensor,
        made_up=options.samples is None,
        engines=options.engines,
        memory=options.memory,
    )


def _problem(index: ModelIndex, recording: Recording, opened: frozenset[int], job: ReductionJob) -> Problem:
    types = CutTypes(
        index,
        recording,
        infer=job.recording.infer_types,
        recorded_first=job.recording.types_by_running,
        opened=opened,
    )
    return Problem(
        index,
        types,
        recording,
        cut=job.border.cut,
        keep_inputs=job.border.keep_inputs,
        keep_outputs=job.border.keep_outputs,
        mark_intermediate=job.border.mark_intermediate,
    )


def _write_inputs(problem: Problem, model: bytes, path: Path) -> None:
    """Write what a candidate is to be fed; where the check has golden values, only what does not contradict them."""
    vouched = problem.is_vouched if problem.feeds_vouched_only else None
    write_inputs(problem.index, problem.recording, model, path, vouched)


def _task(driver: Driver, schedule: Schedule, job: ReductionJob, feeding: Feeding) -> ReductionTask:
    context = PassContext(
        driver.problem,
        may_change_values=partial(may_change_values, driver, job.values, job.command.compares_recorded),
        suspects=tuple if job.ranking else partial(suspected, driver),
        ranking=job.ranking,
        missed=driver.missed,
    )
    feeds = job.search.files.inputs is not None
    return ReductionTask(
        driver,
        context,
        schedule,
        target=job.target,
        flakiness=Flakiness(driver.oracle, job.search.repeating),
        feeding=feeding,
        vouching=Vouching(
            driver,
            context,
            partial(compares_with_golden, driver, job.values, job.command.has_golden_values),
            feeds=feeds,
        ),
        allow_vacuous=job.allow_vacuous_check,
    )


def _identity(index: ModelIndex, check: Check, job: ReductionJob) -> JournalIdentity:
    """What a journal of this job answers for."""
    target = job.target
    written = [target.output, target.min_good, inputs_file(target.output)]
    written += [] if target.external is None else [target.output.with_name(target.external)]
    return JournalIdentity(
        index=index,
        check=check,
        search=job.search,
        options=_options(job),
        written=[path for path in written if path is not None],
    )


def _options(job: ReductionJob) -> dict[str, object]:
    """The options that outcomes depend on, by name, besides those of any search."""
    return {
        "--mode": job.mode,
        "--cut": job.border.cut,
        "--values": job.values,
        "--record-with": list(job.recording.engines),
        "--model-input-shapes": {name: list(shape) for name, shape in sorted(job.input_shapes.items())},
        "--mark-intermediate": bool(job.border.mark_intermediate),
        "--no-reduce-inputs": job.border.keep_inputs,
        "--no-reduce-outputs": job.border.keep_outputs,
        "--no-shape-inference": not job.recording.infer_types,
        "--force-fallback-shape-inference": job.recording.types_by_running,
        "--simplify": job.passes.simplify,
        "--anonymize": job.passes.anonymize,
        "--skip-pass": list(job.passes.skip),
        "--only-pass": list(job.passes.only),
    }
