"""``biopsy hunt --slower`` and ``--larger``: what is planted is found, nothing else accused, nothing measured twice."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from biopsy.hunting.hunt import changes
from support.hunts import hunt, kinds, read, unary, zoo
from support.planting import planted as planted

SLOW_TANH = {"op": "Tanh", "does": "sleep", "by": 0.004}
MODELS = {
    "slow": unary("Relu", "Tanh"),
    "fast": unary("Relu", "Neg"),
    "wrong": unary("Sin", "Tanh"),
    "refused": unary("Sinh"),
}


@pytest.fixture
def engines(planted: Callable[..., str]) -> tuple[str, str]:
    return planted(), planted(SLOW_TANH, {"op": "Sin", "does": "scale"}, {"op": "Sinh", "does": "refuse run"})


@pytest.fixture
def words(engines: tuple[str, str]) -> list[str]:
    return ["zoo", *(word for engine in engines for word in ("--engine", engine))]


def times(folder: Path) -> list[str]:
    """The models whose times were measured, by the events of a hunt."""
    lines = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [Path(line["name"]).stem for line in lines if line.get("question") == "is it slower?"]


def test_a_slower_model_is_a_bug_after_those_that_fail_and_is_not_measured_again(
    tmp_path: Path, engines: tuple[str, str], words: list[str]
) -> None:
    zoo(tmp_path / "zoo", MODELS)
    line = (*words, "--no-diagnosis", "--events", tmp_path / "events.jsonl")
    assert hunt(tmp_path, *line).status == 1
    assert not times(tmp_path) and kinds(tmp_path / "found", engines[1])["slow"] == "right"
    (tmp_path / "found" / "hunt.json").rename(tmp_path / "hunt.json")
    ran = hunt(tmp_path, *line, "--slower", "1.3")
    assert ran.status == 1, ran.told
    assert times(tmp_path) == ["fast", "slow"]  # by what the journal knows of them without --slower
    found = read(tmp_path / "found")
    assert [bug["kind"] for bug in found["bugs"]] == ["wrong", "refused", "slower"]
    slow = found["bugs"][-1]
    assert [Path(model).stem for model in slow["models"]] == ["slow"]
    assert (slow["engine"], slow["trusted"], slow["operators"]) == (engines[1], engines[0], ["Relu", "Tanh"])
    assert "--check biopsy run {}" in slow["line"] and "--slower 1.3" in slow["line"]
    seen = kinds(tmp_path / "found", engines[1])
    assert seen["slow"] == "slower" and seen["fast"] in ("right", "unmeasured")  # on a busy machine
    assert "1 slower" in ran.told and "◷" in (tmp_path / "found" / "hunt.html").read_text()
    files = {Path(model["model"]).stem for model in found["models"] if model["file"]}
    assert files == {"slow", "wrong", "refused"}
    assert len([*(tmp_path / "found" / "inputs").iterdir()]) == len(files)
    before = json.loads((tmp_path / "hunt.json").read_text())
    assert changes(found, before).new == (slow["name"],)
    assert changes(before, found).open == (slow["name"],) and not changes(before, found).gone
    assert hunt(tmp_path, *line, "--slower", "1.3").status == 1
    assert not times(tmp_path) and read(tmp_path / "found")["bugs"] == found["bugs"]


def test_what_is_not_slower_is_not_accused(tmp_path: Path, engines: tuple[str, str], words: list[str]) -> None:
    zoo(tmp_path / "zoo", {"slow": MODELS["slow"], "fast": MODELS["fast"]})
    words = [words[0], *words[3:], *words[1:3]]  # the slow engine first
    ran = hunt(tmp_path, *words, "--no-diagnosis", "--slower", "1.3")
    assert ran.status in (0, 4), ran.told
    seen = kinds(tmp_path / "found", engines[0])
    assert seen["slow"] == "right" and seen["fast"] in ("right", "unmeasured"), ran.told
    assert ran.status == (0 if seen["fast"] == "right" else 4)


def test_a_model_that_needs_more_memory_is_a_bug_and_one_that_needs_as_much_is_right(
    tmp_path: Path, planted: Callable[..., str]
) -> None:
    large, small = ({"op": "Tanh", "does": "allocate", "by": megabytes * 1_000_000} for megabytes in (60, 25))
    trusted, suspect = planted(small), planted(large)
    zoo(tmp_path / "zoo", {"large": unary("Relu", "Tanh"), "small": unary("Relu", "Neg")})
    line = ("zoo", "--engine", trusted, "--engine", suspect, "--no-diagnosis", "--events", tmp_path / "events.jsonl")
    ran = hunt(tmp_path, *line, "--larger", "1.5")
    assert ran.status == 1, ran.told
    found = read(tmp_path / "found")
    (bug,) = found["bugs"]
    assert (bug["kind"], [Path(model).stem for model in bug["models"]]) == ("larger", ["large"]), ran.told
    assert "times as much memory as" in bug["text"] and "--larger 1.5" in bug["line"]
    assert "--check biopsy run {}" in bug["line"] and (found["larger"], found["slower"]) == (1.5, None)
    assert kinds(tmp_path / "found", suspect)["small"] in ("right", "unmeasured")  # of a few pages of memory
    assert "1 larger" in ran.told and "▣" in (tmp_path / "found" / "hunt.html").read_text()
    assert changes({**found, "bugs": [], "larger": 2.0}, found).open == (bug["name"],)
    assert hunt(tmp_path, *line, "--larger", "1.5", "--slower", "1.3").status == 1  # only its time is still measured
    questions = [json.loads(text).get("question") for text in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert questions.count("is it slower?") == 2 and "is it larger?" not in questions


def test_a_single_engine_is_wrong_usage(tmp_path: Path) -> None:
    zoo(tmp_path / "zoo", {"fast": MODELS["fast"]})
    ran = hunt(tmp_path, "zoo", "--onnxrt", "--slower", "1.3")
    assert ran.status == 2 and "name two" in ran.told


@pytest.mark.slow
def test_a_slowdown_is_diagnosed_by_the_same_measurement(tmp_path: Path, words: list[str]) -> None:
    slow = {
        "slow": unary("Relu", "Neg", "Abs", "Tanh", "Neg"),
        "slow_too": unary("Abs", "Neg", "Abs", "Tanh", "Neg", "Neg"),
    }
    zoo(tmp_path / "zoo", slow)
    ran = hunt(tmp_path, *words, "--slower", "1.3", "--per-bug", "120s", timeout=600)
    assert ran.status == 1, ran.told
    (bug,) = read(tmp_path / "found")["bugs"]
    assert bug["kind"] == "slower" and bug["confirmed"] and not bug["unconfirmed"], ran.told
    assert [Path(model).stem for model in bug["models"]] == ["slow", "slow_too"]
    assert [*bug["nodes"]] and "Tanh" in bug["graph"]
    assert (tmp_path / "found" / bug["page"]).is_file() and (tmp_path / "found" / bug["bundle"]).is_dir()
