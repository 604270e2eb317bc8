"""How the nodes of a result are named."""

import pytest
from onnx import helper

from biopsy.model.index import index_bytes
from biopsy.reduction.result import labels_of
from support.models import info, model


@pytest.mark.parametrize(
    ("result", "kept", "labels"),
    [
        (["Softmax"], [1, 3], ["Softmax #3"]),
        (["Relu", "Softmax"], [0, 3], ["Relu #0", "Softmax #3"]),
        (["Relu"], [0, 1, 2], ["Relu"]),  # it may be any of two
    ],
)
def test_a_node_without_a_name_has_the_number_of_the_original_or_none(
    result: list[str], kept: list[int], labels: list[str]
) -> None:
    def index(operators: list[str]):
        tensors = ["x", *(f"t{number}" for number in range(1, len(operators))), "y"]
        nodes = [helper.make_node(op, [tensors[at]], [tensors[at + 1]]) for at, op in enumerate(operators)]
        return index_bytes(model(nodes, [info("x")], [info("y")]).SerializeToString())

    original = index(["Relu", "Neg", "Relu", "Softmax"])
    assert list(labels_of(index(result).nodes, [original.nodes[number] for number in kept])) == labels
