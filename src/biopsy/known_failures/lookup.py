"""Looking up a piece: which known bugs it looks like, what agrees, and what does not.

A match is no proof: two bugs may have the same pattern. So a match says what is the same, and of the engine, the way
in which it fails and the release, whether they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from biopsy import events
from biopsy.known_failures.catalogue import ORIGIN, catalogue_of
from biopsy.known_failures.entry import KnownFailure, ReleaseKind
from biopsy.known_failures.fingerprint import Fingerprint, fingerprint_of
from biopsy.known_failures.occurrence import Occurrence, SearchLimitError, occurrence_in
from biopsy.known_failures.pattern import Pattern
from biopsy.known_failures.reading import pattern_of_file

Grade = Literal["same", "alike", "contains", "similar"]
"""The same fingerprint; the same nodes, and what is constant, exchanged or read by others differs; the known pattern
and more nodes; the same operators, and attributes or types differ."""

_GRADES: tuple[Grade, ...] = ("same", "alike", "contains", "similar")

_SENTENCES: Mapping[Grade, str] = {
    "same": "looks like",
    "alike": "looks like",
    "contains": "contains the pattern of",
    "similar": "is similar to",
}

_PATTERNS: Mapping[Grade, str] = {
    "same": "the same fingerprint",
    "alike": "the same nodes, which read the same of each other; what differs:",
    "contains": "all nodes of the known pattern, among others:",
    "similar": "the same operators, but what differs may be what matters:",
}


@dataclass(frozen=True, kw_only=True)
class SeenFailure:
    """How the piece fails here, as far as that is known; "" is not known. ``engine`` is a name without settings."""

    engine: str = ""
    release: str = ""
    stage: str = ""
    kind: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownMatch:
    """A known bug that has something of the piece.

    ``differences`` are sentences about the pattern, ``more`` is how many nodes there are besides. Of the engine, and of
    how it fails, None says that one of the two does not tell; ``release`` is what is known of the release, None where
    that is not told.
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
        """Whether the pattern is that of the bug, and nothing that is known speaks against it."""
        return self.grade != "similar" and self.engine_agrees is not False and self.signature_agrees is not False

    @property
    def is_sure(self) -> bool:
        """Whether all that there is to compare agrees."""
        told = (self.engine_agrees, self.signature_agrees)
        return self.grade == "same" and all(told) and self.release == "fails"

    @property
    def sentence(self) -> str:
        """One line: what it looks like."""
        failure = self.failure
        if self.engine_agrees is False:
            return f"has the pattern of {failure.reference}, a failure of {failure.engine}: {failure.title}"
        doubt = ""
        if self.signature_agrees is False:
            doubt = ", but fails otherwise"
        elif self.release == "mended":
            doubt = f", known as mended in {failure.mended}, yet it fails here"
        return f"{_SENTENCES[self.grade]} {failure.reference}{doubt}: {failure.title}"

    def evidence(self, seen: SeenFailure) -> Iterator[tuple[str, str]]:
        """What agrees with the known bug, and what does not, each with what it is about; then what is told of it."""
        yield from self._compared(seen)
        yield from _named("needs", self.failure.conditions)
        yield from _named("avoid", [one.full for one in self.failure.workarounds])
        if self.failure.issue:
            yield "see", self.failure.issue
        if self.failure.origin != ORIGIN:
            yield "from", self.failure.origin

    def agreement(self, seen: SeenFailure) -> Iterator[str]:
        """What agrees with the known bug, and what does not."""
        yield from (f"{head} {text}".strip() for head, text in self._compared(seen))

    def _compared(self, seen: SeenFailure) -> Iterator[tuple[str, str]]:
        yield "pattern", _PATTERNS[self.grade]
        yield from (("", difference) for difference in self.differences)
        if self.engine_agrees is not None:
            same = (
                f"{seen.engine}, as known" if self.engine_agrees else f"{seen.engine} here, {self.failure.engine} there"
            )
            yield "engine", same
        else:
            yield "engine", f"{self.failure.engine} there; nobody has said which fails here"
        if self.signature_agrees is not None:
            told = " · ".join(filter(None, (seen.stage, seen.kind)))
            ways = ", or ".join(map(str, self.failure.signatures))
            yield "fails", f"{told}, as known" if self.signature_agrees else f"{told} here, {ways} there"
        yield "release", self._of_release(seen)

    def _of_release(self, seen: SeenFailure) -> str:
        failure = self.failure
        known = f"it is known to fail in {failure.fails}" if failure.fails else "no release was tried"
        known += f", and as mended in {failure.mended}" if failure.mended else ""
        if self.release is None:
            return known
        if self.release == "fails":
            return f"{seen.release} is known to fail ({failure.fails})"
        if self.release == "mended":
            return f"known as mended in {failure.mended}, yet {seen.release} fails here: a regression, or another bug"
        return f"of {seen.release} nothing is known: {known}"

    def as_json(self, seen: SeenFailure) -> dict[str, Any]:
        """What a report says."""
        return {
            **self.failure.as_json(),
            "evidence": [{"about": about, "text": text} for about, text in self.evidence(seen)],
            "match": self.grade,
            "looks_like_it": self.looks_like_it,
            "sentence": self.sentence,
            "differences": list(self.differences),
            "engine_agrees": self.engine_agrees,
            "signature_agrees": self.signature_agrees,
            "release": self.release,
        }


