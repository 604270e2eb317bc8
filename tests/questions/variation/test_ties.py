"""What can only be changed together."""

from hypothesis import given
from hypothesis import strategies as st

from biopsy.questions.variation.features import tied_groups


@given(st.permutations([0, 0, 0, 1, 1, 2, 3, 3, 3]).flatmap(lambda mixed: st.integers(1, 9).map(lambda n: mixed[:n])))
def test_groups_are_what_must_change_together_and_no_more(classes: list[int]):
    """Places of one class can only be changed together."""
    places = list(range(len(classes)))

    def is_valid(group):
        changed = set(group)
        return all((place in changed) == (other in changed) for place in places for other in places
                   if classes[place] == classes[other])  # fmt: skip

    groups = tied_groups(places, places, is_valid)
    assert sorted(groups) == sorted({tuple(p for p in places if classes[p] == c) for c in classes})


def test_larger_groups_are_found_too():
    def is_valid(group):
        return len({0, 2, 4, 6} & set(group)) in {0, 4}

    assert tied_groups([0], range(8), is_valid) == [(0, 2, 4, 6)]


def test_what_cannot_be_changed_at_all_is_in_no_group():
    assert tied_groups([1, 2], [1, 2], lambda group: 2 not in group) == [(1,)]
