"""Which nodes of a model are meant by names, and by a piece of it."""

import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.questions.workarounds.find import neighbours, nodes_named, nodes_of_piece
from support.real_failures import normalization_of_columns


def index(model: onnx.ModelProto) -> ModelIndex:
    return index_bytes(model.SerializeToString())


@pytest.fixture
def whole() -> ModelIndex:
    return index(normalization_of_columns())


def test_nodes_are_named_by_what_they_compute_and_by_patterns(whole: ModelIndex) -> None:
    assert nodes_named(whole, ["m", "d"]) == (1, 4)
    assert nodes_named(whole, ["?"]) == (0, 1, 2, 3, 4, 5)


def test_a_name_that_means_nothing_is_told_with_one_that_is_alike(whole: ModelIndex) -> None:
    with pytest.raises(errors.DoesNotFit, match="no node 'mm'"):
        nodes_named(whole, ["mm"])


def test_nodes_of_a_piece_are_those_with_its_outputs_or_its_names(whole: ModelIndex) -> None:
    piece = normalization_of_columns()
    del piece.graph.node[0], piece.graph.node[-1]
    assert nodes_of_piece(whole, index(piece)) == (1, 2, 3, 4)
    named = normalization_of_columns()
    for node in named.graph.node:
        node.name = f"n_{node.output[0]}"
    renamed = helper.make_node("Sqrt", ["a_"], ["s_"], name="n_s")
    del piece.graph.node[:]
    piece.graph.node.append(renamed)
    assert nodes_of_piece(index(named), index(piece)) == (3,)


def test_a_piece_of_another_model_is_refused(whole: ModelIndex) -> None:
    other = normalization_of_columns()
    del other.graph.node[:]
    other.graph.node.append(helper.make_node("Sqrt", ["q"], ["r"]))
    with pytest.raises(errors.DoesNotFit, match="no node of the piece is in the model"):
        nodes_of_piece(whole, index(other))


def test_neighbours_write_or_read_what_the_nodes_read_or_write(whole: ModelIndex) -> None:
    assert neighbours(whole, [1]) == (0, 2)
    assert neighbours(whole, [0, 1, 2, 3, 4, 5]) == ()
