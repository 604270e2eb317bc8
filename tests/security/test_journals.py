"""Somebody has put something where a journal is to stand: it is not followed, waited for, changed, or believed."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import biopsy
from biopsy import errors
from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.cli.app import main
from support.journals import forged, lines_of, write
from support.models import chain, save
from support.predicates import has, names

IDENTITY = {"model": "m"}
FAILED = Judged(Outcome.REPRODUCES, "exit status 1", Evidence(status=1, seconds=0.25))
PASSED = Judged(Outcome.PASSES, "exit status 0", Evidence(status=0, seconds=0.5))
SECRET = b"the victim's\n"
OTHERS = 12345  # the number of another user
BY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users, and devices")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "r.onnx.journal"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    found = tmp_path / "victim"
    found.write_bytes(SECRET)
    return found


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """A test that waits for longer than a minute is ended."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def state(path: Path) -> object:
    """What stands at a path, without following or opening it if it is not a file."""
    found = path.lstat()
    content = path.read_bytes() if path.is_file() else None
    return found.st_ino, found.st_mode, found.st_uid, found.st_nlink, found.st_mtime_ns, content


def refused(path: Path, *, fresh: bool = False, identity: dict[str, str] = IDENTITY) -> errors.UsageError:
    """It is refused, and nothing in the folder is changed."""
    before = {each: state(each) for each in path.parent.iterdir()}
    with pytest.raises(errors.UsageError) as caught:
        Journal.open(path, identity, fresh=fresh)
    assert {each: state(each) for each in path.parent.iterdir()} == before
    return caught.value


# What is planted


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def link_that_dangles(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("startup.sh"))


def link_to_a_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(victim.with_name("pipe"))
    path.symlink_to(victim.with_name("pipe"))


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def file_of_others(path: Path, victim: Path) -> None:
    forged(path, IDENTITY)
    os.chown(path, OTHERS, OTHERS)


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (link, "it is a symbolic link"),
        (link_that_dangles, "it is a symbolic link"),
        (link_to_a_pipe, "it is a symbolic link"),
        (hard_link, "it is a hard link to another file"),
        pytest.param(file_of_others, "it belongs to another user", marks=BY_ROOT),
    ],
)
def test_a_link_or_a_file_of_others_is_refused_and_fresh_renames_it_and_follows_nothing(
    path: Path, victim: Path, plant: Callable[[Path, Path], None], said: str
) -> None:
    plant(path, victim)
    error = refused(path)
    assert error.message == f"{path} cannot be used as a journal: {said}"
    assert error.next_steps == ("--fresh    starts over, and keeps the old journal aside",)
    before, beside = path.lstat(), {each.name for each in victim.parent.iterdir()}
    journal = Journal.open(path, IDENTITY, fresh=True)
    journal.add(b"d", FAILED, stage="bisect", description="", nodes=1)
    journal.close()
    assert path.with_name(f"{path.name}.1").lstat().st_ino == before.st_ino
    assert path.is_file() and not path.is_symlink()
    assert victim.read_bytes() == SECRET
    assert {each.name for each in victim.parent.iterdir()} == beside


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def device(path: Path) -> None:
    os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero: it has no end


def socket_in_the_folder(path: Path) -> None:
    with contextlib.chdir(path.parent) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path.name)
        listening.close()


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (pipe, "it is not a plain file"),
        (folder, "it is a folder"),
        pytest.param(device, "it is not a plain file", marks=BY_ROOT),
        (socket_in_the_folder, "it is not a plain file"),
    ],
)
def test_what_is_no_file_is_refused_and_stays_where_it_is(
    path: Path, plant: Callable[[Path], None], said: str, fresh: bool
) -> None:
    plant(path)
    error = refused(path, fresh=fresh)
    assert error.message == f"{path} cannot be used as a journal: {said}"
    assert error.next_steps == ("move it elsewhere: the journal needs this name",)


def test_a_name_that_is_taken_by_a_link_is_not_renamed_over(path: Path, victim: Path) -> None:
    path.write_bytes(b"notes")
    path.with_name(f"{path.name}.1").symlink_to(victim.with_name("missing"))
    Journal.open(path, IDENTITY, fresh=True).close()
    assert path.with_name(f"{path.name}.1").is_symlink()
    assert path.with_name(f"{path.name}.2").read_bytes() == b"notes"


