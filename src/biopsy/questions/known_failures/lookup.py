"""Looking up a piece among known bugs, and writing a new entry for a bug that is not known yet.

A match is not proof, because two bugs may have the same pattern. So a match says what else agrees: the engine, the way
in which it fails, the release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from biopsy import errors, events
from biopsy.checks.judge import Rules, signature_of
from biopsy.checks.outcome import Check, Outcome
from biopsy.engines.registry import find_class, parse_spec, release_now
from biopsy.model.load import parse, read_bytes
from biopsy.processes.writing import write_whole
from biopsy.questions.known_failures.catalogue import (
    ORIGIN,
    SUFFIX,
    VERSION,
    KnownFailure,
    ReleaseKind,
    catalogue_of,
    release_of,
    users_folder,
)
from biopsy.questions.known_failures.fingerprint import Fingerprint, fingerprint_of
from biopsy.questions.known_failures.pattern import (
    Occurrence,
    PatternText,
    SearchLimitError,
    pattern_text,
    scope_of_piece,
)
from biopsy.questions.known_failures.reading import pattern_of
from biopsy.questions.workarounds.spellings.site import Scope
from biopsy.records import plain, plain_of
from biopsy.session.trial import FailureJudge, cannot_run, steps_after_pass, until_no_pass
from biopsy.text import count, first_of, html_table, printable


def seen_in(
    engine: str, *, release: str = "", stage: str = "", kind: str = "", is_checked: bool = False
) -> SeenFailure:
    """A failure of an engine, such as "onnxrt:optimization=none". What is not known is "".

    Without a ``release``, it is the installed one, unless ``is_checked``: a check will then report it. Raises
    UnknownEngine.
    """
    if not engine:
        return SeenFailure(release=release, stage=stage, kind=kind)
    spec = parse_spec(engine)
    installed = spec.settings.get("release") or "" if is_checked else _installed(engine)
    return SeenFailure(engine=spec.name, release=release or installed, stage=stage, kind=kind)


_MOST_RUNS = 8
"""Runs of a check that may pass before it is said that the piece does not fail it."""


def seen_by(check: Check, piece: Path, seen: SeenFailure) -> SeenFailure:
    """``seen``, completed by how the piece fails a check, which is run until it fails, within reason.

    If the check says that another engine cannot load, build or run the piece than ``seen`` says, that is a UsageError;
    but which of two engines computes something wrong, the user may know better than the check. Raises OriginalPasses if
    the piece passes, CheckError if the check cannot be run.
    """
    judged, runs = until_no_pass(lambda: FailureJudge(Rules()).judge(check.run(piece)), _MOST_RUNS)
    if judged.outcome is Outcome.PASSES:
        raise errors.OriginalPasses(
            f"{piece} does not fail this check in {runs} runs ({judged.reason}), so there is nothing to look up",
            next_steps=steps_after_pass(judged, check.line(piece)),
        )
    if judged.outcome is Outcome.INFRASTRUCTURE:
        raise cannot_run(judged, check.line(piece))
    if judged.outcome not in (Outcome.REPRODUCES, Outcome.OTHER_FAILURE):
        raise errors.CheckError(f"the check says nothing about {piece}: {judged.reason}")
    signature = signature_of(judged.evidence)
    name = signature.engine.partition(":")[0]
    engine = seen.engine or name
    if name and name != engine and signature.stage != "compare":
        raise errors.UsageError(
            f"{signature.engine} fails this check ({judged.reason}), and not {engine}",
            next_steps=[f"--engine {name}", "leave out --engine"],
        )
    release = seen.release or (_installed(signature.engine or engine) if name in ("", engine) else "")
    return replace(
        seen, engine=engine, release=release, stage=seen.stage or signature.stage, kind=seen.kind or signature.kind
    )


def _installed(engine: str) -> str:
    """The release of an engine with settings; "" if it is not known."""
    if not engine:
        return ""
    try:
        return release_now(parse_spec(engine)) or ""
    except errors.UnknownEngine:
        raise
    except errors.BiopsyError:
        return ""


Grade = Literal["matches", "possible", "contains"]
"""How a piece compares with a known pattern. ``matches``: it has its nodes, and all conditions hold. ``possible``: it
leaves some conditions open. ``contains``: it has more nodes."""

_GRADES: Mapping[Grade, tuple[str, str]] = {
    "matches": ("looks like", "all nodes, and all conditions hold"),
    "possible": ("may be", "all nodes; not known from the piece:"),
    "contains": ("contains the pattern of", "all nodes of the known pattern, among others:"),
}
"""Words for a piece and for its pattern; the best grade first."""

UNREPORTED = "(no public report of it is known)"
"""Said behind the name of a bug of biopsy's catalogue without an issue."""


