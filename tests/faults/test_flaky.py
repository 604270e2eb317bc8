"""Failures that show in some runs only: the culprit is found all the same."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import biopsy
from support.models import chain

NODE = re.compile(rb"\x1a[\x02-\x06](n\d+)\x22")


def fails_in(rate: float, culprit: str, seed: int, calls: list[int]) -> Callable[[Path], bool]:
    """A check that fails at that rate where the culprit is, and never elsewhere."""
    chance = random.Random(seed)

    def check(candidate: Path) -> bool:
        calls.append(1)
        return culprit.encode() in NODE.findall(candidate.read_bytes()) and chance.random() < rate

    return check


def found(folder: Path, rate: float, runs: int) -> int:
    """In how many of the runs, each with a culprit of its own, nothing but the culprit was left."""
    model = chain(1000).SerializeToString()
    right = 0
    for seed in range(runs):
        culprit = f"n{random.Random(seed + 1000).randrange(1000)}"
        try:
            result = biopsy.reduce(model, fails_in(rate, culprit, seed, []), folder / "r.onnx")
        except (biopsy.OriginalPasses, biopsy.CheckError):
            continue
        right += result.nodes == (f"Relu '{culprit}'",)
    return right


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_one_culprit_among_a_thousand_is_found_in_three_runs(tmp_path: Path, rate: float) -> None:
    assert found(tmp_path, rate, 3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_one_culprit_among_a_thousand_is_found_in_nineteen_of_twenty_runs(tmp_path: Path, rate: float) -> None:
    assert found(tmp_path, rate, 20) >= 19


@pytest.mark.parametrize("needed", [("n5",), ("n5", "n40"), tuple(f"n{number}" for number in range(0, 60, 7))])
def test_a_failure_that_always_shows_costs_at_most_ten_runs_more(tmp_path: Path, needed: tuple[str, ...]) -> None:
    def count(**options: int) -> int:
        calls = []

        def check(candidate: Path) -> bool:
            calls.append(1)
            return set(needed) <= {name.decode() for name in NODE.findall(candidate.read_bytes())}

        biopsy.reduce(chain(60), check, tmp_path / "r.onnx", **options)
        return len(calls)

    assert count() - count(repeat=1) <= 2 + 8


CHANCE = """
import random
open('runs.txt', 'a').write('.')
chance = random.Random(os.path.getsize('runs.txt')).random()
sys.exit('n25' in names and chance < {rate})
"""


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, pytest.param(0.7, marks=pytest.mark.slow)])
def test_a_script_that_fails_by_chance_is_noticed_and_outvoted(place, rate: float) -> None:
    place.model(50)
    line = ["m.onnx", "-o", "r.onnx", "--confidence", "0.9999", "--jobs", "1"]
    ran = place.reduce(*line, "--check", *place.check(CHANCE.format(rate=rate)))
    assert ran.status == 0, ran.told
    assert place.nodes() == ["n25"]
    assert "the same model fails in" in ran.told
    assert re.search(r"a candidate passes only after \d+ runs", ran.told)
