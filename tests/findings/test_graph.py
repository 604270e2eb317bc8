"""A model as a graph that can be drawn, and as a map."""

import json
from pathlib import Path

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from biopsy.findings.model import graph_tree, map_tree, model_tree
from biopsy.findings.report import bounded
from biopsy.model.index import ModelIndex, index_bytes, index_file
from support.models import chain, info, model, save, weight


def indexed(made: onnx.ModelProto) -> ModelIndex:
    return index_bytes(made.SerializeToString())


def clip() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w", ""], ["a"], name="fc", alpha=0.5, transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
    ]
    weights = [weight("w", 1.0, 2.0, 3.0, 4.0, shape=(2, 2))]
    made = model(nodes, [info("x", ("N", 2))], [info("b", ("N", 2))])
    made.graph.initializer.extend(weights)
    return made


def test_nodes_are_told_with_what_they_read_and_how_they_are_set() -> None:
    first, second = graph_tree(indexed(clip()))["nodes"]
    assert (first["name"], first["op_type"], first["inputs"], first["outputs"]) == ("fc", "Gemm", ["x", "w", ""], ["a"])
    assert first["attributes"] == {"alpha": "0.5", "transB": "1"}
    assert (second["number"], second["attributes"], second["bodies"], second["source"]) == (None, {}, 0, None)


def test_tensors_are_told_with_inferred_types_and_the_values_of_small_weights() -> None:
    tensors = graph_tree(indexed(clip()), tensor_errors={"b": {"absolute": 1.0}})["tensors"]
    assert {name: one["kind"] for name, one in tensors.items()} == {
        "x": "input", "w": "weight", "a": "inner", "b": "output",
    }  # fmt: skip
    assert (tensors["a"]["dtype"], tensors["a"]["shape"]) == ("float32", ["N", 2])
    assert tensors["w"]["values"] == "[1, 2, 3, 4]"
    assert (tensors["b"]["error"], tensors["a"]["error"]) == ({"absolute": 1.0}, None)


def test_of_a_large_weight_no_value_is_read() -> None:
    made = clip()
    made.graph.initializer.append(numpy_helper.from_array(np.zeros(5000, np.float32), "large"))
    made.graph.node.append(helper.make_node("Identity", ["large"], ["c"]))
    assert graph_tree(indexed(made))["tensors"]["large"]["values"] is None


def test_nodes_in_bodies_are_counted_at_any_depth() -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([*nodes, helper.make_node("Neg", ["x"], [name])], name, [], [info(name)])

    inner = helper.make_node("If", ["c"], ["i"], then_branch=branch("p"), else_branch=branch("q"))
    outer = helper.make_node("If", ["c"], ["y"], then_branch=branch("t", inner), else_branch=branch("e"))
    made = model([outer], [info("x"), info("c", (), onnx.TensorProto.BOOL)], [info("y")])
    (node,) = graph_tree(indexed(made))["nodes"]
    assert (node["bodies"], node["attributes"]) == (5, {})


def test_a_node_is_found_in_the_original_by_what_it_writes() -> None:
    original, piece = indexed(chain(6)), chain(6)
    del piece.graph.node[4:], piece.graph.node[:2]
    piece.graph.node[1].op_type = "Neg"
    numbers = [node["number"] for node in graph_tree(indexed(piece), original=original, kept=(2, 3))["nodes"]]
    assert numbers == [2, None]


def test_a_map_says_what_reads_from_what() -> None:
    found = map_tree(indexed(chain(4, ops=["Relu", "Neg"])), piece=[2])
    assert found is not None
    assert (found["ops"], found["op"], found["reads"]) == (["Relu", "Neg"], [0, 1, 0, 1], [[], [0], [1], [2]])
    assert (found["piece"], found["introduced"]) == ([2], {})


def test_a_map_of_10000_nodes_is_smaller_than_a_megabyte() -> None:
    assert len(json.dumps(map_tree(indexed(chain(10_000))))) < 1_000_000


def test_a_model_is_told_in_a_few_facts(tmp_path: Path) -> None:
    made = clip()
    made.producer_name, made.producer_version = "pytorch", "2.13.0"
    path = save(made, tmp_path / "m.onnx")
    told = model_tree(index_file(path), path)
    assert (told["nodes"], told["opsets"], told["producer"]) == (2, {"": 17}, "pytorch 2.13.0")
    assert told["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 2]}]
    assert told["weight_bytes"] == 16


@given(st.text(min_size=1, max_size=20), st.binary(max_size=30))
def test_any_names_and_texts_end_as_json(name: str, text: bytes) -> None:
    name = name.encode("utf-8", "replace").decode()
    node = helper.make_node("Foo", [name], [f"{name}!"], name=name, domain=name, text=text)
    made = model([node], [info(name)], [info(f"{name}!")])
    index = indexed(made)
    tree = {"piece": graph_tree(index), "whole": map_tree(index)}
    assert json.loads(json.dumps(bounded(tree), allow_nan=False))["piece"]["nodes"][0]["name"] == name
