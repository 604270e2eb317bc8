"""What strangers say goes into a script as values only, and the script judges as biopsy does."""

import ast
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from biopsy.comparison.compare import compare_output
from biopsy.comparison.tolerance import Criteria, Limit, Metric, Stat, Tolerance
from biopsy.findings.bundle import engine_script
from biopsy.findings.bundle.issue import regression_test
from biopsy.findings.bundle.script import Script, docstring, literal
from biopsy.findings.bundle.script_parts import failures
from biopsy.findings.bundle.script_parts.failures import CannotSay, exit_status
from support.comparing import compare_tensors

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NASTY = [
    '"""', "'''\n", "\\", "\\N{BULLET}", "x\nimport os", "{}", "\u202e", "\ud800", "\0", '"; import os; "', "#\r\n",
]  # fmt: skip


@given(VALUES)
def test_a_literal_is_an_expression_that_gives_the_value_back_and_is_printable(value: Any) -> None:
    text = literal(value)
    assert eval(text, {"__builtins__": {"float": float}}) == value
    assert all(line.isprintable() for line in text.split("\n"))


def test_what_is_no_literal_is_refused() -> None:
    with pytest.raises(TypeError, match="not a literal"):
        literal(np.float32(1))  # type: ignore[arg-type]


@given(st.text() | st.sampled_from(NASTY))
def test_no_name_changes_what_a_script_does(name: str) -> None:
    def made(text: str) -> Script:
        constants = {"LIMITS": {text: {"atol": 1.0}}, "SAID": text}
        return Script(title=f"It is {text}", needs="nothing", constants=constants, work=["return 0"])

    tree, plain = ast.parse(made(name).text()), ast.parse(made("plain").text())
    assert [type(node) for node in ast.walk(tree)] == [type(node) for node in ast.walk(plain)]
    said = next(node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SAID")
    assert ast.literal_eval(said.value) == name
    assert len(ast.parse(regression_test(name, ["numpy"])).body) == len(ast.parse(regression_test("a", ["numpy"])).body)


@given(st.text())
def test_a_docstring_holds_what_it_quotes_on_the_same_lines(text: str) -> None:
    (only,) = ast.parse(docstring(text)).body
    assert isinstance(only, ast.Expr)
    assert len(ast.literal_eval(only.value).split("\n")) == len(text.split("\n"))


NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.00001, 1.0001, -3.0, 1e30, np.inf, -np.inf, np.nan, 1e-30])
TYPES = st.sampled_from(["float32", "float64", "float16", "int64", "uint8", "bool", "complex64", "U3"])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=1, max_side=2))
    found, expected = (draw(arrays.arrays(np.float64, shape, elements=NUMBERS)) for _ in range(2))
    with np.errstate(all="ignore"):
        return found.astype(draw(TYPES)), expected.astype(draw(TYPES))


@settings(max_examples=300)
@given(pairs(), st.sampled_from([0.0, 1e-5, 0.5]), st.sampled_from([0.0, 1e-5, 0.5]))
def test_the_script_judges_as_biopsy_does(pair: tuple[Any, Any], atol: float, rtol: float) -> None:
    found, expected = pair
    if (found.dtype.kind == "U") == (expected.dtype.kind == "U"):
        passed = compare_tensors("y", found, expected, Tolerance(atol, rtol)).passed
        assert failures.differs(found, expected, atol, rtol) is not passed


LIMITS = st.tuples(
    st.sampled_from(["elemwise", "max", "mean", "median", "quantile"]),
    st.sampled_from([0.0, 1e-5, 0.5]),
    st.sampled_from(["", "l2", "cosine", "psnr", "snr"]),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, 30.0]),
)


@settings(max_examples=300)
@given(pairs(), LIMITS)
def test_other_measures_are_judged_as_biopsy_does(
    pair: tuple[Any, Any], asked: tuple[Stat, float, Metric, float]
) -> None:
    found, expected = pair
    stat, tolerance, metric, value = asked
    if "U" in found.dtype.kind + expected.dtype.kind or "c" in found.dtype.kind + expected.dtype.kind:
        return
    limits = (Limit(metric, value),) if metric else ()
    criteria = Criteria(
        tolerance=Tolerance(tolerance, tolerance), integers=Tolerance(tolerance, tolerance), stat=stat, limits=limits
    )
    judged = compare_output("y", found, expected, criteria)
    margins = [abs(one.value - value) for one in judged.judged if np.isfinite(one.value)]
    if any(0 < margin < 1e-6 * max(1, abs(value)) for margin in margins):
        return  # rounding decides
    words = engine_script._for_differs_by(engine_script.limits_of_output("y", criteria, expected))
    assert failures.differs_by(found, expected, **words) is not judged.passed


