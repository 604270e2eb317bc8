"""Simple conditions on whole numbers."""

import pytest

from biopsy.questions.variation.features import consistent_forms, halfway_between, is_power_of_two, most_informative


@pytest.mark.parametrize(
    ("failing", "passing", "texts"),
    [
        ({7, 9, 3}, {8, 10}, ["odd"]),
        ({8, 10, 4}, {7, 9}, ["even"]),
        ({8, 16, 1}, {6, 9, 12}, ["a power of two"]),
        ({8, 9}, {7}, ["at least 8", "not 7"]),
        ({2, 3}, {4, 7}, ["at most 3"]),
        ({8, 9}, {5}, ["more than 5 (8 is enough)", "not 5"]),
        ({6}, {5, 7}, ["6"]),
        ({5, 7}, {6}, ["odd", "not 6"]),
        ({4, 5, 12}, {3, 8}, []),
    ],
)
def test_those_forms_are_left_that_no_number_contradicts(failing, passing, texts):
    forms = consistent_forms(failing, passing, {})
    assert set(texts) <= {form.text for form in forms}
    assert all(form.holds(number) for form in forms for number in failing)
    assert not any(form.holds(number) for form in forms for number in passing)


def test_a_number_that_means_something_else_is_named():
    forms = consistent_forms({4, 8}, {6}, {6: "the number of columns of w"})
    assert "not 6 (the number of columns of w)" in [form.text for form in forms]


def test_a_number_tells_where_forms_differ_and_none_where_they_do_not():
    odd_or_not_eight = consistent_forms({7, 9}, {8}, {})
    number = most_informative(odd_or_not_eight, set(range(1, 20)) - {7, 8, 9}, 7)
    assert number is not None
    assert len({form.holds(number) for form in odd_or_not_eight}) == 2
    at_least_two_or_not_one = consistent_forms({2, 3}, {1}, {})
    assert most_informative(at_least_two_or_not_one, range(4, 20), 3) is None


@pytest.mark.parametrize(
    ("failing", "passing", "found"), [({9}, {1}, 5), ({1}, {9}, 5), ({2}, {1}, None), ({2, 9}, {5}, None)]
)
def test_halfway_lies_between_neighbours_that_differ(failing, passing, found):
    assert halfway_between(failing, passing) == found


def test_powers_of_two_begin_with_one():
    assert [number for number in range(-2, 20) if is_power_of_two(number)] == [1, 2, 4, 8, 16]
