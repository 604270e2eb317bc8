"""Values that are nearly alike, or only look alike: no metric calls them equal at its strictest limit.

The contract: at the strictest limit of a metric (tolerances of 0, L2 and ULP 0, cosine 1, PSNR and SNR inf, indices
that may not move) two tensors pass if and only if they are equal by value. What equal means is said here again, by
Python's own numbers, which compare integers and floats of any size exactly.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.comparison.compare import OutputComparison, compare_output
from biopsy.comparison.describe import report_lines
from biopsy.comparison.runs import compare_runs
from biopsy.comparison.tolerance import (
    METRICS,
    STATS,
    STRICTEST,
    Criteria,
    Limit,
    Metric,
    Stat,
    Stats,
    Tolerance,
    Tolerances,
    TopK,
    criteria_for,
)
from biopsy.questions.layers.question import Judge
from biopsy.tensors.files import read_feeds, write_feeds
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.tensors.types import text, text_bytes
from support.comparing import compare_tensors
from support.models import INT64, info, model, save, weight

EXTENDED = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
)  # fmt: skip
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TYPES = (
    "bool", *WHOLE, "float16", "float32", "float64", "longdouble", "complex64", "complex128", "str", "bytes", *EXTENDED
)  # fmt: skip
MEANT = [2**53, 2**53 + 1, 2**63 - 1, 2**63 - 500, 2**63, 2**64 - 1, -(2**63), 0, 1, -1, 3, 150000, 150001]
REAL = [0.0, -0.0, 1.0, 0.1, 5e-324, 1e-300, -1e-300, 1e300, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf]


def column(dtype: str, values: list[Any]) -> Array:
    """A tensor of a type, of values that it may have to round or wrap."""
    if dtype in ("str", "bytes"):
        found = np.empty(len(values), object)
        found[:] = [str(one) if dtype == "str" else str(one).encode() for one in values]
        return found
    with np.errstate(all="ignore"):
        if dtype in WHOLE:
            wrapped = [int(one) % 2 ** (8 * np.dtype(dtype).itemsize) for one in values]
            return np.array(wrapped, np.uint64).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
        return np.array(values, np.float64).astype(getattr(ml_dtypes, dtype, dtype))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Array, Array]:
    """Two tensors of one shape and any two types, most of whose elements are alike."""
    types = [draw(st.sampled_from(TYPES)), draw(st.sampled_from(TYPES))]
    if draw(st.booleans()):
        types[1] = types[0]
    whole = any(one in WHOLE for one in types)
    value = st.sampled_from(MEANT) | st.integers(-(2**63), 2**64 - 1) if whole else st.sampled_from(REAL) | st.floats()
    if any(one in ("str", "bytes") for one in types):
        value = st.text(max_size=3) | st.sampled_from(["a", "a\0", "", "\0", "\udcff"])
        types = [one if one in ("str", "bytes") else "str" for one in types]
        value = value.filter(encodes) if "bytes" in types else value
    left = draw(st.lists(value, min_size=1, max_size=4))
    right = [draw(st.just(one) | st.just(one) | value) for one in left]
    return column(types[0], left), column(types[1], right)


def encodes(one: str) -> bool:
    try:
        return bool(one.encode()) or True
    except UnicodeEncodeError:
        return False


def plain(one: Any) -> Any:
    """An element as Python's own value."""
    if isinstance(one, str):
        return one.encode("utf-8", "surrogateescape") if "\udc80" <= max(one, default="") <= "\udcff" else one.encode()
    if isinstance(one, np.longdouble):
        return int(one) if np.isfinite(one) and one == np.trunc(one) and abs(one) < 2**64 else one
    return one.item() if isinstance(one, np.generic) and not hasattr(ml_dtypes, one.dtype.name) else exact(one)


def exact(one: Any) -> Any:
    named = getattr(getattr(one, "dtype", None), "name", "")
    return int(one) if "int" in named else float(one) if named else one


def alike(left: Any, right: Any) -> bool:
    left, right = plain(left), plain(right)
    if isinstance(left, complex) or isinstance(right, complex):
        return all(alike_real(getattr(left, part), getattr(right, part)) for part in ("real", "imag"))
    return alike_real(left, right)