@pytest.mark.parametrize("was", [None, b""])
def test_a_journal_is_for_nobody_else_to_read(path: Path, was: bytes | None) -> None:
    if was is not None:
        path.write_bytes(was)
        path.chmod(0o644)
    before = os.umask(0)
    try:
        Journal.open(path, IDENTITY).close()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


# SQLite's traps


def with_super_journal(path: Path, victim: Path) -> None:
    """A file of SQLite, and beside it a log that names the victim as the one that has to be deleted after it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE identity (name, value); PRAGMA application_id = 1651076976")
    name = os.fsencode(victim)
    magic = bytes.fromhex("d9d505f920a163d7")
    header = magic + struct.pack(">IIIII", 0, 0, 2, 512, 4096)
    log = header.ljust(512, b"\0") + struct.pack(">I", 262145) + name
    log += struct.pack(">iI", len(name), sum(struct.unpack(f"{len(name)}b", name)) & 0xFFFFFFFF) + magic
    path.with_name(path.name + "-journal").write_bytes(log)


def test_the_super_journal_of_these_tests_is_a_trap_indeed(path: Path, victim: Path) -> None:
    with_super_journal(path, victim)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT * FROM identity").fetchall()
    assert not victim.exists()


def test_a_super_journal_beside_it_deletes_nothing(path: Path, victim: Path) -> None:
    with_super_journal(path, victim)
    log = path.with_name(path.name + "-journal")
    before = log.read_bytes()
    assert "it is an SQLite file, as other programs and older versions of biopsy write them" in refused(path).message
    for _ in range(2):
        journal = Journal.open(path, IDENTITY, fresh=True)
        journal.add(b"d", FAILED, stage="bisect", description="", nodes=1)
        journal.close()
    assert victim.read_bytes() == SECRET
    assert log.read_bytes() == before


def test_views_and_triggers_run_nothing(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS name, i AS value FROM n"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "PRAGMA application_id = 1651076976; PRAGMA user_version = 2;"
            f"CREATE VIEW identity AS {endless}; CREATE VIEW opened AS SELECT i AS process FROM ({endless})"
        )
    assert "it is an SQLite file" in refused(path).message


# Sizes and shapes


LIMITED = r"""
import resource, sys
from pathlib import Path
from biopsy import errors
from biopsy.checks.journal import Journal

has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, 2 * (has + (int(sys.argv[2]) << 20),))
try:
    Journal.open(Path(sys.argv[1]), {"model": "m"})
except errors.UsageError as error:
    print(error.message)
