"""A search over precisions from its beginning to its end: workspace, oracle, journal, result."""

from __future__ import annotations

from collections.abc import Callable

from biopsy import errors, events
from biopsy.checks.artifacts import require_distinct
from biopsy.checks.engine_file import EngineFileCheck
from biopsy.checks.outcome import Check
from biopsy.filesystem.write import require_writable
from biopsy.mixed_precision.candidates import MixedCandidates
from biopsy.mixed_precision.job import PrecisionJob
from biopsy.mixed_precision.mixed_models import MixedModels
from biopsy.mixed_precision.result import PrecisionResult, write_files
from biopsy.mixed_precision.task import PrecisionTask
from biopsy.model.index import ModelIndex
from biopsy.session.checked_search import CheckedSearch
from biopsy.session.flakiness import Flakiness
from biopsy.session.journal_identity import JournalIdentity
from biopsy.session.setup import oracle_of, prepared, run_resumable
from biopsy.session.workspace import Workspace


def run_job(
    index: ModelIndex,
    mixed_models: Callable[[Workspace], MixedModels],
    check: Check,
    job: PrecisionJob,
    listener: events.Listener = events.ignore,
) -> PrecisionResult:
    """Search the layers of a model. ``mixed_models`` makes what the candidates are made by.

    Raises HighPrecisionFails if the check fails with every layer high, CheckError if it cannot be run or the result
    does not pass when it is checked again, Interrupted if it is stopped; the best model by then is written.
    """
    for path in (job.target.output, job.target.report, job.target.names, job.search.resume.save):
        if path is not None:
            require_writable(path)
            require_distinct(job.search.files.artifacts.files, path)
    with prepared(index, check, job.search, listener) as place:
        models = mixed_models(place)
        if not models.layers:
            raise errors.UsageError(
                "no node of this model can be computed in another precision",
                next_steps=[f"{count} nodes: {reason}" for reason, count in models.stays.items()],
            )
        oracle = oracle_of(index, check, job.search, place, listener, advances=None)
        flakiness = Flakiness(oracle, job.search.repeating)
        candidates = MixedCandidates(models, oracle.jobs)
        task = PrecisionTask(index, candidates, oracle, flakiness, place, job)
        search = CheckedSearch(task, oracle, task.result_file)
        stopped = run_resumable(search, _identity(index, check, job, models))
        result = task.result(search.seconds, stopped)
    write_files(result, job.target)
    return result


def _identity(index: ModelIndex, check: Check, job: PrecisionJob, models: MixedModels) -> JournalIdentity:
    """What a journal of this job answers for."""
    target = job.target
    engine = [check.built] if isinstance(check, EngineFileCheck) else []
    return JournalIdentity(
        index=index,
        check=check,
        search=job.search,
        options={
            "low precision": models.low_name,
            "--precision": models.high_name,
            "form": models.form,
            "--mode": job.mode,
            "--dir": job.direction,
            "--cost": job.cost,
        },
        written=[*target.files, *engine],
    )
