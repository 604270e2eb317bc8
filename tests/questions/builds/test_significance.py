"""Fisher's test against counting by hand, Holm's correction, and how many more builds decide."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.questions.builds.difference import Table, builds_to_decide, fisher, holm


def more_builds(table: Table, tests: int, level: float) -> int | None:
    """How many more builds decide if they go on as those in the table, of so many choices that are compared."""
    return builds_to_decide([table], table.all_bad + table.all_good, level / tests)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    all_bad, all_good = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    return Table(draw(st.integers(0, all_bad)), all_bad, draw(st.integers(0, all_good)), all_good)


@given(tables())
def test_fishers_test_is_the_share_of_all_ways_to_spread_a_choice_over_builds(table: Table):
    builds = [True] * table.all_bad + [False] * table.all_good
    ways = [sum(some) for some in combinations(builds, table.bad + table.good)]
    assert fisher(table) == pytest.approx(sum(bad >= table.bad for bad in ways) / len(ways))


def test_fishers_tea_tasting():
    assert fisher(Table(4, 4, 0, 4)) == pytest.approx(1 / 70)
    assert fisher(Table(3, 4, 1, 4)) == pytest.approx(17 / 70)


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_rejects_what_its_steps_reject(chances: list[float]):
    """Its definition: from the least on, each is held against the level over the number of those left."""
    for level in (0.01, 0.05, 0.5):
        rejected = set()
        for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
            if chances[place] * (len(chances) - rank) > level:
                break
            rejected.add(place)
        assert {place for place, adjusted in enumerate(holm(chances)) if adjusted <= level} == rejected


def test_holms_correction_keeps_the_order_and_never_exceeds_1():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_choice_that_explains_all_so_far_needs_few_more_builds():
    few = Table(2, 2, 0, 2)
    more = more_builds(few, 4, 0.05)
    assert more is not None
    assert 2 <= more <= 6
    assert fisher(few) * 4 > 0.05


def test_a_weak_tendency_needs_many_and_none_needs_no_number():
    weak, strong = more_builds(Table(6, 10, 4, 10), 5, 0.05), more_builds(Table(9, 10, 4, 10), 5, 0.05)
    assert weak is not None
    assert strong is not None
    assert weak > 5 * strong
    assert more_builds(Table(5, 10, 5, 10), 5, 0.05) is None
    assert more_builds(Table(2, 10, 5, 10), 5, 0.05) is None
