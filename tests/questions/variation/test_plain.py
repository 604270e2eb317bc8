"""A plain form of a model still fails, and plain values are short Python that gives the same bytes."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from biopsy.questions.variation.plain import plain_expression

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
    assert plain_expression(np.ones((9, 9), np.float32)) == "np.full((9, 9), 1, np.float32)"
    assert plain_expression(np.resize(np.int64([1, 2]), 40)) == "np.resize(np.array([1, 2], np.int64), (40,))"
    assert plain_expression(np.random.default_rng(0).normal(size=40)) is None
    assert plain_expression(np.array(["text"])) is None
