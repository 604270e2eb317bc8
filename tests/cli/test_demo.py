"""``biopsy demo``: the main job on a real bug, or a second demonstration where the bug is gone."""

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from biopsy.cli import demo
from biopsy.cli.app import main
from biopsy.cli.demo import CULPRITS, SEARCHED_FOR, demonstration_model
from support.bug import skip_without_it

Told = pytest.CaptureFixture[str]


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_model_is_a_transformer_with_decoys_and_is_the_same_at_every_call() -> None:
    model = demonstration_model()
    onnx.checker.check_model(model, full_check=True)
    assert 400 <= len(model.graph.node) <= 600
    kept = [attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "keepdims"]
    assert kept.count(0) == 1  # the one that is mistaken for a layer normalization
    assert kept.count(1) // 2 >= 20  # the decoys that are one
    assert [node.op_type for node in model.graph.node].count(SEARCHED_FOR) == 1
    assert model.SerializeToString(deterministic=True) == demonstration_model().SerializeToString(deterministic=True)


@pytest.mark.slow
def test_the_bug_is_found_and_everything_is_left_in_the_folder(tmp_path: Path, capsys: Told) -> None:
    skip_without_it()
    folder = tmp_path / "new" / "demo"
    assert main(["demo", "-o", str(folder)]) == 0
    assert operators(folder / "reduced.onnx") == list(CULPRITS)
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx", "reduced.onnx", "inputs.npz", "layerwise_golden.npz", "layerwise_inputs.npz",
    }  # fmt: skip
    shown = capsys.readouterr().out
    assert "FAILED | 'logits' of onnxrt differs from onnxrt:optimization=none" in shown
    assert "6 of 458 nodes" in shown
    for words in (demo.COMPARE, demo.GOLDEN, demo.MERGE, demo.REDUCE, demo.SHOW):
        assert f"\n  biopsy {' '.join(words)}\n" in shown  # so that a person can repeat them


@pytest.mark.slow
def test_where_an_engine_agrees_with_itself_the_second_demonstration_is_really_run(
    tmp_path: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an onnxruntime without the bug would give: the first comparison is one of onnxrt with itself."""
    monkeypatch.setattr(demo, "COMPARE", ("run", "model.onnx", "--onnxrt", "--onnxrt"))
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 0
    assert operators(tmp_path / "demo" / "reduced.onnx") == [SEARCHED_FOR]
    shown = capsys.readouterr().out
    assert "no longer has the bug" in shown
    assert f"1 of 458 nodes   {SEARCHED_FOR}" in shown
    assert shown.rstrip().endswith("biopsy inspect model reduced.onnx --mode=basic")


@pytest.mark.parametrize("loudness", ["-q", "-v"])
def test_what_is_asked_for_is_as_quiet_or_loud_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loudness: str
) -> None:
    steps: list[Sequence[str]] = []

    def record(words: Sequence[str]) -> int:
        steps.append(words)
        return 1 if len(steps) == 1 else 0

    monkeypatch.setattr(demo, "main", record)
    assert main(["demo", loudness, "-o", str(tmp_path / "demo")]) == 0
    assert len(steps) == 5
    for step in steps:
        assert loudness in step
        assert "--check" not in step[: step.index(loudness)]


def test_a_comparison_that_could_not_be_made_is_not_taken_for_the_bug(
    tmp_path: Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "COMPARE", ("run", "model.onnx", "--engine", "no-such-engine"))
    assert main(["demo", "-o", str(tmp_path / "demo")]) == 4
    shown = capsys.readouterr()
    assert "It does not." not in shown.out
    assert "did not go as planned: status 2" in shown.err


def test_a_folder_that_exists_is_used_only_if_that_is_asked_for(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "model.onnx").write_text("mine")
    assert main(["demo", "-o", str(tmp_path)]) == 2
    assert "biopsy demo --force" in capsys.readouterr().err
    assert (tmp_path / "model.onnx").read_text() == "mine"


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "-o", str(tmp_path / "file" / "demo")]) == 2
    assert "cannot make the folder" in capsys.readouterr().err


def test_a_folder_that_exists_is_named_in_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a folder").mkdir()
    assert main(["demo", "-o", "a folder"]) == 2
    assert "  next  biopsy demo --force -o 'a folder'\n" in capsys.readouterr().err
