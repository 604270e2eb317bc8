"""The content store: files by their digests, whole or not at all, within a limit."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.processes.own_files import ContentStore
from biopsy.processes.reading import digest_of


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def never() -> Iterator[bytes]:
    raise AssertionError("it was asked for")


def copied(store: ContentStore, path: Path, data: bytes) -> bytes:
    store.copy_to(path, digest(data), len(data), lambda: [data[:2], data[2:]])
    return path.read_bytes()


def test_what_came_once_is_not_asked_for_again(tmp_path: Path) -> None:
    assert copied(ContentStore(tmp_path / "store"), tmp_path / "a", b"weights") == b"weights"
    assert digest_of(tmp_path / "a") == digest(b"weights")
    again = ContentStore(tmp_path / "store")
    again.copy_to(tmp_path / "b", digest(b"weights"), 7, never)
    assert (tmp_path / "b").read_bytes() == b"weights"
    assert again.received == 0


def test_a_copy_is_a_file_of_its_own(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    copied(store, tmp_path / "a", b"weights")
    assert (tmp_path / "a").stat().st_nlink == 1
    (tmp_path / "a").write_bytes(b"changed")
    assert copied(store, tmp_path / "b", b"weights") == b"weights"


@pytest.mark.parametrize("came", [b"", b"weight", b"weighty", b"weights, and more of it"])
def test_something_else_is_neither_kept_nor_given(tmp_path: Path, came: bytes) -> None:
    store = ContentStore(tmp_path / "store")
    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(errors.BiopsyError, match="something else"):
        store.copy_to(tmp_path / "a", digest(b"weights"), 7, lambda: [came])
    assert (tmp_path / "a").read_bytes() == b"before"
    assert copied(store, tmp_path / "a", b"weights") == b"weights"


def test_a_file_that_was_cut_short_is_asked_for_again(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    copied(store, tmp_path / "a", b"weights")
    (tmp_path / "store" / digest(b"weights")).write_bytes(b"wei")
    assert copied(store, tmp_path / "b", b"weights") == b"weights"


def test_a_file_that_holds_something_else_by_now_is_asked_for_again(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    copied(store, tmp_path / "a", b"weights")
    (tmp_path / "store" / digest(b"weights")).write_bytes(b"weightZ")
    assert copied(store, tmp_path / "b", b"weights") == b"weights"
    assert (tmp_path / "store" / digest(b"weights")).read_bytes() == b"weights"


def test_a_link_among_the_files_is_not_followed(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    copied(store, tmp_path / "a", b"weights")
    kept = tmp_path / "store" / digest(b"weights")
    kept.unlink()
    (tmp_path / "secret").write_bytes(b"weights")
    kept.symlink_to(tmp_path / "secret")
    assert copied(store, tmp_path / "b", b"weights") == b"weights"
    assert not kept.is_symlink()


def test_what_was_used_longest_ago_goes_when_there_is_too_much(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store", limit=10)
    for data in (b"first", b"other", b"first", b"third"):
        copied(store, tmp_path / "a", data)
    kept = {path.name for path in (tmp_path / "store").iterdir() if path.suffix != ".lock"}
    assert kept == {digest(b"first"), digest(b"third")}


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64])
def test_what_is_no_digest_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.BiopsyError, match="not a digest"):
        ContentStore(tmp_path / "store").copy_to(tmp_path / "a", name, 1, never)
