"""Sequences, optionals and maps: fed, saved and compared item by item, and never passed over in silence.

The models and values are those that ONNX tests its own operators with.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from biopsy.model.index import index_bytes
from biopsy.model.tensor_type import MapType, OptionalType, SequenceType, TensorType
from biopsy.tensors.files import read_feeds, read_results, write_feeds, write_results
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.tensors.types import flattened, has_value, marks, parts, structured
from support.models import FLOAT, info, model, save

Captured = pytest.CaptureFixture[str]

IF = "if_" if importlib.util.find_spec("onnx.backend.test.case.node.if_") else "if"  # which it is before onnx 1.19
MODULES = (
    "identity", IF, "loop", "optionalgetelement", "optionalhaselement", "sequence_map", "sequenceinsert",
    "splittosequence",
)  # fmt: skip


def node_tests() -> Iterator[Any]:
    """ONNX's own tests of operators that take or give sequences and optionals."""
    from onnx.backend.test.case import node

    for name in MODULES:
        importlib.import_module(f"onnx.backend.test.case.node.{name}")
    for case in node._NodeTestCases:
        graph = case.model.graph
        if any(value.type.WhichOneof("value") != "tensor_type" for value in (*graph.input, *graph.output)):
            yield case


CASES = {case.name: case for case in node_tests()}


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def prepared(name: str, extension: str = ".json") -> tuple[dict[str, Array], dict[str, Array]]:
    """A model of ONNX as model.onnx, its inputs and outputs as files; what these hold."""
    case = CASES[name]
    made = onnx.ModelProto()
    made.CopyFrom(case.model)
    made.ir_version = min(made.ir_version, 10)
    for used in made.opset_import:
        used.version = min(used.version, 21)
    Path("model.onnx").write_bytes(made.SerializeToString())
    index = index_bytes(made.SerializeToString())
    sides = []
    for tensors, values in zip((index.inputs, index.outputs), case.data_sets[0], strict=True):
        found: dict[str, Array] = {}
        for tensor, value in zip(tensors, values, strict=True):
            found |= flattened(index.names[tensor], value, index.value_type(tensor))
        sides.append(found)
    feed, outputs = sides
    write_feeds(f"in{extension}", [feed])
    write_results(f"golden{extension}", [RunnerResult("onnx", (Iteration(outputs),))])
    return feed, outputs


def run(*words: str) -> int:
    return main(["run", "model.onnx", *words])


FORMATS = itertools.cycle([".json", ".npz", ".safetensors"])


@pytest.mark.parametrize("name", CASES)
def test_every_test_of_onnx_runs_in_both_engines_and_gives_what_onnx_expects(name: str):
    extension = next(FORMATS)
    feed, outputs = prepared(name, extension)
    loads = () if not feed else ("--load-inputs", f"in{extension}")
    saves = ("--save-inputs", f"used{extension}", "--save-outputs", f"out{extension}")
    assert run("--onnxrt", "--reference", *loads, "--load-outputs", f"golden{extension}", *saves) == 0
    for result in read_results(f"out{extension}"):
        assert result.iterations[0].outputs.keys() == outputs.keys()
    if feed:
        assert read_feeds(f"used{extension}")[0].keys() == feed.keys()


def test_there_are_tests_of_sequences_and_of_optionals():
    assert len(CASES) > 20
    assert {"test_identity_sequence", "test_loop16_seq_none", "test_if_opt"} <= CASES.keys()
    assert {"test_optional_get_element_optional_sequence", "test_sequence_insert_at_back"} <= CASES.keys()


SEQUENCES = ("test_sequence_insert_at_back", "test_loop13_seq", "test_split_to_sequence_2")


@pytest.mark.parametrize("name", SEQUENCES)
def test_one_item_that_is_wrong_fails(name: str, capsys: Captured):
    _, outputs = prepared(name)
    item = next(name for name in outputs if name.endswith("[1]"))
    write_results("golden.json", [RunnerResult("r", (Iteration({**outputs, item: outputs[item] + 1}),))])
    assert run("--onnxrt", "--load-inputs", "in.json", "--load-outputs", "golden.json") == 1
    assert f"{item}  " in capsys.readouterr().out


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("by", [-1, 1])
def test_a_sequence_of_another_length_fails(name: str, by: int, capsys: Captured):
    _, outputs = prepared(name)
    [length] = [name for name in outputs if name.endswith("[#]")]
    write_results("golden.json", [RunnerResult("r", (Iteration({**outputs, length: outputs[length] + by}),))])
    assert run("--onnxrt", "--load-inputs", "in.json", "--load-outputs", "golden.json") == 1
    assert f"'{length}' of onnxrt differs" in capsys.readouterr().out


def test_an_optional_without_a_value_is_not_one_with_it():
    _, outputs = prepared("test_if_opt")
    assert outputs["sequence[?]"]
    write_results("golden.json", [RunnerResult("r", (Iteration({"sequence[?]": np.array(False)}),))])
    assert run("--onnxrt", "--load-inputs", "in.json", "--load-outputs", "golden.json") == 1


@pytest.mark.parametrize("name", ["test_sequence_map_add_2_sequences", "test_loop16_seq_none", "test_identity_opt"])
def test_values_are_made_up(name: str):
    prepared(name)
    assert run("--onnxrt", "--reference", "--save-inputs", "made.npz") == 0
    assert run("--onnxrt", "--load-inputs", "made.npz", "--reference") == 0


