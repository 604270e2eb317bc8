"""Subgraphs fed with recorded values, and batches of those that nothing connects."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from biopsy.model.index import index_bytes
from biopsy.questions.layers.recorded import RecordedModel
from biopsy.questions.layers.subgraphs import Subgraph, Subgraphs, batches
from biopsy.recording.reference_run import StoredValues, ValuesInMemory
from biopsy.tensors.files import write_feeds
from support.models import chain, info, model

X = np.array([[1, -2], [3, -4]], np.float32)


def recorded(made: onnx.ModelProto, values: dict[str, np.ndarray], folder: Path) -> Subgraphs:
    path = folder / "recorded.safetensors"
    write_feeds(path, [values])
    stored = StoredValues(path)
    return Subgraphs(
        index_bytes(made.SerializeToString()),
        RecordedModel(computed=stored, fed=stored, inputs=path, outputs=ValuesInMemory([values])),
    )


@pytest.fixture(scope="module")
def negations(tmp_path_factory: pytest.TempPathFactory) -> Subgraphs:
    """Ten Neg one after the other; all tensors are recorded."""
    values = {f"t{number}": X * (-1) ** number for number in range(11)}
    return recorded(chain(10, ["Neg"]), values, tmp_path_factory.mktemp("recorded"))


def single(subgraphs: Subgraphs, node: int) -> Subgraph:
    return Subgraph(subgraphs, (node,), (node,), subgraphs.recorded_writes(node))


def test_a_subgraph_is_fed_what_it_reads_and_gives_its_ends(negations: Subgraphs) -> None:
    names = negations.names
    assert names(negations.inputs((3, 4))) == ["t3"] and names(negations.ends((3, 4))) == ["t5"]
    assert negations.size((3, 4), negations.ends((3, 4))) == 2 * X.nbytes


def test_its_model_computes_from_recorded_values_what_was_recorded(negations: Subgraphs) -> None:
    made = negations.model((3, 4), negations.ends((3, 4)))
    session = onnxruntime.InferenceSession(made.data, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"t3": negations.recorded.expected("t3")[0]})
    np.testing.assert_array_equal(result, negations.recorded.expected("t5")[0])


def test_inner_tensors_can_be_outputs_of_the_model(negations: Subgraphs) -> None:
    ids = negations.index.ids
    made = onnx.ModelProto.FromString(negations.model((3, 4), [ids["t5"], ids["t4"]]).data)
    onnx.checker.check_model(made, full_check=True)
    assert [output.name for output in made.graph.output] == ["t5", "t4"]


def test_what_has_no_recorded_value_is_computed_in_the_subgraph(tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.float32([2]))
    nodes = [
        helper.make_node("Constant", [], ["two"], value=constant),
        helper.make_node("Neg", ["x"], ["lost"]),
        helper.make_node("Mul", ["lost", "two"], ["y"]),
    ]
    subgraphs = recorded(model(nodes, [info("x")], [info("y")]), {"x": X, "y": -2 * X}, tmp_path)
    assert subgraphs.closed([2]) == (0, 1, 2)
    assert subgraphs.recorded_writes(1) == [] and subgraphs.names(subgraphs.recorded_writes(2)) == ["y"]


def test_a_node_that_needs_an_input_without_a_value_cannot_be_run(tmp_path: Path) -> None:
    subgraphs = recorded(chain(2), {"t1": X, "t2": X}, tmp_path)
    assert subgraphs.closed([0]) is None and subgraphs.closed([1]) == (1,)


def test_no_subgraph_of_a_batch_reads_what_another_one_computes(negations: Subgraphs) -> None:
    parts = [single(negations, node) for node in range(10)]
    for batch in batches(parts, 10**9):
        reads = [tensor for part in batch for tensor in part.reads]
        writes = {tensor for part in batch for tensor in part.writes}
        assert writes.isdisjoint(reads) and len(set(reads)) == len(reads)


def test_every_subgraph_is_in_one_batch(negations: Subgraphs) -> None:
    parts = [single(negations, node) for node in range(10)]
    filled = batches(parts, 10**9)
    assert sorted(part.layers[0] for batch in filled for part in batch) == list(range(10))
    assert len(filled) == 2


def test_a_batch_stays_below_the_limit_unless_one_subgraph_needs_more(negations: Subgraphs) -> None:
    parts = [single(negations, node) for node in range(10)]
    one = 2 * X.nbytes
    assert max(len(batch) for batch in batches(parts, 2 * one)) == 2
    assert {len(batch) for batch in batches(parts, one - 1)} == {1}


def test_where_values_are_rounded_the_reference_keeps_its_own(tmp_path: Path) -> None:
    for name, dtype in (("computed", np.float64), ("fed", np.float32)):
        write_feeds(tmp_path / f"{name}.safetensors", [{"x": np.array([0.1], dtype)}])
    computed, fed = (StoredValues(tmp_path / f"{name}.safetensors") for name in ("computed", "fed"))
    both = RecordedModel(computed=computed, fed=fed, inputs=fed.path, outputs=ValuesInMemory([]))
    same = RecordedModel(computed=fed, fed=fed, inputs=fed.path, outputs=ValuesInMemory([]))
    assert both.is_rounded and not same.is_rounded
    assert both.expected("x")[0].dtype == np.float64 and "nobody" not in both
    with pytest.raises(KeyError):
        both.expected("nobody")
