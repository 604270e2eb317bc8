"""A hunt from the models to the distinct bugs in them, which goes on where it was interrupted; its page, and what has
changed since an earlier one.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors, events
from biopsy.checks.journal_file import set_aside
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import COSTS, LARGER, SLOWER
from biopsy.diagnosis.context import PERSON, TIME
from biopsy.diagnosis.steps.failing import read_tree
from biopsy.engines.registry import create
from biopsy.findings.document import Facts
from biopsy.findings.page.document import document_of
from biopsy.hunting.bugs import Examiner, Group, groups_of, measured, merged, with_smallest_part
from biopsy.hunting.models import FoundModel, find_models
from biopsy.hunting.records import (
    BUG_FOLDER,
    BUGS,
    INPUTS,
    JOURNAL,
    JUDGED,
    KINDS,
    NOT_JUDGED,
    PAGE,
    RESULT,
    VERSION,
    Bug,
    Hunt,
    Kind,
    ModelResult,
)
from biopsy.hunting.sweep import HuntJournal, HuntQuestion, Sweeper, SweeperElsewhere, make_own_folder, releases_of
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole, writing_to
from biopsy.records import plain, record_of
from biopsy.session.machines import OtherMachines
from biopsy.text import count, line_of, printable


def hunt(
    question: HuntQuestion, listener: events.Listener = events.ignore, machines: OtherMachines | None = None
) -> Hunt:
    """Try every model in every engine, find the distinct bugs, and write them to the folder.

    Models are tried on other ``machines`` if there are some; what fails is diagnosed here.
    The same call goes on where an earlier one was ended. Ctrl-C and ``max_time`` end it with what is known by then.

    Raises UsageError if there are no models, the folder is of another hunt, or there is one engine with limits,
    EngineMissing, CheckError.
    """
    if question.limits and len(question.engines) < 2:
        first = next(iter(question.limits))
        raise errors.UsageError(f"--{first} compares the last engine with the first: name two at least")
    for spec in question.engines:
        create(spec)
    started = time.monotonic()
    models = list(find_models(question.places))
    versions = releases_of(question.engines)
    for folder in (question.folder, question.folder / BUG_FOLDER, question.folder / INPUTS):
        make_own_folder(folder)
    with writing_to(question.folder / JOURNAL):
        if question.fresh:
            set_aside(question.folder / JOURNAL)
    identity = {
        "biopsy": version("biopsy"),
        "seed": str(question.seed),
        "limit": f"{question.seconds:g} s",
        **{f"engine {number} {spec}": text for number, (spec, text) in enumerate(versions.items(), 1)},
    }
    with HuntJournal(question.folder, identity) as journal:
        run = _HuntRun(question, models, journal, listener, started, machines)
        try:
            run.sweep()
            run.measure()
        except KeyboardInterrupt:
            run.stopped = PERSON
        run.examine()
        found = run.found(versions, time.monotonic() - started)
    write_whole(question.folder / RESULT, [json.dumps(found.as_json(), indent=1).encode()])
    write_whole(question.folder / PAGE, [gallery_of(found).encode()])
    return found


_MOST_PARTS = 3
"""Into how many bugs the models of one group may come apart."""


class _HuntRun:
    """One call of ``hunt`` with a journal: ``stopped`` says what ended it early."""

    def __init__(
        self,
        question: HuntQuestion,
        models: Sequence[FoundModel],
        journal: HuntJournal,
        listener: events.Listener,
        started: float,
        machines: OtherMachines | None,
    ) -> None:
        self._question = question
        self._examiner = Examiner(folder=question.folder, seconds=question.per_bug, limits=question.limits)
        self._models = models
        self._journal = journal
        self._listener = listener
        self._until = None if question.max_time is None else started + question.max_time
        self._machines = machines
        self._bugs: list[Bug] = []
        self.stopped: str | None = None

    @property
    def _is_over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def sweep(self) -> None:
        """Try the models that the journal does not answer."""
        answered = self._tried()
        names = {result.model for result in answered}
        todo = [model for model in self._models if str(model.path) not in names]
        done, counts = len(answered), Counter[str](result.worst for result in answered)
        if done:
            self._listener(events.Resumed(str(self._question.folder / JOURNAL), done))
        if not todo:
            return
        question, machines = self._question, self._machines
        there = None if machines is None else SweeperElsewhere(question, machines, self._listener)
        with there or Sweeper(question) as sweeper:
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

    def measure(self) -> None:
        """Measure the models in which the first and the last engine are right, one after the other."""
        todo = [(result, kind) for result in self._swept() for kind in self._unmeasured(result)]
        models = {str(model.path): model for model in self._models}
        for number, (result, kind) in enumerate(todo, 1):
            if self.stopped is not None or self._is_over:
                self.stopped = self.stopped or TIME
                return
            self._listener(events.StepStarted(result.model, f"is it {kind}?", number, len(todo)))
            new = measured(self._question, models[result.model], result, self._question.engines[-1], kind)
            self._journal.note(self._key_of_cost(result, kind), plain(new))

    def _key_of_cost(self, result: ModelResult, kind: Kind) -> str:
        return json.dumps([kind, self._question.limits[kind], result.model, result.state])

    def _unmeasured(self, result: ModelResult) -> list[Kind]:
        """What is still to be measured of a model, by its result in the sweep."""
        kinds = self._question.limits if all(result.cells[place].kind in JUDGED for place in (0, -1)) else ()
        return [kind for kind in kinds if self._key_of_cost(result, kind) not in self._journal.notes]

    def examine(self) -> None:
        """Diagnose a member of each group that the journal does not answer, and hold the others against it."""
        groups = groups_of(self._tried())
        for number, group in enumerate(groups, 1):
            self._listener(events.StepStarted(group.name, "which bug is it?", number, len(groups)))
            self._bugs += self._bugs_in(group)

    def _bugs_in(self, group: Group) -> list[Bug]:
        """The bug of a group. Members that do not have it, by its piece, or of which nothing is known as the diagnosed
        one has none, become a group of their own, up to a few times.
        """
        bugs = list[Bug]()
        while True:
            bug = self._diagnosed(group)
            confirmed = self._confirmed(group, bug)
            rest = group.without(confirmed)
            has_piece = bug.examination is not None and bug.examination.piece is not None
            if not (confirmed and (bug.is_refuted or has_piece)):
                bug = replace(bug, models=group.models, unconfirmed=rest.models)
                return [*bugs, bug] if confirmed else _with_undiagnosed(bugs, bug)
            bugs.append(replace(bug, models=tuple(sorted(confirmed)), unconfirmed=()))
            if not rest.members:
                return bugs
            if len(bugs) >= _MOST_PARTS or self.stopped is not None:
                return _with_undiagnosed(bugs, replace(self._examiner, seconds=0.0).bug(rest))
            group = rest

    def _diagnosed(self, group: Group) -> Bug:
        """What the diagnosis of the smallest member says, from the journal if that knows it."""
        whole = self._examiner
        if self.stopped is None and self._is_over:
            self.stopped = TIME
        smallest, _ = group.smallest
        key = json.dumps([group.key, smallest.model, smallest.state, f"{whole.seconds:g}"])
        noted = self._journal.notes.get(key)
        bug = None if noted is None else record_of(Bug, noted)
        if bug is None and self.stopped is None:
            examiner = whole.within(inf if self._until is None else max(0.0, self._until - time.monotonic()))
            try:
                bug = examiner.bug(group)
            except KeyboardInterrupt:
                self.stopped = PERSON
            else:
                is_cut = bug.examination is None or bug.examination.cut_short
                if whole.seconds and is_cut and examiner != whole.within(inf):  # because this hunt must end
                    self.stopped = TIME
                else:
                    self._journal.note(key, plain(bug))
        return bug or replace(whole, seconds=0.0).bug(group)

    def _confirmed(self, group: Group, bug: Bug) -> Collection[str]:
        """The models of a group that are known to have its bug, or to have none if that is refuted: the diagnosed one,
        and those with its smallest part that are right with the settings with which that is.
        """
        first, _ = group.smallest
        examination = bug.examination
        if examination is None or not (examination.confirmed or examination.refuted):
            return ()
        if examination.refuted or len(group.members) == 1:
            return (first.model,)
        members = [[member.model, member.state] for member, _ in group.members]
        key = blake2b(json.dumps([group.key, members, f"{self._question.per_bug:g}"]).encode()).hexdigest()
        noted = self._journal.notes.get(key)
        if noted is not None or self.stopped is not None:
            return noted or (first.model,)
        try:
            alike = {*with_smallest_part(bug, group, self._question.folder)} - {first.model}
            if alike and examination.right_with is not None:
                alike &= self._right_in(examination.right_with, alike, group.kind)
        except KeyboardInterrupt:
            self.stopped = PERSON
        if self.stopped is not None:
            return (first.model,)
        self._journal.note(key, sorted({first.model, *alike}))
        return {first.model, *alike}

    def _right_in(self, spec: str, names: Collection[str], kind: Kind) -> set[str]:
        """Those of some models that do not fail in an engine as this ``kind`` does, measured if it has a limit;
        ``stopped`` is set if there is no time for all.
        """
        models = [model for model in self._models if str(model.path) in names]
        right = set[str]()
        if kind in self._question.limits:
            results = {result.model: result for result in self._tried()}
            for model in models:
                cell = measured(self._question, model, results[str(model.path)], spec, kind).cells[-1]
                right |= {str(model.path)} if cell.kind in JUDGED else set()
                if self._is_over:
                    self.stopped = TIME
                    break
            return right
        with temporary_folder("biopsy-hunt-") as folder:
            question = replace(self._question, engines=(spec,), folder=folder)
            with Sweeper(question) as sweeper:
                for result in sweeper.results(models):
                    right |= {result.model} if result.worst in JUDGED else set()
                    if self._is_over:
                        self.stopped = TIME
                        break
        return right

    def _swept(self) -> list[ModelResult]:
        """The results of the models as they are now, in order."""
        known = ((self._journal.models.get(str(model.path)), model.state) for model in self._models)
        return [result for result, state in known if result is not None and result.state == state]

    def _tried(self) -> list[ModelResult]:
        """The same with what is known of their time and memory; of a model that needs more of both, the time."""
        tried = self._swept()
        for place, result in enumerate(tried):
            noted = (self._journal.notes.get(self._key_of_cost(result, kind)) for kind in self._question.limits)
            known = [record_of(ModelResult, tree) for tree in noted if tree is not None]
            tried[place] = min(known, key=lambda each: [*KINDS].index(each.cells[-1].kind), default=result)
        return tried

    def found(self, versions: Mapping[str, str], seconds: float) -> Hunt:
        """What is known by now."""
        tried = self._tried()
        refuted = tuple(bug for bug in self._bugs if bug.is_refuted)
        return Hunt(
            engines=versions,
            models=tuple(_with_refuted(tried, refuted)),
            bugs=tuple(merged([bug for bug in self._bugs if not bug.is_refuted])),
            refuted=refuted,
            seconds=seconds,
            stopped=self.stopped,
            left=len(self._models) - len(tried) + sum(1 for each in self._swept() if self._unmeasured(each)),
            slower=self._question.limits.get(SLOWER),
            larger=self._question.limits.get(LARGER),
        )


def _with_refuted(results: Sequence[ModelResult], refuted: Sequence[Bug]) -> Iterator[ModelResult]:
    """The results, in which the cells of ``refuted`` failures say so."""
    texts = {(model, engine): bug.text for bug in refuted for model in bug.models for engine in bug.engines}
    for result in results:
        said = ((cell, texts.get((result.model, cell.engine))) for cell in result.cells)
        cells = (cell if text is None else replace(cell, kind="refuted", text=text) for cell, text in said)
        yield replace(result, cells=tuple(cells))


def _with_undiagnosed(bugs: Sequence[Bug], rest: Bug) -> list[Bug]:
    """The bugs of a group, and the ``rest`` of its models: all that is known of them is that they fail like the others.

    So they belong to the last bug that is not refuted; if there is none, they are one of their own.
    """
    last = next((bug for bug in reversed(bugs) if not bug.is_refuted), None)
    if last is None:
        return [*bugs, rest]
    models = tuple(sorted((*last.models, *rest.models)))
    return [replace(bug, models=models, unconfirmed=rest.models) if bug is last else bug for bug in bugs]


_SYMBOLS: dict[Kind, str] = {
    "wrong": "✗", "differs": "≠", "crash": "☠", "hang": "…", "refused": "⊘", "slower": "◷", "larger": "▣",
    "right": "✓", "rounding": "≈", "tie": "=",
}  # fmt: skip
_OTHER = "·"


def gallery_of(hunt: Hunt) -> str:
    """The page as one HTML document that loads nothing, with links to the pages of bugs in the folder of the hunt."""
    order = list(KINDS)
    judged, unjudged = (sum(hunt.counts.get(kind, 0) for kind in kinds) for kinds in (JUDGED, NOT_JUDGED))
    bugs = count(len(hunt.bugs), "distinct bug")
    headline = {0: "No bug was found", 1: bugs, 4: "No bug was found, and not all was judged"}[hunt.status]
    marks = {
        "engines": list(map(printable, hunt.engines)),
        "kinds": [
            [kind, _SYMBOLS.get(kind, _OTHER), "bad" if kind in BUGS else "good" if kind in JUDGED else "unsure"]
            for kind in order
        ],
        "models": [
            [printable(model.model), *(order.index(cell.kind) for cell in model.cells)] for model in hunt.models
        ],
    }
    return document_of(
        "hunt",
        marks,
        title=f"{headline} · biopsy hunt",
        command="hunt",
        headline=headline,
        tone={0: "good", 1: "bad", 4: "unsure"}[hunt.status],
        figures=[
            (len(hunt.models), "models tried"),
            (judged, "agree"),
            (unjudged, "not judged"),
            (hunt.left, "not tried"),
        ],
        engines=Facts(rows=[*hunt.engines.items()]),
        bugs=hunt.bugs,
        refuted=hunt.refuted,
        legend=[(kind, _SYMBOLS.get(kind, _OTHER), meaning) for kind, meaning in KINDS.items()],
    )


_Tree: TypeAlias = Mapping[str, Any]

_OF_BUG = {"name": str, "engines": list, "kind": str, "models": list, "fingerprint": str}
_OF_MODEL = {"model": str, "cells": list}
_OF_CELL = {"engine": str, "kind": str}


@dataclass(frozen=True, kw_only=True)
class HuntChanges:
    """The bugs of a hunt beside those of an earlier one, by name; each is in one list.

    ``changed`` fail in another way than before, as pairs of the kinds then and now under the name. ``gone`` are earlier
    bugs whose models are right now; ``open`` those of which some model was not tried, or could not be judged.
    """

    new: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, str]]
    still: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    open: tuple[str, ...] = ()

    @property
    def status(self) -> int:
        """The exit status: 1 if something is new or has changed, 4 if something is open, else 0."""
        return 1 if self.new or self.changed else 4 if self.open else 0


def read_hunt(folder: Path) -> _Tree:
    """The object in the ``hunt.json`` of a folder. Raises UsageError if there is none, or one of another version."""
    tree = read_tree(folder / RESULT)
    if tree.get("biopsy_hunt") != VERSION or not (
        _all_have(tree.get("bugs"), _OF_BUG)
        and _all_have(tree.get("models"), _OF_MODEL)
        and all(_all_have(model["cells"], _OF_CELL) for model in tree["models"])
    ):
        raise errors.UsageError(
            f"{folder} holds no {RESULT} of a hunt with this version of biopsy",
            next_steps=[line_of(["biopsy", "hunt", "MODELS", "--dir", as_word(folder)])],
        )
    return tree


def _all_have(trees: object, kinds: Mapping[str, type]) -> bool:
    """Whether it is a list of objects that have these keys, with values of these types."""
    return isinstance(trees, list) and all(
        isinstance(tree, dict) and all(isinstance(tree.get(name), kind) for name, kind in kinds.items())
        for tree in trees
    )


def changes(now: _Tree, before: _Tree) -> HuntChanges:
    """Compare two hunts. A bug is the same if its engines and its smallest part are, else if its models overlap."""
    left, rest = list(before["bugs"]), []
    new, still, gone, unknown = (list[str]() for _ in range(4))
    changed: dict[str, tuple[str, str]] = {}
    for bug in now["bugs"]:  # first by the smallest part, so that no other bug of the same models takes its place
        same = [old for old in left if bug["fingerprint"] and bug["fingerprint"] == old["fingerprint"]]
        rest += [] if _take(bug, same, left, still, changed) else [bug]
    for bug in rest:
        same = [old for old in left if set(bug["models"]) & set(old["models"])]
        if not _take(bug, same, left, still, changed):
            new.append(bug["name"])
    answers = {(model["model"], cell["engine"]): cell["kind"] for model in now["models"] for cell in model["cells"]}
    for old in left:
        right: set[object] = {*JUDGED, *BUGS, "refuted"}
        if old["kind"] in COSTS:  # which it may still be, unless it was measured now with this limit or a lower one
            is_measured = 0 < (now.get(old["kind"]) or 0) <= (before.get(old["kind"]) or inf)
            right = {*JUDGED, "refuted"} if is_measured else set()
        kinds = [answers.get((model, engine)) for model in old["models"] for engine in old["engines"]]
        (gone if all(kind in right for kind in kinds) else unknown).append(old["name"])
    return HuntChanges(new=tuple(new), changed=changed, still=tuple(still), gone=tuple(gone), open=tuple(unknown))


def _take(
    bug: _Tree, same: Sequence[_Tree], left: list[_Tree], still: list[str], changed: dict[str, tuple[str, str]]
) -> bool:
    """Take the first earlier bug of the same engines from those ``left``; returns whether there is one."""
    old = next((old for old in same if old["engines"] == bug["engines"]), None)
    if old is None:
        return False
    left.remove(old)
    if old["kind"] == bug["kind"]:
        still.append(bug["name"])
    else:
        changed[bug["name"]] = (old["kind"], bug["kind"])
    return True
