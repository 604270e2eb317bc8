"""A mismatch from the other side."""

from biopsy.comparison.mismatch import Mismatch


def test_seen_from_the_other_side_the_two_values_change_places_and_twice_nothing_changes() -> None:
    seen = Mismatch(output="y", elements=8, wrong=3, above=1, actual=2.0, expected=1.0, form="f", expected_form="g")
    other = seen.from_other_side
    assert (other.actual, other.expected, other.above, other.form) == (1.0, 2.0, 2, "g")
    assert other.from_other_side == seen
