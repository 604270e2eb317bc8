"""The journal, with real files and real processes."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.checks import journal_file
from biopsy.checks.journal import Journal
from biopsy.checks.journal_file import Values
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from support.journals import forge

IDENTITY = {"model": "0" * 128, "check": "python check.py {}", "onnxruntime": "1.23.2"}
FAILED = Judged(Outcome.REPRODUCES, "exit status 1", Evidence(status=1, seconds=0.25))
PASSED = Judged(Outcome.PASSES, "exit status 0", Evidence(status=0, seconds=0.5))

ADDS = """
import sys
from pathlib import Path
from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Evidence, Judged, Outcome

journal = Journal.open(Path(sys.argv[1]), {"model": "m"})
print("open", flush=True)
for number in range(int(sys.argv[2])):
    judged = Judged(Outcome.PASSES, "exit status 0 " * 20, Evidence(status=0, seconds=0.1))
    journal.add(number.to_bytes(8, "big"), judged, stage="bisect", description="the first half", nodes=number)
    print(number, flush=True)
sys.stdin.read()
"""


def add(journal: Journal, digest: bytes = b"digest", judged: Judged = FAILED) -> None:
    journal.add(digest, judged, stage="bisect", description="the first half", nodes=5)


def child(path: Path, adds: int, **options: object) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", ADDS, str(path), str(adds)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


def with_a_run(path: Path, identity: dict[str, str]) -> None:
    journal = Journal.open(path, identity)
    add(journal)
    journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reduced.onnx.journal"


def refusal(path: Path, identity: dict[str, str] = IDENTITY) -> errors.UsageError:
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(errors.UsageError) as caught:
        Journal.open(path, identity)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()} == before
    return caught.value


# What is kept


def test_every_run_of_a_model_is_remembered_in_order_and_found_again(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    assert (journal.path, journal.resumed, journal.runs(b"one")) == (path, 0, [])
    for digest, judged in [(b"one", FAILED), (b"two", PASSED), (b"one", PASSED)]:
        add(journal, digest, judged)
    assert journal.runs(b"one") == [FAILED, PASSED]
    journal.close()

    journal = Journal.open(path, IDENTITY)
    assert journal.resumed == 3
    assert journal.runs(b"one") == [FAILED, PASSED]
    assert journal.runs(b"two") == [PASSED]
    assert [(entry.digest, entry.stage, entry.description, entry.nodes) for entry in journal.entries()] == [
        (digest, "bisect", "the first half", 5) for digest in (b"one", b"two", b"one")
    ]
    journal.close()


def test_output_and_verdict_are_not_kept_so_that_a_run_reads_the_same_before_and_after_a_stop(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    add(
        journal,
        b"one",
        Judged(
            Outcome.OTHER_FAILURE,
            "x",
            Evidence(status=1, output=b"much output", verdict=VerdictFile(outcome="fails"), seconds=0.25),
        ),
    )
    kept = [Judged(Outcome.OTHER_FAILURE, "x", Evidence(status=1, seconds=0.25))]
    assert journal.runs(b"one") == kept
    journal.close()
    journal = Journal.open(path, IDENTITY)
    assert journal.runs(b"one") == kept
    journal.close()


def test_runs_can_be_taken_back(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    for digest in (b"one", b"two", b"one"):
        add(journal, digest)
    journal.forget(b"one")
    journal.forget(b"unknown")
    assert (journal.runs(b"one"), journal.runs(b"two")) == ([], [FAILED])
    journal.close()
    journal = Journal.open(path, IDENTITY)
    assert (journal.resumed, journal.runs(b"one"), journal.runs(b"two")) == (1, [], [FAILED])
    journal.close()


def test_notes_are_kept_and_the_newest_counts(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    assert journal.noted("signature") is None
    journal.note("signature", "{}")
    journal.note("signature", '{"status": 1}')
    assert journal.noted("signature") == '{"status": 1}'
    journal.close()
    journal = Journal.open(path, IDENTITY)
    assert journal.notes() == {"signature": '{"status": 1}'}
    journal.close()


evidences = st.builds(
    Evidence,
    status=st.integers(-(1 << 31), 1 << 32),
    seconds=st.floats(allow_nan=False, allow_infinity=False),
    timed_out=st.booleans(),
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
runs = st.tuples(
    st.binary(min_size=1, max_size=3),
    st.builds(Judged, st.sampled_from(Outcome), texts, evidences),
    texts,
    texts,
    st.integers(0, 1 << 40),
)


@settings(deadline=None, max_examples=30)  # files are written, and brought to the disk
@given(st.lists(runs, max_size=8), st.dictionaries(texts, texts, max_size=3), st.dictionaries(texts, texts, max_size=3))
def test_whatever_is_added_is_found_again(
    added: list[tuple[bytes, Judged, str, str, int]], notes: dict[str, str], identity: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.open(Path(folder, "j"), identity)
        for digest, judged, stage, description, nodes in added:
            journal.add(digest, judged, stage=stage, description=description, nodes=nodes)
        for key, value in notes.items():
            journal.note(key, value)
        before = journal.runs(added[0][0]) if added else []
        journal.close()
        journal = Journal.open(Path(folder, "j"), identity)
        found = [
            (entry.digest, entry.judged, entry.stage, entry.description, entry.nodes) for entry in journal.entries()
        ]
        assert (found, journal.notes(), journal.resumed) == (added, notes, len(added))
        assert not added or journal.runs(added[0][0]) == before
        journal.close()


def test_text_that_is_no_unicode_and_a_time_that_is_no_number_break_nothing(path: Path) -> None:
    identity = {"check": "python \udcff.py"}
    journal = Journal.open(path, identity)
    add(journal, b"one", Judged(Outcome.INVALID, "bad \ud800", Evidence(status=125, seconds=float("nan"))))
    journal.note("\udcff", "\udcff")
    journal.close()
    journal = Journal.open(path, identity)
    assert journal.runs(b"one") == [Judged(Outcome.INVALID, "bad \\ud800", Evidence(status=125))]
    assert journal.noted("\udcff") == "\\udcff"
    journal.close()
    assert "then" in refusal(path, {"check": "python \udcfe.py"}).message


def test_a_journal_that_is_removed_leaves_nothing_behind(path: Path) -> None:
    journal = Journal.open(path, IDENTITY)
    add(journal)
    journal.remove()
    assert list(path.parent.iterdir()) == []


def test_a_journal_is_removed_from_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "j").write_bytes(b"mine")
    monkeypatch.chdir(tmp_path)
    journal = Journal.open(Path("j"), IDENTITY)
    monkeypatch.chdir("elsewhere")
    add(journal)
    journal.remove()
    assert not (tmp_path / "j").exists()
    assert Path("j").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["a?b#c %41.journal", ":memory:", "\udcff.journal"])
def test_a_journal_may_have_any_name(tmp_path: Path, name: str) -> None:
    for found in range(2):
        journal = Journal.open(tmp_path / name, IDENTITY)
        assert journal.resumed == found
        add(journal)
        journal.close()
    assert [file.name for file in tmp_path.iterdir()] == [name]


# Processes that end, and processes that meet


@pytest.mark.parametrize("adds_before", [0, 1, 700, 2500])
def test_what_was_added_survives_sigkill(path: Path, adds_before: int) -> None:
    process = child(path, 1_000_000)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == (str(adds_before - 1) if adds_before else "open"):
            break
    process.kill()
    told = adds_before + sum(line.endswith("\n") for line in process.stdout)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    journal = Journal.open(path, {"model": "m"})
    assert told <= journal.resumed <= told + 1
    assert [entry.nodes for entry in journal.entries()] == list(range(journal.resumed))
    add(journal)
    journal.close()


OPENS = """
import sys
from pathlib import Path
from biopsy.checks.journal import Journal

