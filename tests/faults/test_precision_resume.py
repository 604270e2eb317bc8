"""A search over precisions that is killed or stopped goes on from its journal, and asks nothing twice."""

import json
import signal
from pathlib import Path

import onnx
import pytest
from onnx import helper

from support.command_line import end_of, started, wait_until
from support.journals import runs_in
from support.models import info, model, save

LAYERS = 12
ASKED = r"""
import os, sys, time
data = open(sys.argv[1], "rb").read()
low = [number for number in range(12) if b"t%d_raw" % number in data]
high = set(range(12)) - set(low)
open("asked.txt", "a").write(f"{low}\n")
while os.path.exists("most.txt") and len(set(open("asked.txt"))) > int(open("most.txt").read()): time.sleep(0.01)
"""
"""Each check writes down which layers are low in the candidate; its words name no layer.

It does not end once more different candidates were asked about than ``most.txt`` says, if there is such a file.
"""

NEEDS = "sys.exit(not {3, 9} <= high)"


def network() -> onnx.ModelProto:
    nodes = [helper.make_node("Sin", [f"t{n - 1}" if n else "x"], [f"t{n}"], name=f"n{n}") for n in range(LAYERS)]
    return model(nodes, [info("x")], [info(f"t{LAYERS - 1}")])


@pytest.fixture
def line(place) -> list[str]:
    """The words of a search with one check at a time."""
    save(network(), place.folder / "m.onnx")
    (place.folder / "check.py").write_text(ASKED + NEEDS)
    return ["m.onnx", "-o", "mixed.onnx", "--list", "keep.txt", "--jobs", "1", "--check", *check_words(place)]


def check_words(place) -> list[str]:
    words: list[str] = place.check(NEEDS)
    (place.folder / "check.py").write_text(ASKED + NEEDS)
    return words


def start(place, *words: str):
    return started("debug", "precision", *words, folder=place.folder, env=place.environment)


def held(place, line: list[str], most: int):
    """A search that has so many answers about different candidates, and waits for the next one without end."""
    (place.folder / "most.txt").write_text(str(most))
    process = start(place, *line)
    assert wait_until(lambda: len(searched(asked(place))) > most, 120)
    return process


def search(place, *words: str):
    return end_of(start(place, *words), 120)


def asked(place) -> list[str]:
    return place.told("asked.txt")


def kept(place) -> list[str]:
    return (place.folder / "keep.txt").read_text().split()


def forget(place) -> None:
    for name in ("asked.txt", "mixed.onnx", "keep.txt"):
        (place.folder / name).unlink(missing_ok=True)


def searched(lines: list[str]) -> list[str]:
    """What was asked to find the layers: without the runs that repeat the end at which all are low, and the result."""
    return list(dict.fromkeys(lines))


@pytest.mark.slow
@pytest.mark.parametrize("moment", [1, 4, 8])
def test_killed_it_goes_on_to_the_same_result_and_repeats_no_check_of_a_candidate(place, line, moment: int) -> None:
    assert search(place, *line).status == 0
    whole = searched(asked(place))
    expected = (place.folder / "mixed.onnx").read_bytes()
    forget(place)

    process = held(place, line, moment)
    process.kill()
    process.communicate()
    assert place.everyone_has_ended(60)
    (place.folder / "most.txt").unlink()
    assert (place.folder / "mixed.onnx.journal").exists()
    journal_holds = runs_in(place.folder / "mixed.onnx.journal")
    assert journal_holds
    before = asked(place)
    (place.folder / "asked.txt").unlink()

    ran = search(place, *line)
    assert ran.status == 0, ran.told
    assert "remembered in mixed.onnx.journal" in ran.told
    assert (place.folder / "mixed.onnx").read_bytes() == expected
    assert kept(place) == ["n3", "n9"]
    again = searched(asked(place))
    answered = set(before[:-1])  # the last one was killed before it had answered
    low_end, result = str(list(range(LAYERS))), str([n for n in range(LAYERS) if n not in (3, 9)])
    assert not answered & set(again) - {low_end, result}
    assert set(before) | set(again) == set(whole)
    assert not (place.folder / "mixed.onnx.journal").exists()


