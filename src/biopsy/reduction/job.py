"""A reduction from what was asked of it to its end: workspace, driver, journal, result, and the nodes that the check
itself points at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import NO_WORDS, CommandLine
from biopsy.checks.outcome import Check, require_distinct
from biopsy.engines.registry import PLAIN
from biopsy.model.index import ModelIndex
from biopsy.model.infer import override_input_shapes
from biopsy.model.tensor_type import Shape
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.recording.reference_run import Draws, Recording, random_samples
from biopsy.recording.types import CutTypes
from biopsy.reduction.candidate import Candidate
from biopsy.reduction.driver import Driver
from biopsy.reduction.passes.contract import PassContext
from biopsy.reduction.problem import Cut, Problem
from biopsy.reduction.recorded_values import Feeding, Vouching, compares_with_golden
from biopsy.reduction.reduce import ReductionTask
from biopsy.reduction.result import Reduction, Target, inputs_file
from biopsy.reduction.schedule import Mode, Passes, Schedule, schedule_of
from biopsy.reduction.values import FOUND_OUT, Values, may_change_values
from biopsy.session.checked_search import (
    CheckedSearch,
    JournalIdentity,
    SearchOptions,
    oracle_of,
    prepared,
    run_resumable,
)
from biopsy.session.flakiness import Flakiness
from biopsy.session.iteration import write_inputs
from biopsy.session.trial import LOOK, ORIGINAL, Trial
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True)
class Border:
    """What happens at the border of a candidate: to a cut tensor, to the inputs and outputs of the original.

    ``cut`` makes a cut tensor an input that is fed (``input``), freezes it with its recorded value (``constant``), or
    does what fits the tensor (``auto``). ``keep_inputs`` and ``keep_outputs`` keep those of the original.
    ``mark_intermediate`` makes every tensor of a candidate an output, because the failure is masked otherwise; None
    does so once the original is found to hide one, for a check that has golden values of inner tensors.
    """

    cut: Cut = "auto"
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool | None = False


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """Where types and values of cut tensors come from.

    ``samples`` gives inputs to record values with; None makes random ones, as ``draws`` says. ``engines`` are those to
    record with, the first that can; ``memory``: bytes that one may take, None for what ``Worker`` gives it. Types are
    inferred if ``infer_types``, and taken from a run of the model first if ``types_by_running``.
    """

    samples: Callable[[], Sequence[Feed]] | None = None
    draws: Draws = field(default_factory=Draws)
    engines: Sequence[str] = PLAIN
    memory: int | None = None
    infer_types: bool = True
    types_by_running: bool = False


@dataclass(frozen=True, kw_only=True)
class ReductionJob:
    """What to reduce, how, and what to leave where; see the options of ``biopsy debug reduce``.

    ``input_shapes`` freeze dynamic inputs. ``passes`` says which passes run, ``ranking`` which nodes are suspected,
    the worst first. ``feeds_recorded``: the check is our own ``run``, and is to load recorded values of what a
    candidate is fed. ``command`` are the check's words, as far as it has any, which may tell of it what
    ``values.may_change_values`` and ``recorded_values.compares_with_golden`` ask.
    ``allow_vacuous_check`` goes on if the check fails on anything.
    """

    target: Target
    mode: Mode = "minimal"
    search: SearchOptions = field(default_factory=SearchOptions)
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    border: Border = field(default_factory=Border)
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: Values = "auto"
    command: CommandLine = NO_WORDS
    passes: Passes = field(default_factory=Passes)
    ranking: Sequence[Sequence[int]] = ()
    allow_vacuous_check: bool = False
    feeds_recorded: bool = False


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
    for path in (job.target.output, job.target.min_good, job.search.resume.save):
        if path is not None:
            require_writable(path)
    require_distinct(job.search.files.artifacts.files, job.target.output)
    if job.passes.anonymize and job.target.min_good is not None:
        raise errors.UsageError(
            f"--anonymize cannot be combined with --min-good: {job.target.min_good} would hold the original"
        )
    border = job.border
    schedule = schedule_of(job.mode, job.passes, keep_inputs=border.keep_inputs, keep_outputs=border.keep_outputs)
    if tells_values:
        schedule = replace(schedule, afterwards=(*schedule.afterwards, FOUND_OUT))
    opened = override_input_shapes(index, job.input_shapes)
    with prepared(index, check, job.search, listener) as place, temporary_folder("biopsy-") as folder:
        problem = _problem(index, opened, job, listener, folder)

        def write_candidate_inputs(model: bytes, path: Path) -> None:
            # Where the check has golden values, only what does not contradict them.
            vouched = problem.is_vouched if problem.feeds_vouched_only else None
            write_inputs(index, problem.recording, model, path, vouched)

        files = replace(job.search.files, write_inputs=write_candidate_inputs)
        oracle = oracle_of(index, check, job.search, place, listener, files=files)
        driver = Driver(problem, oracle, place)
        task = _task(driver, schedule, job, Feeding(driver.problem, oracle, folder, wanted=job.feeds_recorded))
        if check.stoppable:  # it is checked while the journal is read
            oracle.ahead(iter([driver.original(ORIGINAL, "the original model")]))
        search = CheckedSearch(task, oracle, task.result)
        stopped = run_resumable(search, _identity(index, check, job))
        return task.reduction(search.seconds, stopped)


def _problem(
    index: ModelIndex, opened: frozenset[int], job: ReductionJob, listener: events.Listener, folder: Path
) -> Problem:
    """The model with its border; values are recorded into ``folder`` once needed, ``opened`` are sizes to record."""
    options, border = job.recording, job.border

    def samples() -> Sequence[Feed]:
        if options.samples is None:
            return random_samples(index, options.draws)
        from biopsy.engines.runner import casts_told, in_declared_types

        feeds, changes = in_declared_types(options.samples(), index.declared_type)
        if changes:
            listener(events.Remark(casts_told(changes), warning=True))
        return feeds

    fed = job.search.files.inputs is not None
    recording = Recording(
        index,
        samples,
        folder,
        listener,
        every_tensor=fed or border.cut == "constant" or options.types_by_running or bool(opened),
        made_up=options.samples is None,
        engines=options.engines,
        memory=options.memory,
    )
    types = CutTypes(
        index, recording, infer=options.infer_types, recorded_first=options.types_by_running, opened=opened
    )
    return Problem(
        index,
        types,
        recording,
        cut=border.cut,
        keep_inputs=border.keep_inputs,
        keep_outputs=border.keep_outputs,
        mark_intermediate=border.mark_intermediate,
    )


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
    """What a journal of this job answers for, with the options that outcomes depend on."""
    target, border, recording, passes = job.target, job.border, job.recording, job.passes
    external = None if target.external is None else target.output.with_name(target.external)
    written = (target.output, target.min_good, inputs_file(target.output), external)
    return JournalIdentity(
        index=index,
        check=check,
        search=job.search,
        options={
            "--mode": job.mode,
            "--cut": border.cut,
            "--values": job.values,
            "--record-with": list(recording.engines),
            "--model-input-shapes": {name: list(shape) for name, shape in sorted(job.input_shapes.items())},
            "--mark-intermediate": bool(border.mark_intermediate),
            "--no-reduce-inputs": border.keep_inputs,
            "--no-reduce-outputs": border.keep_outputs,
            "--no-shape-inference": not recording.infer_types,
            "--force-fallback-shape-inference": recording.types_by_running,
            "--simplify": passes.simplify,
            "--anonymize": passes.anonymize,
            "--skip-pass": list(passes.skip),
            "--only-pass": list(passes.only),
        },
        written=[path for path in written if path is not None],
    )


# The nodes that a check itself points at.
#
# A check that compares tensors says which outputs are wrong. With every tensor of the original marked as an output it
# says which tensors are wrong, and the error begins at the node that computes a wrong one from right ones. That takes
# one check. It is only a guess, since observing a model can change it, and a guess is checked like anything else.
#
# A check of all tensors at once must hold them all in memory. If they are too large, the parts of the model are looked
# at one after the other, each fed as any candidate is, until a wrong tensor is found. Only if no part has one, the
# whole model is looked at.

_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: more would not fit where one check has to hold them all."""

