"""Several texts in one line."""

import pytest

from biopsy.text import first_of, series


@pytest.mark.parametrize(
    ("texts", "line"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")],
)
def test_a_series_reads_like_a_sentence(texts: list[str], line: str) -> None:
    assert series(texts) == line


def test_the_first_texts_are_followed_by_how_many_more_there_are() -> None:
    assert first_of(["a", "b", "c"], 3) == "a, b, c"
    assert first_of(["a", "b", "c", "d"], 2, " -> ") == "a -> b and 2 more"
