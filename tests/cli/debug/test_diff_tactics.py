"""``biopsy debug diff-tactics`` and ``inspect diff-tactics`` from the command line, and ``inspect tactics``."""

import json
import random
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.engines.base import LayerRecord
from biopsy.questions.builds.record import Algorithm, TacticRecord, TacticReplay, TensorInfo, write_record
from support.replays import write_replay

INFO = TensorInfo("DataType.FLOAT", (8, 1), -1, 1)


@pytest.fixture
def replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for outcome in ("good", "bad", "other"):
        (tmp_path / "replays" / outcome).mkdir(parents=True)
    return tmp_path / "replays"


def save_replay(folder: Path, name: str, **tactics: int) -> None:
    algorithms = {layer: Algorithm(1, tactic, (INFO,), (INFO,)) for layer, tactic in tactics.items()}
    write_replay(TacticReplay(algorithms), folder / f"{name}.json")


def save_record(folder: Path, number: int, precision: str) -> None:
    layers = (
        LayerRecord(
            name="conv",
            kind="Convolution",
            implementation=f"jit_{precision}",
            precision=precision,
            layout="nchw",
            nodes=("conv", "relu"),
        ),
        LayerRecord(name="Reorder_1", kind="Reorder"),
    )
    settings = {"precision": precision, "threads": str(1 + number % 2)}
    write_record(
        TacticRecord(engine="openvino", version="2026.4", settings=settings, layers=layers), folder / f"{number}.json"
    )


def diff(*words: str, capsys: pytest.CaptureFixture[str], group: str = "debug") -> str:
    assert main([group, "diff-tactics", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("group", ["debug", "inspect"])
def test_replays_of_polygraphy_are_compared_as_it_does_and_the_evidence_is_weighed(replays: Path, group: str, capsys):
    for number in range(6):
        save_replay(replays / "good", f"g{number}", conv=1, gemm=number % 2)
        save_replay(replays / "bad", f"b{number}", conv=2, gemm=number % 2)
    shown = diff("--dir", "replays", capsys=capsys, group=group)
    assert "Loaded 6 good tactic replays." in shown
    assert "Found potentially bad tactics:\nLayer: conv\n    Algorithms: [" in shown
    assert "(Implementation: 1, Tactic: 2) | Inputs: (TensorInfo(DataType.FLOAT, (8, 1), -1, 1),)" in shown
    assert "Layer: gemm" not in shown
    assert "explains it: every bad build has it, and no good one" in shown


def test_precision_is_named_before_the_kernels_that_go_with_it(replays: Path, capsys):
    for number in range(10):
        save_record(replays / "good", number, "float32")
        save_record(replays / "bad", number, "bfloat16")
    shown = diff("--dir", "replays", "--report", "report.json", capsys=capsys)
    assert "  1  precision=bfloat16\n     in 10 of 10 bad builds, in 0 of 10 good ones" in shown
    assert "together with precision bfloat16: conv, relu" in shown
    assert "precision=bfloat16 explains it" in shown
    report = json.loads(Path("report.json").read_text())["builds"]["difference"]
    assert report["decided"] == 1
    assert report["groups"][0]["choices"][0] == {"where": "", "kind": "option", "value": "precision=bfloat16"}


def test_outcomes_without_a_cause_do_not_decide_and_it_is_said_what_would(replays: Path, capsys):
    lot = random.Random(3)
    for number in range(20):
        precision = ("float32", "bfloat16")[number % 2]
        save_record(replays / lot.choice(["good", "bad"]), number, precision)
    shown = diff("--dir", "replays", capsys=capsys)
    assert "The evidence does not decide: chance gives" in shown
    assert "more builds" in shown
    assert "explains it" not in shown


def test_too_few_builds_do_not_decide_though_the_sets_differ(replays: Path, capsys):
    save_replay(replays / "good", "g", conv=1)
    save_replay(replays / "bad", "b", conv=2)
    shown = diff("--good", "replays/good/g.json", "--bad", "replays/bad", capsys=capsys)
    assert "Found potentially bad tactics:\nLayer: conv" in shown
    assert "The evidence does not decide" in shown
    assert "more builds like these 2 would decide" in shown


def test_without_any_difference_polygraphys_words_are_said(replays: Path, capsys):
    for outcome in ("good", "bad"):
        save_replay(replays / outcome, "r", conv=1)
    shown = diff("--dir", "replays", capsys=capsys)
    assert "Could not determine potentially bad tactics. Try providing more tactic replay files if possible." in shown
    assert "good and bad builds are alike in all that is recorded" in shown


def test_without_bad_builds_it_is_said(replays: Path, capsys):
    save_replay(replays / "good", "r", conv=1)
    assert "there are no bad builds to compare with" in diff("--dir", "replays", capsys=capsys)


def test_a_folder_that_is_not_there_is_wrong_usage(replays: Path, capsys):
    assert main(["debug", "diff-tactics", "--dir", "nowhere"]) == 2
    assert "there is no folder 'nowhere/good' with tactic records" in capsys.readouterr().err


def test_a_file_of_tactics_is_shown(replays: Path, capsys):
    save_record(replays / "good", 1, "float32")
    assert main(["inspect", "tactics", "replays/good/1.json"]) == 0
    shown = capsys.readouterr().out
    assert "Layer: conv, relu\n    Convolution · jit_float32 · float32 · nchw" in shown
    assert "Layer: (Reorder, put in by the engine)" in shown
    save_replay(replays / "good", "r", conv=1, gemm=2)
    assert main(["inspect", "tactics", "replays/good/r.json", "--layers", "co*"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Layer: conv\n    Algorithm: (Implementation: 1, Tactic: 1) | Inputs: ")
    assert "gemm" not in shown
