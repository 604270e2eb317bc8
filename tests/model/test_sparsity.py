"""Which weights may be 2:4 sparse, whether they are, and values that are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from biopsy.model.stripping import Factor, conforming, factors, pruned
from support.models import info, model

Node = helper.make_node


def floats(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(shape, dtype), name)


def axes_of(nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> dict[str, tuple[int, ...]]:
    made = model(nodes, [info("x", None)], [info("y", None)], weights)
    return {factor.weight.name: factor.axes for factor in factors(made)}


W = floats("w", 8, 4)


@pytest.mark.parametrize(
    ("nodes", "axes"),
    [
        ([Node("MatMul", ["x", "w"], ["y"])], (0,)),
        ([Node("MatMul", ["w", "x"], ["y"])], (1,)),
        ([Node("Gemm", ["x", "w"], ["y"])], (0,)),
        ([Node("Gemm", ["x", "w"], ["y"], transB=1)], (1,)),
        ([Node("Gemm", ["w", "x"], ["y"], transA=1)], (0,)),
        ([Node("Conv", ["x", "w"], ["y"])], (1,)),
        ([Node("Transpose", ["w"], ["t"], perm=[1, 0]), Node("MatMul", ["x", "t"], ["y"])], (1,)),
        ([Node("Transpose", ["w"], ["t"]), Node("MatMul", ["x", "t"], ["y"])], (1,)),
        ([Node("Cast", ["w"], ["t"], to=10), Node("MatMul", ["x", "t"], ["y"])], (0,)),
        ([Node("MatMul", ["x", "w"], ["m"]), Node("Gemm", ["m", "w"], ["y"], transB=1)], (0, 1)),
    ],
)
def test_the_axis_is_the_one_that_a_product_sums_over(nodes: list[onnx.NodeProto], axes: tuple[int, ...]) -> None:
    assert axes_of(nodes, W) == {"w": axes}


def test_of_a_stack_of_matrices_the_rows_are_summed() -> None:
    assert axes_of([Node("MatMul", ["x", "w"], ["y"])], floats("w", 3, 8, 4)) == {"w": (1,)}


def test_a_permutation_is_undone_and_not_repeated() -> None:
    nodes = [Node("Transpose", ["w"], ["t"], perm=[2, 0, 1]), Node("MatMul", ["x", "t"], ["y"])]
    assert axes_of(nodes, floats("w", 4, 8, 12)) == {"w": (0,)}


@pytest.mark.parametrize(
    "nodes",
    [
        [Node("Add", ["x", "w"], ["y"])],
        [Node("Reshape", ["w", "s"], ["t"]), Node("MatMul", ["x", "t"], ["y"])],
        [Node("Transpose", ["w"], ["t"], perm=[0, 7]), Node("MatMul", ["x", "t"], ["y"])],
        [Node("Cast", ["t"], ["t"], to=1), Node("MatMul", ["x", "t"], ["y"])],
        [Node("MatMul", ["w"], ["y"])],
        [Node("MatMul", ["x", "w"], ["y"], domain="other")],
    ],
)
def test_a_weight_that_is_not_known_to_be_summed_is_not_found(nodes: list[onnx.NodeProto]) -> None:
    assert axes_of(nodes, W) == {}


def test_weights_of_bodies_are_found_by_the_names_of_their_scope() -> None:
    inner = helper.make_graph([Node("MatMul", ["x", "w"], ["b"])], "then", [], [info("b", None)], [floats("w", 12, 4)])
    outer = helper.make_graph([Node("MatMul", ["x", "w"], ["b"])], "else", [], [info("b", None)])
    nodes = [Node("If", ["c"], ["y"], then_branch=inner, else_branch=outer)]
    made = model(nodes, [info("x", None), info("c", [], TensorProto.BOOL)], [info("y", None)], [W])
    assert sorted(list(factor.weight.dims) for factor in factors(made)) == [[8, 4], [12, 4]]


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (floats("w", 6, 4), "dimension 0 has 6 elements"),
        (floats("w", 0, 4), "dimension 0 has 0 elements"),
        (floats("w", 8, 4, dtype=np.int8), "its type is none of"),
    ],
)
def test_a_weight_that_cannot_be_sparse_says_why(weight: onnx.TensorProto, why: str) -> None:
    assert why in str(Factor(weight=weight, axes=(0,)).unfit)


def plain_sparse(values: np.ndarray, axis: int) -> bool:
    rows = np.moveaxis(values, axis, -1).reshape(-1, 4)
    return all(np.count_nonzero(row) <= 2 for row in rows)


def plain_pruned(values: np.ndarray, axis: int) -> np.ndarray:
    moved = np.moveaxis(values.copy(), axis, -1)
    rows = moved.reshape(-1, 4).copy()
    for row in rows:
        row[np.argsort(np.abs(row), kind="stable")[:2]] = 0
    return np.moveaxis(rows.reshape(moved.shape), -1, axis)


@st.composite
def weights(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    rank = draw(st.integers(1, 4))
    axes = tuple(draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=2, unique=True)))
    shape = [draw(st.integers(1, 2)) * 4 if axis in axes else draw(st.integers(1, 3)) for axis in range(rank)]
    dtype = draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    seed = draw(st.integers(0, 1 << 32))
    values = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32) / 2
    if dtype == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16), axes
    return values.astype(dtype), axes


@given(weights())
def test_values_are_pruned_and_judged_by_the_definition(given_: tuple[np.ndarray, tuple[int, ...]]) -> None:
    values, axes = given_
    factor = Factor(weight=numpy_helper.from_array(values, "w"), axes=axes)
    assert (conforming(factor, values.tobytes()) == 1) == all(plain_sparse(values, axis) for axis in axes)
    made = pruned(factor, values.tobytes())
    expected = values
    for axis in axes:
        expected = plain_pruned(expected, axis)
    assert np.array_equal(np.frombuffer(made, values.dtype).reshape(values.shape), expected)
    assert conforming(factor, made) == 1
    assert np.array_equal(np.frombuffer(pruned(factor, made), values.dtype), expected.ravel())