@dataclass(frozen=True, kw_only=True)
class KnownLookup:
    """What was found of a piece: its fingerprint, and the known bugs that have something of it, the best first.

    ``entries`` is how many bugs were compared. ``broken`` are lines about files that could not be read, ``undecided``
    the bugs for which the limit of the comparison was reached.
    """

    fingerprint: Fingerprint
    seen: SeenFailure
    matches: tuple[KnownMatch, ...] = ()
    entries: int = 0
    broken: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    @property
    def best(self) -> KnownMatch | None:
        """The first match that looks like a known bug."""
        return next((match for match in self.matches if match.looks_like_it), None)

    @property
    def sentence(self) -> str:
        """One line: the best match, or that there is none."""
        if self.best is not None:
            return self.best.sentence
        unsure = f"; {len(self.undecided)} could not be compared in time" if self.undecided else ""
        return f"not in our list{unsure}"

    def as_json(self) -> dict[str, Any]:
        """What a report says: the key ``known``."""
        return {
            "sentence": self.sentence,
            "fingerprint": self.fingerprint.digest,
            "exact": self.fingerprint.exact,
            "graph": self.fingerprint.text,
            "seen": asdict(self.seen),
            "matches": [match.as_json(self.seen) for match in self.matches],
            "entries": self.entries,
            "broken": list(self.broken),
            "undecided": list(self.undecided),
        }

    def __repr__(self) -> str:
        from biopsy.text import printable

        return f"<KnownLookup: {printable(self.sentence)}>"

    def _repr_html_(self) -> str:
        from biopsy.text import html_table

        rows = [(one.failure.reference, one.grade, one.sentence) for one in self.matches]
        return html_table(f"{self.fingerprint.digest}: {self.sentence}", ["known failure", "match", ""], rows)


def look_up(
    piece: Path,
    seen: SeenFailure | None = None,
    folders: Sequence[Path] = (),
    listener: events.Listener = events.ignore,
) -> KnownLookup:
    """Look up the model at ``piece``, which fails as ``seen`` says, in the catalogue and in further ``folders``.

    Files that cannot be read are told to ``listener``. Raises UsageError if there is no such model or folder,
    ModelError if it cannot be read or is no piece.
    """
    pattern = pattern_of_file(piece)
    fingerprint = fingerprint_of(pattern)
    catalogue = catalogue_of(folders)
    for line in catalogue.broken:
        listener(events.Remark(f"{line}: left out", warning=True))
    known = seen or SeenFailure()
    matches: list[KnownMatch] = []
    undecided: list[str] = []
    for failure in catalogue.failures:
        try:
            matches += _matches(failure, pattern, fingerprint, known)
        except SearchLimitError:
            undecided.append(failure.reference)
    return KnownLookup(
        fingerprint=fingerprint,
        seen=known,
        matches=tuple(sorted(matches, key=_order)),
        entries=len(catalogue.failures),
        broken=catalogue.broken,
        undecided=tuple(undecided),
    )


def _matches(
    failure: KnownFailure, pattern: Pattern, fingerprint: Fingerprint, seen: SeenFailure
) -> Iterator[KnownMatch]:
    """The best match of a bug, of all its patterns; none if there is none."""
    found = []
    for one in failure.patterns:
        if fingerprint.exact and one.text == fingerprint.text:
            found = [_match(failure, "same", Occurrence(), seen)]
            break
        there = occurrence_in(one.pattern, pattern)
        if there is not None:
            grade: Grade = "similar" if there.essential else "contains" if there.more else "alike"
            found.append(_match(failure, grade, there, seen))
    yield from sorted(found, key=_order)[:1]


def _match(failure: KnownFailure, grade: Grade, there: Occurrence, seen: SeenFailure) -> KnownMatch:
    engine_agrees = failure.engine == seen.engine if seen.engine else None
    return KnownMatch(
        failure=failure,
        grade=grade,
        differences=there.differences,
        more=len(there.more),
        engine_agrees=engine_agrees,
        signature_agrees=failure.shows_as(seen.stage, seen.kind),
        release=failure.release_kind(seen.release) if seen.release and engine_agrees is not False else None,
    )


def _named(head: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from (("" if number else head, text) for number, text in enumerate(texts))


def _order(match: KnownMatch) -> tuple[object, ...]:
    """What the best one has the least of."""
    return (
        not match.looks_like_it,
        _GRADES.index(match.grade),
        match.engine_agrees is not True,
        match.signature_agrees is not True,
        match.release != "fails",
        match.more,
        len(match.differences),
        match.failure.origin != ORIGIN,
        match.failure.name,
    )
