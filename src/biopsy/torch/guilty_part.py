"""Which part of an exported model is wrong: its layers held against golden values, and the smallest part that fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import parse
from biopsy.checks.warm import command_check
from biopsy.checks.words import as_word
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import EngineSpec, create
from biopsy.engines.worker import Worker
from biopsy.layerwise.examination import Examination
from biopsy.layerwise.findings import LayerFindings, LayerNode
from biopsy.layerwise.question import question_about
from biopsy.layerwise.tensor_errors import Judge
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.outputs import OutputChoice
from biopsy.reduction.job import Border, RecordingOptions, ReductionJob
from biopsy.reduction.job_run import run_job
from biopsy.reduction.result import Reduction, Target
from biopsy.report.bundle.job import BundleJob, EarlierFindings, RunQuestion
from biopsy.report.bundle.make import Bundle, make_bundle
from biopsy.session.budget import Budget
from biopsy.session.options import SearchOptions
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import same_values
from biopsy.torch.differences import Closeness

PIECE = "piece.onnx"
BUNDLE = "bundle"
"""The smallest part that fails, and the folder to send, in the folder that is kept."""


@dataclass(frozen=True, kw_only=True)
class FailingExport:
    """A model that is wrong in ``engine``, and a file of the golden values of its tensors, its inputs among them."""

    model: Path
    engine: str
    golden: Path
    asked: Closeness
    timeout: float | None = None

    @property
    def reference(self) -> str:
        """The golden values as an engine."""
        return EngineSpec("recorded", {"file": str(self.golden)}).text

    @property
    def check(self) -> list[str]:
        """The words of the check that it fails, which feeds a part of it with golden values, too."""
        limits = self.asked.tolerances.for_output("")
        return [
            *("biopsy", "run", "{}", "--engine", self.engine),
            *("--load-inputs", as_word(self.golden), "--load-outputs", as_word(self.golden)),
            *("--atol", repr(limits.atol), "--rtol", repr(limits.rtol)),
        ]


def wrong_layers(failing: FailingExport, scratch: Path, listener: events.Listener) -> tuple[LayerFindings, ModelIndex]:
    """The layers that the engine computes otherwise than the golden values have it, and the model that they are of.

    Raises CannotCompare and what else stops every run.
    """
    question = question_about(
        failing.model,
        failing.model.parent,
        lambda _: read_feeds(failing.golden),
        suspect=failing.engine,
        reference=failing.reference,
        judge=Judge(failing.asked.tolerances, failing.asked.stats),
        timeout=failing.timeout,
    )
    return Examination(question, scratch, listener).run(), question.index


def are_only_ties(failing: FailingExport, nodes: Sequence[LayerNode], scratch: Path) -> bool:
    """Whether nodes that sort find the golden values, each of several, and only their places are other ones."""
    golden = read_feeds(failing.golden)[0]
    names = [node.outputs[0] for node in nodes]
    if not all(name in golden for name in names):
        return False
    with Worker(failing.engine, scratch, failing.timeout) as worker, suppress(errors.BiopsyError):
        found = worker.run(ModelInput(b"", failing.model.parent, failing.model), failing.golden, names)[0]
        return all(name in found and same_values(found[name], golden[name]) for name in names)
    return False


def smallest_part(
    failing: FailingExport, folder: Path, scratch: Path, seconds: float | None, listener: events.Listener
) -> Reduction:
    """The smallest part of the model that still differs from its golden values, in ``folder``.

    ``seconds``: how long to look for it; ``stopped`` of the result says that this was not enough.

    Raises OriginalPasses and CheckError where there is none.
    """
    words = failing.check
    candidate = scratch / "candidate.onnx"
    job = ReductionJob(
        target=Target(folder / PIECE),
        search=SearchOptions(candidate=candidate, budget=Budget(seconds=seconds)),
        recording=RecordingOptions(samples=lambda: read_feeds(failing.golden), engines=(failing.reference,)),
        border=Border(mark_intermediate=None),
        command=parse(words),
    )
    with closing(command_check(words, str(candidate), timeout=failing.timeout)) as check:
        return run_job(index_file(failing.model), check, job, listener)


def packed(failing: FailingExport, found: Reduction, folder: Path, told: EarlierFindings) -> Bundle:
    """The smallest part as a folder to send, seen to fail without biopsy. Raises CheckError if it does not fail."""
    job = BundleJob(
        target=folder / BUNDLE,
        original=failing.model,
        model=found.output,
        folder=found.output.parent,
        check=CommandCheck(failing.check, "{}", failing.timeout),
        run=RunQuestion(
            engines=[create(failing.engine)],
            outputs=OutputChoice(),
            tolerances=failing.asked.tolerances,
            stats=failing.asked.stats,
            golden=[failing.golden],
        ),
        inputs=found.inputs,
        found=told,
    )
    return make_bundle(job)
