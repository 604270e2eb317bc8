"""A plain form of a model still fails, and plain values are short Python that gives the same bytes."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import helper

from biopsy.questions.variation.features import Edit, ExaminedFeature, FedModel
from biopsy.questions.variation.plain import make_plain, plain_expression
from biopsy.questions.variation.shapes import size_features
from biopsy.questions.variation.validity import Validity
from support.models import info, model, weight

TYPES = st.sampled_from(["float32", "float64", "float16", "int64", "int8", "uint8", "bool"])


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(TYPES))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    if draw(st.booleans()):
        pattern = draw(arrays.arrays(dtype, draw(st.integers(1, 4))))
        return np.resize(pattern, shape)
    return draw(arrays.arrays(dtype, shape))


@given(tensors())
def test_an_expression_gives_the_same_values_type_and_shape(values: Any) -> None:
    expression = plain_expression(values)
    if expression is not None:
        assert len(expression) <= 200 and expression.isprintable()
        again = eval(expression, {"np": np, "bool": bool, "__builtins__": {}})
        assert (again.dtype, again.shape) == (values.dtype, values.shape)
        np.testing.assert_array_equal(again, values)  # but for the payload of NaN


def test_few_elements_fills_and_patterns_are_plain_and_measured_numbers_are_not() -> None:
    assert plain_expression(np.float32([0.1, -2])) == "np.array([0.1, -2], np.float32)"
    sixteen = np.float32([-2, -1, 3, 0.5, -2, -1, 3, 1.25] * 2).reshape(2, 2, 2, 2)
    sixteen[1, 1, 1, 1] = 1.234568
    listed = "-2, -1, 3, 0.5, -2, -1, 3, 1.25, -2, -1, 3, 0.5, -2, -1, 3, 1.234568"
    assert plain_expression(sixteen) == f"np.array([{listed}], np.float32).reshape((2, 2, 2, 2))"
    assert plain_expression(np.ones((9, 9), np.float32)) == "np.full((9, 9), 1, np.float32)"
    assert plain_expression(np.resize(np.int64([1, 2]), 40)) == "np.resize(np.array([1, 2], np.int64), (40,))"
    assert plain_expression(np.arange(16).reshape(4, 4)) == "np.arange(16, dtype=np.int64).reshape((4, 4))"
    assert plain_expression(np.random.default_rng(0).normal(size=40)) is None
    assert plain_expression(np.array(["text"])) is None


def shape_made_plain(base: FedModel, does_fail: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """The shape of x in the plainest form of a model that fails for these shapes of x; two other sizes were tried."""
    found = [base]

    def fails(edit: Edit, description: str) -> bool:
        edited = edit(base)
        assert edited is not None and edited.feeds is not None
        if does_fail(edited.feeds[0]["x"].shape):
            found.append(edited)
        return found[-1] is edited

    examinations = []
    with contextlib.closing(Validity(base.model)) as validity:
        for feature in size_features(base, validity):
            assert feature.numbers is not None
            examination = ExaminedFeature(feature)
            for size in (1, feature.numbers.present - 1):
                changed = feature.numbers.with_value(size)
                edited = changed.edit(base)
                assert edited is not None and edited.feeds is not None
                is_same = does_fail(edited.feeds[0]["x"].shape)
                examination.answers.append((changed, "fails" if is_same else "passes"))
            examinations.append(examination)
    make_plain(base, examinations, fails)
    feeds = found[-1].feeds
    assert feeds is not None
    return feeds[0]["x"].shape


def fed(*nodes: onnx.NodeProto, weights: Sequence[onnx.TensorProto] = ()) -> FedModel:
    made = model(nodes, [info("x", (64, 48))], [info("y", None)], weights)
    return FedModel(onnx.shape_inference.infer_shapes(made), [{"x": np.ones((64, 48), np.float32)}])


LEAST = np.iinfo(np.int32).min


@pytest.mark.parametrize(
    ("dtype", "extreme", "does_fail", "plain"),
    [
        ("float32", 512, lambda values: values.max() > 400, 600),
        ("int32", LEAST, lambda values: values.min() == LEAST, LEAST),
    ],
)
def test_sizes_that_hold_no_value_that_fails_shrink_once_all_values_do(
    dtype: str, extreme: int, does_fail: Callable[[Any], bool], plain: int
) -> None:
    """It fails for one value of many; the sizes alone would lose it."""
    values = np.linspace(-9, 9, 64).astype(dtype).reshape(8, 8)
    values[6, 5] = extreme
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ends = [info("x", (8, 8), elem)], [info("y", (8, 8), elem)]
    base = FedModel(model([helper.make_node("Abs", ["x"], ["y"])], *ends), [{"x": values}])
    found = [base]

    def fails(edit: Edit, description: str) -> bool:
        edited = edit(base)
        assert edited is not None and edited.feeds is not None
        if does_fail(edited.feeds[0]["x"]):
            found.append(edited)
        return found[-1] is edited

    with contextlib.closing(Validity(base.model)) as validity:
        make_plain(base, [ExaminedFeature(feature) for feature in size_features(base, validity)], fails)
    assert found[-1].feeds is not None
    np.testing.assert_array_equal(found[-1].feeds[0]["x"], np.full((2, 2), plain, dtype))


def test_an_axis_of_a_plain_model_has_more_than_one_element_where_that_fails_too() -> None:
    relu = fed(helper.make_node("Relu", ["x"], ["y"]))
    assert shape_made_plain(relu, lambda shape: True) == (2, 2)
    assert shape_made_plain(relu, lambda shape: shape[0] != 2) == (3, 2)
    assert shape_made_plain(relu, lambda shape: shape[0] in (1, 63, 64)) == (1, 2)


def test_a_plain_model_gives_no_empty_tensor() -> None:
    rest = fed(
        helper.make_node("Slice", ["x", "start", "end"], ["y"]),
        weights=[weight("start", 2, dtype="int64"), weight("end", 99, dtype="int64")],
    )
    assert shape_made_plain(rest, lambda shape: True) == (3, 2)
