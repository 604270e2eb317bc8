"""Finding out what may vary in a small failing model, and what must be as it is.

After the phase of Hypothesis that explains a failure (MacIver and others): parts of a minimal example are replaced by
other ones, and those are reported with which it fails in any case. Here the parts are attributes, sizes, element types,
weights and inputs, and each is changed in several different ways before anything is said of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun
from biopsy.checks.outcome import Check
from biopsy.engines.feeding import Inputs, feeds_for
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.external import byte_size, external_tensors
from biopsy.model.index import ModelIndex
from biopsy.model.inlined import inlined_parts
from biopsy.model.known_names import inside_a_check
from biopsy.model.load import parse
from biopsy.model.weights_file import MOST_INLINE
from biopsy.model.wire import pieces
from biopsy.session.checked_search import CheckedSearch
from biopsy.session.journal_identity import JournalIdentity
from biopsy.session.result_file import ResultFile
from biopsy.session.setup import oracle_of, prepared, run_resumable
from biopsy.tensors.results import Array
from biopsy.variation.fed_model import FedModel
from biopsy.variation.job import VariationJob
from biopsy.variation.laboratory import Laboratory
from biopsy.variation.result import Variation
from biopsy.variation.task import VariationTask

if TYPE_CHECKING:
    import onnx


def vary(index: ModelIndex, check: Check, job: VariationJob, listener: events.Listener = events.ignore) -> Variation:
    """Find out what may vary in a model that fails a check, and still fails in the same way.

    Meant for a small model, such as the result of a reduction. ``check`` is closed at the end. Raises OriginalPasses if
    the model does not fail, CheckError if the check cannot be run or fails on anything, Interrupted if it is stopped,
    UsageError for a check that is a person or a journal that cannot be used, ModelError for a damaged model.
    """
    if not check.automatic:
        raise errors.UsageError(
            "what may vary is asked of a check, many times, and not of a person", next_steps=["--check COMMAND ..."]
        )
    model = _with_its_weights(index)
    feeds = _feeds(index, check, job.inputs)
    with prepared(index, check, job.search, listener) as place, temporary_folder("biopsy-") as folder:
        oracle = oracle_of(index, check, job.search, place, listener, advances=None)
        laboratories = [
            Laboratory(FedModel(model, one), check, folder) for one in ([feeds, None] if feeds is not None else [None])
        ]
        task = VariationTask(index, oracle, laboratories, job)
        search = CheckedSearch(task, oracle, ResultFile([], task.write, listener))
        with contextlib.ExitStack() as stack:
            for laboratory in laboratories:
                stack.callback(laboratory.close)
            run_resumable(search, _identity(index, check, job))
        return task.variation


def _with_its_weights(index: ModelIndex) -> onnx.ModelProto:
    """The model, its weights inside. Raises UsageError if they are too many, ModelError if they are missing."""
    data = b"".join(pieces(index.buffer))
    model = parse(data, index.path)
    if not index.has_external_data:
        return model
    if sum(map(byte_size, external_tensors(model))) > MOST_INLINE:
        raise errors.UsageError(
            "the model is too large to be varied: its weights take more than 1 GB",
            next_steps=["biopsy debug reduce --simplify    makes it smaller"],
        )
    return parse(b"".join(inlined_parts(data, model, index.folder)), index.path)


def _feeds(index: ModelIndex, check: Check, inputs: Inputs | None) -> Sequence[Mapping[str, Array]] | None:
    """What our own ``run`` feeds a model; None where the check is another one, or that cannot be told."""
    if inputs is None or not isinstance(check, CommandCheck) or not isinstance(check.command, OwnRun):
        return None
    wanted = {index.names[tensor]: index.declared_type(index.names[tensor]) for tensor in index.fed_inputs()}
    try:
        with inside_a_check():
            given = feeds_for(wanted, inputs).feeds
        feeds = [{name: np.asarray(feed[name]) for name in wanted if name in feed} for feed in given]
    except errors.BiopsyError:
        return None  # the check itself will tell what is wrong with them
    return feeds or None


def _identity(index: ModelIndex, check: Check, job: VariationJob) -> JournalIdentity:
    free, failure = job.values_free, job.reference
    options = {"--values": "found out" if free is None else free, "failure": None if failure is None else str(failure)}
    return JournalIdentity(index=index, check=check, search=job.search, options=options)
