"""``biopsy inspect capability``: real engines are asked; the fake one crashes on request."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from biopsy import errors
from biopsy.cli.app import main
from biopsy.engines.base import ModelInput
from biopsy.engines.capability import ModelPart, Parts, Survey, survey
from biopsy.model.index import index_bytes
from support.exporters import copied
from support.models import chain, info, model, save, weight

needs_trt = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, ("tensorrt_rtx", "tensorrt_rtx_bindings"))),
    reason="tensorrt-rtx-cu13 is not installed (it has wheels for Linux on x86-64 and for Windows)",
)
needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed: pip install 'biopsy[openvino]'"
)


class Asked:
    """Refuses what it is told to: nodes by operator, in what it says itself or in what it builds; or pairs of them."""

    def __init__(self, says: str = "", builds: str = "", pair: tuple[str, str] | None = None) -> None:
        self.says, self.builds, self.pair = says, builds, pair
        self.asked: list[int] = []

    def refusals(self, made: ModelInput) -> dict[int, str] | None:
        ops = [node.op_type for node in onnx.load_from_string(made.data).graph.node]
        named = {place: "said so" for place, op in enumerate(ops) if op == self.says}
        return dict(list(named.items())[:1]) if self.says else None  # one at a time

    def build(self, made: ModelInput) -> None:
        ops = [node.op_type for node in onnx.load_from_string(made.data).graph.node]
        self.asked.append(len(ops))
        if self.builds in ops or (self.pair is not None and {*self.pair} <= {*ops}):
            raise errors.EngineFailure("not built", engine="asked", stage="build", kind="Refused")


def found(made: onnx.ModelProto, asked: Asked) -> Survey:
    index = index_bytes(made.SerializeToString())
    return survey(index, asked, Parts(index))


def with_nodes(count: int, **places: int) -> onnx.ModelProto:
    ops = ["Relu"] * count
    for op, place in places.items():
        ops[place] = op
    made = [helper.make_node(op, [f"t{i}"], [f"t{i + 1}"], name=f"{op}{i}") for i, op in enumerate(ops)]
    return model(made, [info("t0")], [info(f"t{count}")], value_info=[info(f"t{i}") for i in range(1, count)])


# Asking


def test_what_the_engine_says_is_asked_again_without_it():
    says = found(with_nodes(9, Abs=2, Neg=5), Asked(says="Abs"))
    assert says.refused == {2: "said so"}
    assert (says.queries, says.builds) == (2, 1)


def test_what_is_only_noticed_by_building_costs_a_logarithm_of_builds():
    asked = Asked(builds="Abs")
    assert found(with_nodes(256, Abs=77), asked).refused == {77: "not built"}
    assert len(asked.asked) <= 2 * 8 + 2


def test_nodes_that_are_only_refused_together_are_told_as_such():
    by = found(with_nodes(16, Abs=6, Neg=9), Asked(pair=("Abs", "Neg")))
    assert by.refused == {}
    assert [group.nodes for group in by.together] == [tuple(range(16))]
    assert not by.takes_all


def test_a_node_whose_neighbours_have_no_known_type_is_said_to_be_unknown():
    nodes = [helper.make_node("Foo", ["x"], ["a"], domain="d"), helper.make_node("Abs", ["a"], ["y"])]
    made = model(nodes, [info("x")], [info("y")], domains=["d"])
    assert list(found(made, Asked(builds="Abs")).unknown) == [1]


# Parts


def test_parts_are_connected_and_no_path_leaves_one_and_comes_back():
    """A diamond: the right arm is refused, so what joins the arms cannot be in one part with what forks them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["left"]),
        helper.make_node("Abs", ["a"], ["right"]),
        helper.make_node("Add", ["left", "right"], ["y"]),
    ]
    parts = found(model(nodes, [info("x")], [info("y")]), Asked(builds="Abs")).parts()
    assert parts == [ModelPart(True, (0, 1)), ModelPart(False, (2,)), ModelPart(True, (3,))]