_MOST_AT_ONCE = 1 << 23
"""Elements of the tensors of one part: as much memory as loading an engine takes."""

MOST_SUSPECTS = 16


def suspected(driver: Driver) -> tuple[int, ...]:
    """The nodes where errors begin, in the order of the model; none if the check cannot tell.

    It costs one check, or one for each part of a model with large tensors; none if the check does not compare outputs.
    """
    problem, reference = driver.problem, driver.reference
    if reference is None or not reference.outputs or not driver.check.automatic:
        return ()
    if not (problem.may_cut_inputs and problem.may_cut_outputs) or problem.elements > _MOST_ELEMENTS:
        return ()
    try:
        is_great = problem.elements > _MOST_AT_ONCE
        in_parts = _wrong(driver, problem.runs_of_nodes(_MOST_AT_ONCE)) if is_great else set[int]()
        return origins(problem.index, in_parts or _wrong(driver, [problem.whole]))
    except errors.CheckChanged:
        raise
    except errors.CheckError as error:  # it was no question about a candidate, but perhaps golden values are damaged
        text = f"with every tensor marked as an output, {error.message}"
        driver.listener(events.Remark(text, warning=True))
        return ()


def _wrong(driver: Driver, candidates: Iterable[Candidate]) -> set[int]:
    """The wrong tensors of the first candidate that has any; the next candidates are checked at the same time."""
    ids, check = driver.problem.index.ids, driver.check.glance()
    looks = (replace(driver.marked(each, LOOK, "which tensors are wrong"), check=check) for each in candidates)
    begun: deque[Trial] = deque()
    while True:
        for look in islice(looks, driver.oracle.jobs - len(begun)):
            begun.append(look)
            driver.oracle.ahead(iter(begun))
        if not begun:
            return set()
        judged = driver.oracle.again(begun.popleft())
        wrong = {ids[name] for name in judged.evidence.verdict.outputs if name in ids}
        if wrong:
            driver.oracle.abandon_all()
            return wrong


def origins(index: ModelIndex, wrong: Collection[int]) -> tuple[int, ...]:
    """Nodes that write a wrong tensor and read none, in the order of the model, at most ``MOST_SUSPECTS``."""
    producers = sorted({index.producer[tensor] for tensor in wrong if tensor in index.producer})
    found = [node for node in producers if not any(tensor in wrong for tensor in index.node_reads[node])]
    return tuple(found[:MOST_SUSPECTS])