def alike_real(left: Any, right: Any) -> bool:
    return bool(left == right) or bool(left != left and right != right)


def equal(pair: tuple[Array, Array]) -> bool:
    return all(map(alike, pair[0].reshape(-1), pair[1].reshape(-1)))


def is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def strict(pair: tuple[Array, Array], *metrics: Metric) -> OutputComparison:
    limits = tuple(Limit(metric, STRICTEST[metric]) for metric in metrics)
    return compare_output("y", *pair, Criteria(limits=limits, tolerances_decide=False))


@pytest.mark.slow
@given(pairs(), st.sampled_from(STATS), st.sampled_from([0.0, 0.5, 1.0]))
def test_tolerances_of_0_pass_equal_values_and_no_others(pair: tuple[Array, Array], stat: Stat, quantile: float):
    found = compare_tensors("y", *pair, Tolerance(0, 0), stat, quantile)
    assert found.passed == equal(pair)
    if not found.passed:
        assert "equal" not in report_lines(found)[0].replace("not equal", "")


@given(pairs(), st.sampled_from(METRICS))
def test_the_strictest_limit_passes_equal_values_and_no_others(pair: tuple[Array, Array], metric: Metric):
    other_floats = is_float(pair[0]) and is_float(pair[1]) and pair[0].dtype != pair[1].dtype
    if metric == "ulp" and other_floats:
        return  # counted in the less precise type, of which there are tests of their own
    assert strict(pair, metric).passed == equal(pair)


@given(pairs(), st.sampled_from(METRICS))
def test_what_does_not_differ_passes_any_limit_and_is_called_equal(pair: tuple[Array, Array], metric: Metric):
    again = pair[0], pair[0].copy()
    assert strict(again, metric).passed
    assert "equal" in report_lines(compare_tensors("y", *again))[0]


@given(pairs())
def test_no_error_between_values_that_differ_is_0(pair: tuple[Array, Array]):
    found = compare_tensors("y", *pair).measured
    if found is not None:
        assert (found.absolute.maximum == 0) == (found.relative.maximum == 0) == (found.differing == 0) == equal(pair)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize(
    ("actual", "expected"), [(2**53, 2**53 + 1), (2**63 - 1, 2**63 - 500), (2**62, 2**62 + 1)], ids=str
)
def test_neighbours_that_float64_does_not_tell_apart_are_told_apart(dtype: str, actual: int, expected: int):
    pair = np.array([actual], dtype), np.array([expected], dtype)
    for metric in ("ulp", "l2", "psnr", "snr", "cosine", "indices"):
        assert not strict(pair, metric).passed
    four = compare_output("y", *pair, Criteria(limits=(Limit("ulp", 4),), tolerances_decide=False))
    assert four.passed == (abs(actual - expected) <= 4)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_an_integer_that_no_float_holds_is_not_equal_to_its_rounding(kind: str):
    whole = np.array([2**53 + 1])
    assert not strict((whole, whole.astype(np.float64)), "ulp").passed
    assert not compare_tensors("y", np.array([2**63 - 1]), np.array([2.0**63]), Tolerance(0, 0)).passed
    small = np.array([0, 1, 1024])
    assert compare_tensors("y", small.astype(kind), small, Tolerance(0, 0)).passed


def test_floats_of_two_precisions_are_0_ulp_apart_where_rounding_makes_them_equal():
    third = np.array([1 / 3])
    assert strict((third.astype(np.float32), third), "ulp").passed
    assert not strict((np.nextafter(third.astype(np.float32), np.float32(1)), third), "ulp").passed


def test_a_multiple_has_the_cosine_1_and_is_not_equal():
    found = strict((np.array([2.0, 4.0]), np.array([1.0, 2.0])), "cosine")
    assert found.reason == "2 of 2 elements are not equal, which cosine 1 asks for"


def test_the_greatest_finite_values_have_no_infinite_ratio_to_their_error():
    great = np.full(100, 1.7e308)
    for metric in ("psnr", "snr"):
        found = compare_output("y", great * 0.5, great, Criteria(limits=(Limit(metric, 300),), tolerances_decide=False))
        assert not found.passed
        assert found.judged[0].value < 30


