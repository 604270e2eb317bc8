"""Words of options become values; what is wrong is told with the option's name and an example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from biopsy import errors
from biopsy.cli.arguments import comparing, types


def test_shapes_are_given_by_name() -> None:
    assert types.parse_shapes(["x:[1, 3,224]", "y:[2]", "s:[]"]) == {"x": (1, 3, 224), "y": (2,), "s": ()}


@pytest.mark.parametrize("name", ["a/b:0", "a:[1]", "x y", "::"])
def test_names_may_hold_colons_brackets_and_slashes(name: str) -> None:
    assert types.parse_shapes([f"{name}:[1]"]) == {name: (1,)}
    assert comparing.parse_tolerances([f"{name}:0.5"]) == {name: 0.5}
    assert types.parse_ranges([f"{name}:[0,1]"]) == {name: (0, 1)}


def test_symbols_and_unknown_sizes_are_for_those_who_ask() -> None:
    words = ["x:[N,'batch size',-1,2]"]
    assert types.parse_symbolic_shapes(words) == {"x": ("N", "batch size", None, 2)}
    with pytest.raises(errors.UsageError, match="must be a number"):
        types.parse_shapes(words)


def test_a_value_without_a_name_is_for_all_others() -> None:
    assert comparing.parse_tolerances(["1e-3", "out:1e-5"]) == {"": 1e-3, "out": 1e-5}
    assert types.parse_ranges(["[0,1]", "x:[-2, 5.5]"]) == {"": (0, 1), "x": (-2, 5.5)}
    assert comparing.parse_stats(["max", "out:mean"]) == {"": "max", "out": "mean"}
    assert comparing.parse_quantiles(["0.5"]) == {"": 0.5}


def test_an_option_that_was_not_given_says_nothing() -> None:
    assert types.parse_shapes(None) == comparing.parse_tolerances(None) == comparing.parse_stats(None) == {}


@pytest.mark.parametrize(
    ("parse", "word", "why"),
    [
        (types.parse_shapes, "x", "a name and a shape"),
        (types.parse_shapes, "[1,2]", "a name and a shape"),
        (types.parse_shapes, "x:[1,2", "a name and a shape"),
        (types.parse_shapes, "x:[1,,2]", "'' is not a dimension"),
        (types.parse_shapes, "x:[1.5]", "'1.5' is not a dimension"),
        (types.parse_shapes, "x:[-2]", "'-2' is not a dimension"),
        (comparing.parse_tolerances, "x:abc", "'abc' is not a number"),
        (comparing.parse_tolerances, ":1", "no name"),
        (comparing.parse_tolerances, "-1", "0 or more"),
        (comparing.parse_tolerances, "nan", "0 or more"),
        (comparing.parse_quantiles, "1.5", "between 0 and 1"),
        (types.parse_ranges, "x:[5,2]", "the smaller one first"),
        (types.parse_ranges, "[1]", "two numbers"),
        (types.parse_ranges, "0,1", "two numbers"),
        (types.parse_ranges, "[0,inf]", "two numbers"),
        (types.parse_ranges, "[a,b]", "not a number"),
        (comparing.parse_stats, "out:maximum", "none of elemwise, max, mean, median, quantile"),
    ],
)
def test_a_wrong_value_is_told_with_option_and_example(parse: Callable[..., Any], word: str, why: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        parse([word], "--the-option")
    assert caught.value.message.startswith(f"--the-option {word}: ")
    assert why in caught.value.message
    assert caught.value.next_steps[0].startswith("--the-option ")


def test_a_script_is_a_path_with_or_without_a_function() -> None:
    assert types.parse_script("a/b.py") == (Path("a/b.py"), "load_data")
    assert types.parse_script("a/b.py:mine") == (Path("a/b.py"), "mine")
    assert types.parse_script(r"C:\b.py") == (Path(r"C:\b.py"), "load_data")