"""


def in_little_memory(path: Path, more: int) -> str:
    """What a process says of a journal that may take so many MiB besides what it has."""
    words = [sys.executable, "-c", LIMITED, str(path), str(more)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.removesuffix("\n")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing tells the size of a process here")
@pytest.mark.parametrize(
    ("size", "said"), [(10 << 30, "it is larger than 256 MiB"), (200 << 20, "a line in it is longer than 16 MiB")]
)
def test_a_huge_file_and_an_endless_line_cost_no_memory(path: Path, size: int, said: str) -> None:
    forged(path, IDENTITY)
    os.truncate(path, size)
    assert in_little_memory(path, 100) == f"{path} cannot be used as a journal: {said}"
    assert path.stat().st_size == size


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 3_000_000 + b"]" * 3_000_000,
        b'["note",' + b"[]," * 4_000_000 + b"[]]",
        b'["note",' + b'"",' * 4_000_000 + b'""]',
        b'["run","00","passed","",' + b"9" * 5_000_000 + b',0.5,false,"","",1]',
        b'["run","00","passed","",1,1e999,false,"","",1]',
        b'["run","00","passed","",1,NaN,false,"","",1]',
        b'["run","00","passed","",1,' + b"1" * 400 + b'.5,false,"","",1]',
        b'["note",{"a":1,"a":2},"b"]',
        b'["note","\xff","b"]',
        b'["note","a\x01","b"]',
        b'["note","\\ud8","b"]',
        b'["note","a","' + b"\\" * 1_000_001 + b'"]',
        b'["opened",-9223372036854775809]',
    ],
    ids=lambda bomb: repr(bomb[:24]),
)
def test_no_line_is_a_bomb_though_its_checksum_is_right(path: Path, bomb: bytes) -> None:
    forged(path, IDENTITY, bomb)
    told = in_little_memory(path, 100)
    assert f"{path} cannot be used as a journal: it is damaged at line 4: " in told or (b"opened" in bomb and not told)


def test_half_a_character_in_a_text_is_an_escape(path: Path) -> None:
    forged(path, IDENTITY, b'["note","\\ud800","\\udcff"]')
    journal = Journal.open(path, IDENTITY)
    assert journal.notes() == {"\\ud800": "\\udcff"}
    journal.close()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
kinds = st.sampled_from(["run", "note", "forget", "opened", "identity", "biopsy journal", "x"])


@settings(max_examples=40)
@given(st.lists(st.tuples(kinds, st.lists(values, max_size=9)), max_size=4))
def test_whatever_stands_in_lines_with_right_checksums_is_taken_or_refused(added: list[tuple[str, list[Any]]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "j")
        forged(path, IDENTITY, *([kind, *rest] for kind, rest in added))
        before = path.read_bytes()
        try:
            journal = Journal.open(path, IDENTITY)
        except errors.UsageError:
            assert path.read_bytes() == before
        else:
            list(journal.entries())
            journal.close()


# Lines that are torn, and any other harm


def filled(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    for number in range(6):
        judged = (FAILED, PASSED)[number % 2]
        journal.add(bytes([number % 4]), judged, stage="bisect", description="größer", nodes=number)
        if number == 2:
            journal.note("signature", '{"status": 1}')
        if number == 4:
            journal.forget(b"\0")
    journal.close()


def held(journal: Journal) -> tuple[object, object]:
    return [(entry.digest, entry.nodes) for entry in journal.entries()], journal.notes()


def test_a_last_line_that_is_cut_short_anywhere_is_dropped_and_nothing_else(path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        journal = Journal.open(path, IDENTITY)
        assert held(journal) == ([(b"\1", 1), (b"\2", 2), (b"\3", 3)], {"signature": '{"status": 1}'})
        journal.add(b"new", PASSED, stage="bisect", description="", nodes=9)
        journal.close()
        journal = Journal.open(path, IDENTITY)
        assert journal.resumed == 4
        assert journal.runs(b"new") == [PASSED]
        journal.close()


def test_a_beginning_that_is_cut_short_anywhere_becomes_a_journal_or_is_refused(path: Path) -> None:
    Journal.open(path, IDENTITY).close()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            journal = Journal.open(path, IDENTITY)
        except errors.UsageError:
            assert 0 < size < len(b'["biopsy journal",4,')
            assert path.read_bytes() == whole[:size]
        else:
            assert (journal.resumed, journal.identity) == (0, IDENTITY)
            journal.close()


places = st.integers(0, 2000)
mutations = st.one_of(
    st.tuples(st.just("overwrite"), places, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=8) | st.just(b"\n")),
    st.tuples(st.just("delete"), places, st.integers(1, 200)),
    st.tuples(st.just("repeat"), places, st.integers(1, 200)),
    st.tuples(st.just("line again"), places, places),
    st.tuples(st.just("cut"), places, st.just(0)),
)


def mutated(data: bytes, kind: str, place: int, more: Any) -> bytes:
    at = place % (len(data) + 1)
    if kind == "overwrite":
        return data[:at] + more + data[at + len(more) :]
    if kind == "insert":
        return data[:at] + more + data[at:]
    if kind == "delete":
        return data[:at] + data[at + more :]
    if kind == "repeat":
        return data[: at + more] + data[at:]
    if kind == "line again":
        lines = data.splitlines(keepends=True) or [b""]
        lines.insert(place % (len(lines) + 1), lines[more % len(lines)])
        return b"".join(lines)
    return data[:at]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[object]]:
    """A journal, and what each of its beginnings holds."""
    path = tmp_path_factory.mktemp("original") / "j"
    filled(path)
    whole = path.read_bytes()
    found: list[object] = [([], {})]
    lines = whole.splitlines(keepends=True)
    for count in range(3, len(lines) + 1):
        path.write_bytes(b"".join(lines[:count]))
        journal = Journal.open(path, IDENTITY)
        found.append(held(journal))
        journal.close()
    return whole, found


@settings(max_examples=300)
@given(harm=st.lists(mutations, min_size=1, max_size=3))
def test_a_journal_that_was_changed_anyhow_is_refused_as_it_is_or_answers_with_what_was_added_first(
    original: tuple[bytes, list[object]], harm: list[tuple[str, int, Any]]
) -> None:
    data, beginnings = original
    for one in harm:
        data = mutated(data, *one)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "j")
        path.write_bytes(data)
        try:
            journal = Journal.open(path, IDENTITY)
        except errors.UsageError:
            assert path.read_bytes() == data
        else:
            assert held(journal) in beginnings
            journal.close()
        assert [each.name for each in Path(place).iterdir()] == ["j"]


def test_what_another_program_does_to_an_open_journal_is_told(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    journal.add(b"d", FAILED, stage="bisect", description="", nodes=1)
    with path.open("ab") as stream:
        stream.write(b"more\n")
    with pytest.raises(errors.CheckError, match="another program has changed it meanwhile"):
        journal.add(b"d", FAILED, stage="bisect", description="", nodes=1)
    with pytest.raises(errors.CheckError, match="cannot be read any more: it is damaged at line 5"):
        list(journal.entries())
    journal.close()


# Locks


FORKS = """
import os, sys, time
from pathlib import Path
from biopsy import errors
from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Evidence, Judged, Outcome