def test_parts_that_meet_become_one():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["z"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    assert found(model(nodes, [info("x"), info("z")], [info("y")]), Asked()).parts() == [ModelPart(True, (0, 1, 2))]


# Real engines, from the command line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def capability(*words: str) -> int:
    return main(["inspect", "capability", *words])


def test_a_model_that_an_engine_takes(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(4), here / "m.onnx")
    assert capability("m.onnx", "--onnxrt") == 0
    assert "takes 4 of 4 nodes (1 build)" in capsys.readouterr().out


def test_onnxruntime_names_the_node_and_the_parts_are_written(here: Path, capsys: pytest.CaptureFixture[str]):
    made = with_nodes(8, Foo=3)
    made.graph.initializer.append(weight("w", 1, 2, 3, 4, shape=(2, 2)))
    made.graph.node[6].CopyFrom(helper.make_node("Add", ["t6", "w"], ["t7"]))
    save(made, here / "m.onnx")
    assert capability("m.onnx", "--onnxrt", "-o", "parts") == 1
    shown = capsys.readouterr().out
    assert "takes 7 of 8 nodes" in shown
    assert "Foo 'Foo3'   " in shown
    names = ["supported-1.onnx", "supported-3.onnx", "unsupported-2.onnx"]
    assert sorted(path.name for path in (here / "parts").iterdir()) == names
    assert main(["run", "parts/supported-1.onnx", "--onnxrt"]) == 0
    assert main(["run", "parts/supported-3.onnx", "--onnxrt"]) == 0
    assert main(["run", "parts/unsupported-2.onnx", "--onnxrt"]) == 1
    capsys.readouterr()
    assert capability("m.onnx", "--onnxrt", "-o", "parts") == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_an_engine_that_crashes_ends_only_its_own_process(here: Path, capsys: pytest.CaptureFixture[str]):
    save(with_nodes(9), here / "m.onnx")
    assert capability("m.onnx", "--engine", "fake:crash.Relu4=build") == 1
    assert "Relu 'Relu4'   fake:crash.Relu4=build ended its process with SIGSEGV" in capsys.readouterr().out


@needs_trt
def test_tensorrt_is_asked_itself(here: Path, capsys: pytest.CaptureFixture[str]):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="r"),
        helper.make_node("Det", ["a"], ["d"], name="det"),
        helper.make_node("Add", ["a", "d"], ["b"], name="add"),
        helper.make_node("Foo", ["b"], ["c"], name="foo"),
        helper.make_node("Neg", ["c"], ["y"], name="neg"),
    ]
    save(model(nodes, [info("x")], [info("y")], value_info=[info("c")]), here / "m.onnx")
    assert capability("m.onnx", "--trt") == 1
    shown = capsys.readouterr().out
    assert "takes 3 of 5 nodes (2 questions and 1 build)" in shown
    assert "Det 'det'   unsupported node" in shown
    assert "Foo 'foo'   " in shown
    assert "5 parts:" in shown


@needs_trt
def test_what_tensorrt_parses_and_cannot_build_is_found_by_building(here: Path, capsys: pytest.CaptureFixture[str]):
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"], name="of int8"),
        helper.make_node("Cast", ["a"], ["b"], to=1),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    save(model(nodes, [info("x", (4, 4), 3)], [info("y", (4, 4))]), here / "m.onnx")
    assert capability("m.onnx", "--trt") == 1
    assert "takes 2 of 3 nodes (1 question and" in (shown := capsys.readouterr().out)
    assert "MatMul 'of int8'   TensorRT-RTX does not build it" in shown


@needs_openvino
def test_openvino_is_asked_itself_and_what_it_cannot_read_is_built(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(4), here / "m.onnx")
    assert capability("m.onnx", "--openvino") == 0
    assert "takes 4 of 4 nodes (1 question and 1 build)" in capsys.readouterr().out
    save(with_nodes(4, Foo=2), here / "m.onnx")
    assert capability("m.onnx", "--openvino") == 1
    assert "Foo 'Foo2'   " in capsys.readouterr().out


@needs_openvino
def test_nodes_that_openvino_only_refuses_together_are_told(here: Path, capsys: pytest.CaptureFixture[str]):
    matrix = numpy_helper.from_array(np.ones((4, 6), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("PRelu", ["a", "slope"], ["y"])]
    slope = weight("slope", 1, 1, 1, shape=(3, 1, 1))
    save(model(nodes, [info("x", (1, 3, 5, 4))], [info("y", (1, 3, 5, 6))], [matrix, slope]), here / "m.onnx")
    if capability("m.onnx", "--openvino") == 0:
        pytest.skip("this OpenVINO no longer has the bug")
    assert "refused together, though neither half is: 2 nodes, MatMul #0 to PRelu #1" in capsys.readouterr().out


def test_one_engine_is_asked(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(1), here / "m.onnx")
    assert capability("m.onnx", "--onnxrt", "--reference") == 2
    assert "takes one engine only" in capsys.readouterr().err


def test_a_setting_names_the_engine_to_ask(here: Path, capsys: pytest.CaptureFixture[str]):
    save(chain(1), here / "m.onnx")
    assert capability("m.onnx", "--threads", "1") == 0
    assert "onnxrt:threads=1" in capsys.readouterr().out


@needs_trt
def test_no_engine_means_tensorrt_and_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(chain(2), tmp_path / "m.onnx")
    assert main(["inspect", "capability", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "no engine is named: TensorRT is asked" in shown
    assert "trt" in shown


def test_without_tensorrt_the_message_names_other_engines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise errors.EngineMissing("TensorRT is not installed")

    monkeypatch.setattr("biopsy.engines.trt.TensorRt.version", missing)
    assert main(["inspect", "capability", str(save(chain(2), tmp_path / "m.onnx"))]) == 4
    said = capsys.readouterr().err
    assert "which means TensorRT" in said
    assert "--openvino" in said


@needs_trt
def test_partitioning_writes_the_parts_and_none_if_all_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(with_nodes(3), tmp_path / "m.onnx")
    assert main(["inspect", "capability", "m.onnx", "--with-partitioning"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx"}
    save(with_nodes(3, Nothing=1), tmp_path / "m.onnx")
    assert main(["inspect", "capability", "m.onnx", "--with-partitioning"]) == 1
    assert len(list((tmp_path / "polygraphy_capability_dumps").glob("*.onnx"))) == 3


def test_a_node_that_is_refused_is_told_with_its_line_of_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = copied("custom", tmp_path)
    main(["inspect", "capability", str(path), "--engine", "onnxrt"])
    assert "\n    modules.py:44 in Custom.forward: x = torch.ops.mine.swish(x)\n" in capsys.readouterr().out
