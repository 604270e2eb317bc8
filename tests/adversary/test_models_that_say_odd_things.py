"""Versions that nobody has, names that are not Unicode, and names that no file system takes: one clear line."""

import sys
from pathlib import Path

import onnx
import pytest

import biopsy
from biopsy.checks.outcome import Artifacts, Outcome
from biopsy.cli.app import main
from support.models import chain, save

NO_UNICODE = b"\xff\xfe"
LONG = "é" * 125  # 250 bytes


def of_opset(version: int) -> bytes:
    made = chain(3)
    made.opset_import[0].version = version
    return made.SerializeToString()


def of_ir_version(version: int) -> bytes:
    made = chain(3)
    made.ir_version = version
    return made.SerializeToString()


def renamed(old: bytes) -> bytes:
    return chain(3).SerializeToString().replace(old, NO_UNICODE * (len(old) // 2))


def with_long_names() -> bytes:
    made = chain(3)
    for node in made.graph.node:
        node.name = LONG + node.name
        node.input[0], node.output[0] = LONG + node.input[0], LONG + node.output[0]
    made.graph.input[0].name, made.graph.output[0].name = made.graph.node[0].input[0], made.graph.node[-1].output[0]
    return made.SerializeToString()


MODELS = {
    "opset 2^40": of_opset(1 << 40),
    "opset -1": of_opset(-1),
    "opset 2^63-1": of_opset((1 << 63) - 1),
    "IR version 999": of_ir_version(999),
    "IR version 2^62": of_ir_version(1 << 62),
    "an operator that is not Unicode": renamed(b"Relu"),
    "a node that is not Unicode": renamed(b"n1"),
    "a tensor that is not Unicode": renamed(b"t1"),
    "names of 250 bytes": with_long_names(),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told_clearly(words: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    status = main(words)
    shown = capsys.readouterr()
    assert "itself failed" not in shown.err, shown.err
    assert "Traceback" not in shown.out + shown.err
    assert status < 6
    return status


@pytest.mark.parametrize("name", MODELS)
def test_it_is_inspected_cleaned_up_run_and_examined_in_clear_words(name: str, here: Path, capsys) -> None:
    Path("m.onnx").write_bytes(MODELS[name])
    assert told_clearly(["inspect", "model", "m.onnx", "--mode=full"], capsys) == 0
    for words in (
        ["run", "m.onnx", "--onnxrt"],
        ["run", "m.onnx", "--reference"],
        ["surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--cleanup"],
        ["surgeon", "extract", "m.onnx", "-o", "e.onnx"],
        ["debug", "precision", "m.onnx", "--check", sys.executable, "-S", "-c", "pass"],
    ):
        told_clearly(words, capsys)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_reduced_by_a_check_that_does_not_mind(name: str, here: Path) -> None:
    Path("m.onnx").write_bytes(MODELS[name])
    biopsy.reduce("m.onnx", lambda path: b"t3" in path.read_bytes(), "r.onnx")
    kept = 3 if "operator" in name else 1  # nobody knows the types of what such a node gives
    assert len(onnx.load("r.onnx").graph.node) in (1, kept)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "m.onnx", "--onnxrt", "--save-outputs", f"{LONG}.npz"],
        ["run", "m.onnx", "--onnxrt", "--load-inputs", f"{LONG}{LONG}.npz"],
        ["surgeon", "extract", "m.onnx", "-o", f"{LONG}.onnx"],
        ["debug", "layers", "m.onnx", "--suspect", "onnxrt", "--report", f"{LONG}.json"],
        ["debug", "reduce", f"{LONG[:-4]}.onnx", "--check", "false"],
        ["debug", "reduce", "m.onnx", "-o", f"{LONG}.onnx", "--check", "false"],
        ["debug", "reduce", "m.onnx", "--iter-artifact", f"{LONG}.onnx", "--check", "false"],
        ["inspect", "model", f"{LONG}{LONG}.onnx"],
    ],
)
def test_a_name_that_is_too_long_for_a_file_is_told_before_anything_is_done(words: list[str], here: Path, capsys):
    save(chain(3), here / "m.onnx")
    save(chain(3), here / f"{LONG[:-4]}.onnx")
    before = {path.name for path in here.iterdir()}
    assert main(words) == 2
    assert "give a shorter name" in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == before


def test_an_artifact_of_a_long_name_is_sorted_under_a_shorter_one(here: Path) -> None:
    file = Path(f"{'é' * 110}.json")
    file.write_text("{}")
    assert not Artifacts((file,), here / "sorted").sort(Outcome.PASSES, 3, "bisect")
    (found,) = (here / "sorted" / "good").iterdir()
    assert found.name.startswith("éé")
    assert found.name.endswith("_N3_bisect.json")
