"""Every entry of the catalogue is true: it recognises its members, and these fail as it says where it says."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import onnx
import pytest
from packaging.specifiers import SpecifierSet

import biopsy
from biopsy import errors
from biopsy.engines.registry import create
from biopsy.questions.known_failures.catalogue import KnownFailure, catalogue_of
from biopsy.questions.known_failures.lookup import SeenFailure, look_up
from biopsy.questions.known_failures.pattern import FailurePattern, scope_of_piece
from support.known_pieces import PIECES
from support.models import save

TRUSTED = "onnxrt:optimization=none"
CATALOGUE = catalogue_of()
ENTRIES = {entry.name: entry for entry in CATALOGUE.failures if entry.origin == "biopsy"}


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lookup would read the same catalogue, which takes ten times as long as looking up a piece in it."""
    monkeypatch.setattr("biopsy.questions.known_failures.lookup.catalogue_of", lambda folders: CATALOGUE)


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
    assert CATALOGUE.broken == ()
    assert ENTRIES.keys() == PIECES.keys()


def names_in(piece: onnx.ModelProto, folder: Path) -> set[str]:
    """The entries that a piece may have, as far as its pattern says."""
    found = look_up(save(piece, folder / "piece.onnx"))
    return {match.failure.name for match in found.matches if match.grade in ("matches", "contains")}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_recognises_its_members_and_no_near_miss(name: str, tmp_path: Path) -> None:
    assert {label for label, piece in PIECES[name].members.items() if name not in names_in(piece, tmp_path)} == set()
    assert {label for label, piece in PIECES[name].near_misses.items() if name in names_in(piece, tmp_path)} == set()
    assert min(len(PIECES[name].members), len(PIECES[name].near_misses)) >= 5


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)], ids=["two pieces", "all"])
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_how_its_pieces_fare_in_the_installed_release(
    name: str, most: int | None, tmp_path: Path
) -> None:
    entry = ENTRIES[name]
    try:
        release = create(entry.engine).version() or ""
    except errors.EngineMissing as missing:
        pytest.skip(str(missing))
    kind = entry.release_kind(release)
    assert kind != "unknown", f"{release}: try its pieces in it, and say so in the entry"
    for label, piece in islice(PIECES[name].members.items(), most):
        seen = seen_with(entry, piece.SerializeToString(), entry.engine)
        assert (seen is not None) == (kind == "fails"), f"{label} in {release}"
        if seen is None:
            continue
        found = look_up(save(piece, tmp_path / "piece.onnx"), SeenFailure(**{**vars(seen), "release": release}))
        assert found.best is not None and found.best.failure.name == name, label
        assert found.best.signature_agrees, label
        for workaround in filter(None, (one.engine for one in entry.workarounds)):
            assert seen_with(entry, piece.SerializeToString(), workaround) is None, workaround
    for label, piece in islice(PIECES[name].near_misses.items(), most):
        assert seen_with(entry, piece.SerializeToString(), entry.engine) is None, label


def test_no_two_entries_have_the_same_pattern() -> None:
    patterns = [pattern for entry in ENTRIES.values() for pattern in entry.patterns]
    assert all(isinstance(pattern, FailurePattern) for pattern in patterns)
    assert len({pattern.text for pattern in patterns if isinstance(pattern, FailurePattern)}) == len(patterns)


def test_a_condition_tells_of_other_results_and_of_the_version_of_the_operators() -> None:
    unique = PIECES["onnx-8424-unique"]
    alone, with_indices = unique.members["as it was found"], unique.near_misses["with indices"]

    def is_in(piece: onnx.ModelProto, nodes: str, condition: str) -> bool:
        return FailurePattern(nodes, [condition]).occurrence_in(scope_of_piece(piece)) is not None

    found = [is_in(piece, "u = Unique(x); u", "u.siblings == 0") for piece in (alone, with_indices)]
    assert found == [True, False]
    assert is_in(alone, "Unique(x, axis=None)", "x.opset == 18")
    assert not is_in(alone, "Unique(x, axis=0)", "x.opset == 18")
    assert not is_in(alone, "Unique(x)", "x.opset < 18")


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
    for label, piece in PIECES[name].members.items():
        try:
            seen = seen_with(entry, piece.SerializeToString(), f"{entry.engine}:release={release}")
        except errors.CannotInstall as refused:
            pytest.skip(str(refused))
        assert (seen is not None) == (kind == "fails"), label
        if seen is not None:
            assert entry.shows_as(seen.stage, seen.kind), f"{label}: {seen}"


def test_no_entry_about_values_is_said_of_an_engine_that_is_only_slow() -> None:
    assert not [name for name, entry in ENTRIES.items() if entry.shows_as("compare", "slower")]
