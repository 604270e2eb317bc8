"""Candidates from the wire index are those that plain protobuf gives."""

import warnings
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from biopsy import errors
from biopsy.model.index import index_bytes, index_file
from biopsy.model.slice import Subset, candidate_bytes
from support import oracle
from support.models import BOOL, chain, info, model, seeds_example, weight

SHIPPED_CASES = sorted(Path(onnx.__file__).parent.glob("backend/test/data/*/test_*/model.onnx"))
LIGHT_MODELS = sorted(Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))


def same_as_the_oracle(made: onnx.ModelProto, kept: set[int]) -> bytes:
    data = made.SerializeToString(deterministic=True)
    candidate = candidate_bytes(Subset(index_bytes(data), tuple(sorted(kept))))
    expected = oracle.candidate(onnx.ModelProto.FromString(data), kept)
    assert candidate == expected.SerializeToString(deterministic=True)
    return candidate


@st.composite
def graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, set[int]]:
    """A random graph: several inputs, weights of both kinds, optional inputs, several outputs, odd names, a subset."""
    count = draw(st.integers(1, 12))
    tensors = ["in0", "in1", "w0", "w1", "s0"]
    odd = draw(st.lists(st.text(max_size=3), min_size=count, max_size=count))
    nodes, listed = [], []
    for number in range(count):
        inputs = draw(st.lists(st.sampled_from([*tensors, ""]), min_size=0, max_size=4))
        outputs = [f"{odd[number]}~{number}.{place}" for place in range(draw(st.integers(1, 3)))]
        if draw(st.booleans()):
            outputs.insert(draw(st.integers(0, len(outputs))), "")
        nodes.append(helper.make_node(draw(st.sampled_from(["Add", "F", "Split"])), inputs, outputs, name=odd[-number]))
        named = [name for name in outputs if name]
        listed += [info(name, draw(st.sampled_from([(1,), None, ("N", 3)]))) for name in named if draw(st.booleans())]
        tensors += named
    produced = tensors[5:]
    results = draw(st.lists(st.sampled_from(produced), min_size=1, max_size=3, unique=True))
    made = model(
        nodes,
        [info("in0"), info("in1"), *([info("w1")] if draw(st.booleans()) else [])],
        [info(name) for name in results],
        [weight("w0", 1.0, 2.0), weight("w1", 3.0)],
        value_info=[entry for entry in listed if entry.name not in results],
        functions=[helper.make_function("", "F", ["a"], ["b"], [helper.make_node("G", ["a"], ["b"])], []),
                   helper.make_function("", "G", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [])],
    )  # fmt: skip
    made.graph.sparse_initializer.append(
        helper.make_sparse_tensor(weight("s0", 1.0), weight("i", 0, dtype="int64"), [4])
    )
    made.graph.doc_string = draw(st.sampled_from(["", "a doc"]))
    note = made.graph.quantization_annotation.add(tensor_name=produced[0])
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w0")
    kept = draw(st.sets(st.integers(0, count - 1), min_size=1))
    return made, kept


@pytest.mark.slow
@given(graphs())
@settings(max_examples=300, deadline=None)
def test_a_candidate_of_a_random_graph_is_the_oracles_byte_for_byte(case: tuple[onnx.ModelProto, set[int]]) -> None:
    same_as_the_oracle(*case)