@dataclass(frozen=True, kw_only=True)
class SeenFailure:
    """How the piece fails here; "" where not known. ``engine`` is a name without settings."""

    engine: str = ""
    release: str = ""
    stage: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownMatch:
    """A known bug whose pattern the piece has.

    ``differences`` are the nodes that the piece has besides the pattern, ``more`` of them, and the conditions that it
    leaves open. ``engine_agrees``, ``signature_agrees`` and ``release`` are None if not known.
    """

    failure: KnownFailure
    grade: Grade
    differences: tuple[str, ...]
    more: int
    engine_agrees: bool | None
    signature_agrees: bool | None
    release: ReleaseKind | None

    @property
    def looks_like_it(self) -> bool:
        """Whether the piece has the pattern of the bug, and neither its engine nor its failure differs."""
        return self.engine_agrees is not False and self.signature_agrees is not False

    @property
    def is_sure(self) -> bool:
        """Whether pattern, engine, failure and release all agree."""
        agreements = (self.engine_agrees, self.signature_agrees)
        return self.grade == "matches" and all(agreements) and self.release == "fails"

    @property
    def sentence(self) -> str:
        """What the piece looks like, in one line."""
        failure = self.failure
        if self.engine_agrees is False:
            return f"has the pattern of {failure.reference}, a failure of {failure.engine}: {failure.title}"
        doubt = ""
        if self.signature_agrees is False:
            doubt = ", but fails otherwise"
        elif self.release == "mended":
            doubt = f", known as mended in {failure.mended}, yet it fails here"
        unreported = f" {UNREPORTED}" if failure.origin == ORIGIN and not failure.issue else ""
        return f"{_GRADES[self.grade][0]} {failure.reference}{unreported}{doubt}: {failure.title}"

    def evidence(self, seen: SeenFailure) -> Iterator[tuple[str, str]]:
        """Pairs of a heading and a text: what agrees with the known bug and what does not, then facts about it."""
        yield from self._compared(seen)
        for head, texts in (
            ("needs", self.failure.conditions),
            ("avoid", [workaround.full for workaround in self.failure.workarounds]),
            ("see", [self.failure.issue] if self.failure.issue else []),
            ("from", [self.failure.origin] if self.failure.origin != ORIGIN else []),
        ):
            yield from (("" if number else head, text) for number, text in enumerate(texts))

    def agreement(self, seen: SeenFailure) -> Iterator[str]:
        """What agrees with the known bug, and what does not."""
        yield from (f"{head} {text}".strip() for head, text in self._compared(seen))

    def _compared(self, seen: SeenFailure) -> Iterator[tuple[str, str]]:
        failure = self.failure
        yield "pattern", _GRADES[self.grade][1]
        yield from (("", difference) for difference in self.differences)
        engines: Mapping[bool | None, str] = {
            None: f"{failure.engine} there; the engine that fails here is not known",
            True: f"{seen.engine}, as known",
            False: f"{seen.engine} here, {failure.engine} there",
        }
        yield "engine", engines[self.engine_agrees]
        if self.signature_agrees is not None:
            here = " · ".join(filter(None, (seen.stage, seen.kind)))
            there = ", or ".join(map(str, failure.signatures))
            yield "fails", f"{here}, as known" if self.signature_agrees else f"{here} here, {there} there"
        known = f"it is known to fail in {failure.fails}" if failure.fails else "no release was tried"
        known += f", and as mended in {failure.mended}" if failure.mended else ""
        texts: Mapping[ReleaseKind | None, str] = {
            None: known,
            "fails": f"{seen.release} is known to fail ({failure.fails})",
            "mended": f"known as mended in {failure.mended}, yet {seen.release} fails here: a regression, or another "
            "bug",
            "unknown": f"{seen.release} was not tried: {known}",
        }
        yield "release", texts[self.release]

    def as_json(self, seen: SeenFailure) -> dict[str, Any]:
        """The part of a report about this match."""
        return {
            **self.failure.as_json(),
            "evidence": [{"about": about, "text": text} for about, text in self.evidence(seen)],
            "match": self.grade,
            **plain_of(self, "looks_like_it sentence differences engine_agrees signature_agrees release"),
        }


