"""A search with a check, whatever it searches for: its options and setup, whether its failure is flaky, its course, and
the identity of its journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from biopsy import errors, events
from biopsy.checks.journal import FRESH, OF_A_FILE
from biopsy.checks.judge import CONFIDENCE, UNKNOWN_RATE, MeasuredRate, Rules, interval, passes_needed
from biopsy.checks.outcome import Check, Judged, Outcome, UndoError
from biopsy.checks.task import copies
from biopsy.model.external import resolve
from biopsy.model.index import ModelIndex
from biopsy.model.wire import pieces
from biopsy.processes.writing import as_private_as
from biopsy.session.conditions import conditions, states
from biopsy.session.files import IterationFiles, Iterations, ResultFile, Resume, run_with_journal, write_result
from biopsy.session.machines import OtherMachines, tell_of_machines
from biopsy.session.oracle import Oracle, Remedy
from biopsy.session.pool import Parallelism, Pool
from biopsy.session.trial import Budget, BudgetMeter, BudgetSpentError, FailureJudge, SearchTally, Trial
from biopsy.session.workspace import Workspace, locked, sources, workspace
from biopsy.tensors.results import Feed

MOST_TRIES = 16
"""Runs that may pass before the failure counts as gone: one with a rate of 1 in 3 is missed in 0.2 % of cases."""

_PATIENCE = 30.0  # seconds after which a slow check is not repeated any more
_MORE_OF_THE_ORIGINAL = 2
_MORE_OF_THE_RESULT = 8
_NOTE = "flakiness"
_ENOUGH_FAILURES = 10
_ENOUGH_RUNS = 40
_RUNS_FOR_A_RATE = 10


@dataclass(frozen=True, kw_only=True)
class Repeating:
    """``repeat`` runs for every passing candidate, as the user said; if None, as many as ``confidence`` needs.

    ``known`` is how often the failure showed before this search.
    """

    repeat: int | None = None
    confidence: float = CONFIDENCE
    known: MeasuredRate = UNKNOWN_RATE


class Flakiness:
    """How reliably a failure shows, as far as known."""

    def __init__(self, oracle: Oracle, repeating: Repeating = Repeating()) -> None:
        self._oracle = oracle
        self._repeating = repeating
        self.is_flaky = False
        self._others: list[str] = []  # how runs failed in another way
        self._is_from_journal = False  # whether only the journal says that it is flaky
        if repeating.repeat is not None:
            oracle.memory.repetitions = repeating.repeat

    def failure(self, trial: Callable[[], Trial], *, at_once: bool = False) -> tuple[Judged, int]:
        """Check a model until it fails, within reason; returns the last answer and the number of runs.

        ``trial`` is called for each run. ``at_once``: several runs may go on at once, since more will be needed if it
        fails. A person is asked only once, and not again about what they answered before an interruption.
        """
        oracle, started, tries = self._oracle, time.monotonic(), 0
        self._others = []
        if not oracle.check.automatic:
            return oracle.judge(trial()), 1
        is_given = self._repeating.repeat is not None
        is_measured_next = at_once and not is_given and oracle.memory.noted(_NOTE) is None
        while True:
            judged = oracle.again(trial(), 1 + _MORE_OF_THE_ORIGINAL if is_measured_next else 1)
            tries += 1
            self._is_alike(judged)
            is_patient = not is_given and tries < MOST_TRIES and time.monotonic() - started < _PATIENCE
            is_answer = judged.outcome in {Outcome.REPRODUCES, Outcome.INVALID}
            if is_answer or not (is_patient or tries < oracle.memory.repetitions):
                return judged, tries

    def begin(self, trial: Trial, tries: int) -> None:
        """Find out whether the original, which has failed once in ``tries`` runs, is flaky."""
        if self._repeating.repeat is not None or not self._oracle.check.automatic or self._is_known():
            return
        if tries > 1:
            self._measure(trial, 1, tries)
        elif self._shows_again(trial, _MORE_OF_THE_ORIGINAL):
            self._note(1 + _MORE_OF_THE_ORIGINAL, 1 + _MORE_OF_THE_ORIGINAL)

    def begin_beside(self, trial: Trial, then: Callable[[], None]) -> None:
        """Find out, while the search begins, whether the original, which failed in its first run, is flaky.

        Only runs that have begun are waited for. ``then`` is called after a flaky failure has been measured.
        """
        if self._repeating.repeat is not None or self._is_known():
            return
        begun = min(len(self._oracle.pool.runs_of(trial)), _MORE_OF_THE_ORIGINAL)
        if not self._shows_again(trial, begun):
            return
        failed, most = 1 + begun, 1 + _MORE_OF_THE_ORIGINAL
        if failed == most:
            self._note(most, most)

        def measure() -> None:
            self._measure(trial, failed, failed + 1)
            then()

        def on_answer(answer: Judged | errors.CheckError) -> Remedy | None:
            nonlocal failed
            if isinstance(answer, errors.CheckError):
                return answer
            if not self._is_alike(answer):
                return measure
            failed += 1
            if failed == most:
                self._note(most, most)
            return None

        for _ in range(most - failed):
            self._oracle.beside.ask(trial, on_answer)

    def holds(self, trial: Trial) -> bool:
        """Whether the result of a search fails again and again.

        False if that is news: what passed on the way may have been luck.
        """
        if self._repeating.repeat is not None or self.is_flaky or not self._oracle.check.automatic or trial.size == 1:
            return True
        return self._shows_again(trial, _MORE_OF_THE_RESULT)

    def noticed_late(self, trial: Trial, tries: int) -> bool:
        """Whether a trial failed only after several ``tries`` although the failure was not known to be flaky.

        The search must then be repeated.
        """
        if tries == 1 or self.is_flaky or self._repeating.repeat is not None:
            return False
        self._measure(trial, 1, tries)
        return True

    def rarer(self, result: Callable[[], Trial], tries: int, original: Trial) -> tuple[str, str] | None:
        """Whether a result that failed once in ``tries`` runs fails more rarely than a steady original.

        Both are run some more. Returns their counts, such as "2 of 12" and "12 of 12"; None if the rates may be equal
        (their intervals meet), if the original is flaky too, or if the user gave the number of runs.
        """
        if (
            (self.is_flaky and not self._is_from_journal)
            or self._repeating.repeat is not None
            or not self._oracle.check.automatic
        ):
            return None
        original_runs = [self._oracle.again(original, left).outcome for left in range(_RUNS_FOR_A_RATE, 0, -1)]
        original_failed = original_runs.count(Outcome.REPRODUCES)
        if self.is_flaky and original_failed < _RUNS_FOR_A_RATE:
            return None
        more = [self._oracle.again(result()).outcome for _ in range(_RUNS_FOR_A_RATE - 1)]
        failed, runs = 1 + more.count(Outcome.REPRODUCES), tries + len(more)
        if interval(failed, runs)[1] >= interval(original_failed, _RUNS_FOR_A_RATE)[0]:
            return None
        return f"{failed} of {runs}", f"{original_failed} of {_RUNS_FOR_A_RATE}"

    def _shows_again(self, trial: Trial, times: int) -> bool:
        for done in range(times):
            if not self._is_alike(self._oracle.again(trial, times - done)):
                self._measure(trial, done + 1, done + 2)
                return False
        return True

    def _measure(self, trial: Trial, failed: int, runs: int) -> None:
        """Run until the failure has shown often enough to know its rate, and set the repetitions."""
        while failed < _ENOUGH_FAILURES and runs < _ENOUGH_RUNS:
            # Enough if every other run fails. Runs begun in vain are not counted, only those asked for.
            wanted = min(2 * (_ENOUGH_FAILURES - failed), _ENOUGH_RUNS - runs)
            failed += self._is_alike(self._oracle.again(trial, wanted))
            runs += 1
        self._oracle.pool.abandon_all()
        self._set(failed, runs)
        self._note(failed, runs)

    def _is_alike(self, judged: Judged) -> bool:
        """Whether a run reproduces the failure; it is noted if it fails in another way."""
        if judged.outcome is Outcome.OTHER_FAILURE:
            self._others.append(judged.reason)
        return judged.outcome is Outcome.REPRODUCES

    def _set(self, failed: int, runs: int) -> None:
        self.is_flaky = True
        self._oracle.memory.repetitions = needed = passes_needed(failed, runs, self._repeating.confidence)
        others = (len(self._others), self._others[-1]) if self._others else ()
        self._oracle.listener(events.FlakyFailure(failed, runs, needed, self._repeating.confidence, *others))

    def _is_known(self) -> bool:
        """Take over the counts that an interrupted search noted, or those known before, if the failure was flaky.

        Raises UsageError for unclear ones.
        """
        memory, known = self._oracle.memory, self._repeating.known
        noted = memory.noted(_NOTE)
        if noted is None:
            if known.is_flaky:
                self._set(known.failed, known.runs)
            return known.is_flaky
        try:
            counts = json.loads(noted)
            names = ("failed", "runs", "needed")
            if not isinstance(counts, dict) or not all(type(counts.get(name)) is int for name in names):
                raise ValueError("it holds no counts")
            failed, runs, needed = (counts[name] for name in names)
            if not (1 <= failed <= runs <= _ENOUGH_RUNS and needed >= 1):
                raise ValueError(f"{failed} of {runs} runs")
        except (ValueError, RecursionError) as error:
            raise errors.UsageError(
                f"the journal {memory.journal_path} does not tell how often the original fails: {error}",
                kept="the journal, as it is",
                next_steps=[FRESH],
            ) from error
        if needed > 1:
            self._is_from_journal = True
            self._set(failed, runs)
        return True

    def _note(self, failed: int, runs: int) -> None:
        """Note in how many runs the original failed, and how many runs a passing candidate needs."""
        memory = self._oracle.memory
        needed = memory.repetitions if self.is_flaky else 1
        memory.note(_NOTE, json.dumps({"failed": failed, "runs": runs, "needed": needed}))


def require_confirmed(oracle: Oracle, trial: Trial, wanted: Outcome, claim: str, kept: str) -> None:
    """Ask a person to confirm a result that only the journal says they have seen: somebody may have forged it.

    Raises CheckError, with what is ``kept``, if the answer is not ``wanted``; ``claim`` is what the journal says. Other
    checks see every result again once it is written.
    """
    if oracle.check.automatic or oracle.memory.was_asked(trial):
        return
    judged = oracle.again(trial)
    if judged.outcome is wanted:
        return

    raise errors.CheckError(
        f"the journal says that {claim}, and you do not ({judged.outcome.value})", kept=kept, next_steps=[FRESH]
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a check is run, where candidates are written, what a search may cost, and what it resumes.

    ``candidate`` is the path of every candidate. ``keep_other`` is a folder for one model of each other failure that is
    met; None to keep none.
    """

    rules: Rules = field(default_factory=Rules)
    candidate: Path = Path("polygraphy_debug.onnx")
    files: IterationFiles = field(default_factory=IterationFiles)
    parallelism: Parallelism = field(default_factory=Parallelism)
    budget: Budget = field(default_factory=Budget)
    repeating: Repeating = field(default_factory=Repeating)
    resume: Resume = field(default_factory=Resume)
    keep_other: Path | None = None


