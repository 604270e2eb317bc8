import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.findings.report import LONGEST_TEXT, as_json, bounded, report_tree, versions_tree
from biopsy.findings.verdict import verdict_of_error


def whole(sections: dict[str, Any]) -> dict[str, Any]:
    return report_tree(
        "debug reduce", "biopsy debug reduce m.onnx", status=5, began=0.0, seconds=1.25, sections=sections
    )


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def test_a_report_begins_with_what_was_typed_and_how_it_ended() -> None:
    tree = whole({"verdict": {"kind": "reduced"}, "piece": None})
    assert tree == {
        "biopsy_report": 2,
        "command": "debug reduce",
        "line": "biopsy debug reduce m.onnx",
        "status": 5,
        "created": "1970-01-01T00:00:00+00:00",
        "seconds": 1.25,
        "verdict": {"kind": "reduced"},
    }


@given(TREES)
def test_any_values_can_be_written_and_read_again(value: object) -> None:
    read = json.loads(as_json(whole({"found": [value, math.inf]})))
    assert read["found"][1] == "inf"


def test_long_texts_are_shortened_and_say_so_but_no_half_line_is_told() -> None:
    told = bounded({"n" * 5000: "x" * 10_000, "line": "y" * 10_000, "next": [{"line": "z" * 200_000}]})
    name, text = next(iter(told.items()))
    assert len(name) < LONGEST_TEXT + 100 > len(text)
    assert "10000 characters" not in text and "6000 characters" in text
    assert told["line"] == "y" * 10_000
    assert told["next"] == [{"line": None}]


def test_an_error_is_a_verdict_too() -> None:
    assert verdict_of_error(errors.OriginalPasses("it passes")).kind == "passes"
    stopped = verdict_of_error(errors.Interrupted("3 nodes are left", kept="r.onnx"))
    assert (stopped.kind, stopped.text) == ("unknown", "3 nodes are left Kept: r.onnx.")


def test_engines_are_told_with_their_versions_and_one_that_is_none_without() -> None:
    found = versions_tree(["onnxrt:threads=1", "no-such-engine", "onnxrt:threads=1"])
    assert [engine["label"] for engine in found["engines"]] == ["onnxrt:threads=1", "no-such-engine"]
    assert found["engines"][0]["version"] == found["packages"]["onnxruntime"]
    assert found["engines"][1]["version"] is None
