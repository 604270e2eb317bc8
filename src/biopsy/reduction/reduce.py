"""Runs a reduction from its job to its result."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command import PROFILER
from biopsy.checks.command_line import NO_WORDS, CommandLine
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Check, Judged, Outcome, require_distinct
from biopsy.comparison.mismatch import SLOWER, ErrorSize, error_size
from biopsy.engines.registry import PLAIN
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.infer import override_input_shapes
from biopsy.model.sources import sources_of
from biopsy.model.tensor_type import Shape
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import require_writable
from biopsy.recording.reference_run import Draws, Recording, random_samples
from biopsy.recording.types import CutTypes
from biopsy.reduction.driver import Driver
from biopsy.reduction.passes.common import NamedModelPass, NamedPass, PassContext
from biopsy.reduction.passes.names import former_names, former_names_left
from biopsy.reduction.preflight import confirm_not_vacuous, last_words, preflight, telling_apart
from biopsy.reduction.problem import Border, Candidate, Problem
from biopsy.reduction.recorded_values import Feeding, Vouching
from biopsy.reduction.result import Reduction, Target, inputs_file, labels_of
from biopsy.reduction.schedule import Mode, Passes, Schedule, schedule_of
from biopsy.reduction.values import FIND_OUT, Values, may_change_values
from biopsy.session.checked_search import (
    CheckedSearch,
    Flakiness,
    JournalIdentity,
    SearchOptions,
    oracle_of,
    prepared,
    require_confirmed,
    run_resumable,
    trials_of_file,
)
from biopsy.session.files import ResultFile, make_room, write_inputs, write_result
from biopsy.session.oracle import SearchInDoubtError
from biopsy.session.trial import CONFIRM, FINAL, LOOK, ORIGINAL, Trial
from biopsy.tensors.results import Feed
from biopsy.text import count


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """Where types and values of cut tensors come from.

    ``samples`` returns the inputs of the recorded run; None stands for random ones, made by ``draws``. The first of
    ``engines`` that can run the model records; it may take ``memory`` bytes (None: the default of ``Worker``). Types
    are inferred if ``infer_types``; with ``types_by_running``, those of the recorded run come first.
    """

    samples: Callable[[], Sequence[Feed]] | None = None
    draws: Draws = field(default_factory=Draws)
    engines: Sequence[str] = PLAIN
    memory: int | None = None
    infer_types: bool = True
    types_by_running: bool = False


@dataclass(frozen=True, kw_only=True)
class ReductionJob:
    """The options of a reduction, as those of ``biopsy debug reduce``.

    ``input_shapes`` freeze dynamic inputs. ``passes`` chooses the passes. ``ranking`` lists sets of suspected nodes,
    the worst first. ``feeds_recorded``: the check is ``biopsy run`` and loads recorded values for candidates' inputs.
    ``command`` is the command line of the check, if it has one, which may show whether it compares with recorded or
    golden values (``values.may_change_values``, ``recorded_values.Vouching``). With ``allow_vacuous_check``, the check
    may fail on any model.
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

    ``tells_values``: find out whether values may change, even if no pass needs to know.

    Raises OriginalPasses if the original does not fail; CheckError if the check cannot be run, fails on any model
    (unless the job allows that), or passes the result when it is checked again; Interrupted if it is stopped, after
    the best result so far was written; and UsageError for a job that cannot be done.
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
        schedule = replace(schedule, afterwards=(*schedule.afterwards, FIND_OUT))
    opened = override_input_shapes(index, job.input_shapes)
    with prepared(index, check, job.search, listener) as workspace, temporary_folder("biopsy-") as folder:
        problem = _problem(index, opened, job, listener, folder)

        def write_candidate_inputs(model: bytes, path: Path) -> None:
            # Golden values must not be contradicted.
            vouched = problem.is_vouched if problem.feeds_vouched_only else None
            write_inputs(index, problem.recording, model, path, vouched)

        files = replace(job.search.files, write_inputs=write_candidate_inputs)
        oracle = oracle_of(index, check, job.search, workspace, listener, files=files)
        driver = Driver(problem, oracle, workspace)
        task = ReductionTask(driver, job, schedule, folder)
        if check.stoppable:  # the check runs while the journal is read
            oracle.ahead(iter([driver.trial(problem.original, ORIGINAL, "the original model")]))
        search = CheckedSearch(task, oracle, task.result)
        stopped = run_resumable(search, _identity(index, check, job))
        return task.reduction(search.seconds, stopped)


