"""One word of an option becomes a value, or the error says what it must be."""

from collections.abc import Callable
from typing import Any

import pytest

from biopsy import errors
from biopsy.cli.arguments import types


@pytest.mark.parametrize(
    ("parse", "word", "value"),
    [
        (types.count, "0", 0),
        (types.positive, "1", 1),
        (types.positive, "1000000", 1_000_000),
        (types.until, "good", "good"),
        (types.until, "bad", "bad"),
        (types.until, "20", 20),
        (types.byte_size, "500MB", 500_000_000),
        (types.byte_size, "1.5 GiB", 1_610_612_736),
        (types.byte_size, "42", 42),
        (types.duration, "90", 90.0),
        (types.duration, "1.5h", 5400.0),
        (types.probability, "0.99", 0.99),
        (types.tolerance, "1e-3", 0.001),
        (types.tolerance, "0", 0.0),
    ],
)
def test_a_word_becomes_a_value(parse: Callable[[str], Any], word: str, value: object) -> None:
    assert parse(word) == value


@pytest.mark.parametrize(
    ("parse", "word", "why"),
    [
        (types.count, "-1", "must be a whole number, 0 or more"),
        (types.positive, "0", "must be a whole number from 1 to 1000000"),
        (types.positive, "1000001", "must be a whole number from 1 to 1000000"),
        (types.until, "often", "must be a whole number from 1 to 1000000, or good or bad"),
        (types.byte_size, "0", "not a valid size: write 500MB, 2GB or 1.5GiB"),
        (types.duration, "0s", "not a valid time: write 90s, 10m or 1.5h"),
        (types.probability, "1", "must be a number between 0 and 1, such as 0.99"),
        (types.probability, "nan", "must be a number between 0 and 1, such as 0.99"),
        (types.tolerance, "abc", "must be a number, 0 or more, such as 1e-3"),
        (types.tolerance, "-1", "must be a number, 0 or more, such as 1e-3"),
        (types.tolerance, "inf", "must be a number, 0 or more, such as 1e-3"),
    ],
)
def test_a_word_that_is_no_value_is_told_what_it_must_be(parse: Callable[[str], Any], word: str, why: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parse(word)
    assert caught.value.message == why
