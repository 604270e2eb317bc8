"""What a layer costs, from shapes alone."""

import pytest
from onnx import helper

from biopsy.questions.precision.plan import flops_of


@pytest.mark.parametrize(
    ("op", "inputs", "output", "operations"),
    [
        ("MatMul", [(2, 3, 4), (4, 5)], (2, 3, 5), 2 * 30 * 4),
        ("Gemm", [(3, 4), (4, 5)], (3, 5), 2 * 15 * 4),
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3)], (1, 16, 6, 6), 2 * 576 * 27),
        ("ConvTranspose", [(1, 3, 4, 4), (3, 2, 2, 2)], (1, 2, 8, 8), 2 * 48 * 8),
        ("Relu", [(2, 3)], (2, 3), 6),
        ("ReduceSum", [(2, 3)], (1,), 6),
    ],
)
def test_a_multiplication_with_an_addition_is_two_operations_else_an_element_is_one(
    op: str, inputs: list[tuple[int, ...]], output: tuple[int, ...], operations: int
) -> None:
    names = [f"x{number}" for number in range(len(inputs))]
    assert flops_of(helper.make_node(op, names, ["y"]), inputs, [output]) == operations


def test_a_transposed_product_sums_over_the_first_dimension() -> None:
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transA=1)
    assert flops_of(node, [(4, 3), (4, 5)], [(3, 5)]) == 2 * 15 * 4


@pytest.mark.parametrize("op", ["MatMul", "Conv", "Relu"])
def test_without_shapes_nothing_is_counted(op: str) -> None:
    assert flops_of(helper.make_node(op, ["x", "w"], ["y"]), [None, None], [None]) == 0
