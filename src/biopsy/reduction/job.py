"""Everything that a reduction was asked for, and the way from there to its result."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.artifacts import require_distinct
from biopsy.checks.judge import Rules
from biopsy.checks.outcome import Check
from biopsy.model.index import ModelIndex
from biopsy.model.tensor_type import Shape
from biopsy.reduction.driver import Driver, IterationFiles
from biopsy.reduction.problem import Cut, Problem
from biopsy.reduction.recording import ENGINES, Recording
from biopsy.reduction.reduce import reduce_problem
from biopsy.reduction.result import Reduction, Target
from biopsy.reduction.samples import made_samples
from biopsy.reduction.schedule import Mode, Selection, schedule_of
from biopsy.reduction.types_of_cuts import CutTypes
from biopsy.reduction.values import Values, may_change_values
from biopsy.reduction.workspace import workspace
from biopsy.tensors.results import Feed


@dataclass(frozen=True)
class Job:
    """What to reduce, how, and what to leave where; see the options of ``biopsy debug reduce``.

    ``samples`` are inputs to record values with; None makes some. ``record_with`` are engines to record with, the
    first that can. ``input_shapes`` freeze dynamic inputs. ``selection`` says which passes run.
    ``compares_recorded`` is what the check's words tell of it: see ``values.may_change_values``.
    """

    target: Target
    mode: Mode = "minimal"
    rules: Rules = field(default_factory=Rules)
    candidate: Path = Path("polygraphy_debug.onnx")
    files: IterationFiles = field(default_factory=IterationFiles)
    samples: Sequence[Feed] | None = None
    record_with: Sequence[str] = ENGINES
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    cut: Cut = "auto"
    values: Values = "auto"
    compares_recorded: bool | None = None
    infer_types: bool = True
    types_by_running: bool = False
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool = False
    selection: Selection = field(default_factory=Selection)


def run_job(index: ModelIndex, check: Check, job: Job, listener: events.Listener = events.ignore) -> Reduction:
    """Reduce an indexed model. Raises what ``reduce_problem`` raises, and UsageError for a job that cannot be done."""
    require_distinct(job.files.artifacts.files, job.target.output)
    if job.selection.anonymize and job.target.min_good is not None:
        raise errors.UsageError(
            f"--anonymize cannot be had with --min-good: {job.target.min_good} would hold the original"
        )
    selection = replace(job.selection, keep_inputs=job.keep_inputs, keep_outputs=job.keep_outputs)
    schedule = schedule_of(job.mode, selection)
    index.override_input_shapes(dict(job.input_shapes))
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
    with tempfile.TemporaryDirectory(prefix="biopsy-") as folder:
        samples = job.samples if job.samples is not None else made_samples(index)
        every = job.files.inputs is not None or job.cut == "constant" or job.types_by_running
        recording = Recording(
            index,
            samples,
            Path(folder),
            listener,
            every_tensor=every,
            made_up=job.samples is None,
            engines=job.record_with,
        )
        types = CutTypes(index, recording.tensor_type, infer=job.infer_types, recorded_first=job.types_by_running)
        problem = Problem(
            index,
            types,
            recording,
            cut=job.cut,
            keep_inputs=job.keep_inputs,
            keep_outputs=job.keep_outputs,
            mark_intermediate=job.mark_intermediate,
            may_change_values=lambda: may_change_values(driver, job.values, job.compares_recorded),
        )
        driver = Driver(problem, check, job.rules, place, listener, job.files)
        return reduce_problem(driver, schedule, job.target)
