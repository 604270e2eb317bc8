"""Random inputs can be had again, whatever else the model has; a user's script gives its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.model.tensor_type import DTYPE_OF_ELEM, ELEM_OF_DTYPE, TensorType
from biopsy.tensors.generate import defaulted_shapes, generate_feeds, resolve_shapes


def tensor(dtype: str, *shape: int | str | None) -> TensorType:
    return TensorType(ELEM_OF_DTYPE[dtype], shape)


FLOATS = {"x": tensor("float32", 2, 3), "y": tensor("float32", 2, 3)}


def test_the_same_seed_gives_the_same_values() -> None:
    one, two = (generate_feeds(FLOATS, iterations=2, seed=7) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])


def test_values_do_not_change_between_versions() -> None:
    (feed,) = generate_feeds({"x": tensor("float64", 2), "n": tensor("int64", 3)}, val_range={"n": (0, 99)})
    assert feed["x"].tolist() == [0.5889421153449221, 0.4522251976029611]
    assert feed["n"].tolist() == [99, 59, 14]


def test_seeds_iterations_and_names_give_other_values() -> None:
    first, second = generate_feeds(FLOATS, iterations=2)
    (other,) = generate_feeds(FLOATS, seed=2)
    assert len({array.tobytes() for array in (first["x"], first["y"], second["x"], other["x"])}) == 4


def test_an_input_keeps_its_values_when_others_go() -> None:
    (both,) = generate_feeds(FLOATS)
    (alone,) = generate_feeds({"y": FLOATS["y"]})
    np.testing.assert_array_equal(both["y"], alone["y"])


@pytest.mark.parametrize("dtype", DTYPE_OF_ELEM.values())
def test_every_type_has_values_of_the_type_and_shape_asked_for(dtype: str) -> None:
    (feed,) = generate_feeds({"x": tensor(dtype, 4, 5), "scalar": tensor(dtype), "empty": tensor(dtype, 0, 3)})
    assert (feed["x"].shape, feed["scalar"].shape, feed["empty"].shape) == ((4, 5), (), (0, 3))
    assert feed["x"].dtype.kind == "U" if dtype == "string" else feed["x"].dtype.name == dtype
    assert len(set(feed["x"].ravel().tolist())) > 1


def test_floats_and_integers_lie_between_0_and_1_by_default() -> None:
    (feed,) = generate_feeds({"x": tensor("float32", 1000), "n": tensor("int64", 1000)})
    assert 0 <= feed["x"].min() < 0.01
    assert 0.99 < feed["x"].max() <= 1
    assert set(feed["n"].tolist()) == {0, 1}


def test_ranges_hold_both_ends_and_a_name_goes_before_all() -> None:
    ranges = {"": (-2.0, 2.0), "n": (5.0, 7.0)}
    (feed,) = generate_feeds({"m": tensor("int8", 500), "n": tensor("uint64", 500)}, val_range=ranges)
    assert set(feed["m"].tolist()) == {-2, -1, 0, 1, 2}
    assert set(feed["n"].tolist()) == {5, 6, 7}


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_never_leave_their_range(a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    (feed,) = generate_feeds({"n": tensor("int64", 50)}, val_range={"": (low, high)})
    assert all(low <= value <= high for value in feed["n"].tolist())


def test_the_widest_range_of_floats_has_finite_values() -> None:
    (feed,) = generate_feeds({"x": tensor("float64", 50)}, val_range={"": (-1.7e308, 1.7e308)})
    assert np.isfinite(feed["x"]).all()


def test_a_general_range_is_limited_to_what_a_type_holds() -> None:
    (feed,) = generate_feeds({"m": tensor("int4", 500), "h": tensor("float16", 500)}, val_range={"": (-1e6, 1e6)})
    assert feed["m"].astype(int).min() == -8
    assert np.isfinite(feed["h"]).all()


def test_a_range_given_for_a_name_must_fit_its_type() -> None:
    with pytest.raises(errors.UsageError, match=r"\[0,300\] for input 'm' does not fit its type uint8") as caught:
        generate_feeds({"m": tensor("uint8", 5)}, val_range={"m": (0, 300)})
    assert caught.value.next_steps == ("--val-range 'm:[0,255]'",)


def test_dynamic_dimensions_are_1_unless_someone_says_otherwise() -> None:
    inputs = {"x": tensor("float32", "N", None, 3), "y": tensor("float32", "N"), "z": tensor("float32", 2)}
    shapes = {name: array.shape for name, array in generate_feeds(inputs)[0].items()}
    assert shapes == {"x": (1, 1, 3), "y": (1,), "z": (2,)}
    assert defaulted_shapes(inputs, {}) == {"x": (1, 1, 3), "y": (1,)}


def test_a_symbol_has_the_size_that_an_override_gives_it_elsewhere() -> None:
    inputs = {"y": tensor("float32", "N", "M"), "x": tensor("float32", "N", None)}
    (feed,) = generate_feeds(inputs, shapes={"x": (4, 2)})
    assert (feed["x"].shape, feed["y"].shape) == ((4, 2), (4, 1))
    assert defaulted_shapes(inputs, {"x": (4, 2)}) == {"y": (4, 1)}


def test_a_symbol_has_the_size_that_is_given_by_its_name_unless_an_override_says_otherwise() -> None:
    inputs = {"x": TensorType(1, ("N", 3)), "y": TensorType(1, ("N", "M"))}
    assert resolve_shapes(inputs, {}, {"N": 8}) == {"x": (8, 3), "y": (8, 1)}
    assert resolve_shapes(inputs, {"x": (4, 3)}, {"N": 8, "M": 2}) == {"x": (4, 3), "y": (4, 2)}
    assert set(defaulted_shapes(inputs, {}, {"N": 8})) == {"y"}


@pytest.mark.parametrize("shape", [(2, 4), (2,), (2, 3, 1), ()])
def test_an_override_that_contradicts_the_model_is_wrong_usage(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.UsageError, match=r"does not fit the model, where it is float32\[2,3\]"):
        generate_feeds(FLOATS, shapes={"x": shape})


def test_an_unknown_rank_asks_for_the_option_to_type() -> None:
    with pytest.raises(errors.UsageError, match="how many dimensions") as caught:
        generate_feeds({"a:0": TensorType(1, None)})
    assert caught.value.next_steps[0].startswith("--input-shapes 'a:0:[")
    assert generate_feeds({"a:0": TensorType(1, None)}, shapes={"a:0": (2,)})[0]["a:0"].shape == (2,)


def test_an_unknown_type_is_wrong_usage() -> None:
    with pytest.raises(errors.UsageError, match="element type"):
        generate_feeds({"x": TensorType(0, (1,))})


def test_options_for_inputs_that_are_gone_are_ignored() -> None:
    generate_feeds(FLOATS, shapes={"gone": (1,)}, val_range={"gone": (0, 1)})


HUGE = [(1 << 62, 1 << 62), (1 << 40, 1 << 10), (1,) * 1000]


@pytest.mark.parametrize("shape", HUGE, ids=["sizes", "memory", "rank"])
def test_an_impossible_shape_is_a_fault_of_the_model_if_the_model_says_so(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.CannotCompare, match="no values can be made up for input 'x' of shape") as caught:
        generate_feeds({"x": TensorType(1, shape)})
    assert caught.value.status == 4


@pytest.mark.parametrize("shape", HUGE, ids=["sizes", "memory", "rank"])
def test_an_impossible_shape_is_wrong_usage_if_a_person_says_so(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.DoesNotFit, match="no values can be made up for input 'x' of shape") as caught:
        generate_feeds({"x": TensorType(1, (None,) * len(shape))}, shapes={"x": shape})
    assert caught.value.status == 2
