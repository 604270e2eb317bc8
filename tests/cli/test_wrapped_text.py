"""Lines that are wider than a terminal: broken at blanks, aligned, and whole where a person may paste them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.cli.terminal_text import wrapped

WORD = st.text("abc/.,:()'", min_size=1, max_size=12).filter(lambda word: word.count("'") % 2 == 0)
LINES = st.lists(st.tuples(st.sampled_from([" ", "   "]), WORD), min_size=1, max_size=40).map(
    lambda parts: "".join(gap + word for gap, word in parts).strip()
)


@given(line=LINES, width=st.integers(40, 200))
def test_nothing_is_lost_and_lines_are_no_wider_than_they_must_be(line: str, width: int) -> None:
    lines = wrapped(line, width)
    assert [word for part in lines for word in part.split()] == line.split()
    assert all(part.startswith("  ") for part in lines[1:])
    longest = max(len(unit) for unit in re.findall(r"(?:'[^']*'|\S)+", line))
    hanging = max((len(part) - len(part.lstrip()) for part in lines[1:]), default=0)
    for part in lines:
        assert len(part) <= max(width, width // 2 + longest, hanging + longest) or "   " in part.strip()


@pytest.mark.parametrize("width", [0, 20, 39])
def test_where_there_is_no_room_a_line_stays_as_it_is(width: int) -> None:
    assert wrapped("word " * 50, width) == ["word " * 50]


def test_what_follows_stands_under_the_last_column() -> None:
    assert wrapped("whole      onnxrt · output 'y' is wrong: a difference up to 0.711 at [27, 13]", 60) == [
        "whole      onnxrt · output 'y' is wrong: a difference up to",
        "           0.711 at [27, 13]",
    ]


def test_a_chain_of_nodes_is_broken_behind_its_arrows_and_parts_behind_their_dots() -> None:
    assert wrapped("3 of 9 nodes   Pow 'a/b/c' -> ReduceMean 'a/b/d' -> Add 'a/b/e'", 50) == [
        "3 of 9 nodes   Pow 'a/b/c' ->",
        "               ReduceMean 'a/b/d' -> Add 'a/b/e'",
    ]
    assert wrapped("model      m.onnx · 458 nodes · opset 18 · 292.5 kB of weights", 55) == [
        "model      m.onnx · 458 nodes · opset 18 ·",
        "           292.5 kB of weights",
    ]


@pytest.mark.parametrize(
    "command",
    [
        "biopsy run model.onnx --engine onnxrt:optimization=none --onnxrt --load-inputs inputs.npz",
        "--check bash -c 'biopsy run {} --onnxrt' and-more words-of-it that-go-on and-on",
        "./check.sh {} --with many --options that --do not --fit one --line of --it",
        "git lfs pull -I a/folder/of/models/with/a/long/name/pointer.onnx and/another.onnx",
        "biopsy run model.onnx --engine 'quotes  hold   blanks' --load-inputs $'it\\'s  a  name' --reference",
    ],
)
def test_a_command_stays_whole_and_what_is_said_of_it_does_not(command: str) -> None:
    assert wrapped(f"Next     {command}", 60) == [f"Next     {command}"]
    assert wrapped(f"  next  run that line by hand: {command}", 60)[-1] == f"        {command}"
    first, *_, last = wrapped(f"  next  {command}    {'says what it is good for ' * 3}", 60)
    assert first.startswith(f"  next  {command}")
    assert last.startswith("        ") and "says" in last + first


def test_what_is_in_quotes_stays_whole() -> None:
    name = "'a name with blanks, such as nobody would wish for'"
    assert any(name in line for line in wrapped(f"error: there is no tensor {name} in the model, nor any like it", 50))


@pytest.mark.parametrize("head", ["error: ", "warning: ", "next  ", "kept  ", "PASSED | ", "FAILED | "])
def test_no_line_that_goes_on_begins_as_lines_of_ours_do(head: str) -> None:
    """What a stranger calls a tensor could be read as what we say."""
    for length in range(60):
        assert not any(line.strip().startswith(head.strip()) for line in wrapped(f"{'x ' * length}{head}it is", 60)[1:])


def test_an_index_stays_whole_and_a_last_column_gets_a_line_of_its_own() -> None:
    assert (
        wrapped("whole      the greatest difference is that at [8, 4]: 2.638777", 51)[1]
        == "           [8, 4]: 2.638777"
    )
    assert wrapped("warning  'foo': does not affect outputs, can be removed.  [biopsy]", 60) == [
        "warning  'foo': does not affect outputs, can be removed.",
        "         [biopsy]",
    ]


def test_an_option_stays_with_its_value() -> None:
    (first, second) = wrapped("    passes    with --atol block7/adapter/Mul_out:0.7 or --rtol a/b/Mul_out:0.4", 62)
    assert (first.split()[-1], second.split()) == ("or", ["--rtol", "a/b/Mul_out:0.4"])


def test_colours_have_no_width() -> None:
    assert wrapped(f"\x1b[31merror: \x1b[0m{'x' * 33}", 40) == [f"\x1b[31merror: \x1b[0m{'x' * 33}"]


def test_a_label_that_fills_its_column_has_its_text_indented_like_any_other() -> None:
    text = "SimplifiedLayerNormFusion off: the model passes, and errs no more than by rounding."
    assert wrapped(f"workaround {text}", 60)[1] == "           and errs no more than by rounding."
