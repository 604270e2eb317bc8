"""What every engine must do, tried on each that is installed here."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from biopsy import errors
from biopsy.engines.base import ModelInput, Session
from biopsy.engines.registry import create
from biopsy.model.tensor_type import TensorType
from support.models import FLOAT, INT64, info, model, save

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed: pip install 'biopsy[openvino]'"
)
ELSEWHERE = f":python={sys.executable}"
"""What asks for the package in another interpreter: here one that has the same release as this one."""

ENGINES = [
    *("onnxrt", "onnxrt:optimization=none", "reference", "fake", pytest.param("openvino", marks=needs_openvino)),
    *(pytest.param(f"{name}{ELSEWHERE}", id=f"{name} elsewhere") for name in ("onnxrt", "reference")),
    pytest.param(f"openvino{ELSEWHERE}", marks=needs_openvino, id="openvino elsewhere"),
]
every_engine = pytest.mark.parametrize("engine", ENGINES)


def build(engine: str, made: onnx.ModelProto, folder: Path = Path()) -> Session:
    return create(engine).build(ModelInput(made.SerializeToString(), folder))


def one_node(
    op: str, elem: int = FLOAT, shape: Sequence[int | str | None] = (2,), out: int | None = None, **attributes: object
) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], name="the node", **attributes)
    return model([node], [info("x", shape, elem)], [info("y", shape, out or elem)], opset=19)


def external(location: str) -> onnx.ModelProto:
    absent = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    absent.external_data.add(key="location", value=location)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", (4,))], [info("y", (4,))], [absent])


@every_engine
def test_the_contract_that_authors_of_plug_ins_can_test_holds(engine: str, tmp_path: Path):
    """In a process of its own: runtimes hang in a fork of one in which they have run, as the engine has here."""
    files = [save(one_node("Dropout"), tmp_path / "a.onnx"), save(one_node("Neg", INT64), tmp_path / "b.onnx")]
    code = """
import sys
from pathlib import Path
from biopsy.testing import check_engine
check_engine(sys.argv[1], [Path(file).read_bytes() for file in sys.argv[2:]])
"""
    subprocess.run([sys.executable, "-c", code, engine, *files], check=True)


@pytest.mark.parametrize("engine", ["onnxrt", "reference"])
def test_a_scalar_and_an_unknown_rank_are_told_apart(engine: str):
    made = model([helper.make_node("Add", ["a", "b"], ["y"])], [info("a", ()), info("b", None)], [info("y", None)])
    assert build(engine, made).inputs == {"a": TensorType(FLOAT, ()), "b": TensorType(FLOAT, None)}


@every_engine
def test_outputs_come_by_name_in_the_models_order(engine: str):
    nodes = [helper.make_node("Neg", ["x"], ["b"]), helper.make_node("Abs", ["b"], ["a"])]
    session = build(engine, model(nodes, [info("x", (2,))], [info("b", (2,)), info("a", (2,))]))
    found = session.run({"x": np.array([1, -2], np.float32)})
    assert list(found) == list(session.outputs) == ["b", "a"]
    np.testing.assert_array_equal(found["b"], np.array([-1, 2], np.float32))


@every_engine
@pytest.mark.parametrize(
    ("elem", "dtype"),
    [
        pytest.param(1, np.float32, id="float32"),
        pytest.param(10, np.float16, id="float16"),
        pytest.param(11, np.float64, id="float64"),
        pytest.param(7, np.int64, id="int64"),
        pytest.param(9, np.bool_, id="bool"),
        pytest.param(16, ml_dtypes.bfloat16, id="bfloat16"),
        pytest.param(int(TensorProto.FLOAT8E4M3FN), ml_dtypes.float8_e4m3fn, id="float8"),
    ],
)
def test_values_of_a_type_go_in_and_come_out_unchanged(engine: str, elem: int, dtype: type):
    value = np.array([1.5, 0]).astype(dtype)
    found = build(engine, one_node("Identity", elem)).run({"x": value})["y"]
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize("engine", ["onnxrt", "reference", f"onnxrt{ELSEWHERE}", f"reference{ELSEWHERE}"])
def test_strings_go_in_and_come_out_as_text(engine: str):
    found = build(engine, one_node("Identity", int(TensorProto.STRING))).run({"x": np.array(["a", "böse"])})["y"]
    assert found.dtype.kind == "U"
    assert found.tolist() == ["a", "böse"]


@pytest.mark.parametrize("engine", ["onnxrt", "reference", f"onnxrt{ELSEWHERE}", f"reference{ELSEWHERE}"])
def test_outputs_that_are_sequences_come_as_the_tensors_that_they_hold(engine: str):
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("Neg", ["x"], ["y"])]
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    found = build(engine, model(nodes, [info("x", (1,))], [sequence, info("y", (1,))])).run({"x": np.ones(1, "f4")})
    assert {name: value.tolist() for name, value in found.items()} == {"s[#]": 1, "s[0]": [1], "y": [-1]}


@every_engine
def test_external_weights_are_found_in_folders_below_the_models(engine: str, tmp_path: Path):
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "deep" / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    found = build(engine, external("sub/deep/w.bin"), tmp_path).run({"x": np.zeros(4, np.float32)})
    assert found["y"].tolist() == [0, 1, 2, 3]


@every_engine
def test_missing_weights_are_the_models_fault_and_named(engine: str, tmp_path: Path):
    with pytest.raises(errors.ModelError, match=r"'w' .*gone\.bin"):
        build(engine, external("gone.bin"), tmp_path)


@every_engine
@pytest.mark.parametrize("data", [b"no model", one_node("Neg").SerializeToString()[:60]], ids=["text", "cut short"])
def test_damaged_bytes_are_the_models_fault(engine: str, data: bytes):
    with pytest.raises(errors.ModelError):
        create(engine).build(ModelInput(data, Path()))


@every_engine
def test_an_unknown_operator_fails_at_load(engine: str, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(errors.EngineFailure, match="Foo") as caught:
        build(engine, one_node("Foo"))
    assert (caught.value.stage, caught.value.engine) == ("load", engine.partition(":")[0])
    assert caught.value.kind.isidentifier()
    assert capfd.readouterr() == ("", "")


@every_engine
def test_what_fails_while_it_runs_fails_at_run(engine: str, capfd: pytest.CaptureFixture[str]):
    made = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", ("N",)), info("s", (2,), INT64)], [info("y")]
    )
    session = build(engine, made)
    with pytest.raises(errors.EngineFailure) as caught:
        session.run({"x": np.zeros(3, np.float32), "s": np.array([2, 2])})
    assert caught.value.stage == "run"
    assert capfd.readouterr() == ("", "")


@every_engine
def test_a_damaged_file_is_named(tmp_path: Path, engine: str):
    path = tmp_path / "cut.onnx"
    path.write_bytes(one_node("Neg").SerializeToString()[:30])
    with pytest.raises(errors.ModelError, match=r"cut\.onnx"):
        create(engine).build(ModelInput(path.read_bytes(), tmp_path, path))
