"""What a reduction takes where several checks run at once: in rounds of a simulated clock, pinned as checks are.

However many run at once, the same checks are asked about, in the same order.
"""

from pathlib import Path

import pytest

from benchmarks.rounds import rounds

MOST = {1: 20, 2: 16, 4: 9, 16: 6, 64: 5}
"""Rounds for one culprit of 10,000 nodes, wherever it stands, by checks at once. Fewer are welcome."""

EXPECTED = {
    "middle": {1: 16, 2: 9, 4: 7, 16: 5, 64: 4},
    "two far apart": {1: 36, 2: 22, 4: 16, 16: 10},
}
"""Rounds for 1,000 nodes, by checks at once. Fewer are welcome: change the number. More need a reason."""


@pytest.mark.parametrize("pattern", EXPECTED)
def test_a_thousand_nodes_take_as_many_rounds_as_ever_and_always_the_same_checks(pattern: str, tmp_path: Path) -> None:
    found = {jobs: rounds(1_000, pattern, jobs, tmp_path) for jobs in EXPECTED[pattern]}
    assert {jobs: taken for jobs, (taken, _) in found.items()} == EXPECTED[pattern]
    assert len({checks for _, checks in found.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["start", "middle", "end", "on a branch"])
@pytest.mark.parametrize("jobs", MOST)
def test_one_culprit_of_ten_thousand_takes_few_rounds(jobs: int, pattern: str, tmp_path: Path) -> None:
    assert rounds(10_000, pattern, jobs, tmp_path)[0] <= MOST[jobs]
