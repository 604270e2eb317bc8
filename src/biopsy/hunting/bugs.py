"""From what fails in a sweep to distinct bugs: one member of each group is diagnosed, the others are held against what
that finds, and groups with the same smallest part are one bug. What a model takes in time or memory is measured as
``biopsy run --slower`` and ``--larger`` do it.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command import run_biopsy
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import LARGER, SLOWER
from biopsy.diagnosis.question import write_inputs
from biopsy.diagnosis.steps.failing import read_tree
from biopsy.engines.latency import Latency
from biopsy.engines.peak_memory import PeakMemory
from biopsy.engines.registry import EXACT, parse_spec
from biopsy.findings.bundle.script import NOT_REPRODUCED
from biopsy.findings.page.document import page_of
from biopsy.findings.page.reading import nodes_of
from biopsy.findings.report import Tree
from biopsy.hunting.models import FoundModel, operators_of_few, samples_of
from biopsy.hunting.records import BUG_FOLDER, BUGS, INPUTS, Bug, BugExamination, Kind, MatrixCell, ModelResult
from biopsy.hunting.sweep import HuntQuestion, make_own_folder, samples_name
from biopsy.hunting.vote import engine_for
from biopsy.model.index import index_bytes
from biopsy.model.load import parse as parsed
from biopsy.model.load import read_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.known_failures.fingerprint import Fingerprint, fingerprint_of
from biopsy.questions.known_failures.pattern import FailurePattern, SearchLimitError, pattern_text, scope_of_piece
from biopsy.questions.known_failures.reading import pattern_of
from biopsy.questions.workarounds.spellings.site import Scope
from biopsy.records import record_of
from biopsy.text import first_line, line_of, printable, shortened

_NO_BUG = frozenset({"passes", "rounding", "random", "not-finite", "input", "refused", "precision", "undefined"})
"""Verdicts of a diagnosis that speak against a bug of one engine."""

_FAILS = frozenset({"reduced", "fails", "flaky", "masked"})

_SMALL = 8
"""Nodes of a model whose own pattern stands for its piece, if the diagnosis gave none."""

_LONGEST = 60
_LONGEST_ERROR = 300
_SPARE_SECONDS = 30.0
_OVER = "the diagnosis was ended at its limit of time"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Models in which an engine fails alike, as far as a sweep can tell. ``engines`` are its specs that do."""

    key: tuple[str, ...]
    engines: tuple[str, ...]
    members: tuple[tuple[ModelResult, MatrixCell], ...]

    @property
    def smallest(self) -> tuple[ModelResult, MatrixCell]:
        """The member that is the quickest to examine."""
        return min(self.members, key=lambda member: (member[0].nodes, member[0].size, member[0].model))

    @property
    def kind(self) -> Kind:
        """How they fail."""
        return self.smallest[1].kind

    @property
    def models(self) -> tuple[str, ...]:
        """The paths of its models, in order."""
        return tuple(sorted(model.model for model, _ in self.members))

    def without(self, models: Collection[str]) -> Group:
        """The group of its other members."""
        return replace(
            self,
            key=(*self.key, "another part"),
            members=tuple(member for member in self.members if member[0].model not in models),
        )

    @property
    def name(self) -> str:
        """A name for its folder, the same in each hunt of the same engines."""
        cell = self.members[0][1]
        words = (parse_spec(cell.engine).name, cell.kind, *cell.operators, *([] if cell.operators else [cell.failure]))
        digest = hashlib.blake2b(repr(self.key).encode(), digest_size=3).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', '-'.join(words))[:_LONGEST].strip('-')}-{digest}"


def groups_of(results: Iterable[ModelResult]) -> list[Group]:
    """The groups of cells that are bugs, the worst first; settings of one engine that fail alike are in one group."""
    grouped: dict[tuple[str, ...], list[tuple[ModelResult, MatrixCell]]] = {}
    engines: dict[tuple[str, ...], tuple[str, ...]] = {}
    for result in results:
        alike: dict[tuple[str, ...], list[MatrixCell]] = {}
        for cell in result.cells:
            if cell.is_bug:
                # Of engines that differ, each does from the others: that is one bug of one of them.
                name = "" if cell.kind == "differs" else parse_spec(cell.engine).name
                alike.setdefault((name, cell.kind, *cell.signature), []).append(cell)
        for signature, cells in alike.items():
            specs = tuple(sorted(cell.engine for cell in cells))
            key = (*specs, *signature)
            engines[key] = specs
            grouped.setdefault(key, []).append((result, cells[-1]))
    groups = [Group(key=key, engines=engines[key], members=tuple(members)) for key, members in grouped.items()]
    return sorted(groups, key=lambda group: ([*BUGS].index(group.kind), -len(group.members), group.name))