def test_parts_of_complex_numbers_are_compared_each():
    left, right = np.array([complex(math.nan, 1)]), np.array([complex(math.nan, 2)])
    assert not compare_tensors("y", left, right, Tolerance(9, 9)).passed
    assert compare_tensors("y", left, left).passed


# Integers


def test_identifiers_are_compared_exactly_unless_a_tolerance_speaks_of_them():
    one, other = np.array([150000]), np.array([150001])
    assert not compare_tensors("ids", one, other).passed
    for tolerances, passes in (
        (Tolerances(), False),
        (Tolerances({"": 1e-3}, {"": 1e-2}), False),
        (Tolerances({"other": 1}), False),
        (Tolerances({"": 1}), True),
        (Tolerances({"ids": 1}), True),
        (Tolerances({}, {"ids": 1e-5}), True),
    ):
        assert compare_output("ids", one, other, criteria_for("ids", tolerances, Stats(), no_limits())).passed == passes
    assert compare_tensors("ids", one * 1.0, other * 1.0).passed


@pytest.mark.parametrize("dtype", ["bool", *WHOLE, "int4", "uint4", "int2", "uint2"])
def test_every_integral_type_is_compared_exactly_by_default(dtype: str):
    values = column(dtype, [0, 1, 1])
    assert compare_tensors("y", values, values).passed
    assert not compare_tensors("y", values[::-1], values).passed
    tolerant = criteria_for("y", Tolerances({"": 1e-3}, {"": 1.0}), Stats({"": "median"}), no_limits())
    assert not compare_output("y", values[::-1], values, tolerant).passed


def no_limits() -> Any:
    from biopsy.comparison.tolerance import MetricLimits

    return MetricLimits()


# Strings


def test_strings_are_compared_as_the_bytes_that_they_are():
    def objects(*values: Any) -> Array:
        found = np.empty(len(values), object)
        found[:] = values
        return found

    assert not compare_tensors("s", objects("a\0"), objects("a")).passed
    assert not compare_tensors("s", objects("a\0"), np.array(["a"])).passed
    assert compare_tensors("s", objects(b"a", "é"), np.array(["a", "é"])).passed
    assert compare_tensors("s", objects(b"\xff\xfe"), objects("\udcff\udcfe")).passed
    assert not compare_tensors("s", objects(b"\xff"), objects("ÿ")).passed
    assert compare_tensors("s", np.array([b"a"]), np.array(["a"])).passed
    assert not compare_tensors("s", np.array([b"\xff"]), np.array(["a"])).passed
    assert not compare_tensors("s", np.array(["1"]), np.array([1])).passed


@pytest.mark.parametrize("extension", [".npz", ".safetensors", ".json"])
@settings(max_examples=30)
@given(values=st.lists(st.text(max_size=3) | st.binary(max_size=3) | st.just("a\0"), max_size=4))
def test_files_keep_every_byte_of_a_string(tmp_path_factory: Any, extension: str, values: list[Any]):
    array = np.empty(len(values), object)
    array[:] = values
    path = tmp_path_factory.getbasetemp() / f"every byte{extension}"
    write_feeds(path, [{"s": array}])
    found = read_feeds(path)[0]["s"]
    assert text_bytes(found).tolist() == text_bytes(array).tolist()
    assert compare_tensors("s", found, array).passed


@given(st.lists(st.text(max_size=3)))
def test_text_is_of_a_fixed_width_unless_that_loses_something(values: list[str]):
    array = np.empty(len(values), object)
    array[:] = values
    assert (text(array).dtype.kind == "U") == (not any(value.endswith("\0") for value in values))


# Nothing to compare


def results(*outputs: dict[str, Array]) -> RunnerResult:
    return RunnerResult("r", tuple(Iteration(one) for one in outputs))


def test_equal_shapes_without_elements_prove_nothing():
    empty = {"y": np.zeros((0, 4), np.float32)}
    with pytest.raises(errors.CannotCompare, match=r"only empty outputs, 'y' float32\[0, 4\]"):
        compare_runs(results(empty, empty), results(empty, empty))
    assert compare_runs(results({**empty, "z": np.ones(1)}), results({**empty, "z": np.ones(1)})).passed
    assert compare_runs(results(empty, {"y": np.ones((1, 4))}), results(empty, {"y": np.ones((1, 4))})).passed
    assert not compare_runs(results(empty), results({"y": np.zeros((0, 5))})).passed