def test_another_shape_differs_and_so_does_an_output_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.differs(np.zeros(2), np.zeros(3), 1.0, 1.0)
    limits = {"y": {"atol": 0.0, "rtol": 0.0}}
    assert failures.compare(lambda feed: {}, [{}], [{"y": np.zeros(1)}], limits) == 1
    assert "missing" in capsys.readouterr().out


def test_nothing_to_compare_is_no_pass() -> None:
    for inputs, expected in (([], []), ([], [{"y": np.zeros(1)}]), ([{}, {}], [{"y": np.zeros(1)}])):
        with pytest.raises(CannotSay, match="nothing to compare"):
            failures.compare(lambda feed: {"y": np.zeros(1)}, inputs, expected, {"y": {"atol": 0.0, "rtol": 0.0}})


@pytest.mark.parametrize("error", [CannotSay("no"), ImportError("no"), ValueError("no"), AssertionError("no")])
def test_whatever_is_raised_ends_with_125_and_not_with_pythons_1(error: Exception) -> None:
    def fails() -> int:
        raise error

    assert exit_status(fails) == 125


def raises(error: Exception) -> Any:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_only_an_error_of_the_kind_that_was_seen_counts() -> None:
    expected = {"kind": "ValueError", "message": "no"}
    assert failures.expect_failure(raises(ValueError("no")), **expected) == 1
    assert failures.expect_failure(raises(RuntimeError("code: VALUE ERROR")), **expected) == 1
    assert failures.expect_failure(lambda: 1, **expected) == 0
    with pytest.raises(CannotSay):
        failures.expect_failure(raises(TypeError("no")), **expected)
    with pytest.raises(ImportError):
        failures.expect_failure(raises(ImportError("no")), **expected)


TRACEBACK = "Traceback (most recent call last):\n  File 'x', line 1, in <module>\n    f()\n{}: it\nmore\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", ""),
        ("Error: it\n", ""),
        (TRACEBACK.format("ValueError"), "ValueError"),
        (TRACEBACK.format("a.b.OddError"), "OddError"),
        (TRACEBACK.format("KeyError") + "\nDuring handling ...\n\n" + TRACEBACK.format("OSError"), "OSError"),
    ],
)
def test_the_exception_that_a_check_died_of_is_the_last_one(text: str, name: str) -> None:
    assert failures.last_exception(text) == name


@pytest.mark.parametrize(
    ("status", "text", "said", "answer"),
    [
        (1, TRACEBACK.format("ValueError"), {"stage": "run"}, 1),
        (0, "", {}, 0),
        (0, "", {"outcome": "fails"}, None),
        (1, TRACEBACK.format("ImportError"), {"stage": "run"}, None),
        (1, TRACEBACK.format("ValueError"), {"stage": "build"}, None),
        (127, "", {}, None),
        (-11, "", {}, None),
        (failures.TIMEOUT, "", {}, None),
    ],
)
def test_a_command_fails_as_it_did_or_nothing_is_said(
    status: int, text: str, said: dict[str, str], answer: int | None
) -> None:
    expected = {"status": 1, "raised": "ValueError", "verdict": {"stage": "run"}}
    if answer is None:
        with pytest.raises(CannotSay, match=re.escape("exit status 1, ValueError, run")):
            failures.command_status((status, text, said), **expected)
    else:
        assert failures.command_status((status, text, said), **expected) == answer


@pytest.mark.parametrize(
    ("said", "answer"), [({"looked": True}, 1), ({"looked": True, "outcome": "passes"}, 0), ({}, 0)]
)
def test_a_command_that_dies_with_status_0_fails_as_it_did(said: dict[str, object], answer: int) -> None:
    assert failures.command_status((0, "", said), status=0, raised="", verdict={}) == answer
