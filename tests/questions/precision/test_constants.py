"""Weights in other formats: what they are converted to, and what is lost."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from biopsy.questions.precision.formats import (
    BF16,
    FP8_E4M3FN,
    FP16,
    FP32,
    Format,
    RangeLoss,
    Weights,
    range_loss_of,
    rounded,
    values_of,
)
from support.models import chain, weight


def external(folder: Path, values: np.ndarray) -> onnx.TensorProto:
    """A weight whose values stand in a file of ``folder``."""
    (folder / "w.bin").write_bytes(values.tobytes())
    tensor = numpy_helper.from_array(values, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_what_is_too_large_becomes_infinite_and_in_fp8_the_largest_number() -> None:
    values = np.float32([1e9, -1e9, np.inf, np.nan])
    np.testing.assert_array_equal(rounded(values, FP16), [np.inf, -np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(rounded(values, FP8_E4M3FN)[:2], [448, -448])


def test_the_formats_that_hold_all_values_of_a_small_weight_are_known() -> None:
    weights = Weights(Path())
    assert FP8_E4M3FN in weights.exact(weight("w", 0.5, 2))
    assert weights.exact(weight("w", 2049)) == {FP32}
    assert weights.exact(weight("w", 0.1)) == {FP32}


def test_of_large_and_external_weights_nothing_is_claimed(tmp_path: Path) -> None:
    weights = Weights(tmp_path)
    assert weights.exact(weight("w", *[0.5] * 1025)) == frozenset()
    assert weights.exact(external(tmp_path, np.float32([0.5]))) == frozenset()


def test_a_weight_is_converted_once_under_its_new_name() -> None:
    graph = chain(1).graph
    graph.initializer.append(weight("w", 0.1, 2, shape=(2, 1)))
    weights = Weights(Path())
    half = weights.converted(graph, "w", FP16.elem, "w_fp16")
    assert half is not None and (half.name, list(half.dims), half.data_type) == ("w_fp16", [2, 1], FP16.elem)
    np.testing.assert_array_equal(numpy_helper.to_array(half), np.float16([[0.1], [2]]))
    assert weights.converted(graph, "w", FP16.elem, "w_fp16") is half


def test_an_external_weight_is_left_where_it_is(tmp_path: Path) -> None:
    graph = chain(1).graph
    graph.initializer.append(external(tmp_path, np.float32([0.1, 2])))
    assert Weights(tmp_path).converted(graph, "w", FP16.elem, "w_fp16") is None
    (values,) = values_of(graph.initializer[0], tmp_path)
    np.testing.assert_array_equal(values, np.float32([0.1, 2]))


@pytest.mark.parametrize(
    ("low", "values", "loss"),
    [
        (FP16, [1, 7e4, -7e4, 1e-9, 0], RangeLoss("w", 5, 2, 1)),
        (FP16, [65519, 65504, 0, np.inf, np.nan], None),
        (FP16, [65520], RangeLoss("w", 1, 1, 0)),
        (FP16, [2.0**-25, 2.0**-24], RangeLoss("w", 2, 0, 1)),
        (BF16, [7e4, 1e-9], None),
        (FP8_E4M3FN, [500, 1e-3, 1, 464], RangeLoss("w", 4, 1, 0)),
    ],
)
def test_values_that_become_infinite_or_zero_are_counted(
    low: Format, values: list[float], loss: RangeLoss | None
) -> None:
    assert range_loss_of(weight("w", *values), Path(), low) == loss


def test_they_are_counted_in_external_weights_too(tmp_path: Path) -> None:
    assert range_loss_of(external(tmp_path, np.float32([1e9, 1])), tmp_path, FP16) == RangeLoss("w", 2, 1, 0)