def model_read(index: ModelIndex) -> events.ModelRead:
    """The event that a model was read."""
    return events.ModelRead(
        name=str(index.path or "model"),
        nodes=len(index.nodes),
        opset=index.opset,
        inputs=len(index.fed_inputs()),
        outputs=len(index.outputs),
        weight_bytes=index.weight_bytes,
    )


@contextlib.contextmanager
def prepared(index: ModelIndex, check: Check, options: SearchOptions, listener: events.Listener) -> Iterator[Workspace]:
    """Report the model and give a workspace for its candidates; new files are as private as the model's.

    No other search can have the files that the checks read. Raises what ``workspace`` and ``locked`` raise.
    """
    listener(model_read(index))
    tell_of_machines(options.parallelism.executor, listener)
    may_move = check.names_candidate and not options.files.artifacts.files
    place = workspace(index, options.candidate, may_move=may_move)
    moved = place.claim.remark("reduction")
    if moved is not None:
        listener(events.Remark(moved))
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
    """The oracle of a search. ``files`` replaces that of the options; ``advances`` is as in ``Oracle``."""
    files = files or options.files
    pool = Pool(check, place.candidate, options.parallelism, listener, keep_last=files.keep_last, read=files.read)

    def keep_other(trial: Trial, number: int) -> Path | None:
        if options.keep_other is None:
            return None
        path = options.keep_other / f"other_failure_{number}.onnx"
        write_result(trial.parts, path, place.candidate.parent, None, index.has_external_data)
        return path

    return Oracle(
        pool,
        FailureJudge(options.rules, listener),
        Iterations(files, listener),
        listener,
        tally=SearchTally(keep_other=keep_other),
        budget=BudgetMeter(options.budget),
        advances=advances,
        model=index.path,
    )


