"""Going on from a journal: only where it answers the same question; what differs is named."""

import contextlib
import json
import sqlite3

import pytest

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
    """The line is refused with these words, nothing is changed, and --fresh helps."""
    before = (place.folder / "r.onnx.journal").read_bytes()
    ran = place.reduce(*line)
    assert ran.status == 2, ran.told
    for word in ("r.onnx.journal belongs to another reduction", "--fresh", *named):
        assert word in ran.told, ran.told
    assert (place.folder / "r.onnx.journal").read_bytes() == before
    ran = place.reduce("--fresh", *line)
    assert ran.status == 0, ran.told
    assert "remembered" not in ran.told
    aside = place.folder / "r.onnx.journal.1"
    with contextlib.closing(sqlite3.connect(aside)) as kept:
        assert kept.execute("SELECT count(*) FROM runs").fetchone()[0] > 2
    aside.unlink()


def test_the_same_line_goes_on_and_says_what_it_remembers(place) -> None:
    line = interrupted(place)
    ran = place.reduce(*line)
    assert ran.status == 0
    assert "remembered in r.onnx.journal" in ran.told
    assert {"n3", "n9"} <= set(place.nodes())


def test_another_model_is_refused(place) -> None:
    line = interrupted(place)
    place.model(13)
    refused(place, line, "  model: ")


def test_other_words_of_the_check_are_refused(place) -> None:
    line = interrupted(place)
    refused(place, [*line, "more"], "  check: ", "more")


def test_a_script_that_was_changed_is_refused(place) -> None:
    line = interrupted(place)
    place.check(NEEDS_TWO + "\n# mended")
    refused(place, line, "  file check.py: ")


@pytest.mark.parametrize("option", [("--mode=linear",), ("--check-timeout", "9"), ("--match", "exact")])
def test_another_option_is_refused(place, option: tuple[str, ...]) -> None:
    line = interrupted(place)
    refused(place, [*option, *line], f"  option {option[0].partition('=')[0]}: ")


def test_another_version_of_an_engine_is_refused(place) -> None:
    line = interrupted(place)
    with contextlib.closing(sqlite3.connect(place.folder / "r.onnx.journal")) as journal:
        journal.execute("UPDATE identity SET value = '1.2.3' WHERE name = 'onnxruntime'")
        journal.commit()
    refused(place, line, "  onnxruntime: '1.2.3' then, ")


def test_options_that_do_not_change_answers_may_change(place) -> None:
    line = interrupted(place)
    ran = place.reduce("--jobs", "1", "-v", "--events", "e.txt", "--min-good", "good.onnx", *line)
    assert ran.status == 0, ran.told
    assert "remembered in r.onnx.journal" in ran.told


@pytest.mark.parametrize("harm", ["cut", "noise", "empty", "a folder", "another database"])
def test_a_journal_that_is_damaged_is_refused_or_begun_anew_and_never_believed(place, harm: str) -> None:
    line = interrupted(place)
    journal = place.folder / "r.onnx.journal"
    data = journal.read_bytes()
    for path in place.folder.glob("r.onnx.journal*"):
        path.unlink()
    if harm == "a folder":
        journal.mkdir()
    elif harm == "another database":
        with contextlib.closing(sqlite3.connect(journal)) as other:
            other.execute("CREATE TABLE precious (value TEXT)")
            other.commit()
    else:
        journal.write_bytes({"cut": data[: len(data) // 2], "noise": bytes(range(256)) * 64, "empty": b""}[harm])
    ran = place.reduce(*line)
    if harm == "empty":
        assert ran.status == 0
        return
    assert ran.status == 2, ran.told
    assert "r.onnx.journal" in ran.told
    if journal.is_dir():
        journal.rmdir()
    else:
        journal.unlink()


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