def test_indices_that_may_all_have_moved_are_no_comparison():
    asked = Criteria(limits=(Limit("indices", 3, TopK(3)),), tolerances_decide=False)
    with pytest.raises(errors.DoesNotFit, match="no index of output 'y' of shape \\[3\\] is compared"):
        compare_output("y", np.array([1.0, 2, 3]), np.array([3.0, 2, 1]), asked)


# The element that is told


def test_the_element_that_is_told_is_one_that_fails_and_not_the_greatest_difference():
    expected = np.array([1e6, 0.0, 1.0])
    actual = expected + np.array([9.0, 0.01, 0.0])
    error = Judge(Tolerances({"": 1e-5}, {"": 1e-5})).error("y", [actual], [expected])
    assert error.worst is not None
    assert error.worst.index == (1,)
    assert error.absolute == 9
    assert error.tolerance_ratio == pytest.approx(1000)
    whole = Judge().error("y", [np.array([7, 5, 0])], [np.array([7, 0, 1])])
    assert whole.worst is not None
    assert (whole.worst.index, whole.tolerance_ratio) == ((1,), math.inf)


def test_a_file_of_numbers_is_not_of_strings(tmp_path: Path):
    with pytest.raises(errors.DataError, match="not strings"):
        write_feeds(tmp_path / "x.npz", [{"x": np.array([1, "a"], object)}])


def test_arrays_of_numpy_keep_their_shape_as_text():
    assert text(np.array([["a", "b"]], object)).shape == (1, 2)


# Through an engine and files


def strings(*values: bytes) -> onnx.ModelProto:
    held = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[1], string_data=values)
    node = helper.make_node("Constant", [], ["y"], value=held)  # make_tensor would lose zeros at the end
    return model([node], [], [info("y", (1,), onnx.TensorProto.STRING)])


@pytest.mark.parametrize("extension", [".json", ".npz", ".safetensors"])
def test_a_zero_at_the_end_of_a_string_survives_a_run_and_a_file(
    extension: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    save(strings(b"a\0"), Path("zero.onnx"))
    save(strings(b"a"), Path("plain.onnx"))
    golden = f"golden{extension}"
    assert main(["run", "zero.onnx", "--onnxrt", "--save-outputs", golden]) == 0
    assert main(["run", "zero.onnx", "--onnxrt", "--load-outputs", golden]) == 0
    assert main(["run", "plain.onnx", "--onnxrt", "--load-outputs", golden]) == 1
    assert "1 of 1 strings differ" in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["--onnxrt", "--reference"])
def test_bytes_that_python_does_not_get_to_see_are_no_failure_of_the_engine(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = save(strings(b"\xff\xfe"), tmp_path / "bytes.onnx")
    assert main(["run", str(path), engine]) == 4
    assert "strings that are not UTF-8" in capsys.readouterr().err


def test_identifiers_of_a_model_are_compared_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    nodes = [helper.make_node("Add", ["x", "w"], ["ids"])]
    for name, offset in (("one", 150000), ("other", 150001)):
        ends = info("x", (1,), INT64), info("ids", (1,), INT64)
        save(model(nodes, [ends[0]], [ends[1]], [weight("w", offset, dtype="int64")]), tmp_path / f"{name}.onnx")
    golden = str(tmp_path / "golden.npz")
    assert main(["run", str(tmp_path / "one.onnx"), "--onnxrt", "--save-outputs", golden]) == 0
    other = ["run", str(tmp_path / "other.onnx"), "--onnxrt", "--load-outputs", golden]
    assert main(other) == 1
    assert "integers are compared exactly by default" in capsys.readouterr().out
    assert main([*other, "--atol", "1e-3", "--rtol", "1e-2"]) == 1
    assert main([*other, "--rtol", "ids:1e-5"]) == 0
    assert main([*other, "--atol", "1"]) == 0


def test_outputs_that_are_empty_on_both_sides_conclude_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = save(
        model([helper.make_node("Neg", ["x"], ["y"])], [info("x", (0, 4))], [info("y", (0, 4))]), tmp_path / "m"
    )
    assert main(["run", str(path), "--onnxrt", "--reference"]) == 4
    assert "PASSED" not in capsys.readouterr().out
