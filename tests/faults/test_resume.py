"""Going on from a journal: only where it answers the same question; what differs is named."""

import contextlib
import json
import sqlite3

import pytest

from support.journals import lines_of, runs_in, write

NEEDS_TWO = "sys.exit('n3' in names and 'n9' in names)"


def interrupted(place, *words: str) -> list[str]:
    """Begin a reduction and stop it soon; the words that go on with it."""
    if not (place.folder / "m.onnx").exists():
        place.model(12)
    line = ["m.onnx", "-o", "r.onnx", *words, "--check", *place.check(NEEDS_TWO)]
    ran = place.reduce("--max-checks", "7", *line)
    assert ran.status == 5, ran.told
    assert (place.folder / "r.onnx.journal").exists()
    return line


def refused(place, line: list[str], *named: str) -> None:
    """The line is refused with these words, and nothing is changed."""
    before = (place.folder / "r.onnx.journal").read_bytes()
    ran = place.reduce(*line)
    assert ran.status == 2, ran.told
    for word in ("r.onnx.journal belongs to another reduction", "--fresh", *named):
        assert word in ran.told, ran.told
    assert (place.folder / "r.onnx.journal").read_bytes() == before


def forget(place) -> None:
    for path in place.folder.glob("r.onnx.journal*"):
        path.unlink()


def test_another_model_is_refused_and_fresh_begins_anew_and_keeps_the_old_journal(place) -> None:
    line = interrupted(place)
    place.model(13)
    refused(place, line, "  model: ")
    ran = place.reduce("--fresh", *line)
    assert ran.status == 0, ran.told
    assert "remembered" not in ran.told
    aside = place.folder / "r.onnx.journal.1"
    assert runs_in(aside) > 2
    aside.unlink()


@pytest.mark.slow
def test_other_words_options_scripts_and_versions_are_refused_by_name(place) -> None:
    line = interrupted(place)
    refused(place, [*line, "more"], "  check: ", "more")
    refused(place, ["--mode=linear", *line], "  option --mode: 'minimal' then, 'linear' now")
    refused(place, ["--check-timeout", "9", *line], "  option --check-timeout: ")
    journal = place.folder / "r.onnx.journal"
    write(
        journal,
        [[*line[:2], "1.2.3"] if line[:2] == ["identity", "onnxruntime"] else line for line in lines_of(journal)],
    )
    refused(place, line, "  onnxruntime: '1.2.3' then, ")
    place.check(NEEDS_TWO + "\n# mended")
    refused(place, line, "  file check.py: ", "  onnxruntime: ")
    forget(place)


def test_it_goes_on_says_what_it_remembers_and_options_that_do_not_change_answers_may_change(place) -> None:
    line = interrupted(place)
    ran = place.reduce("--jobs", "1", "-v", "--events", "e.txt", "--min-good", "good.onnx", *line)
    assert ran.status == 0, ran.told
    assert "remembered in r.onnx.journal" in ran.told
    assert {"n3", "n9"} <= set(place.nodes())


@pytest.mark.slow
def test_a_journal_that_is_damaged_is_refused_and_never_believed(place) -> None:
    line = interrupted(place)
    journal = place.folder / "r.onnx.journal"
    data = journal.read_bytes()
    for harm in (data[len(data) // 2 :], data.replace(b'"passed"', b'"PASSED"', 1), bytes(range(256)) * 64):
        forget(place)
        journal.write_bytes(harm)
        ran = place.reduce(*line)
        assert ran.status == 2, ran.told
        assert "r.onnx.journal" in ran.told
        assert journal.read_bytes() == harm
    forget(place)


@pytest.mark.slow
def test_what_is_no_journal_is_left_alone(place) -> None:
    place.model(12)
    line = ["m.onnx", "-o", "r.onnx", "--check", *place.check(NEEDS_TWO)]
    journal = place.folder / "r.onnx.journal"
    journal.mkdir()
    assert place.reduce(*line).status == 2
    journal.rmdir()
    with contextlib.closing(sqlite3.connect(journal)) as other:
        other.execute("CREATE TABLE precious (value TEXT)")
        other.commit()
    before = journal.read_bytes()
    ran = place.reduce(*line)
    assert ran.status == 2
    assert "it is an SQLite file" in ran.told
    assert journal.read_bytes() == before
    assert place.reduce("--fresh", *line).status == 0
    assert (place.folder / "r.onnx.journal.1").read_bytes() == before
    journal.write_bytes(b"")  # somebody's touch
    assert place.reduce(*line).status == 0
    assert place.files() == {"m.onnx", "r.onnx", "r.onnx.journal.1"}


def test_a_replay_of_another_model_is_refused_too(place) -> None:
    place.model(12)
    line = ["-o", "r.onnx", "--check", *place.check(NEEDS_TWO)]
    assert place.reduce("m.onnx", "--save-debug-replay", "replay.txt", *line).status == 0
    assert json.loads((place.folder / "replay.txt").read_text())
    place.model(13)
    ran = place.reduce("m.onnx", "--load-debug-replay", "replay.txt", *line)
    assert ran.status == 2
    assert "replay.txt belongs to another reduction" in ran.told
    assert "model" in ran.told
