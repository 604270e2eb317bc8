"""Every entry of the catalogue is true: its pieces have its fingerprints, and fail as it says where it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import biopsy
from biopsy import errors
from biopsy.engines.registry import create
from biopsy.questions.known_failures.catalogue import KnownFailure, catalogue_of
from biopsy.questions.known_failures.fingerprint import fingerprint_of
from biopsy.questions.known_failures.lookup import SeenFailure, look_up
from biopsy.questions.known_failures.reading import pattern_of
from support.known_pieces import PIECES
from support.models import save

TRUSTED = "onnxrt:optimization=none"
ENTRIES = {entry.name: entry for entry in catalogue_of().failures if entry.origin == "biopsy"}


def seen_with(entry: KnownFailure, piece: bytes, engine: str) -> SeenFailure | None:
    """How a piece fails in an engine; None if it does not."""
    try:
        expected, actual = biopsy.run(piece, engines=[TRUSTED, engine], val_range=(-1, 1))
    except errors.EngineFailure as failure:
        return SeenFailure(engine=entry.engine, stage=failure.stage, kind=failure.kind)
    compared = biopsy.compare(actual, expected, atol=1e-5, rtol=1e-5)
    if compared.passed:
        return None
    [(_, output)] = compared.failures
    kind = "mismatch" if output.actual_shape == output.expected_shape else "shape-mismatch"
    return SeenFailure(engine=entry.engine, stage="compare", kind=kind)


def test_every_file_can_be_read_and_has_pieces() -> None:
    assert catalogue_of().broken == ()
    assert ENTRIES.keys() == PIECES.keys()


@pytest.mark.parametrize("name", ENTRIES)
def test_the_pieces_of_an_entry_have_its_fingerprints(name: str) -> None:
    made = [fingerprint_of(pattern_of(make())) for make in PIECES[name]]
    assert [(one.digest, one.text) for one in made] == [(one.digest, one.text) for one in ENTRIES[name].patterns]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_how_its_pieces_fare_in_the_installed_release(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    try:
        release = create(entry.engine).version() or ""
    except errors.EngineMissing as missing:
        pytest.skip(str(missing))
    kind = entry.release_kind(release)
    assert kind != "unknown", f"{release}: try its pieces in it, and say so in the entry"
    for number, make in enumerate(PIECES[name]):
        piece = make()
        seen = seen_with(entry, piece.SerializeToString(), entry.engine)
        assert (seen is not None) == (kind == "fails"), f"piece {number} in {release}"
        if seen is None:
            continue
        found = look_up(save(piece, tmp_path / "piece.onnx"), SeenFailure(**{**vars(seen), "release": release}))
        assert found.best is not None and found.best.failure.name == name and found.best.is_sure
        for workaround in filter(None, (one.engine for one in entry.workarounds)):
            assert seen_with(entry, piece.SerializeToString(), workaround) is None, workaround


def test_no_two_entries_have_the_same_pattern() -> None:
    texts = [pattern.text for entry in ENTRIES.values() for pattern in entry.patterns]
    assert len(set(texts)) == len(texts)


ENDS = [
    (name, release, kind)
    for name, entry in ENTRIES.items()
    for kind, releases in (("fails", entry.fails), ("mended", entry.mended))
    for release in dict.fromkeys(one.version for one in SpecifierSet(releases))
]
"""The releases at the ends of what an entry says; the newest is the installed one, or nearly so."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "release", "kind"), ENDS)
def test_an_entry_says_what_happens_at_the_ends_of_its_releases(name: str, release: str, kind: str) -> None:
    entry = ENTRIES[name]
    assert entry.release_kind(release) == kind
    for number, make in enumerate(PIECES[name]):
        try:
            seen = seen_with(entry, make().SerializeToString(), f"{entry.engine}:release={release}")
        except errors.CannotInstall as refused:
            pytest.skip(str(refused))
        assert (seen is not None) == (kind == "fails"), f"piece {number}"
        if seen is not None:
            assert entry.shows_as(seen.stage, seen.kind), f"piece {number}: {seen}"
