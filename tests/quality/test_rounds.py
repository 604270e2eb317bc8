"""What a reduction takes where several checks run at once: in rounds of a simulated clock, pinned as checks are.

However many run at once, the same checks are asked about, in the same order.
"""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import biopsy
from benchmarks.rounds import rounds
from benchmarks.simulated_clock import SimulatedClock
from biopsy.reduction.schedule import Mode
from support.models import chain
from support.predicates import has
from support.scattered import Scattered

MOST = {
    "middle": {1: 20, 2: 16, 4: 9, 16: 6, 64: 5},
    "two far apart": {1: 43, 2: 25, 4: 17, 16: 11, 64: 9},
}
"""Rounds for 10,000 nodes, by checks at once; one culprit wherever it stands. Fewer are welcome."""

EXPECTED = {
    "middle": {1: 19, 2: 11, 4: 8, 16: 6, 64: 5},
    "two far apart": {1: 36, 2: 22, 4: 15, 16: 9},
}
"""Rounds for 1,000 nodes, by checks at once. Fewer are welcome: change the number. More need a reason."""


@pytest.mark.parametrize("pattern", EXPECTED)
def test_a_thousand_nodes_take_as_many_rounds_as_ever_and_always_the_same_checks(pattern: str, tmp_path: Path) -> None:
    found = {jobs: rounds(1_000, pattern, jobs, tmp_path) for jobs in EXPECTED[pattern]}
    assert {jobs: taken for jobs, (taken, _) in found.items()} == EXPECTED[pattern]
    assert len({checks for _, checks in found.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["start", "middle", "end", "on a branch"])
@pytest.mark.parametrize("jobs", MOST["middle"])
def test_one_culprit_of_ten_thousand_takes_few_rounds(jobs: int, pattern: str, tmp_path: Path) -> None:
    assert rounds(10_000, pattern, jobs, tmp_path)[0] <= MOST["middle"][jobs]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", MOST["two far apart"])
def test_two_culprits_of_ten_thousand_far_apart_take_few_rounds(jobs: int, tmp_path: Path) -> None:
    assert rounds(10_000, "two far apart", jobs, tmp_path)[0] <= MOST["two far apart"][jobs]


@pytest.mark.slow
def test_ten_scattered_culprits_are_found_many_at_a_time(tmp_path: Path) -> None:
    expected = {1: 126, 4: 52, 16: 30, 64: 12}
    found = {jobs: rounds(1_000, "ten scattered", jobs, tmp_path) for jobs in expected}
    assert {jobs: taken for jobs, (taken, _) in found.items()} == expected


def rounds_of_chain(tmp_path: Path, jobs: int, *wanted: str, mode: Mode = "minimal") -> float:
    """Rounds for 200 nodes, of which some are needed."""
    clock = SimulatedClock()
    output = tmp_path / "r.onnx"
    made = biopsy.reduce(chain(200), has(*wanted), output, takes="model", mode=mode, jobs=jobs, executor=clock)
    assert len(made.nodes) == len(wanted)
    return clock.now


@pytest.mark.parametrize(("jobs", "most"), [(1, 213), (4, 55), (16, 19), (64, 9)])
def test_one_node_at_a_time_is_asked_about_many_at_once(jobs: int, most: int, tmp_path: Path) -> None:
    assert rounds_of_chain(tmp_path, jobs, "n30", "n170", mode="linear") <= most


@pytest.mark.parametrize(("jobs", "most"), [(4, 40), (64, 10)])
def test_needed_nodes_that_are_scattered_are_found_many_at_a_time(jobs: int, most: int, tmp_path: Path) -> None:
    assert rounds_of_chain(tmp_path, jobs, *(f"n{number}" for number in range(10, 200, 25))) <= most


@pytest.mark.parametrize(("jobs", "most"), [(1, 90), (4, 30), (64, 13)])
def test_repetitions_of_a_flaky_failure_run_at_once_for_several_candidates(
    jobs: int, most: int, tmp_path: Path
) -> None:
    """It shows in six of ten runs, so that a candidate passes only after seven runs or so."""
    chance, clock, culprit = random.Random(1), SimulatedClock(), has("n77")
    made = biopsy.reduce(
        chain(200),
        lambda model: culprit(model) and chance.random() < 0.6,
        tmp_path / "r.onnx",
        takes="model",
        jobs=jobs,
        executor=clock,
    )
    assert len(made.nodes) == 1
    assert clock.now <= most


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_of_any_failure_the_result_and_the_checks_are_the_same_however_many_run_at_once_and_long(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """No rule tells which sets of nodes fail, or how long a check takes, so that everything ends in any order."""
    nodes = data.draw(st.integers(2, 14))
    check = Scattered(nodes, data.draw(st.integers(0, 1 << 16)), data.draw(st.sampled_from([0.1, 0.5, 0.9])))
    mode = data.draw(st.sampled_from(["minimal", "bisect", "linear"]))
    lasts = random.Random(data.draw(st.integers(0, 1 << 16)))
    found = set()
    for jobs in (1, data.draw(st.integers(2, 8)), 40):
        output = tmp_path_factory.mktemp("any") / "r.onnx"
        clock = SimulatedClock(lambda evidence: lasts.choice([0.1, 1.0, 5.0]))
        made = biopsy.reduce(chain(nodes), check, output, mode=mode, jobs=jobs, executor=clock)
        found.add((output.read_bytes(), made.checks))
    assert len(found) == 1