@dataclass(frozen=True, kw_only=True)
class Examiner:
    """Diagnoses one member of a group in the folder of a hunt.

    ``seconds`` is what the diagnosis may take, and ``at_most`` when its process is ended; 0 for no diagnosis.
    ``limits`` are those of time and memory, by the kind of the bug.
    """

    folder: Path
    seconds: float = 0.0
    at_most: float = 0.0
    limits: Mapping[Kind, float] = field(default_factory=dict)

    def within(self, left: float) -> Examiner:
        """The same with so many seconds ``left``: half of them for the diagnosis, the rest for its report."""
        at_most = min(2 * self.seconds + _SPARE_SECONDS, left)
        return replace(self, seconds=min(self.seconds, at_most / 2), at_most=at_most)

    def bug(self, group: Group) -> Bug:
        """What the group is, by the diagnosis of its smallest member."""
        result, cell = group.smallest
        words = list(self._words(result, cell))
        bug = Bug(
            name=group.name,
            engines=group.engines,
            example=cell,
            models=group.models,
            unconfirmed=group.models,
            line=line_of(["biopsy", *words]),
        )
        if self.seconds <= 0:
            return _with_pattern(bug, Path(result.model), result.nodes)
        for folder in (self.folder / BUG_FOLDER, place := self.folder / BUG_FOLDER / bug.name):
            make_own_folder(folder)
        report, bundle, page = place / "report.json", place / "bundle", place / "report.html"
        kept = ["--dir", str(place / "diagnosis"), "--fresh", "--max-time", f"{self.seconds:.2f}s"]
        report.unlink(missing_ok=True)
        files = ["--report", str(report), "--bundle", str(bundle)]
        started = time.monotonic()
        _, printed = run_biopsy(*words[:2], *kept, *files, *words[2:], seconds=self.at_most)
        tree = read_tree(report)
        if not tree:
            is_over = time.monotonic() - started >= self.at_most
            failed = f"the diagnosis failed: {shortened(last_line(printed), _LONGEST_ERROR)}"
            ended = BugExamination(verdict=_OVER if is_over else failed, cut_short=is_over)
            return _with_pattern(replace(bug, examination=ended), Path(result.model), result.nodes)
        write_whole(page, [page_of(tree).encode()])
        piece = (tree.get("piece") or {}).get("path")
        smallest = Path(result.model) if piece is None else place / piece
        is_fit = bundle.exists() and not (bundle / NOT_REPRODUCED).exists()
        examination = replace(
            _examination(tree, cell),
            piece=None if piece is None else str(smallest.relative_to(self.folder)),
            page=str(page.relative_to(self.folder)),
            bundle=str(bundle.relative_to(self.folder)) if is_fit else None,
        )
        return _with_pattern(replace(bug, examination=examination), smallest, result.nodes if piece is None else 0)

    def _words(self, result: ModelResult, cell: MatrixCell) -> Iterator[str]:
        """The words of ``biopsy diagnose`` that examine a member."""
        yield from ("diagnose", as_word(Path(result.model)))
        file = self.folder / INPUTS / result.file if result.file else None
        if (limit := self.limits.get(cell.kind)) is not None:
            yield from ("--check", "biopsy", *words_of_cost("{}", cell.trusted, cell.engine, cell.kind, limit, file))
            return
        engines = list(dict.fromkeys(filter(None, (engine_for(cell.trusted), cell.engine))))
        if len(engines) > 1 and parse_spec(cell.engine).name == parse_spec(EXACT).name:
            yield from ("--check", "biopsy", "run", "{}")  # float64 is its code, and no witness in its own case
        for spec in engines:
            yield from ("--engine", spec)
        if file is not None:
            yield from ("--load-inputs", as_word(file))


def _examination(tree: Tree, cell: MatrixCell) -> BugExamination:
    """What the report of a diagnosis says of a cell."""
    verdict = tree["verdict"]
    ways = verdict.get("workarounds") or ()
    specs = (way["engine"] for way in ways if way["engine"] is not None)  # with other settings, or of another release
    name, others = parse_spec(cell.engine).name, {cell.engine, engine_for(cell.trusted)}
    matches = (tree.get("known") or {}).get("matches") or ()
    known = next((each for each in matches if each["looks_like_it"]), {"sentence": None, "issue": None})
    cut_short = any(step["outcome"] == "stopped" for step in tree.get("steps") or ())
    return BugExamination(
        verdict=verdict["text"],
        confirmed=verdict["kind"] in _FAILS and not (cut_short and not tree.get("piece")),
        refuted=verdict["kind"] in _NO_BUG,
        cut_short=cut_short,
        nodes=tuple(nodes_of(tree)[:_SMALL]),
        known=known["sentence"],
        issue=known["issue"],
        switch=ways[0]["text"] if ways else None,
        right_with=next((spec for spec in specs if spec not in others and parse_spec(spec).name == name), None),
    )


def _with_pattern(bug: Bug, model: Path, nodes: int) -> Bug:
    """The bug with the fingerprint and the graph of a small model, unless that is too large or cannot be read."""
    if nodes > _SMALL:
        return bug
    try:
        fingerprint = _fingerprint(model)
    except errors.BiopsyError:
        return bug
    return replace(bug, fingerprint=fingerprint.digest, graph=fingerprint.text)


def _fingerprint(model: Path) -> Fingerprint:
    return fingerprint_of(pattern_of(parsed(read_bytes(model), model), str(model)))