@dataclass(frozen=True, kw_only=True)
class KnownLookup:
    """The fingerprint of a piece and the known bugs that match it, the best first.

    ``piece`` is its graph, ``operators`` are those of its nodes. ``entries`` is how many bugs were compared. ``broken``
    are lines about files that could not be read, ``undecided`` the bugs whose comparison reached its limit.
    """

    fingerprint: Fingerprint
    piece: Scope
    operators: tuple[str, ...]
    seen: SeenFailure
    matches: tuple[KnownMatch, ...] = ()
    entries: int = 0
    broken: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    @cached_property
    def pattern(self) -> PatternText | None:
        """The piece as an entry would have it; None if a pattern cannot say what it is."""
        return pattern_text(self.piece)

    @property
    def best(self) -> KnownMatch | None:
        """The first match that looks like a known bug."""
        return next((match for match in self.matches if match.looks_like_it), None)

    @property
    def sentence(self) -> str:
        """The best match in one line, even one of another engine or failure; or that there is none."""
        if self.matches:
            return (self.best or self.matches[0]).sentence
        unsure = f"; {len(self.undecided)} could not be compared in time" if self.undecided else ""
        return f"not in our list{unsure}"

    def as_json(self) -> dict[str, Any]:
        """The value of ``known`` in a report."""
        return {
            "sentence": self.sentence,
            "fingerprint": self.fingerprint.digest,
            "graph": self.fingerprint.text,
            "seen": plain(self.seen),
            "matches": [match.as_json(self.seen) for match in self.matches],
            **plain_of(self, "entries broken undecided"),
        }

    def __repr__(self) -> str:
        return f"<KnownLookup: {printable(self.sentence)}>"

    def _repr_html_(self) -> str:
        rows = [(match.failure.reference, match.grade, match.sentence) for match in self.matches]
        return html_table(f"{self.fingerprint.digest}: {self.sentence}", ["known failure", "match", ""], rows)


def look_up(
    piece: Path,
    seen: SeenFailure | None = None,
    folders: Sequence[Path] = (),
    listener: events.Listener = events.ignore,
) -> KnownLookup:
    """Look up the model at ``piece``, which fails as ``seen`` says, in the catalogue and in further ``folders``.

    ``listener`` gets a remark for each file that cannot be read. Raises UsageError if there is no such model or folder,
    ModelError if the model cannot be read or is too large.
    """
    model = parse(read_bytes(piece), piece)
    pattern = pattern_of(model, str(piece))
    fingerprint = fingerprint_of(pattern)
    scope = scope_of_piece(model)
    catalogue = catalogue_of(folders)
    for line in catalogue.broken:
        listener(events.Remark(f"{line}: left out", warning=True))
    known = seen or SeenFailure()
    matches: list[KnownMatch] = []
    undecided: list[str] = []
    for failure in catalogue.failures:
        try:
            matches += sorted(_matches(failure, scope, fingerprint, known), key=_order)[:1]
        except SearchLimitError:
            undecided.append(failure.reference)
    return KnownLookup(
        fingerprint=fingerprint,
        piece=scope,
        operators=tuple(pattern.vertices[place].label for place in pattern.nodes),
        seen=known,
        matches=tuple(sorted(matches, key=_order)),
        entries=len(catalogue.failures),
        broken=catalogue.broken,
        undecided=tuple(undecided),
    )


def _matches(failure: KnownFailure, scope: Scope, fingerprint: Fingerprint, seen: SeenFailure) -> Iterator[KnownMatch]:
    """The matches of the patterns of a bug."""
    engine_agrees = failure.engine == seen.engine if seen.engine else None
    for pattern in failure.patterns:
        if isinstance(pattern, str):
            occurrence = Occurrence() if pattern == fingerprint.digest else None
        else:
            occurrence = pattern.occurrence_in(scope)
        if occurrence is None:
            continue
        more = f"{count(len(occurrence.more), 'node')} more here: {first_of(occurrence.more, _MOST_NAMED)}"
        yield KnownMatch(
            failure=failure,
            grade="contains" if occurrence.more else "possible" if occurrence.unknown else "matches",
            differences=(*([more] if occurrence.more else []), *(f"is {text}?" for text in occurrence.unknown)),
            more=len(occurrence.more),
            engine_agrees=engine_agrees,
            signature_agrees=failure.shows_as(seen.stage, seen.kind),
            release=failure.release_kind(seen.release) if seen.release and engine_agrees is not False else None,
        )


