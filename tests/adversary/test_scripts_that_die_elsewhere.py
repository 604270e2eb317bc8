"""A script in Python says no more than "status 1"; where it dies says which failure it is."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy import Rules, events
from support.models import chain, save
from support.predicates import names
from support.scripts import NAMES

LOOK = NAMES + "nodes = names\n"

BEFORE_THE_ASSERT = (
    LOOK
    + """
def compare(nodes):
    if nodes and "n2" not in nodes:
        raise ValueError("Required inputs ['t2'] are missing")
    nodes = list(nodes)
    assert "n5" not in nodes, f"{len(nodes)} elements differ"
compare(nodes)
"""
)


def reduced(
    folder: Path, code: str, *words: str, **options: object
) -> tuple[biopsy.ReducedModel, list[str], list[str]]:
    """A reduction with a script, the nodes of its result, and the grave remarks on the way."""
    told: list[str] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Remark) and event.warning:
            told.append("\n".join((event.text, *event.lines)))

    (folder / "check.py").write_text(code)
    model, output = save(chain(8), folder / "m.onnx"), folder / "r.onnx"
    command = [sys.executable, *(words or (str(folder / "check.py"),)), "{}"]
    found = biopsy.reduce(model, command, output, listener=listen, **options)  # type: ignore[arg-type]
    return found, names(onnx.load(output)), told


def test_a_candidate_that_dies_before_the_assert_is_another_failure(tmp_path: Path) -> None:
    found, left, told = reduced(tmp_path, BEFORE_THE_ASSERT)
    assert left == ["n2", "n5"]
    assert (
        found.signature
        == 'exit status 1 · AssertionError in compare: assert "n5" not in nodes, f"{len(nodes)} elements differ"'
    )
    assert any("ValueError" in reason for reason in found.other_failures)
    assert not told


def test_match_status_is_the_old_rule_and_its_result_is_doubted(tmp_path: Path) -> None:
    _, left, told = reduced(tmp_path, BEFORE_THE_ASSERT, rules=Rules(match="status"))
    assert left != ["n2", "n5"]
    assert len(told) == 1
    assert "AssertionError" in told[0]
    assert "ValueError: Required inputs" in told[0]
    assert "--match auto" in told[0]


def test_the_same_holds_for_code_on_the_command_line_and_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, left, _ = reduced(tmp_path, "", "-c", BEFORE_THE_ASSERT)
    assert left == ["n2", "n5"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _, left, _ = reduced(tmp_path, BEFORE_THE_ASSERT, "-m", "check")
    assert left == ["n2", "n5"]


def test_an_exception_where_the_original_has_none_is_another_failure(tmp_path: Path) -> None:
    code = """
if nodes and "n2" not in nodes:
    raise ValueError("Required inputs are missing")
if "n5" in nodes:
    print("the values differ by", len(nodes))
    sys.exit(1)
"""
    _, left, told = reduced(tmp_path, LOOK + code)
    assert left == ["n2", "n5"]
    assert not told


def test_the_same_exception_with_another_cause_is_another_failure(tmp_path: Path) -> None:
    code = """
def run():
    if nodes and "n2" not in nodes:
        raise KeyError("t2")
    if "n5" in nodes:
        raise ValueError("wrong")
try:
    run()
except Exception as error:
    raise RuntimeError("the check failed") from error
"""
    _, left, _ = reduced(tmp_path, LOOK + code)
    assert left == ["n2", "n5"]


LAST_LINES = """
if nodes and "n2" not in nodes:
    print("cannot find the input")
    sys.exit(1)
if "n5" in nodes:
    print("the outputs differ by", len(nodes) / 7)
    sys.exit(1)
"""


def test_other_last_lines_of_the_original_and_the_result_are_told_and_shown(tmp_path: Path) -> None:
    found, left, told = reduced(tmp_path, LOOK + LAST_LINES)
    assert left != ["n2", "n5"]
    assert len(told) == 1
    assert "the outputs differ by" in told[0]
    assert "cannot find the input" in told[0]
    assert "--match message" in told[0]
    assert "--fail-regex 'the outputs differ by'" in told[0]
    assert found.last_words is not None
    assert found.last_words[1] == "cannot find the input"


def test_match_message_tells_them_apart_and_then_nothing_is_told(tmp_path: Path) -> None:
    found, left, told = reduced(tmp_path, LOOK + LAST_LINES, rules=Rules(match="message"))
    assert left == ["n2", "n5"]
    assert not told
    assert found.last_words is None


def test_numbers_alone_make_no_remark(tmp_path: Path) -> None:
    code = 'if "n5" in nodes:\n    print("the outputs differ by", len(nodes) / 7)\n    sys.exit(1)\n'
    _, left, told = reduced(tmp_path, LOOK + code)
    assert left == ["n5"]
    assert not told


def test_a_traceback_that_was_caught_and_printed_is_not_how_it_ended(tmp_path: Path) -> None:
    code = """
import traceback
def load_plug_in():
    raise ImportError(f"no plug-in for {len(nodes)} nodes")
def attempt():
    try:
        load_plug_in()
    except ImportError:
        traceback.print_exc()
if len(nodes) > 3:
    attempt()
if "n5" in nodes:
    print("the outputs differ")
    sys.exit(1)
"""
    _, left, told = reduced(tmp_path, LOOK + code)
    assert left == ["n5"]
    assert not told


def test_a_traceback_that_was_printed_before_the_end_is_how_it_ended(tmp_path: Path) -> None:
    code = """
import traceback
print("begins")
def check():
    if nodes and "n2" not in nodes:
        raise ValueError("Required inputs are missing")
    assert "n5" not in nodes
try:
    check()
except Exception:
    traceback.print_exc()
    sys.exit(1)
"""
    _, left, _ = reduced(tmp_path, LOOK + code)
    assert left == ["n2", "n5"]


def test_what_a_check_says_of_itself_is_stronger_than_where_it_died(tmp_path: Path) -> None:
    code = """
import json, os
def fails(kind):
    with open(os.environ["BIOPSY_VERDICT"], "w") as file:
        json.dump({"outcome": "fails", "kind": "wrong"}, file)
if "n5" in nodes and len(nodes) > 3:
    fails("wrong"); raise ValueError("in the large one")
if "n5" in nodes:
    fails("wrong"); raise KeyError("in the small one")
"""
    _, left, _ = reduced(tmp_path, LOOK + code)
    assert left == ["n5"]


def test_a_signal_stays_what_it_is(tmp_path: Path) -> None:
    code = """
import os
if "n5" in nodes:
    print("dies with", len(nodes) * "x", flush=True)
    os.abort()
"""
    found, left, told = reduced(tmp_path, LOOK + code)
    assert left == ["n5"]
    assert found.signature == "signal SIGABRT"
    assert not told