print("ready", flush=True)
while True:
    Journal.open(Path(sys.argv[1]), {"model": "m"}, fresh=True).close()
"""


@pytest.mark.parametrize("milliseconds", range(0, 20, 4))
def test_a_process_that_is_killed_while_it_makes_a_journal_leaves_none_or_a_whole_one(
    path: Path, milliseconds: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", OPENS, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(milliseconds / 1000)
    process.kill()
    process.communicate()
    journal = Journal.open(path, {"model": "m"})
    add(journal)
    journal.close()


def test_the_disk_is_waited_for_once_a_second_and_for_an_answer_that_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def sync(descriptor: int) -> None:
        waited.append(time.monotonic())
        os.fsync(descriptor)

    monkeypatch.setattr(journal_file, "_datasync", sync)
    monkeypatch.setattr(journal_file, "_SHARE_OF_SYNCING", 1.0)  # a disk that is busy with something else is no matter
    journal = Journal.open(path, IDENTITY)
    opened = time.monotonic()
    while not waited:
        add(journal)
    assert waited[0] - opened > 0.9
    add(journal)
    assert len(waited) == 1
    journal.forget(b"digest")
    assert len(waited) == 2
    journal.close()
    assert len(waited) == 3


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    journal = Journal.open(path, IDENTITY)
    assert journal.resumed == 0
    journal.close()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_second_process_is_told_which_one_has_the_journal(path: Path, fresh: bool) -> None:
    process = child(path, 3)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "2\n":
            break
    with pytest.raises(errors.UsageError, match=rf"is in use by another biopsy \(process {process.pid}\)"):
        Journal.open(path, {"model": "m"}, fresh=fresh)
    process.kill()
    process.communicate()
    journal = Journal.open(path, {"model": "m"})
    assert journal.resumed == 3
    journal.close()


def test_a_journal_can_be_open_once_in_one_process_too_and_stays_locked_after_a_refusal(path: Path) -> None:
    journal = Journal.open(path, {"model": "m"})
    with pytest.raises(errors.UsageError, match=rf"in use by another biopsy \(process {os.getpid()}\)"):
        Journal.open(path, {"model": "m"})
    process = child(path, 0, stderr=subprocess.PIPE)
    _, told = process.communicate()
    assert process.returncode == 1
    assert "in use by another biopsy" in told
    journal.close()


LIMITED = """
import json, resource, sys
from pathlib import Path
from biopsy import errors
from biopsy.checks.journal import Journal
from biopsy.checks.outcome import Evidence, Judged, Outcome

