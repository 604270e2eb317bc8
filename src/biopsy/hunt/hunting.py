"""A hunt from the models to the distinct bugs in them, which goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from biopsy import events
from biopsy.checks.journal_file import set_aside
from biopsy.diagnosis.context import PERSON, TIME
from biopsy.engines.registry import EngineSpec, find_class, parse_spec, release_now
from biopsy.hunt.against import RESULT
from biopsy.hunt.bugs import Examiner, groups_of, merged
from biopsy.hunt.gallery import PAGE, gallery_of
from biopsy.hunt.models import FoundModel, find_models
from biopsy.hunt.records import Bug, Hunt, ModelResult
from biopsy.hunt.sweep import JOURNAL, HuntJournal, Sweeper, SweepQuestion
from biopsy.processes.writing import cannot_write, write_whole
from biopsy.records import plain, record_of


@dataclass(frozen=True, kw_only=True)
class HuntQuestion:
    """What to hunt in: ``places`` are folders, files and patterns, ``engines`` specs, ``folder`` keeps what is found.

    ``seconds`` and ``memory`` (bytes) limit each model, ``per_bug`` (seconds) the diagnosis of each bug (0: there is
    none), ``max_time`` (seconds) everything; None for no limit. ``fresh`` starts over.
    """

    places: Sequence[str]
    engines: tuple[str, ...]
    folder: Path
    seconds: float = 60.0
    memory: int | None = None
    per_bug: float = 60.0
    max_time: float | None = None
    seed: int = 1
    jobs: int = 1
    fresh: bool = False


def hunt(question: HuntQuestion, listener: events.Listener = events.ignore) -> Hunt:
    """Try every model in every engine, find the distinct bugs, and write them to the folder.

    The same call goes on where an earlier one was ended. Ctrl-C and ``max_time`` end it with what is known by then.

    Raises UsageError if there are no models or the folder is of another hunt, EngineMissing, CheckError.
    """
    started = time.monotonic()
    models = list(find_models(question.places))
    versions = {spec: _release(parse_spec(spec)) for spec in question.engines}
    try:
        question.folder.mkdir(parents=True, exist_ok=True)
        if question.fresh:
            set_aside(question.folder / JOURNAL)
    except OSError as error:
        raise cannot_write(question.folder / JOURNAL, error) from error
    identity = {
        "biopsy": version("biopsy"),
        "seed": str(question.seed),
        "limit": f"{question.seconds:g} s",
        **{f"engine {number} {spec}": text for number, (spec, text) in enumerate(versions.items(), 1)},
    }
    sweep = SweepQuestion(
        engines=question.engines,
        folder=question.folder,
        seconds=question.seconds,
        memory=question.memory,
        seed=question.seed,
        jobs=question.jobs,
    )
    with HuntJournal(question.folder, identity) as journal:
        run = _HuntRun(question, models, journal, listener, started)
        try:
            run.sweep(sweep)
        except KeyboardInterrupt:
            run.stopped = PERSON
        run.examine()
        found = run.found(versions, time.monotonic() - started)
    write_whole(question.folder / RESULT, [json.dumps(found.as_json(), indent=1).encode()])
    write_whole(question.folder / PAGE, [gallery_of(found).encode()])
    return found


def _release(spec: EngineSpec) -> str:
    """The release of an engine, without importing its package here if it can be known so."""
    distributions = () if "release" in spec.settings else find_class(spec.name).distributions
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return version(distribution)
    return release_now(spec)


class _HuntRun:
    """One call of ``hunt`` with a journal: ``stopped`` says what ended it early."""

    def __init__(
        self,
        question: HuntQuestion,
        models: Sequence[FoundModel],
        journal: HuntJournal,
        listener: events.Listener,
        started: float,
    ) -> None:
        self._question = question
        self._models = models
        self._journal = journal
        self._listener = listener
        self._until = None if question.max_time is None else started + question.max_time
        self._bugs: list[Bug] = []
        self.stopped: str | None = None

    @property
    def _is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def sweep(self, sweep: SweepQuestion) -> None:
        """Try the models that the journal does not answer."""
        answered = self._tried()
        names = {result.model for result in answered}
        todo = [model for model in self._models if str(model.path) not in names]
        done, counts = len(answered), Counter[str](result.worst for result in answered)
        if done:
            self._listener(events.Resumed(str(self._question.folder / JOURNAL), done))
        if not todo:
            return
        with Sweeper(sweep) as sweeper:
            for result in sweeper.results(todo):
                self._journal.add(result)
                done += 1
                counts[result.worst] += 1
                self._listener(
                    events.ModelTried(
                        model=result.model, worst=result.worst, done=done, total=len(self._models), counts=dict(counts)
                    )
                )
                if self._is_over:
                    self.stopped = TIME
                    return

    def examine(self) -> None:
        """Diagnose a member of each group that the journal does not answer."""
        groups = groups_of(self._tried())
        examiner = Examiner(folder=self._question.folder, seconds=self._question.per_bug)
        for number, group in enumerate(groups, 1):
            self._listener(events.StepStarted(group.name, "which bug is it?", number, len(groups)))
            if self.stopped is None and self._is_over:
                self.stopped = TIME
            key = json.dumps([group.key, [result.model for result, _ in group.members], f"{examiner.seconds:g}"])
            noted = self._journal.notes.get(key)
            bug = None if noted is None else record_of(Bug, noted)
            if bug is None and self.stopped is None:
                try:
                    bug = examiner.bug(group)
                    self._journal.note(key, plain(bug))
                except KeyboardInterrupt:
                    self.stopped = PERSON
            bug = bug or replace(examiner, seconds=0).bug(group)
            self._bugs.append(bug)

    def _tried(self) -> list[ModelResult]:
        """The results of the models as they are now, in order."""
        known = ((self._journal.models.get(str(model.path)), model.state) for model in self._models)
        return [result for result, state in known if result is not None and result.state == state]

    def found(self, versions: Mapping[str, str], seconds: float) -> Hunt:
        """What is known by now."""
        tried = self._tried()
        return Hunt(
            engines=versions,
            models=tuple(tried),
            bugs=tuple(merged([bug for bug in self._bugs if not bug.is_refuted])),
            refuted=tuple(bug for bug in self._bugs if bug.is_refuted),
            seconds=seconds,
            stopped=self.stopped,
            left=len(self._models) - len(tried),
        )
