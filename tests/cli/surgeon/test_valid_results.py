"""What a surgeon command writes is accepted by those who accepted what it was given."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from biopsy.cli.app import main
from support.models import info, model, save, weight
from support.node_tests import node_tests

Node = helper.make_node


def loads(path: Path) -> bool:
    """Whether onnx's checker, strict inference and ONNX Runtime accept a model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        made = onnx.load(path)
        onnx.checker.check_model(made)
        onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True, data_prop=True)
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """y = x @ w, of any number of rows of three."""
    made = model(
        [Node("MatMul", ["x", "w"], ["y"], name="mm")],
        [info("x", ["N", "C"])], [info("y", ["N", 4])], [weight("w", *range(12), shape=[3, 4])],
    )  # fmt: skip
    return save(made, tmp_path / "m.onnx")


def test_shapes_that_contradict_an_operator_are_refused_and_nothing_is_written(product: Path, capsys) -> None:
    out = product.with_name("o.onnx")
    words = ["surgeon", "sanitize", str(product), "-o", str(out), "--override-input-shapes"]
    assert main([*words, "x:[2,5]"]) == 1
    told = capsys.readouterr().err
    assert "strict shape inference refuses it at 'mm'" in told
    assert "--override-input-shapes" in told
    assert not out.exists()
    assert main([*words, "x:[2,3]"]) == 0
    assert loads(out)


def test_a_search_does_not_begin_with_shapes_that_the_model_cannot_have(product: Path, capsys) -> None:
    out = product.with_name("o.onnx")
    words = ["debug", "reduce", str(product), "-o", str(out), "--model-input-shapes", "x:[2,5]", "--check", "false"]
    assert main(words) == 2
    assert "the model cannot have these shapes" in capsys.readouterr().err
    assert not out.exists()


def test_a_model_that_was_refused_before_is_written_as_it_was(tmp_path: Path, capsys) -> None:
    made = model([Node("MatMul", ["x", "w"], ["y"])], [info("x", [2, 5])], [info("y", None)], [weight("w", 1, 2)])
    broken = save(made, tmp_path / "m.onnx")
    assert not loads(broken)
    assert main(["surgeon", "sanitize", str(broken), "-o", str(tmp_path / "o.onnx"), "--cleanup"]) == 0


def test_behind_a_custom_operator_a_contradiction_is_seen_too(tmp_path: Path, capsys) -> None:
    nodes = [
        Node("Mystery", ["x"], ["m"], domain="of.mine"),
        Node("Relu", ["m"], ["r"]),
        Node("Concat", ["x", "w"], ["y"], axis=1, name="join"),
    ]
    made = model(nodes, [info("x", ["N", 2])], [info("r", None), info("y", None)], [weight("w", 1, 2, shape=[1, 2])])
    made.opset_import.add(domain="of.mine", version=1)
    path = save(made, tmp_path / "m.onnx")
    words = ["surgeon", "sanitize", str(path), "-o", str(tmp_path / "o.onnx"), "--override-input-shapes"]
    assert main([*words, "x:[1,2]"]) == 0
    assert main([*words, "x:[4,2]"]) == 1
    assert "'join'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_affine_grid_2d_expanded", "test_affine_grid_2d_align_corners_expanded"])
def test_folding_that_shows_a_contradiction_is_refused(name: str, tmp_path: Path, capsys) -> None:
    source = save(next(test.model for test in node_tests() if test.name == name), tmp_path / "m.onnx")
    assert loads(source)
    out = tmp_path / "o.onnx"
    words = ["surgeon", "sanitize", str(source), "-o", str(out), "--fold-constants"]
    assert main(words) == 1
    assert "Range" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--no-fold-shapes"]) == 0
    assert loads(out)


_UNARY = ["Relu", "Neg", "Shape", "Flatten", "Transpose"]
_BINARY = ["Add", "MatMul", "Concat"]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Valid or not: nodes on two inputs of open sizes and two weights, each tensor of any of their types."""
    names = ["x", "z", "v", "w"]
    nodes = []
    for place in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from(_UNARY + _BINARY))
        reads = [draw(st.sampled_from(names)) for _ in range(1 if op in _UNARY else 2)]
        attributes = {"axis": draw(st.integers(0, 1))} if op in {"Concat", "Flatten"} else {}
        nodes.append(Node(op, reads, [f"t{place}"], **attributes))
        names.append(f"t{place}")
    inputs = [info("x", ["N", "C"]), info("z", [draw(st.integers(1, 3)), "C"])]
    weights = [weight("v", 1, 2, shape=[1, 2]), weight("w", *range(6), shape=[2, 3])]
    elem = TensorProto.INT64 if nodes[-1].op_type == "Shape" else TensorProto.FLOAT
    return model(nodes, inputs, [info(names[-1], None, elem)], weights)


_SIZES = st.integers(1, 3)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=models(), size=st.tuples(_SIZES, _SIZES), options=st.sets(st.sampled_from(["--cleanup", "--fold-constants"]))
)
def test_whatever_the_model_what_is_written_is_as_valid_as_before(
    made: onnx.ModelProto, size: tuple[int, int], options: set[str], tmp_path: Path
) -> None:
    number = next(_numbers)
    path, out = save(made, tmp_path / f"m{number}.onnx"), tmp_path / f"o{number}.onnx"
    shape = f"x:[{size[0]},{size[1]}]"
    status = main(["surgeon", "sanitize", str(path), "-o", str(out), "--override-input-shapes", shape, *options])
    assert status in {0, 1}
    assert out.exists() == (status == 0)
    shaped = onnx.shape_inference.infer_shapes(made)
    onnx.save(shaped, path)
    if status == 0 and loads(path):
        assert loads(out)


_numbers = itertools.count()