def test_items_of_an_unknown_rank_are_asked_for_one_by_one(capsys: Captured):
    prepared("test_identity_sequence")
    assert run("--onnxrt") == 2
    assert "--input-shapes 'x[0]:" in capsys.readouterr().err
    assert run("--onnxrt", "--input-shapes", "x[0]:[2]", "x[1]:[3]", "--save-outputs", "out.npz") == 0
    assert read_results("out.npz")[0].iterations[0].outputs["y[1]"].shape == (3,)


def test_a_sequence_that_is_missing_is_told(capsys: Captured):
    prepared("test_sequence_insert_at_back")
    write_feeds("in.json", [{"tensor": np.arange(3)}])
    assert run("--onnxrt", "--load-inputs", "in.json", "--load-outputs", "golden.json") == 4
    assert "no value for input 'sequence'" in capsys.readouterr().err


def test_tolerances_speak_of_items(capsys: Captured):
    prepared("test_split_to_sequence_2")
    loads = ("--load-inputs", "in.json", "--load-outputs", "golden.json")
    assert run("--onnxrt", *loads, "--atol", "seq[0]:1e-3", "seq[#]:0") == 0
    assert run("--onnxrt", *loads, "--atol", "seq:1e-3") == 2
    assert "there is no output 'seq'" in capsys.readouterr().err


def test_what_is_recorded_in_batches_leaves_sequences_out_and_says_so(capsys: Captured):
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("Neg", ["x"], ["y"])]
    outputs = [helper.make_tensor_sequence_value_info("s", FLOAT, None), info("y")]
    save(model(nodes, [info("x")], outputs), Path("model.onnx"))
    assert run("--onnxrt", "--record-memory", "1MB", "--save-outputs", "out.safetensors") == 0
    assert "output 's', sequence of float32[...], is not recorded" in capsys.readouterr().err


def test_a_name_that_means_two_things_is_refused():
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("Neg", ["x"], ["s[0]"])]
    outputs = [helper.make_tensor_sequence_value_info("s", FLOAT, None), info("s[0]")]
    made = model(nodes, [info("x")], outputs).SerializeToString()
    for engine in ("onnxrt", "reference"):
        with pytest.raises(errors.CannotCompare, match=r"two outputs are called 's\[0\]'"):
            biopsy.run(made, engine)


def classifier() -> onnx.ModelProto:
    node = helper.make_node("ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_strings=["cat", "dog"])
    made = model([node], [info("x", (1, 2))], [], domains=["ai.onnx.ml"])
    value = made.graph.output.add(name="m").type.sequence_type.elem_type.map_type
    value.key_type = TensorProto.STRING
    value.value_type.tensor_type.elem_type = FLOAT
    return made


def test_maps_are_compared_by_keys_and_values(capsys: Captured):
    save(classifier(), Path("model.onnx"))
    write_feeds("in.npz", [{"x": np.array([[0.25, 0.75]], np.float32)}])
    assert run("--onnxrt", "--load-inputs", "in.npz", "--save-outputs", "out.json") == 0
    found = dict(read_results("out.json")[0].iterations[0].outputs)
    assert found["m[0][keys]"].tolist() == ["cat", "dog"]
    assert found["m[0][values]"].tolist() == [0.25, 0.75]
    loads = ("--load-inputs", "in.npz", "--load-outputs")
    assert run("--onnxrt", *loads, "out.json") == 0
    for wrong in ({"m[0][keys]": np.array(["cat", "fox"])}, {"m[0][values]": np.array([0.25, 0.5])}):
        write_results("wrong.json", [RunnerResult("r", (Iteration({**found, **wrong}),))])
        assert run("--onnxrt", *loads, "wrong.json") == 1


F32 = TensorType(FLOAT, None)
KINDS: Mapping[str, tuple[Any, Any]] = {
    "tensor": (F32, np.ones(2)),
    "sequence": (SequenceType(F32), [np.ones(2), np.zeros((1, 1))]),
    "empty": (SequenceType(F32), []),
    "none": (OptionalType(F32), None),
    "some": (OptionalType(F32), np.ones(2)),
    "no sequence": (OptionalType(SequenceType(F32)), None),
    "some sequence": (OptionalType(SequenceType(F32)), [np.ones(1)]),
    "options": (SequenceType(OptionalType(F32)), [None, np.ones(1)]),
    "nested": (SequenceType(SequenceType(F32)), [[np.ones(1)], []]),
    "map": (MapType(7, F32), {3: 0.5, -1: 2.0}),
    "maps": (SequenceType(MapType(8, F32)), [{"a": 1.0}, {"b": 2.0}]),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_taken_apart_is_put_together_again(name: str):
    kind, value = KINDS[name]
    feed = flattened("v", value, kind)
    assert has_value(feed, "v", kind)
    again = structured(feed, "v", kind)
    assert repr(again) == repr(value) or dict(again) == value
    assert {**marks(feed, "v", kind), **parts(feed, "v", kind)}.keys() == feed.keys()


def test_a_number_of_items_that_is_none_is_told():
    for wrong in (np.array(-1), np.array([1, 2]), np.array(1.5)):
        with pytest.raises(errors.CannotCompare, match="must be the number of items"):
            parts({"s[#]": wrong}, "s", SequenceType(F32))
    with pytest.raises(errors.CannotCompare, match=r"no value for 's\[0\]'"):
        parts({"s[#]": np.array(1)}, "s", SequenceType(F32))