def _problem(
    index: ModelIndex, opened: frozenset[int], job: ReductionJob, listener: events.Listener, folder: Path
) -> Problem:
    """The problem to solve. Values are recorded into ``folder`` when needed; ``opened`` tensors need recorded sizes."""
    options = job.recording

    def samples() -> Sequence[Feed]:
        if options.samples is None:
            return random_samples(index, options.draws)
        from biopsy.engines.runner import casts_text, in_declared_types

        feeds, changes = in_declared_types(options.samples(), index.declared_type)
        if changes:
            listener(events.Remark(casts_text(changes), warning=True))
        return feeds

    fed = job.search.files.inputs is not None
    recording = Recording(
        index,
        samples,
        folder,
        listener,
        every_tensor=fed or job.border.cut == "constant" or options.types_by_running or bool(opened),
        made_up=options.samples is None,
        engines=options.engines,
        memory=options.memory,
    )
    types = CutTypes(
        index, recording, infer=options.infer_types, recorded_first=options.types_by_running, opened=opened
    )
    return Problem(index, types, recording, job.border)


def _identity(index: ModelIndex, check: Check, job: ReductionJob) -> JournalIdentity:
    """The identity of the job's journal, with the options that outcomes depend on."""
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


_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: a check of more would not fit into memory."""

_MOST_AT_ONCE = 1 << 23
"""Elements of the tensors of one part: as much memory as loading an engine takes."""

MOST_SUSPECTS = 16


def suspected(driver: Driver) -> tuple[int, ...]:
    """The nodes at which errors begin, in the order of the model; none if the check does not compare outputs.

    If the failure is that an engine is slower, they are the nodes that take longer by its profile, the worst first.

    The original is checked with every tensor marked as an output; the error begins at a node that computes a wrong
    tensor from right ones. This is only a guess, since marking outputs can change what an engine does. If the tensors
    are large, parts of the model are checked one after the other until one has a wrong tensor, and the whole model is
    checked only if none has.
    """
    problem, index, oracle = driver.problem, driver.problem.index, driver.oracle
    reference = oracle.failure.reference
    if reference is None or not (reference.outputs or reference.kind == SLOWER) or not oracle.check.automatic:
        return ()
    if not (problem.may_cut_inputs and problem.may_cut_outputs) or problem.elements > _MOST_ELEMENTS:
        return ()
    how = "with every tensor marked as an output"
    try:
        if reference.kind == SLOWER:
            how, profiler = "in a run with profiles", oracle.check.telling(PROFILER)
            trial = replace(driver.trial(problem.original, LOOK, "which nodes take longer"), check=profiler)
            slow = () if profiler is None else oracle.again(trial).evidence.verdict.outputs
            return tuple(index.producer[index.ids[name]] for name in slow if index.ids.get(name) in index.producer)
        is_large = problem.elements > _MOST_AT_ONCE
        in_parts = _wrong_tensors(driver, problem.runs_of_nodes(_MOST_AT_ONCE)) if is_large else set[int]()
        return origins(index, in_parts or _wrong_tensors(driver, [problem.original]))
    except errors.CheckChanged:
        raise
    except errors.CheckError as error:  # the search does not need this check, but golden values may be damaged
        driver.listener(events.Remark(f"{how}, {error.message}", warning=True))
        return ()


def _wrong_tensors(driver: Driver, candidates: Iterable[Candidate]) -> set[int]:
    """The wrong tensors of the first candidate that has any; later ones may be checked at the same time."""
    ids, oracle = driver.problem.index.ids, driver.oracle
    check = oracle.check.glance()
    trials = (
        replace(driver.trial(each, LOOK, "which tensors are wrong", marked=True), check=check) for each in candidates
    )
    begun: deque[Trial] = deque()
    while True:
        for trial in islice(trials, oracle.jobs - len(begun)):
            begun.append(trial)
            oracle.ahead(iter(begun))
        if not begun:
            return set()
        judged = oracle.again(begun.popleft())
        wrong = {ids[name] for name in judged.evidence.verdict.outputs if name in ids}
        if wrong:
            oracle.pool.abandon_all()
            return wrong


def origins(index: ModelIndex, wrong: Collection[int]) -> tuple[int, ...]:
    """The first ``MOST_SUSPECTS`` nodes of the model that write a wrong tensor and read none."""
    producers = sorted({index.producer[tensor] for tensor in wrong if tensor in index.producer})
    begins = (node for node in producers if not any(tensor in wrong for tensor in index.node_reads[node]))
    return tuple(islice(begins, MOST_SUSPECTS))


class ReductionTask:
    """A reduction as the task of a ``CheckedSearch``; recorded values are in ``folder``."""

    def __init__(self, driver: Driver, job: ReductionJob, schedule: Schedule, folder: Path) -> None:
        self._driver = driver
        self._job = job
        self._schedule = schedule
        self._context = PassContext(
            driver.problem,
            may_change_values=partial(may_change_values, driver, job.values, job.command.compares_recorded),
            suspects=tuple if job.ranking else partial(suspected, driver),
            ranking=job.ranking,
            known_needed=driver.known_needed,
        )
        self._flakiness = Flakiness(driver.oracle, job.search.repeating)
        self._feeding = Feeding(driver.problem, driver.oracle, folder, wanted=job.feeds_recorded)
        feeds, has_golden = job.search.files.inputs is not None, job.command.has_golden_values
        self._vouching = Vouching(driver, self._context, values=job.values, has_golden=has_golden, feeds=feeds)
        self._is_saved = False  # whether a result of this search is on disk
        self._original: tuple[Judged | None, ErrorSize | None] = (None, None)
        self._verified: Judged | None = None
        self._last_words: tuple[str, str] | None = None
        paths = (path for path in job.target.files if path not in job.target.streams)
        self.result = ResultFile(paths, self.write, driver.listener)

    @property
    def has_result(self) -> bool:
        """Whether the original is known to fail."""
        return self._driver.best is not None

    @property
    def is_worth_resuming(self) -> bool:
        """Whether any candidate was answered."""
        return bool(self._driver.passing) or self._driver.is_smaller

    @property
    def progress(self) -> str:
        """The number of remaining nodes, in words."""
        driver = self._driver
        if driver.best is None:
            return "before the original was checked; nothing was written"
        if not driver.is_smaller:
            return "no node was removed yet"
        return f"{driver.left} of {len(driver.problem.index.nodes)} nodes are left so far"

    def preflight(self) -> None:
        """Check the original, which must fail, and a model of one Identity node, which must not."""
        beside = not self._job.feeds_recorded  # ``begin`` may replace the check
        allowed = self._job.allow_vacuous_check
        self._original = preflight(self._driver, self._flakiness, allow_vacuous=allowed, beside=beside)

    def begin(self) -> None:
        """Have candidates fed with recorded values, if the check loads inputs."""
        self._feeding.begin()

    def search(self) -> bool:
        """Run all passes; False if they must run again because an assumption about the failure was wrong."""
        driver, oracle, schedule = self._driver, self._driver.oracle, self._schedule
        with oracle.budget.enforced():
            assert driver.best is not None
            self._vouching.begin()
            try:
                smallest = driver.best
                for named in schedule.once:
                    smallest = self._run_pass(named, smallest)
                before = None
                while schedule.repeated and smallest != before and smallest.size > 1:
                    before = smallest
                    for named in schedule.repeated:
                        smallest = self._run_pass(named, smallest)
                oracle.pool.abandon_all()  # checks that began for a pass that does not follow
                driver.best = smallest
                oracle.beside.settle()
            except SearchInDoubtError as doubt:
                driver.start_over_with(doubt.remedy)
                return False
            if not self._vouching.holds():
                return False
            if not self._flakiness.holds(driver.best_trial(CONFIRM, "the smallest so far once more")):
                driver.doubt()
                return False
            self._refine(schedule.afterwards)
            self._say_what_is_bound()
            is_given = self._job.search.repeating.repeat is not None
            if oracle.check.automatic and not is_given and not self._job.allow_vacuous_check:
                try:
                    confirm_not_vacuous(driver)
                except errors.VacuousCheck as error:
                    driver.start_over()
                    error.kept = f"{self._job.target.output}, which says nothing" if self._is_saved else error.kept
                    raise
            trial = driver.best_trial(CONFIRM, "the result: so far only the journal says that it fails")
            kept = f"{self._job.target.output}, not confirmed to fail" if self._is_saved else "the journal, as it is"
            try:
                require_confirmed(oracle, trial, Outcome.REPRODUCES, "the result fails", kept)
            except errors.CheckError:
                driver.start_over()
                raise
        return True

    def undo(self, digest: bytes | None) -> bool:
        """Begin again from the original, without the answer with this digest; True if that was the original's."""
        driver = self._driver
        if digest is not None:
            driver.forget(digest)
        if driver.best is not None:
            driver.start_over()
        return digest == driver.trial(driver.problem.original, ORIGINAL, "").digest

    def write(self) -> None:
        """Write the smallest model and, if requested, the passing one closest in size."""
        driver, target = self._driver, self._job.target
        try:
            driver.oracle.beside.settle()  # a limit may have ended the search before that
        except SearchInDoubtError as doubt:
            driver.start_over_with(doubt.remedy)
        self._vouching.settle(may_ask=driver.oracle.check.automatic)
        self._write_model(driver.best_parts(), target.output, target.external)
        if target.min_good is not None:
            assert driver.best is not None
            size = driver.best.size
            # Of several, the last one.
            passing = min(reversed(driver.passing), key=lambda candidate: abs(candidate.size - size), default=None)
            if passing is None:
                driver.listener(events.Remark(f"no passing model was met, so {target.min_good} was not written"))
            else:
                self._write_model(driver.parts(passing), target.min_good, None)

    def rescue(self) -> str | None:
        """Write the smallest model so far, unless it is the original; returns what was kept, in words."""
        driver, target = self._driver, self._job.target
        self._vouching.settle(may_ask=False)
        if not driver.is_smaller or not driver.oracle.beside.is_settled:
            return None
        try:
            self._write_model(driver.best_parts(), target.output, target.external)
        except (errors.BiopsyError, OSError):
            has_earlier = self._is_saved and target.output.exists()
            return f"{target.output}, an earlier result that fails in the same way" if has_earlier else None
        try:
            self._feeding.settle(driver.best_parts(), target.output)
        except (errors.BiopsyError, OSError) as error:
            inputs = f" with recorded values as inputs, which could not be written: {error}"
        else:
            inputs = "" if self._feeding.inputs is None else f" with the inputs {self._feeding.inputs}"
        return f"{target.output}, which fails in the same way{inputs}"

    def verify(self) -> bool:
        """Check the result as it was written. Returns True if the search must be run again.

        Raises CheckError if the result does not fail like the original.
        """
        driver, oracle, output = self._driver, self._driver.oracle, self._job.target.output
        if not oracle.check.automatic:
            return False
        self._feeding.settle(driver.best_parts(), output)
        oracle.pool.use(oracle.check.cold())
        final = driver.best_trial(FINAL, f"the result {output}")
        with trials_of_file(output, final, oracle.check, self.result.restore) as fresh:
            judged, tries = self._flakiness.failure(fresh)
            self._require_failure(judged, tries, fresh)
        driver.listener(events.Verified(str(output), 1, tries, judged.evidence.machine))
        original, result = oracle.failure.reference, signature_of(judged.evidence)
        assert original is not None
        self._verified, self._last_words = judged, last_words(original, result, oracle.failure.rules)
        if self._last_words is not None:
            end_of_original, end_of_result = self._last_words
            text = (
                "the result has the status of the original, but what they print at their end differs. It may be another"
                " failure:"
            )
            advice = telling_apart(original, result)
            lines = (f"  original   {end_of_original}", f"  result     {end_of_result}", f"  {advice}")
            driver.listener(events.Remark(text, warning=True, lines=lines))
        confirm = driver.best_trial(CONFIRM, "the result once more")
        if driver.left == 1 or not self._flakiness.noticed_late(confirm, tries):
            return False  # of a single node, nothing was left out because a check passed by chance
        driver.doubt()
        return True

    def _require_failure(self, judged: Judged, tries: int, fresh: Callable[[], Trial]) -> None:
        """Restore the result and raise CheckError if it does not fail, or less often than the original.

        ``fresh`` makes a trial of it.
        """
        driver, output, rates = self._driver, self._job.target.output, None
        line = driver.oracle.check.line(output)
        reproduces = judged.outcome is Outcome.REPRODUCES
        if reproduces and tries > 1:
            original = driver.trial(driver.problem.original, FINAL, "the original once more")
            rates = self._flakiness.rarer(fresh, tries, original)
        if rates is not None:
            self.result.restore()
            rate, rate_of_original = rates
            raise errors.CheckError(
                f"the original failed in {rate_of_original} runs, the result only in {rate}: perhaps it is another "
                "failure that looks the same",
                kept=f"{output}, which fails now and then",
                next_steps=[
                    line,
                    "if it is the same failure: --repeat 10, which takes a candidate that fails in one of ten runs",
                    "if not: --fail-regex or --match message, so that the check tells them apart",
                ],
            )
        if not reproduces:
            self.result.restore()
            raise errors.CheckError(
                f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}"
                f"{f', in {tries} runs' if tries > 1 else ''}): the check does not always say the same",
                kept=f"{output}, which failed once",
                next_steps=[line],
            )

    def reduction(self, seconds: float, stopped: str | None) -> Reduction:
        """The result of the reduction, once the search has ended."""
        driver, tally, target = self._driver, self._driver.oracle.tally, self._job.target
        assert driver.best is not None
        index, others, failure = driver.problem.index, tally.other_failures, driver.oracle.failure.reference
        (judged, error), verified = self._original, self._verified
        verdict = None if verified is None else verified.evidence.verdict
        result = index_bytes(b"".join(driver.best_parts()))
        if driver.refined is None:
            nodes = tuple(index.nodes[number].label for number in driver.best.nodes)
        else:
            nodes = tuple(labels_of(result.nodes, [index.nodes[number] for number in driver.best.nodes]))
        return Reduction(
            output=target.output,
            nodes_before=len(index.nodes),
            nodes=nodes,
            kept=driver.best.nodes,
            signature=str(failure),
            outcomes={outcome.value: tally.outcomes[outcome] for outcome in Outcome if tally.outcomes[outcome]},
            other_failures={reason: other.times for reason, other in others.items()},
            seconds=seconds,
            min_good=target.min_good if driver.passing else None,
            other_models={reason: other.model for reason, other in others.items() if other.model is not None},
            remembered=tally.remembered,
            stopped=stopped,
            last_words=self._last_words,
            reads=tuple(
                tuple(sorted({result.producer[tensor] for tensor in reads if tensor in result.producer}))
                for reads in result.node_reads
            ),
            sources=sources_of(result, None if self._schedule.hides_origins else index),
            error_before=error,
            error_after=None if verdict is None else error_size(verdict.mismatches, verdict.rounding),
            judged_before=judged,
            judged_after=verified,
            inputs=self._feeding.inputs,
            failure=failure,
            values_free=self._context.are_values_free,
            cannot_say=dict(tally.cannot_say),
        )

    def _run_pass(self, named: NamedPass, candidate: Candidate) -> Candidate:
        driver, target = self._driver, self._job.target
        smaller = driver.search(named, candidate, self._context, self._schedule.foreseeable_after(named))
        if smaller is not candidate:
            self._vouching.remember(smaller)
            index = driver.problem.index
            in_place = index.path is not None and target.output.resolve() == index.path.resolve()
            # Have the best so far on disk in case there is no room later, unless that means copying weights.
            if not (index.has_external_data or in_place or self._vouching.is_doubtful(driver.best)):
                with contextlib.suppress(errors.UsageError):  # writing the final result raises it again
                    self._write_model(driver.best_parts(), target.output, target.external)
        return smaller

    def _refine(self, passes: Sequence[NamedModelPass]) -> None:
        """Run the passes over the model until none changes it, then report what they could not do.

        They work on protobuf objects, which cannot hold every model that bytes can.
        """
        driver = self._driver
        try:
            driver.best_model()
        except errors.ModelError as error:
            driver.listener(events.Remark(f"only nodes were tried to be removed: {error.summary}"))
            return
        former: dict[str, str] = {}
        while passes:
            before = driver.refined
            for named in passes:
                model = driver.best_model()
                driver.refine(named, self._context)
                if named.name == "names":
                    renamed = former_names(model, driver.best_model())
                    former = {name: former.get(old, old) for name, old in renamed.items()}
            if driver.refined is before:
                break
        for text in dict.fromkeys(text for named in passes for text in named.remarks(driver.best_model())):
            driver.listener(events.Remark(text))
        if former and (left := former_names_left(driver.best_model(), former)):
            driver.listener(events.FormerNames(left))

    def _say_what_is_bound(self) -> None:
        """Say that nodes may be left only because the types between them are not known."""
        driver = self._driver
        assert driver.best is not None
        index = driver.problem.index
        nodes, tensors = driver.problem.bound(driver.best)
        inner = index.names if self._schedule.hides_origins else index_bytes(b"".join(driver.best_parts())).ids
        left = [index.names[tensor] for tensor in tensors if index.names[tensor] in inner]
        if left:
            text = (
                f"{count(len(nodes), 'node')} could not be left out one by one: the types of tensors between them, "
                f"such as {left[0]!r}, are not known. Declare them in the model's value_info "
                "(onnx.helper.make_tensor_value_info), and fewer nodes may be left"
            )
            driver.listener(events.Remark(text))

    def _write_model(self, parts: Sequence[bytes], path: Path, external: str | None) -> None:
        if path not in self._job.target.streams:
            make_room(path)
        folder = self._driver.workspace.candidate.parent
        shares = self._job.target.shares_weights and path.parent.resolve() == folder.resolve()
        has_external = self._driver.problem.index.has_external_data and not shares
        write_result(parts, path, folder, external, has_external)
        self._is_saved = True