journal = Journal.open(Path(sys.argv[1]), {"model": "m"})
judged = Judged(Outcome.PASSES, "", Evidence(status=0))
journal.add(b"d", judged, stage="bisect", description="", nodes=1)
if not os.fork():
    try:
        journal.add(b"d", judged, stage="bisect", description="", nodes=1)
    except errors.CheckError:
        print(os.getpid(), flush=True)
    journal.close()
    journal.remove()
    sys.stdout.close()
    os.close(1)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_fork_that_lives_on_keeps_no_lock_and_does_no_harm(path: Path) -> None:
    """As those of an executor's processes do."""
    process = subprocess.Popen([sys.executable, "-c", FORKS, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork = int(process.stdout.readline())
    try:
        with pytest.raises(errors.UsageError, match=rf"in use by another biopsy \(process {process.pid}\)"):
            Journal.open(path, IDENTITY)
        process.kill()
        process.wait()
        journal = Journal.open(path, IDENTITY)
        assert journal.resumed == 1
        journal.close()
    finally:
        os.kill(fork, signal.SIGKILL)
        process.stdout.close()


# What a forged journal of the right identity can do


def stopped(folder: Path, check: Any, **options: Any) -> Path:
    """The journal of a reduction that was stopped soon."""
    journal = folder / "r.onnx.journal"
    if not (folder / "m.onnx").exists():
        save(chain(12), folder / "m.onnx")
    found = biopsy.reduce(folder / "m.onnx", check, folder / "r.onnx", max_checks=7, journal=journal, **options)
    assert found.stopped is not None
    return journal


def with_every(journal: Path, before: str, after: str) -> int:
    """Change what every answer says; returns how many were changed."""
    lines = lines_of(journal)
    changed = [line for line in lines if line[0] == "run" and line[2] == before]
    for line in changed:
        line[2] = after
    write(journal, lines)
    return len(changed)


def beginning_of(journal: Path) -> list[list[Any]]:
    lines = lines_of(journal)
    return lines[: next(number for number, line in enumerate(lines) if line[0] == "opened") + 1]


def fails(model: onnx.ModelProto) -> bool:
    return has("n3", "n9")(model)


def test_what_somebody_else_has_written_is_refused_as_it_is(path: Path) -> None:
    """Everything in it is right, but for the secret of this user."""
    forged(path, IDENTITY, ("run", "00", "reproduced", "", 1, 0.1, False, "bisect", "", 3), key=b"of somebody else")
    before = path.read_bytes()
    assert "it was not written here by you" in refused(path).message
    assert path.read_bytes() == before
    Journal.open(path, IDENTITY, fresh=True).close()
    assert path.with_name(f"{path.name}.1").read_bytes() == before


def test_without_a_place_for_a_secret_a_journal_is_kept_and_never_resumed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    journal = Journal.open(path, IDENTITY)
    journal.add(b"d", FAILED, stage="bisect", description="", nodes=1)
    journal.close()
    assert "it was not written here by you" in refused(path).message


def test_answers_that_are_forged_to_fail_end_with_an_error(tmp_path: Path) -> None:
    journal = stopped(tmp_path, fails, takes="model")
    assert with_every(journal, "passed", "reproduced") > 0
    with pytest.raises(errors.CheckError, match="the result does not fail when it is checked again"):
        biopsy.reduce(
            tmp_path / "m.onnx",
            fails,
            tmp_path / "r.onnx",
            takes="model",
            journal=journal,
            repeat=2,
        )


def test_answers_that_are_forged_to_pass_only_make_the_result_larger(tmp_path: Path) -> None:
    journal = stopped(tmp_path, fails, takes="model")
    assert with_every(journal, "reproduced", "passed") > 0
    biopsy.reduce(tmp_path / "m.onnx", fails, tmp_path / "r.onnx", takes="model", journal=journal)
    assert fails(onnx.load(tmp_path / "r.onnx"))


def test_a_wider_failure_that_is_forged_is_not_looked_for(tmp_path: Path) -> None:
    """The journal says that the original's message listed Beta too, which is what a smaller model fails of."""

    def check(model: onnx.ModelProto) -> bool:
        if "n1" in names(model):
            raise RuntimeError(f"unsupported operators: {'Alpha' if fails(model) else 'Beta'}")
        return False

    journal = stopped(tmp_path, check, takes="model")
    signature = next(json.loads(line[2]) for line in lines_of(journal) if line[:2] == ["note", "signature"])
    items = signature["message"]["items"]
    assert len(items) == 1
    items.append(items[0].replace("Alpha", "Beta"))
    write(journal, [*beginning_of(journal), ["note", "signature", json.dumps(signature)]])
    biopsy.reduce(tmp_path / "m.onnx", check, tmp_path / "r.onnx", takes="model", journal=journal)
    assert set(names(onnx.load(tmp_path / "r.onnx"))) >= {"n1", "n3", "n9"}


@pytest.mark.parametrize("key", ["signature", "flakiness", "cuts are fed with"])
@pytest.mark.parametrize(
    "value",
    [
        "", "null", "7", "[]", "{}", "[" * 100_000, '{"status": 1, "message": 3}',
        '{"status": 1, "words": {"meaning": "", "items": [{}], "exact": ""}}',
        '{"status": 1, "parts": [{"kind": [], "function": "", "line": ""}]}',
        '{"failed": 1, "runs": 1000000000, "needed": 1000000000}', '{"failed": 5, "runs": 4, "needed": 2}',
        '{"failed": 0, "runs": 4, "needed": 2}', '{"failed": true, "runs": 4, "needed": 2}', '{"needed": 1}',
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_notes_of_any_kind_are_used_or_refused(tmp_path: Path, key: str, value: str) -> None:
    save(chain(3), tmp_path / "m.onnx")
    journal = tmp_path / "j"

    def check(model: onnx.ModelProto) -> bool:
        return "n1" in names(model)

    with contextlib.suppress(errors.BiopsyError):
        biopsy.reduce(tmp_path / "m.onnx", check, tmp_path / "r.onnx", takes="model", journal=journal, max_checks=1)
    if not journal.exists():
        pytest.fail("there is no journal to forge")
    write(journal, [*beginning_of(journal), ["note", key, value]])
    try:
        biopsy.reduce(tmp_path / "m.onnx", check, tmp_path / "r.onnx", takes="model", journal=journal)
    except errors.UsageError as error:
        assert str(journal) in error.message
        assert "--fresh" in error.next_steps[0]
    except errors.OriginalPasses:
        assert key == "signature"
    else:
        assert names(onnx.load(tmp_path / "r.onnx")) == ["n1"]


@pytest.mark.parametrize(("believes", "status"), [(False, 4), (True, 0)])
def test_a_person_is_asked_about_a_result_that_only_the_journal_answers_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, believes: bool, status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(6), tmp_path / "m.onnx")
    left = 4

    def truth(question: str) -> str:
        nonlocal left
        left -= 1
        if left == 0:
            return "q"
        return "f" if {"n1", "n4"} <= set(names(onnx.load(question.partition(":")[0]))) else "p"

    monkeypatch.setattr("builtins.input", truth)
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx"]) == 5
    journal = tmp_path / "r.onnx.journal"
    if not believes:
        assert with_every(journal, "passed", "reproduced") > 0
    left = -1
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx"]) == status
    told = capsys.readouterr()
    if believes:
        assert names(onnx.load("r.onnx")) == ["n1", "n4"]
    else:
        assert "the journal says that the result fails, and you do not" in told.err