def run_resumable(search: CheckedSearch, identity: JournalIdentity) -> str | None:
    """Run a search, resumed from its journal if there is one; returns the limit that ended it, None if none did.

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


class SearchTask(Protocol):
    """What a search is for: how candidates are made, which outcome is better, and what is written.

    Only the best result known to hold may be written.
    """

    @property
    def has_result(self) -> bool:
        """Whether there is anything to write, even if only what the search begins with."""

    @property
    def is_worth_resuming(self) -> bool:
        """Whether resuming from here would save any work."""

    @property
    def progress(self) -> str:
        """How far the search has come, in words for the user who stopped it."""

    def preflight(self) -> None:
        """Check what the search begins with. Raises what ends it before it begins."""

    def begin(self) -> None:
        """Prepare the search, after the preflight."""

    def search(self) -> bool:
        """Search until nothing better can be found. False if the search must be repeated because more is known."""

    def undo(self, digest: bytes | None) -> bool:
        """Start over after a person took back an answer; returns whether the preflight must be repeated.

        ``digest`` is that of the model; None if there was no answer to take back.
        """

    def write(self) -> None:
        """Write the best result. Raises UsageError if it cannot be written."""

    def rescue(self) -> str | None:
        """Write the best result after an interruption or error; returns what is kept, in words, None if nothing is."""

    def verify(self) -> bool:
        """Check the result as it was written. True if the search must be repeated because more is known.

        Raises CheckError if the result does not hold.
        """


class CheckedSearch:
    """Runs a task from preflight to the final check of the written result; ``result`` are the files that it writes.

    However it ends, the best result so far is written first.
    """

    def __init__(self, task: SearchTask, oracle: Oracle, result: ResultFile) -> None:
        self.task = task
        self.oracle = oracle
        self._result = result
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time since this object was made."""
        return time.monotonic() - self._started

    def run(self) -> str | None:
        """Search; returns the limit that ended it early, None if none did.

        Raises Interrupted if it is stopped, with the best result so far written, CheckError if a check cannot be run or
        the result does not hold, and what the preflight raises.
        """
        task = self.task
        try:
            stopped = self._until_spent(self._preflight)
            while True:
                if stopped is None:
                    task.begin()
                    stopped = self._until_spent(self._search)
                if not task.has_result:  # the search may have been undone, and the budget spent before it began
                    raise errors.Interrupted(f"stopped by {stopped}")
                self._result.write()
                try:
                    if not task.verify():
                        break
                except errors.CheckChanged as error:
                    raise errors.CheckChanged(error.summary, kept=task.rescue(), next_steps=error.next_steps) from error
                stopped = None
        except (KeyboardInterrupt, errors.Interrupted) as stop:
            raise errors.Interrupted(task.progress, kept=task.rescue()) from stop
        finally:
            self.oracle.close()
        self._result.restore()
        return stopped

    def _preflight(self) -> None:
        """Run the preflight, again whenever the person takes back an answer."""
        while True:
            try:
                return self.task.preflight()
            except UndoError:
                self.task.undo(self.oracle.undo())

    def _search(self) -> None:
        """Search to the end. If a check cannot be run any more, write the best result so far."""
        is_done = False
        try:
            while not is_done:
                try:
                    is_done = self.task.search()
                except UndoError:  # repeat the search, with every other answer remembered
                    if self.task.undo(self.oracle.undo()):
                        with self.oracle.budget.enforced():
                            self._preflight()
        except (errors.CheckError, errors.UsageError, errors.ModelError, OSError) as error:
            kept = self.task.rescue() or getattr(error, "kept", None)
            if not isinstance(error, errors.BiopsyError):
                raise errors.CheckError(str(error), kept=kept) from error
            raise type(error)(error.summary, details=error.details, kept=kept, next_steps=error.next_steps) from error

    def _until_spent(self, work: Callable[[], None]) -> str | None:
        """Run ``work``; returns the limit that ended it, None if none did."""
        try:
            work()
        except BudgetSpentError as spent:
            self.oracle.listener(events.Stopped(str(spent)))
            return str(spent)
        return None


