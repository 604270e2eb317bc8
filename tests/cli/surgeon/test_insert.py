"""``biopsy surgeon insert`` as it is typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.cli.surgeon.insert import parse_attribute
from support.models import info, model, weight

Node = helper.make_node


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """m.onnx in the current folder: y = Abs(Neg(x) + w), z = Neg(x) * 2."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        Node("Neg", ["x"], ["n"], name="neg"),
        Node("Add", ["n", "w"], ["s"], name="add"),
        Node("Abs", ["s"], ["y"], name="abs"),
        Node("Mul", ["n", "two"], ["z"], name="mul"),
    ]
    made = model(
        nodes,
        [info("x", [2, 3])],
        [info("y", [2, 3]), info("z", [2, 3])],
        [weight("w", 1), weight("two", 2)],
        value_info=[info("n", [2, 3]), info("s", [2, 3])],
    )
    onnx.save(made, "m.onnx")
    return tmp_path


def insert(*options: str) -> int:
    return main(["surgeon", "insert", "m.onnx", "-o", "o.onnx", *options])


def result(path: str = "o.onnx") -> list[np.ndarray]:
    return ort.InferenceSession(path).run(None, {"x": np.array([[-1, 0, 1], [2, -3, 4]], np.float32)})


def operators(path: str = "o.onnx") -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


X = np.array([[-1, 0, 1], [2, -3, 4]], np.float32)


@pytest.mark.parametrize(
    ("tensor", "y", "z"),
    [
        ("x", np.abs(-np.maximum(X, 0) + 1), -np.maximum(X, 0) * 2),
        ("n", np.abs(np.maximum(-X, 0) + 1), np.maximum(-X, 0) * 2),
        ("s", np.maximum(1 - X, 0), -2 * X),
        ("y", np.abs(1 - X), -2 * X),
        ("z", np.abs(1 - X), np.maximum(-2 * X, 0)),
        ("w", np.abs(1 - X), -2 * X),
    ],
)
def test_a_node_on_a_tensor_stands_before_all_that_read_it(tensor: str, y: np.ndarray, z: np.ndarray) -> None:
    assert insert("--op", "Relu", "--name", "new", "--inputs", tensor, "--outputs", tensor) == 0
    assert sorted(operators()) == ["Abs", "Add", "Mul", "Neg", "Relu"]
    made = onnx.load("o.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert [one.name for one in made.graph.output] == ["y", "z"]
    assert [node.name for node in made.graph.node if node.op_type == "Relu"] == ["new"]
    for found, expected in zip(result(), (y, z), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_what_stands_between_its_inputs_and_outputs_goes() -> None:
    assert insert("--op", "Max", "--inputs", "x", "w", "--outputs", "y") == 0
    assert sorted(operators()) == ["Max", "Mul", "Neg"]
    found = result()
    assert np.array_equal(found[0], np.maximum(X, 1))
    assert np.array_equal(found[1], -2 * X)


def test_shapes_behind_the_node_are_those_that_follow() -> None:
    assert insert("--op", "Transpose", "--inputs", "n", "--outputs", "n", "--attrs", "perm=[1,0]") == 0
    outputs = onnx.load("o.onnx").graph.output
    assert [[dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in outputs] == [[3, 2], [3, 2]]
    assert insert("--op", "Mystery", "--inputs", "n", "--outputs", "n", "--no-shape-inference") == 0
    assert not any(one.type.tensor_type.HasField("shape") for one in onnx.load("o.onnx").graph.output)


@pytest.mark.parametrize("tensor", ["s", "y"])
def test_outputs_have_the_type_that_the_node_makes_them(tensor: str) -> None:
    assert insert("--op", "Cast", "--inputs", tensor, "--outputs", tensor, "--attrs", f"to={TensorProto.INT32}") == 0
    made = onnx.load("o.onnx")
    assert {info.name: info.type.tensor_type.elem_type for info in made.graph.output} == {
        "y": TensorProto.INT32,
        "z": TensorProto.FLOAT,
    }
    onnx.checker.check_model(made, full_check=True)
    assert ort.InferenceSession("o.onnx").run(["y"], {"x": np.ones((2, 3), np.float32)})[0].dtype == np.int32


def test_an_optional_output_that_is_left_out_stays_so() -> None:
    assert insert("--op", "Dropout", "--inputs", "n", "--outputs", "n", "") == 0
    (node,) = (node for node in onnx.load("o.onnx").graph.node if node.op_type == "Dropout")
    assert node.output[1] == ""


def test_bodies_read_what_the_node_computes(folder: Path) -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info("b", 1, None)])

    then = branch("then", Node("Neg", ["m"], ["b"]))
    other = branch("else", Node("Abs", ["x"], ["b"]))
    nodes = [Node("Abs", ["x"], ["m"]), Node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    inputs = [info("x", [2, 3]), info("c", [], TensorProto.BOOL)]
    onnx.save(model(nodes, inputs, [info("y", None)]), "m.onnx")
    assert insert("--op", "Sqrt", "--inputs", "m", "--outputs", "m") == 0
    for c, expected in ((True, -np.sqrt(np.abs(X))), (False, np.abs(X))):
        (found,) = ort.InferenceSession("o.onnx").run(None, {"x": X, "c": np.array(c)})
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("axis=1", 1), ("axis=-1", -1), ("scale=1.0", 1.0), ("scale=1e-3", 1e-3), ("mode=fast", "fast"),
        ("name='53'", "53"),
        ("axes=[0,1]", [0, 1]), ("s=[0,1.5]", [0.0, 1.5]), ("t=[a, 'b']", ["a", "b"]), ("e=a=b", "a=b"),
    ],
)  # fmt: skip
def test_attributes_have_the_types_that_they_look_like(word: str, value: object) -> None:
    found = parse_attribute(word)[1]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("word", ["axis", "=1", "axis=", "axes=[]", "axes=[1,a]", "axis=99999999999999999999"])
