"""Running a model with checked feeds."""

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import create
from biopsy.engines.runner import Inputs, checked_feed, feeds_for, run_session, runner_name
from biopsy.model.known_names import inside_a_check
from biopsy.model.tensor_type import TensorType
from support.models import chain

F32, F16, F64, BF16, I64, BOOL, TEXT, U4, I4 = 1, 10, 11, 16, 7, 9, 8, 21, 22


def fitted(value: object, elem: int, shape: tuple[int | str | None, ...] | None = None) -> np.ndarray:
    return checked_feed({"x": np.asarray(value)}, {"x": TensorType(elem, shape)})["x"]


def test_every_feed_is_one_iteration_with_its_time():
    feeds = [{"t0": np.full((2, 2), value, np.float32)} for value in (1, -1, 2)]
    session = create("onnxrt").build(ModelInput(chain(1).SerializeToString(), Path()))
    result = run_session(session, feeds, runner="onnxrt", warm_up=2)
    assert result.runner == "onnxrt"
    assert [iteration.outputs["t1"][0, 0] for iteration in result.iterations] == [1, 0, 2]
    assert all(iteration.runtime is not None and iteration.runtime > 0 for iteration in result.iterations)


def test_runner_names_have_the_form_that_saved_results_carry():
    assert re.fullmatch(r"onnxrt-runner-N0-\d\d/\d\d/\d\d-\d\d:\d\d:\d\d", runner_name("onnxrt", 0))


def test_entries_that_the_model_does_not_take_are_ignored():
    inputs = {"x": TensorType(F32, (1,))}
    assert list(checked_feed({"y": np.ones(3), "x": np.ones(1, np.float32)}, inputs)) == ["x"]


def test_a_missing_input_cannot_be_compared_and_layerwise_inputs_are_hinted_at():
    with pytest.raises(errors.CannotCompare, match="iteration 3 has no value for input 'x', 'z'") as caught:
        checked_feed({"y": np.ones(1)}, dict.fromkeys(["x", "z"], TensorType(F32, None)), 3)
    assert "data to-input" in caught.value.next_steps[0]


def test_an_input_of_an_unknown_type_cannot_be_fed():
    with pytest.raises(errors.CannotCompare, match="it cannot be fed here"):
        checked_feed({"x": np.ones(1)}, {"x": None})


@pytest.mark.parametrize("shape", [(2,), (2, 3, 1), (2, 4)])
def test_another_shape_is_told_with_both_shapes(shape: tuple[int, ...]):
    with pytest.raises(
        errors.CannotCompare, match=re.escape(f"float32[N,3] in the model, but the value given has shape {list(shape)}")
    ):
        fitted(np.zeros(shape, np.float32), F32, ("N", 3))


def test_symbolic_dimensions_take_any_size():
    assert fitted(np.zeros((7, 3), np.float32), F32, ("N", 3)).shape == (7, 3)


@pytest.mark.parametrize(
    ("value", "elem"),
    [
        (np.array([0.5, -0.0, np.inf, np.nan]), F32),
        (np.array([1, 2], np.int32), I64),
        (np.array([1, 2]), F32),
        (np.array([0.5, 3], np.float32), BF16),
        (np.array([1, 0], np.uint8), BOOL),
        (np.array([-0.0, 3]), I64),
    ],
)
def test_values_that_fit_another_type_are_cast(value: np.ndarray, elem: int):
    found = fitted(value, elem)
    assert found.dtype.name == TensorType(elem, None).dtype
    np.testing.assert_array_equal(found.astype(value.dtype), value)


def test_integers_of_four_bits_are_cast_to_those_with_and_without_a_sign():
    assert fitted(np.array([7, 1], ml_dtypes.int4), U4).astype(int).tolist() == [7, 1]
    assert fitted(np.array([7, 1], ml_dtypes.uint4), I4).astype(int).tolist() == [7, 1]


@pytest.mark.parametrize(
    ("value", "elem"),
    [
        (np.array([1e300]), F32),
        (np.array([1e5]), F16),
        (np.array([np.inf]), 17),
        (np.array([500.0]), 17),
        (np.array([9.0]), 23),
        (np.array([1.5]), I64),
        (np.array([np.nan]), I64),
        (np.array([2.0]), BOOL),
        (np.array([2**24 + 1]), F32),
        (np.array([1 + 1j]), F32),
        (np.array([2**53 + 1]), F64),
        (np.array([300]), 3),
        (np.array(["1"]), F32),
        (np.array([0.1], ml_dtypes.bfloat16), I64),
        (np.array([1.0]), TEXT),
        (np.array([-1], ml_dtypes.int4), U4),
        (np.array([8], ml_dtypes.uint4), I4),
    ],
)
def test_values_that_a_cast_would_replace_are_refused(value: np.ndarray, elem: int):
    with pytest.raises(errors.CannotCompare):
        fitted(value, elem)


@pytest.mark.parametrize("elem", [F32, F16, BF16, 17, 23])
def test_floats_are_rounded_to_fewer_bits(elem: int):
    value = np.random.default_rng(1).random(100)
    found = fitted(value, elem)
    np.testing.assert_array_equal(found, value.astype(found.dtype))


def test_a_refusal_names_the_input_the_types_and_the_first_value_that_is_lost():
    with pytest.raises(errors.CannotCompare, match=r"'x' is int64 .* float64 .* whole numbers .*: 1.5 at \[0, 1\]"):
        fitted([[1.0, 1.5]], I64)


def test_swapped_bytes_are_put_in_order():
    assert fitted(np.array([1.5], ">f4"), F32).dtype.isnative


def test_a_shape_that_is_asked_for_must_be_that_of_what_is_loaded() -> None:
    loaded = Inputs(given=[{"x": np.zeros((2, 3), np.float32)}], shapes={"x": (None, 3)})
    wanted = {"x": TensorType(1, ("n", 3))}
    assert feeds_for(wanted, loaded).feeds
    with pytest.raises(errors.DoesNotFit, match=r"--input-shapes gives 'x' the shape \[4, 3\], but .* has \[2, 3\]"):
        feeds_for(wanted, replace(loaded, shapes={"x": (4, 3)}))
    with inside_a_check():  # a candidate may have other sizes than the original
        assert feeds_for(wanted, replace(loaded, shapes={"x": (4, 3)})).feeds
