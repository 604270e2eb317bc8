"""Scouting: what is guessed to be needed, by leaving parts out."""

from hypothesis import given
from hypothesis import strategies as st

from biopsy.search.drive import Part, Scouting
from support.subset_predicates import counts_and_wanted


def scouted(
    count: int, wanted: set[int], most: int, scouting: Scouting[int] | None = None
) -> tuple[Scouting[int], int]:
    """Scouting of a failure that needs some items, until nothing is worth trying; and how many rounds that took."""
    scouting, rounds = scouting or Scouting(range(count)), 0
    while parts := scouting.parts(most):
        for part in parts:
            scouting.learn(part, is_needed=not wanted.isdisjoint(part.items))
        rounds += 1
        assert rounds < 100
    return scouting, rounds


@given(counts_and_wanted(200, 12), st.sampled_from([16, 64]), st.data())
def test_once_it_is_at_its_end_every_guess_about_a_monotone_failure_comes_true(
    case: tuple[int, set[int]], most: int, data: st.DataObject
) -> None:
    count, wanted = case
    scouting, _ = scouted(count, wanted, most)
    for _ in range(5):
        kept = frozenset(data.draw(st.sets(st.integers(0, count - 1))))
        guess = scouting.guess(kept)
        assert guess is (wanted <= kept) or (guess is None and len(wanted) * 2 > most - 16)


def test_ten_needed_items_of_ten_thousand_are_found_in_three_rounds() -> None:
    wanted = set(range(500, 10_000, 1_000))
    scouting, rounds = scouted(10_000, wanted, 220)
    assert rounds == 3
    assert scouting.guess(frozenset(wanted)) is True
    assert scouting.guess(frozenset(wanted - {500})) is False


def test_at_first_only_everything_and_nothing_can_be_guessed() -> None:
    scouting = Scouting(range(100))
    assert scouting.guess(frozenset(range(100))) is True
    assert scouting.guess(frozenset()) is False
    assert scouting.guess(frozenset(range(50))) is None


def test_what_is_known_to_be_needed_is_not_tried_again() -> None:
    scouting = Scouting(range(1, 100), needed=[0])
    assert all(0 not in part.items for part in scouting.parts(64))
    assert scouting.guess(frozenset(range(1, 100))) is False


def test_few_places_are_left_to_others() -> None:
    assert Scouting(range(100)).parts(15) == []
    assert len(Scouting(range(100)).parts(16)) == 16
    assert len(Scouting(range(10)).parts(64)) == 10


def test_parts_that_are_under_way_are_given_again() -> None:
    scouting = Scouting(range(100))
    parts = scouting.parts(32)
    scouting.learn(parts[3], is_needed=True)
    assert scouting.parts(32)[:31] == [part for part in parts if part is not parts[3]]


def test_items_that_are_left_out_meanwhile_are_forgotten_and_the_parts_are_still_told_apart() -> None:
    scouting = Scouting(range(64))
    parts = scouting.parts(16)
    scouting.restrict(set(range(8, 64)))
    assert parts[0].items == parts[1].items == ()
    for part in parts[2:]:
        scouting.learn(part, is_needed=63 in part.items)
    assert scouting.guess(frozenset(range(60, 64))) is True
    assert scouting.guess(frozenset(range(8, 60))) is False


def test_where_every_part_can_go_by_itself_but_not_all_of_them_nothing_is_concluded_of_parts() -> None:
    """Either of two items is enough."""
    scouting = Scouting(range(32))
    for part in scouting.parts(16):
        scouting.learn(part, is_needed=False)
    assert scouting.parts(64) == []
    assert scouting.guess(frozenset([3])) is None
    assert scouting.guess(frozenset()) is False


def test_guesses_are_trusted_as_often_as_they_come_true() -> None:
    scouting = Scouting(range(10))
    assert scouting.trust == 0.9
    for _ in range(20):
        scouting.came_true(right=True)
    assert scouting.trust > 0.95
    for _ in range(20):
        scouting.came_true(right=False)
    assert scouting.trust == 0.5


def test_the_parts_of_a_run_are_equal_and_in_order() -> None:
    parts: list[Part[int]] = Scouting(range(50)).parts(16)
    assert [item for part in parts for item in part.items] == list(range(50))
    assert {len(part.items) for part in parts} == {3, 4}