@pytest.mark.parametrize("path", LIGHT_MODELS, ids=lambda path: path.stem)
def test_candidates_of_shipped_models_are_the_oracles(path: Path) -> None:
    made = onnx.load(path)
    count = len(made.graph.node)
    for kept in ({0}, {count - 1}, set(range(count // 2)), set(range(count // 2, count)), set(range(0, count, 2))):
        same_as_the_oracle(made, kept)


def test_candidates_of_every_shipped_case_are_the_oracles() -> None:
    assert len(SHIPPED_CASES) > 100
    for path in SHIPPED_CASES:
        every_single_node_is_the_oracles(onnx.ModelProto.FromString(path.read_bytes()))


@pytest.mark.slow
def test_candidates_of_every_node_test_are_the_oracles() -> None:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        cases = [case.model for case in collect_testcases(None) if case.model is not None]
    assert len(cases) > 1500
    for made in cases:
        every_single_node_is_the_oracles(made)


def every_single_node_is_the_oracles(made: onnx.ModelProto) -> None:
    for number in range(len(made.graph.node)):
        same_as_the_oracle(made, {number})


def test_the_whole_model_is_kept_byte_for_byte() -> None:
    for path in LIGHT_MODELS:
        data = onnx.load(path).SerializeToString(deterministic=True)
        index = index_bytes(data)
        assert candidate_bytes(Subset(index, tuple(range(len(index.nodes))))) == data


def body(name: str, outer: str) -> onnx.GraphProto:
    inner = helper.make_node(
        "If", ["c"], [f"{name}_i"], then_branch=leaf(f"{name}_t", outer), else_branch=leaf(f"{name}_e", "x")
    )
    return helper.make_graph(
        [inner, helper.make_node("Add", [f"{name}_i", "w"], [f"{name}_y"])], name, [], [info(f"{name}_y")]
    )


def leaf(name: str, outer: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Neg", [outer], [f"{name}_y"])], name, [], [info(f"{name}_y")])


def test_tensors_that_bodies_capture_at_any_depth_become_inputs() -> None:
    made = model(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("If", ["c"], ["y"], then_branch=body("then", "r"), else_branch=leaf("else", "x")),
        ],
        [info("x"), info("c", (), BOOL)],
        [info("y")],
        [weight("w", 1.0)],
        value_info=[info("r")],
    )
    candidate = onnx.ModelProto.FromString(same_as_the_oracle(made, {1}))
    assert [entry.name for entry in candidate.graph.input] == ["x", "c", "r"]
    assert [entry.name for entry in candidate.graph.initializer] == ["w"]
    onnx.checker.check_model(candidate, full_check=True)


def test_an_unread_output_is_no_output_of_a_candidate_if_its_node_has_another() -> None:
    made = model(
        [helper.make_node("Dropout", ["x"], ["y", "mask"]), helper.make_node("Relu", ["y"], ["z"])],
        [info("x")],
        [info("z")],
    )
    candidate = onnx.ModelProto.FromString(same_as_the_oracle(made, {0}))
    assert [entry.name for entry in candidate.graph.output] == ["y"]


def test_only_functions_that_are_called_are_kept() -> None:
    one = helper.make_function("my", "One", ["a"], ["b"], [helper.make_node("Two", ["a"], ["b"], domain="my")], [])
    two = helper.make_function("my", "Two", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [])
    made = model(
        [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("One", ["r"], ["y"], domain="my")],
        [info("x")],
        [info("y")],
        functions=[one, two],
        domains=["my"],
    )
    assert onnx.ModelProto.FromString(same_as_the_oracle(made, {0})).functions == []
    assert len(onnx.ModelProto.FromString(same_as_the_oracle(made, {1})).functions) == 2


def test_a_model_cut_short_anywhere_is_refused_as_damaged_or_still_a_message() -> None:
    data = seeds_example().SerializeToString()
    damaged = 0
    for length in range(1, len(data)):
        try:
            index_bytes(data[:length])
        except errors.ModelError:
            damaged += 1
    assert damaged > len(data) * 0.9


def test_bytes_that_are_no_model_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"this is a text, and no model at all")
    with pytest.raises(errors.ModelError, match=r"no\.onnx"):
        index_file(path)


def test_names_that_are_no_utf8_survive() -> None:
    data = chain(3).SerializeToString().replace(b"t1", b"\xff1")
    index = index_bytes(data)
    assert candidate_bytes(Subset(index, (0,))).count(b"\xff1") == 2
