"""Fresh inputs: like those of the check, and others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from biopsy.engines.runner import Inputs, feeds_for, wider_sample
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.questions.workarounds.trusted_values import fresh_samples
from support.real_failures import normalization_of_columns, relu_clip_of_integers

FLOATS = {"x": TensorType(1, (4, 4))}


def test_made_up_inputs_are_drawn_anew_in_the_same_way() -> None:
    drawn = Inputs(iterations=3, val_range={"": (2.0, 3.0)})
    samples = feeds_for(FLOATS, drawn).feeds
    fresh = fresh_samples(FLOATS, samples, drawn, 2)
    assert len(fresh) == 2
    for one in fresh:
        assert np.all((one["x"] >= 2) & (one["x"] <= 3))
        assert not any(np.array_equal(one["x"], known["x"]) for known in samples)


@given(arrays.arrays(np.int64, (12,), elements=st.integers(0, 40), unique=True))
def test_given_whole_numbers_change_places_and_stay_the_same_numbers(value: np.ndarray) -> None:
    wanted = {"ids": TensorType(7, (12,))}
    for one in fresh_samples(wanted, [{"ids": value}], Inputs(given=[{"ids": value}]), 2):
        assert sorted(one["ids"]) == sorted(value)


@given(arrays.arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32), unique=True))
def test_given_floats_stay_within_what_was_given(value: np.ndarray) -> None:
    [one, other] = fresh_samples({"x": TensorType(1, (3, 5))}, [{"x": value}], Inputs(given=[{"x": value}]), 2)
    for fresh in (one["x"], other["x"]):
        assert fresh.dtype == value.dtype and fresh.shape == value.shape
        assert value.min() <= fresh.min() and fresh.max() <= value.max()
    assert not np.array_equal(one["x"], other["x"])


def test_what_leaves_nothing_to_vary_has_no_fresh_samples() -> None:
    flat = {"x": np.ones((2, 2), np.float32)}
    assert fresh_samples({"x": TensorType(1, (2, 2))}, [flat], Inputs(given=[flat]), 2) == []
    assert fresh_samples({}, [{}], Inputs(), 2) == []


@pytest.mark.parametrize(("model", "dtype"), [(normalization_of_columns, "f"), (relu_clip_of_integers, "i")])
def test_a_wider_sample_reaches_below_zero_and_above_one(model, dtype: str) -> None:
    index = index_bytes(model().SerializeToString())
    wanted = index.fed_types()
    made = wider_sample(index, wanted, Inputs())
    assert made is not None and made["x"].dtype.kind == dtype
    assert made["x"].min() < 0 or made["x"].max() > 1


def test_whole_numbers_that_may_be_indices_are_not_widened() -> None:
    model = relu_clip_of_integers()
    model.graph.node[0].op_type = "Gather"
    index = index_bytes(model.SerializeToString())
    wanted = index.fed_types()
    assert wider_sample(index, wanted, Inputs()) is None


def test_a_range_that_was_given_is_not_left() -> None:
    index = index_bytes(normalization_of_columns().SerializeToString())
    wanted = index.fed_types()
    assert wider_sample(index, wanted, Inputs(val_range={"x": (0.0, 1.0)})) is None