def test_what_is_no_attribute_is_refused(word: str) -> None:
    with pytest.raises(errors.UsageError):
        parse_attribute(word)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--op", "Relu", "--inputs", "nope", "--outputs", "y"], "no tensor 'nope'"),
        (["--op", "Relu", "--inputs", "x", "--outputs", "nope"], "its tensors are: 'n', 's', 'two', 'w', 'x'"),
        (["--op", "Relu", "--inputs", "x", "--outputs", "w"], "'w' is an input or a weight"),
        (["--op", "Relu", "--inputs", "s", "--outputs", "n"], "depends on its own result"),
        (["--op", "Split", "--inputs", "n", "--outputs", "s", "s"], "computes 's' only once"),
        (["--op", "Relu", "--name", "abs", "--inputs", "n", "--outputs", "n"], "a node 'abs' already"),
        (["--op", "Cast", "--inputs", "n", "--outputs", "n", "--attrs", "to=1", "to=10"], "'to' is given twice"),
    ],
)
def test_what_cannot_be_is_told_and_nothing_is_written(options: list[str], said: str, folder: Path, capsys) -> None:
    (folder / "o.onnx").write_bytes(b"mine")
    assert insert(*options) == 2
    assert said in capsys.readouterr().err
    assert (folder / "o.onnx").read_bytes() == b"mine"


def test_a_sparse_weight_is_not_computed_a_second_time(capsys) -> None:
    made = onnx.load("m.onnx")
    made.graph.sparse_initializer.add().values.name = "sparse"
    onnx.save(made, "m.onnx")
    assert insert("--op", "Relu", "--inputs", "x", "--outputs", "sparse") == 2
    assert "'sparse' is an input or a weight" in capsys.readouterr().err


def test_operators_that_onnx_does_not_have_or_that_take_less_are_told(capsys) -> None:
    assert insert("--op", "Mystery", "--inputs", "n", "--outputs", "n") == 0
    assert "ONNX has no operator 'Mystery'" in capsys.readouterr().err
    assert insert("--op", "Relu", "--inputs", "n", "w", "--outputs", "n", "--allow-invalid") == 0
    assert "has input size 2 not in range" in capsys.readouterr().err


def test_what_no_engine_would_load_is_written_only_if_that_is_asked_for(folder: Path, capsys) -> None:
    wrong = ["--op", "Relu", "--inputs", "n", "w", "--outputs", "n"]
    assert insert(*wrong) == 1
    told = capsys.readouterr().err
    assert "the Relu that computes" in told
    assert "--allow-invalid" in told
    assert not (folder / "o.onnx").exists()
    assert insert(*wrong, "--allow-invalid") == 0
    assert "what was written is invalid, and the model was not" in capsys.readouterr().err
    assert "Relu" in operators()


def test_attributes_that_the_operator_does_not_have_or_lacks_are_told(capsys) -> None:
    assert insert("--op", "Abs", "--inputs", "n", "--outputs", "n", "--attrs", "k=1", "--allow-invalid") == 0
    assert "Unrecognized attribute: k for operator Abs" in capsys.readouterr().err
    assert insert("--op", "Cast", "--inputs", "n", "--outputs", "n", "--allow-invalid") == 0
    assert "Required attribute 'to' is missing" in capsys.readouterr().err
    assert insert("--op", "Cast", "--inputs", "n", "--outputs", "n", "--attrs", "to=1") == 0
    assert "attribute" not in capsys.readouterr().err