@contextlib.contextmanager
def trials_of_file(
    output: Path | None, result: Trial, check: Check, restore: Callable[[], None]
) -> Iterator[Callable[[], Trial]]:
    """Give a function that makes trials of the written file, on copies beside it so that they find its weights.

    A check may change what it is given, so every trial gets a fresh copy, after a call of ``restore``. If there is no
    file, or the check only knows the usual path of candidates, the trial is the ``result`` there.
    """
    if output is None or not check.names_candidate or not output.is_file():
        yield lambda: result
        return
    with copies(output) as fresh:

        def trial() -> Trial:
            restore()
            return replace(result, place=fresh())

        yield trial


@dataclass(frozen=True, kw_only=True)
class JournalIdentity:
    """Everything that the outcomes of a search depend on: a journal answers for no other model, check or version.

    ``options`` are the options of the search by name; ``written`` are the files that it writes, which do not count.
    """

    index: ModelIndex
    check: Check
    search: SearchOptions
    options: Mapping[str, object] = field(default_factory=dict)
    written: Sequence[Path] = ()

    def entries(self) -> Iterator[tuple[str, str]]:
        """Pairs of a name that a user understands and a value."""
        index, search, rules = self.index, self.search, self.search.rules
        digest = hashlib.blake2b(digest_size=16)
        for piece in pieces(index.buffer):
            digest.update(piece)
        yield "model", digest.hexdigest()
        for location in sorted({weight.external.location for weight in index.weights.values() if weight.external}):
            state = next((state for _, state in states(resolve(index.folder, location))), "cannot be read")
            yield f"weights {location}", state
        # The files that outcomes depend on, also inside folders, except those that the search itself writes.
        files, resume = search.files, search.resume
        own = (search.candidate, files.info, files.inputs, resume.save, resume.journal)
        written = {path.resolve() for path in (*self.written, *filter(None, own), *files.artifacts.files)}
        for path in dict.fromkeys([*resume.files, *self.check.files]):
            for name, state in states(path):
                if Path(name).resolve() not in written:
                    yield f"{OF_A_FILE}{name}", state
        yield from resume.about.items()
        yield from self.check.settings.items()
        options = {
            "--match": rules.match,
            "--fail-code": sorted(rules.fail_codes),
            "--ignore-fail-code": sorted(rules.ignored_codes),
            "--fail-regex": [regex.pattern for regex in rules.fail_regexes],
            **self.options,
        }
        yield from ((f"option {name}", str(value)) for name, value in options.items())
        executor = search.parallelism.executor
        yield from conditions(executor.kinds if isinstance(executor, OtherMachines) else ())


def digest_of_feeds(feeds: Sequence[Feed]) -> str:
    """A digest of sets of inputs."""
    digest = hashlib.blake2b(digest_size=16)
    for feed in feeds:
        for name in sorted(feed):
            value = feed[name]  # one at a time, since they may be in a large file
            digest.update(f"{name} {value.dtype} {value.shape} ".encode())
            digest.update(repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes())
    return digest.hexdigest()
