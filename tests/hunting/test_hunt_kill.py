"""A hunt that is killed at any moment goes on where it was, and ends with the same result."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import started
from support.hunts import RULES, hunt, read, zoo
from support.planting import planted as planted


def timeless(tree: Any) -> Any:
    """A result without the times that it took."""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if key != "seconds"}
    return [timeless(each) for each in tree] if isinstance(tree, list) else tree


def kill_at_moments(folder: Path, suspect: str, moments: int) -> None:
    words = ("zoo", "--onnxrt", "--engine", suspect, "--no-diagnosis")
    zoo(folder / "zoo")
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


def test_killed_in_the_middle_it_goes_on_to_the_same_result(tmp_path: Path, planted: Callable[..., str]) -> None:
    kill_at_moments(tmp_path, planted(*RULES), 1)


@pytest.mark.slow
def test_killed_at_twenty_moments_it_goes_on_to_the_same_result(tmp_path: Path, planted: Callable[..., str]) -> None:
    kill_at_moments(tmp_path, planted(*RULES), 20)
