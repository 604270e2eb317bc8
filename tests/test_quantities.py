"""Numbers in words."""

import pytest

from biopsy.text import bytes_of, count, size_text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1_000_000, "1000000 nodes")]
)
def test_a_count_agrees_with_its_noun(number: int, text: str) -> None:
    assert count(number, "node") == text


def test_a_noun_whose_plural_is_not_made_by_an_s_is_given_with_it() -> None:
    assert [count(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2_100_000, "2.1 MB"),
        (5_000_000_000_000, "5000.0 GB"),
    ],
)
def test_a_size_has_one_digit_after_the_point_in_the_largest_unit_that_it_fills(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("12", 12), ("500MB", 500_000_000), ("2 GB", 2 * 10**9), ("1.5GiB", 3 << 29), ("3k", 3000), ("1T", 10**12)],
)
def test_a_size_is_read_in_the_units_that_people_write(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "GB", "1e3", "1 GB more", "٣", "9" * 400])
def test_what_is_no_size_is_none(text: str) -> None:
    assert bytes_of(text) is None