def test_interrupted_it_keeps_its_journal_and_says_the_line_that_goes_on(place, line) -> None:
    process = held(place, line, 5)
    process.send_signal(signal.SIGINT)
    told = "".join(filter(None, process.communicate(timeout=60)))
    (place.folder / "most.txt").unlink()
    assert process.returncode == 5, told
    assert "mixed.onnx.journal" in told
    assert "biopsy debug precision m.onnx -o mixed.onnx" in told
    ran = search(place, *line)
    assert ran.status == 0, ran.told
    assert "resumed" in ran.told
    assert kept(place) == ["n3", "n9"]


def test_a_limit_leaves_the_journal_and_the_line_that_goes_on_to_the_end(place, line) -> None:
    limited = search(place, "--max-checks", "7", *line)
    assert limited.status == 5, limited.told
    assert "resume   biopsy debug precision m.onnx -o mixed.onnx" in limited.told
    assert (place.folder / "mixed.onnx.journal").exists()
    ran = search(place, *line)
    assert ran.status == 0, ran.told
    assert kept(place) == ["n3", "n9"]


@pytest.mark.slow
def test_another_precision_mode_or_script_is_refused_by_name_and_fresh_starts_over(place, line) -> None:
    assert search(place, "--max-checks", "7", *line).status == 5
    journal = place.folder / "mixed.onnx.journal"
    before = journal.read_bytes()
    for words, named in ((["--bf16"], "low precision"), (["--mode", "bisect"], "option --mode")):
        ran = search(place, *words, *line)
        assert ran.status == 2, ran.told
        assert "mixed.onnx.journal belongs to another search" in ran.told
        assert named in ran.told
        assert "--fresh" in ran.told
        assert journal.read_bytes() == before
    (place.folder / "check.py").write_text(ASKED + "# changed\n" + NEEDS)
    assert "check.py" in search(place, *line).told
    ran = search(place, "--fresh", *line)
    assert ran.status == 0, ran.told
    (place.folder / "mixed.onnx.journal.1").unlink()


def test_a_script_inside_a_word_is_a_condition_too(place, line) -> None:
    words = [*line[: line.index("--check")], "--check", "sh", "-c", 'python3 check.py "$0"', "{}"]
    assert search(place, "--max-checks", "7", *words).status == 5
    (place.folder / "check.py").write_text(ASKED + "# changed\n" + NEEDS)
    ran = search(place, *words)
    assert ran.status == 2, ran.told
    assert "file check.py" in ran.told
    (place.folder / "mixed.onnx.journal").unlink()


def test_a_replay_is_saved_and_begins_another_search(place, line) -> None:
    assert search(place, "--save-debug-replay", "replay.txt", *line).status == 0
    stages = {run["stage"] for run in json.loads((place.folder / "replay.txt").read_text())["runs"]}
    assert stages == {"high", "low", "minimal", "confirm"}
    (place.folder / "asked.txt").unlink()
    assert search(place, "--load-debug-replay", "replay.txt", *line).status == 0
    low_end, result = str(list(range(LAYERS))), str([n for n in range(LAYERS) if n not in (3, 9)])
    assert set(asked(place)) <= {low_end, result}


def test_without_an_output_there_is_no_journal_and_its_options_are_refused(place, line) -> None:
    words = [word for word in line if word not in {"-o", "mixed.onnx"}]
    assert search(place, "--max-checks", "7", *words).status == 5
    assert not list(Path(place.folder).glob("*.journal"))
    ran = search(place, "--fresh", *words)
    assert ran.status == 2, ran.told
    assert "--fresh needs an output" in ran.told
