"""The journal of a job, and its identity: a journal never answers for another model, check, option or version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.outcome import Check
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.wire import pieces
from biopsy.reduction.inputs_file import inputs_file
from biopsy.reduction.job import Job
from biopsy.session.conditions import states, versions
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    from biopsy.checks.journal import Journal


def open_journal(index: ModelIndex, check: Check, job: Job) -> Journal | None:
    """The journal of a job, with what a replay adds to it; None if none is wanted.

    Raises UsageError if it, or the replay, is of another model, check, option or version, or in use.
    """
    wanted = job.resume
    if wanted.journal is None:
        return None
    from biopsy.checks.journal import Journal

    identity = dict(_identity(index, check, job))
    journal = Journal.open(wanted.journal, identity, fresh=wanted.fresh)
    try:
        if wanted.load is not None:
            from biopsy.checks.replay import load_replay

            journal.found += load_replay(wanted.load, journal)
    except BaseException:
        (journal.close if journal.found else journal.remove)()
        raise
    return journal


def _identity(index: ModelIndex, check: Check, job: Job) -> Iterator[tuple[str, str]]:
    """Names and values of all that outcomes, and so the search, depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(index.buffer):
        digest.update(piece)
    yield "model", digest.hexdigest()
    for location in sorted({weight.external.location for weight in index.weights.values() if weight.external}):
        yield (
            f"weights {location}",
            next((state for _, state in states(resolve(index.folder, location))), "cannot be read"),
        )
    yield from _of_files([*job.resume.files, *check.files], job)
    yield from job.resume.about.items()
    yield from check.settings.items()
    options = {
        "--mode": job.mode,
        "--match": job.rules.match,
        "--fail-code": sorted(job.rules.fail_codes),
        "--ignore-fail-code": sorted(job.rules.ignored_codes),
        "--fail-regex": [regex.pattern for regex in job.rules.fail_regexes],
        "--cut": job.cut,
        "--values": job.values,
        "--record-with": list(job.record_with),
        "--model-input-shapes": {name: list(shape) for name, shape in sorted(job.input_shapes.items())},
        "--mark-intermediate": job.mark_intermediate,
        "--no-reduce-inputs": job.keep_inputs,
        "--no-reduce-outputs": job.keep_outputs,
        "--no-shape-inference": not job.infer_types,
        "--force-fallback-shape-inference": job.types_by_running,
        "--simplify": job.selection.simplify,
        "--anonymize": job.selection.anonymize,
        "--skip-pass": list(job.selection.skip),
        "--only-pass": list(job.selection.only),
    }
    yield from ((f"option {name}", str(value)) for name, value in options.items())
    yield from versions()


def _of_files(paths: Iterable[Path], job: Job) -> Iterator[tuple[str, str]]:
    """The files that answers depend on, also those in folders, but for what the reduction itself writes."""
    from biopsy.checks.journal import OF_A_FILE

    written = {path.resolve() for path in _written(job)}
    for path in dict.fromkeys(paths):
        for name, state in states(path):
            if Path(name).resolve() not in written:
                yield f"{OF_A_FILE}{name}", state


def _written(job: Job) -> Iterator[Path]:
    output, external, wanted = job.target.output, job.target.external, job.resume
    yield from filter(None, (output, job.target.min_good, job.candidate, job.files.info, job.files.inputs, wanted.save))
    yield from job.files.artifacts.files
    yield inputs_file(output)
    if external is not None:
        yield output.with_name(external)
    if wanted.journal is not None:
        yield wanted.journal


def digest_of_feeds(feeds: Sequence[Feed]) -> str:
    """What tells one set of inputs from another."""
    found = hashlib.blake2b(digest_size=16)
    for feed in feeds:
        for name, value in sorted(feed.items()):
            found.update(f"{name} {value.dtype} {value.shape} ".encode())
            found.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    return found.hexdigest()