journal = Journal.open(Path(sys.argv[1]), {"model": "m"})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
added = 0
try:
    while added < 5000:
        judged = Judged(Outcome.PASSES, "x" * 1000, Evidence(status=0))
        journal.add(b"d", judged, stage="bisect", description="", nodes=1)
        added += 1
except errors.CheckError as error:
    held = len(journal.runs(b"d"))
    journal.close()
    print(json.dumps([added, held, error.message, error.kept, error.next_steps, error.status]))
"""


def test_a_disk_that_is_full_ends_with_words_and_loses_nothing_that_was_added(path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    added, held, message, kept, next_steps, status = json.loads(ended.stdout)
    assert message.startswith(f"the journal {path} cannot be written: ")
    assert (held, kept, status) == (added, f"the {added} outcomes in it", 4)
    assert next_steps
    journal = Journal.open(path, {"model": "m"})
    assert journal.resumed == added > 10
    journal.close()


# Journals of another reduction, and files that are not journals


def test_a_journal_of_another_reduction_is_refused_by_what_differs(path: Path) -> None:
    with_a_run(path, {**IDENTITY, "--match": "any"})
    other = {**IDENTITY, "check": "python other.py {}", "model": "0" * 127 + "1", "engine": "openvino"}
    error = refusal(path, other)
    assert error.message.splitlines() == [
        f"the journal {path} belongs to another reduction; what differs is:",
        f"  model: ...'{'0' * 21}' then, ...'{'0' * 20}1' now",
        "  check: 'python check.py {}' then, 'python other.py {}' now",
        "  engine: not given then, 'openvino' now",
        "  --match: 'any' then, not given now",
    ]
    assert error.kept == "the journal, as it is"
    assert error.next_steps == ("--fresh    starts over, and keeps the old journal aside",)


def test_a_journal_in_which_nothing_stands_becomes_one_of_whatever_is_asked(path: Path) -> None:
    """Whoever made it was stopped before the first check ended."""
    Journal.open(path, IDENTITY).close()
    with_a_run(path, {"model": "another"})
    assert refusal(path).message.startswith(f"the journal {path} belongs to another reduction")
    journal = Journal.open(path, {"model": "another"})
    assert (journal.resumed, dict(journal.identity)) == (1, {"model": "another"})
    journal.close()


def test_only_a_few_differences_are_named(path: Path) -> None:
    with_a_run(path, {str(number): "x" for number in range(9)})
    assert refusal(path, {}).message.splitlines()[-1] == "  and 5 more"


def test_fresh_starts_over_and_keeps_every_old_journal(path: Path) -> None:
    for number in range(3):
        journal = Journal.open(path, {"model": str(number)}, fresh=True)
        assert journal.resumed == 0
        for _ in range(number + 1):
            add(journal)
        journal.close()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == [path.name, f"{path.name}.1", f"{path.name}.2"]
    for number, name in enumerate([f"{path.name}.1", f"{path.name}.2", path.name]):
        journal = Journal.open(path.with_name(name), {"model": str(number)})
        assert journal.resumed == number + 1
        journal.close()


def test_fresh_keeps_what_a_killed_process_had_added(path: Path) -> None:
    process = child(path, 3)
    assert process.stdout is not None
    while process.stdout.readline() != "2\n":
        pass
    process.kill()
    process.communicate()
    Journal.open(path, IDENTITY, fresh=True).close()
    journal = Journal.open(path.with_name(f"{path.name}.1"), {"model": "m"})
    assert journal.resumed == 3
    journal.close()


def test_fresh_without_an_old_journal_is_just_a_new_one(path: Path) -> None:
    Journal.open(path, IDENTITY, fresh=True).close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def no_journal(path: Path) -> None:
    path.write_bytes(b"these are my notes\n" * 500)


def without_its_beginning(path: Path) -> None:
    path.write_bytes(path.read_bytes()[path.stat().st_size // 2 :])


def without_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:50] + lines[51:]))


def with_lines_exchanged(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:50], lines[51], lines[50], *lines[52:]]))


def overwritten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4097) + b"\n")


def as_sqlite_has_them(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (number INTEGER PRIMARY KEY)")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_journal, "it is not a journal"),
        (without_its_beginning, "it is not a journal"),
        (without_a_line, "it is damaged at line 51: its checksum is another one"),
        (with_lines_exchanged, "it is damaged at line 51: its checksum is another one"),
        (overwritten, "it is damaged at line"),
        (as_sqlite_has_them, "it is an SQLite file, as other programs and older versions of biopsy write them"),
    ],
)
def test_a_file_that_is_damaged_or_no_journal_is_refused_and_can_be_put_aside(
    path: Path, damage: Callable[[Path], None], said: str
) -> None:
    journal = Journal.open(path, IDENTITY)
    for _ in range(200):
        add(journal)
    journal.close()
    damage(path)
    error = refusal(path)
    assert error.message.startswith(f"{path} cannot be used as a journal: {said}")
    assert error.kept == "that file, as it is"
    assert error.next_steps == ("--fresh    starts over, and keeps the old journal aside",)
    data = path.read_bytes()
    Journal.open(path, IDENTITY, fresh=True).close()
    assert path.with_name(f"{path.name}.1").read_bytes() == data


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("run", "00", "wonderful", "", 1, 0.5, False, "", "", 1), "a run in it has the unknown outcome 'wonderful'"),
        (("run", "0x", "passed", "", 1, 0.5, False, "", "", 1), "a run in it has a 'digest' that is not hexadecimal"),
        (("run", "00", "passed", "", "1", 0.5, False, "", "", 1), "it is not a line of a journal"),
        (("run", "00", "passed", "", 1, 1, False, "", "", 1), "it is not a line of a journal"),
        (("run", "00", "passed", "", 1, 0.5, 0, "", "", 1), "it is not a line of a journal"),
        (("run", "00", "passed", "", 1, 0.5, False, "", ""), "it is not a line of a journal"),
        (("run", "00", "passed", "", 1, 0.5, False, "", "", 1 << 63), "a run in it has a number that is too large"),
        (("note", "flakiness", 1), "it is not a line of a journal"),
        (("dance",), "it is not a line of a journal"),
        (("note", "nested", ["a"]), "it is not a list of texts and numbers"),
        (("dance", 1), "it is not a line of a journal"),
        (("identity", "model", "another"), "it is in the wrong place"),
    ],
)
def test_values_that_no_biopsy_would_write_are_refused(path: Path, line: Values, said: str) -> None:
    with_a_run(path, IDENTITY)
    forge(path, line)
    assert refusal(path).message == f"{path} cannot be used as a journal: it is damaged at line 7: {said}"
    Journal.open(path, IDENTITY, fresh=True).close()


def test_a_journal_of_another_version_is_refused(path: Path) -> None:
    path.write_bytes(b'["biopsy journal",5,["of the future"]]\n')
    assert refusal(path).message.endswith("it is of version 5, and this biopsy writes version 4")


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.UsageError, match="is not a folder"):
        Journal.open(tmp_path / "file" / "j", IDENTITY)
    with pytest.raises(errors.UsageError, match="it is a folder"):
        Journal.open(tmp_path, IDENTITY)
    with pytest.raises(errors.UsageError, match="it is not a plain file"):
        Journal.open(Path("/dev/null"), IDENTITY)
