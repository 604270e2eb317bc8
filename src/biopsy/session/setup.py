"""What every search with a check begins with: a place for candidates, an oracle, and perhaps a journal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from biopsy import events
from biopsy.checks.outcome import Check, Outcome
from biopsy.filesystem.privacy import as_private_as
from biopsy.model.index import ModelIndex
from biopsy.session.budget import BudgetMeter
from biopsy.session.checked_search import CheckedSearch
from biopsy.session.claim import locked
from biopsy.session.failure_judge import FailureJudge
from biopsy.session.iteration import IterationFiles, Iterations
from biopsy.session.journal_identity import JournalIdentity
from biopsy.session.machines import tell_of_machines
from biopsy.session.options import SearchOptions
from biopsy.session.oracle import Oracle
from biopsy.session.pool import Pool
from biopsy.session.result_file import write_result
from biopsy.session.resume import run_with_journal
from biopsy.session.tally import SearchTally
from biopsy.session.trial import Trial
from biopsy.session.workspace import Workspace, sources, workspace


@contextlib.contextmanager
def prepared(index: ModelIndex, check: Check, options: SearchOptions, listener: events.Listener) -> Iterator[Workspace]:
    """Tell of the model, and have a workspace for its candidates meanwhile; files are as private as the model's.

    No other search has the files that its checks read. Raises what ``workspace`` and ``locked`` raise.
    """
    listener(
        events.ModelRead(
            name=str(index.path or "model"),
            nodes=len(index.nodes),
            opset=index.opset,
            inputs=len(index.fed_inputs()),
            outputs=len(index.outputs),
            weight_bytes=index.weight_bytes,
        )
    )
    tell_of_machines(options.parallelism.executor, listener)
    may_move = check.names_candidate and not options.files.artifacts.files
    place = workspace(index, options.candidate, may_move=may_move)
    if place.remark is not None:
        listener(events.Remark(place.remark))
    try:
        with as_private_as(sources(index)), locked(options.files.read):
            yield place
    finally:
        trouble = place.leave()
        if trouble is not None:
            listener(events.Remark(trouble, warning=True))


def oracle_of(
    index: ModelIndex,
    check: Check,
    options: SearchOptions,
    place: Workspace,
    listener: events.Listener,
    *,
    files: IterationFiles | None = None,
    advances: Outcome | None = Outcome.REPRODUCES,
) -> Oracle:
    """The oracle of a search. ``files`` replace those of the options; see ``Oracle`` for ``advances``."""
    files = files or options.files
    pool = Pool(check, place.candidate, options.parallelism, listener, keep_last=files.keep_last, read=files.read)
    return Oracle(
        pool,
        FailureJudge(options.rules, listener),
        Iterations(files, listener),
        listener,
        tally=SearchTally(keep_other=OtherFailures(options.keep_other, index, place)),
        budget=BudgetMeter(options.budget),
        advances=advances,
        model=index.path,
    )


class OtherFailures:
    """Keeps one model of each other failure in ``folder``, with its weights; none if that is None."""

    def __init__(self, folder: Path | None, index: ModelIndex, place: Workspace) -> None:
        self._folder = folder
        self._index = index
        self._place = place

    def __call__(self, trial: Trial, number: int) -> Path | None:
        """Write the model. Raises UsageError if that cannot be done."""
        if self._folder is None:
            return None
        path = self._folder / f"other_failure_{number}.onnx"
        write_result(trial.parts, path, self._place.candidate.parent, None, self._index.has_external_data)
        return path


def run_resumable(search: CheckedSearch, identity: JournalIdentity) -> str | None:
    """Run a search, from its journal on if there is one; returns the limit that ended it, None if none did.

    Raises UsageError if the journal cannot be used, and what the search raises.
    """
    resume, oracle = identity.search.resume, search.oracle
    try:
        journal = None if resume.journal is None else resume.open(dict(identity.entries()))
    except BaseException:
        oracle.close()
        raise
    if journal is None:
        return search.run()
    oracle.memory.journal = journal
    with contextlib.closing(journal):
        task = search.task
        return run_with_journal(search.run, journal, resume, oracle.listener, lambda: task.is_worth_resuming)