def _order(match: KnownMatch) -> tuple[object, ...]:
    """The sort key of matches, the best first."""
    return (
        not match.looks_like_it,
        list(_GRADES).index(match.grade),
        match.engine_agrees is not True,
        match.signature_agrees is not True,
        match.release != "fails",
        match.more,
        len(match.differences),
        match.failure.origin != ORIGIN,
        match.failure.name,
    )


_MOST_NAMED = 6


def entry_text(lookup: KnownLookup, title: str = "", issue: str = "") -> str:
    """The text of a valid file for a new bug, with comments on what a person should fill in.

    Raises UsageError if the engine is not known.
    """
    seen = lookup.seen
    if not seen.engine:
        raise errors.UsageError(
            "which engine fails is not known, and a known failure is one of an engine",
            next_steps=["--engine NAME", "--check COMMAND ...    runs it once, to see how it fails"],
        )
    if not title:
        title = f"{seen.engine} fails on {first_of(lookup.operators, _MOST_NAMED)}"
    try:
        package = next(iter(find_class(seen.engine).distributions), seen.engine)
    except errors.EngineMissing:
        package = seen.engine
    version = release_of(seen.release)
    signature: dict[str, object] = {"stage": seen.stage, "kinds": [seen.kind] if seen.kind else []}
    signature = {key: value for key, value in signature.items() if value}
    parts: list[tuple[str, dict[str, object]]] = [
        ("", {"biopsy_known": VERSION}),
        ("What is wrong, in a sentence.", {"title": title}),
        (
            "The address of a public report: https://github.com/OWNER/NAME/issues/NUMBER; '' if there is none.",
            {"issue": issue, "engine": seen.engine, "package": package},
        ),
        (
            "Releases that were tried: those that fail, and those in which it is mended ('' for none).",
            {"fails": "" if version is None else f"=={version}", "mended": ""},
        ),
        (
            "How it shows: the stage (load, build, run or compare), and the kinds that releases call it.",
            {"signatures": [signature] if signature else []},
        ),
        ("What else must hold, such as a level of the optimizer; a sentence each.", {"conditions": []}),
        (
            "What avoids it: text: a sentence; engine: with settings, such as onnxrt:optimization=basic.",
            {"workarounds": []},
        ),
    ]
    lines: list[str] = []
    for comment, values in parts:
        lines += [f"# {comment}\n"] if comment else []
        lines += [yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)]
    pattern: dict[str, object] = {"fingerprint": lookup.fingerprint.digest}
    if lookup.pattern is not None:
        pattern = {key: value for key, value in plain(lookup.pattern).items() if value}
    lines += ["# This piece. Leave out or widen what does not matter, as in: c2.type in {float16, float32}.\n"]
    lines += [yaml.safe_dump({"patterns": [pattern]}, sort_keys=False, allow_unicode=True, width=100)]
    return "".join(lines)


def new_file(name: str) -> Path:
    """The path of ``--add NAME``, in the user's folder. Raises UsageError for a bad name, or without a home folder."""
    folder = users_folder()
    if folder is None:
        raise errors.UsageError("there is no home folder to add it to", next_steps=["--save FILE.yaml"])
    stem = name.removesuffix(SUFFIX)
    if not stem or stem.startswith(".") or not all(char.isalnum() or char in "-_." for char in stem):
        raise errors.UsageError(
            f"--add {printable(name)!r}: a name has only letters, digits, '-', '_' and '.'",
            next_steps=["--add my-bug", "--save FILE.yaml    writes it anywhere"],
        )
    return folder / f"{stem}{SUFFIX}"


def write_entry(path: Path, text: str) -> None:
    """Write a new file atomically. Raises UsageError if it exists already, or cannot be written."""
    if path.exists() or path.is_symlink():
        raise errors.UsageError(
            f"{path} is there already: nothing was written", next_steps=["give another name, or remove it"]
        )
    write_whole(path, [text.encode()])
