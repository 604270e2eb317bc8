"""A hunt that is killed at any moment goes on where it was, and ends with the same result."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from support.command_line import started, wait_until
from support.hunts import RULES, ZOO, hunt, read, unary, zoo
from support.planting import planted as planted


def timeless(tree: Any) -> Any:
    """A result without the times that it took."""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if key != "seconds"}
    return [timeless(each) for each in tree] if isinstance(tree, list) else tree


def kill_at_moments(folder: Path, suspect: str, moments: int, models: Mapping[str, onnx.ModelProto] = ZOO) -> None:
    words = ("zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis")
    zoo(folder / "zoo", models)
    began = time.monotonic()
    assert hunt(folder, *words).status == 1
    took = time.monotonic() - began
    expected = timeless(read(folder / "found"))
    resumed = 0
    for number in range(moments):
        place = folder / f"killed-{number}"
        process = started("hunt", *words, "--dir", place, "--jobs", 2, folder=folder)
        time.sleep(took * (number + 1) / (moments + 1))
        process.kill()
        process.communicate()
        ran = started("hunt", *words, "--dir", place, "--jobs", 2, folder=folder)
        told, _ = ran.communicate(timeout=120)
        assert ran.returncode == 1, told
        found = (place / "hunt.json").read_text().replace(str(place), str(folder / "found"))
        assert timeless(json.loads(found)) == expected
        resumed += "remembered" in told
    assert resumed >= moments // 3


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_result(tmp_path: Path, planted: Callable[..., str]) -> None:
    few = {name: ZOO[name] for name in ("good", "deep/wrong_one", "fail", "random")}
    kill_at_moments(tmp_path, planted(*RULES), 1, few)


@pytest.mark.slow
def test_killed_at_twenty_moments_it_goes_on_to_the_same_result(tmp_path: Path, planted: Callable[..., str]) -> None:
    kill_at_moments(tmp_path, planted(*RULES), 20)


@pytest.mark.slow
def test_killed_in_the_middle_of_each_diagnosis_it_goes_on_to_the_same_result(
    tmp_path: Path, planted: Callable[..., str]
) -> None:
    zoo(tmp_path / "zoo", {"wrong": unary("Neg", "Tanh"), "fail": unary("Cosh")})
    words = ("zoo", "--onnxrt", "--engine", planted(*RULES), "--per-bug", "300s")
    assert hunt(tmp_path, *words, timeout=900).status == 1
    expected = timeless(read(tmp_path / "found"))
    assert all(bug["confirmed"] and not bug["cut_short"] for bug in expected["bugs"])
    (tmp_path / "found").rename(tmp_path / "whole")
    for number in range(len(expected["bugs"])):
        process = started("hunt", *words, "--dir", tmp_path / "found", "--jobs", 2, folder=tmp_path)
        begun = tmp_path / "found" / "bugs" / expected["bugs"][number]["name"] / "diagnosis"
        assert wait_until(begun.is_dir, 600)
        time.sleep(2)  # so that it is in the middle
        assert process.poll() is None
        process.kill()
        process.communicate()
        assert not (tmp_path / "found" / "hunt.json").exists()
    ran = hunt(tmp_path, *words, timeout=900)
    assert ran.status == 1 and "2 models remembered" in ran.told, ran.told
    assert timeless(read(tmp_path / "found")) == expected