def with_smallest_part(bug: Bug, group: Group, folder: Path) -> Iterator[str]:
    """The models of a group that contain the nodes of its bug's smallest part, a file in the ``folder`` of the hunt.

    Element types may be others: their models fail alike.
    """
    pattern = None
    if bug.examination is not None and bug.examination.piece is not None:
        with suppress(errors.BiopsyError):  # it is gone
            text = pattern_text(_scope(folder / bug.examination.piece))
            where = [condition for condition in text.where if ".type " not in condition] if text else []
            pattern = text and FailurePattern(text.nodes, where, text.domain)
    for result, _ in group.members:
        path = Path(result.model)
        with suppress(errors.BiopsyError, SearchLimitError):  # it is damaged now, or too large
            place = pattern and pattern.occurrence_in(_scope(path), may_be_lone=True)
            contains = place and not place.unknown
            if contains or (result.nodes <= _SMALL and _fingerprint(path).digest == bug.fingerprint):
                yield result.model


def _scope(model: Path) -> Scope:
    return scope_of_piece(parsed(read_bytes(model), model))


def merged(bugs: Sequence[Bug]) -> list[Bug]:
    """Bugs with those of the same engines and kind whose smallest parts have the same pattern as one, worst first."""
    by_pattern: dict[tuple[object, ...], Bug] = {}
    for number, bug in enumerate(bugs):
        key = (bug.engines, bug.kind, bug.example.stage, bug.example.failure, bug.fingerprint or number)
        other = by_pattern.get(key)
        if other is None:
            by_pattern[key] = bug
        else:
            models = tuple(sorted({*other.models, *bug.models}))
            confirmed = {model for each in (other, bug) for model in each.models if model not in each.unconfirmed}
            unconfirmed = tuple(model for model in models if model not in confirmed)
            by_pattern[key] = replace(other, models=models, unconfirmed=unconfirmed)
    return sorted(by_pattern.values(), key=lambda bug: bug.rank)


_LONGEST_TEXT = 300

_MEASURES: Mapping[Kind, type[Latency] | type[PeakMemory]] = {SLOWER: Latency, LARGER: PeakMemory}


def words_of_cost(
    model: str, trusted: str, suspect: str, kind: Kind, limit: float, inputs: Path | None
) -> Iterator[str]:
    """The words of ``biopsy run`` that measure a model, or ``{}``, in two engines."""
    yield from ("run", model, "--engine", trusted, "--engine", suspect, f"--{kind}", f"{limit:g}")
    if inputs is not None:
        yield from ("--load-inputs", as_word(inputs))


def measured(question: HuntQuestion, model: FoundModel, result: ModelResult, suspect: str, kind: Kind) -> ModelResult:
    """The result of a model, with what ``suspect`` needs compared with the first engine as its last cell.

    The inputs are those of the sweep; they are kept if it fails. Nothing else should run meanwhile.
    """
    trusted, limit = question.engines[0], question.limits[kind]
    cell = MatrixCell(engine=suspect, kind="unmeasured", stage="compare", trusted=trusted)
    place, name = question.folder / INPUTS, samples_name(model.path)
    is_kept = bool(result.file) or any(place.glob(f"{name}.*"))
    file = place / result.file if result.file else None
    try:
        index = index_bytes(read_bytes(model.path), model.path.parent)
        feeds = [sample.feed for sample in samples_of(index, model.inputs, question.seed)]
        if file is None and any(feeds):
            file = write_inputs(place / name, feeds)
    except errors.BiopsyError as error:
        cell = replace(cell, text=shortened(first_line(error.message), _LONGEST_TEXT))
        return replace(result, cells=(*result.cells[:-1], cell))
    with temporary_folder("biopsy-hunt-") as folder:
        report = folder / "report.json"
        words = words_of_cost(as_word(model.path), trusted, suspect, kind, limit, file)
        memory = question.memory_of(model.path)
        _, printed = run_biopsy(*words, "--report", str(report), seconds=question.seconds, memory=memory)
        tree = read_tree(report)
    run, verdict = tree.get("run") or {}, tree.get("verdict") or {}
    text = verdict.get("text") or f"it was not measured to the end: {last_line(printed)}"
    cell = replace(cell, text=shortened(text, _LONGEST_TEXT))
    if run.get("costs") and len(run["reasons"]) <= 1:
        cost = record_of(_MEASURES[kind], run["costs"][0]["measured"])
        side = cost.side_of(limit)
        if side == kind:  # and that is the only reason
            text = cost.compared_with(trusted)
            message, operators = f"at least {limit:g} times as much", operators_of_few(index)
            cell = replace(cell, kind=kind, failure=kind, message=message, text=text, operators=operators)
        elif side == f"not {kind}" and not run["reasons"]:
            cell = MatrixCell(engine=suspect, kind="right")
    if file is not None and not (is_kept or cell.is_bug):
        file.unlink()
    named = file.name if file is not None and (result.file or cell.is_bug) else ""
    return replace(result, cells=(*result.cells[:-1], cell), file=named)


def last_line(printed: str) -> str:
    """The line with the error among what a command printed, else the last one."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return printable(next((line for line in lines if "error: " in line), lines[-1]))
