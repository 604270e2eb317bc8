"""How the outputs of two runs differ, as a reduction is told."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from biopsy.comparison.mismatch import Mismatch, form_text
from biopsy.comparison.mismatch_size import run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.model.tensor_type import ELEM_OF_DTYPE, TensorType
from biopsy.records import plain, record_of
from biopsy.tensors.results import Iteration, RunnerResult


def result(name: str, **outputs: object) -> RunnerResult:
    return RunnerResult(name, (Iteration({key: np.asarray(value) for key, value in outputs.items()}),))


def test_an_output_that_one_engine_lacks_is_a_kind_of_mismatch() -> None:
    pair = result("a", y=[1.0]), result("b", y=[1.0], z=[2.0])
    compared = compare_runs(*pair)
    assert compared.passed, "golden values may hold more"
    compared = replace(compared, missing=compared.iterations[0].only_expected)
    assert not compared.passed
    (found,) = run_mismatches(*pair, compared)
    assert (found.output, found.kind) == ("z", "missing-output")


def test_the_greatest_mismatches_of_each_kind_are_told() -> None:
    many = {f"y{number}": [1.0, 2.0, 3.0 + number] for number in range(30)}
    pair = (
        result("a", odd=[np.nan, 1.0], **many),
        result("b", odd=[0.0, 1.0], **{name: [1.0, 2.0, 3.5] for name in many}),
    )
    found = run_mismatches(*pair, compare_runs(*pair))
    assert [one.kind for one in found].count("nan-mismatch") == 1
    assert [one.kind for one in found].count("mismatch") == 8
    assert found[1].output == "y29"


# Types and shapes

ONES = {"y": np.ones((2, 3), np.float32)}


def of_engine(dtype: str | type, declared: str | None = "float32", shape: tuple[int, ...] = (2, 3)) -> RunnerResult:
    """The ones of an engine that must give a declared type."""
    kind = None if declared is None else TensorType(ELEM_OF_DTYPE[declared], (2, 3))
    return replace(result(f"gives {dtype}", y=np.ones(shape, dtype)), declared={"y": kind})


def differing(actual: RunnerResult, expected: RunnerResult) -> list[Mismatch]:
    return list(run_mismatches(actual, expected, compare_runs(actual, expected)))


def test_an_engine_must_give_the_type_that_the_model_declares() -> None:
    for expected in (of_engine("float32"), result("a file", **ONES), of_engine("float64")):
        (mismatch,) = differing(of_engine("float64"), expected)
        assert (mismatch.kind, mismatch.form, mismatch.declared_form) == ("type-mismatch", "float64", "float32")
    assert not differing(of_engine("float32"), of_engine("float32"))


def test_a_wrong_type_of_the_trusted_engine_is_one_too() -> None:
    (mismatch,) = differing(of_engine("float32"), of_engine("float64"))
    assert form_text(mismatch.from_other_side, "b") == "'y' of type float64 where the model declares float32"
    assert form_text(mismatch, "b") == "'y' of type float32, as the model declares, where b gives float64"


def test_engines_must_agree_on_a_type_that_nothing_declares() -> None:
    (mismatch,) = differing(of_engine("float64", None), of_engine("float32", None))
    assert form_text(mismatch, "b") == "'y' of type float64 where b gives float32"
    assert not differing(of_engine("float64", None), result("a file", **ONES))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_a_type_that_numpy_lacks_may_be_given_in_another(dtype: str) -> None:
    own = getattr(ml_dtypes, dtype)
    for given in (own, "float32"):
        assert not differing(of_engine(given, dtype), of_engine(own, dtype))
        assert not differing(of_engine(given, dtype), result("a file", **ONES))
    assert differing(of_engine(own, "float32"), of_engine("float32"))


def test_the_types_of_files_are_of_no_matter() -> None:
    for dtype in ("float16", "float64", "int64"):
        assert not differing(of_engine("float32"), result("a file", y=np.ones((2, 3), dtype)))
        assert not differing(result("a file", **ONES), result("another", y=np.ones((2, 3), dtype)))


def test_a_type_a_shape_and_values_may_be_wrong_at_once() -> None:
    wide, wrong = of_engine("float64", shape=(2, 4)), of_engine("float64")
    wrong.iterations[0].outputs["y"][0, 0] = np.nan
    assert [each.kind for each in differing(wide, of_engine("float32"))] == ["type-mismatch", "shape-mismatch"]
    assert [each.kind for each in differing(wrong, of_engine("float32"))] == ["type-mismatch", "nan-mismatch"]


def test_a_shape_is_right_if_the_model_declares_it() -> None:
    (mismatch,) = differing(of_engine("float32", shape=(2, 4)), of_engine("float32"))
    assert form_text(mismatch, "b") == "'y' of shape [2, 4] where the model declares [2, 3]"
    (mismatch,) = differing(result("a file", y=np.ones((2, 4))), result("another", **ONES))
    assert form_text(mismatch, "b") == "'y' of shape [2, 4] where b gives [2, 3]"
    assert form_text(mismatch, "") == "'y' of shape [2, 4] where [2, 3] is expected"


def test_a_great_integer_keeps_its_last_digits_also_in_a_file() -> None:
    pair = result("a", y=[2**53 + 1, 7]), result("b", y=[2**53, 7])
    (mismatch,) = run_mismatches(*pair, compare_runs(*pair))
    again = record_of(Mismatch, json.loads(json.dumps(plain(mismatch))))
    assert again.actual is not None
    assert again.value_text(again.actual) == "9007199254740993"
