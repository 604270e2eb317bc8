"""``--on``: what is refused before any machine is asked."""

import importlib.util
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.processes.own_process import install_line
from support.models import chain, save

CHECK = ["--check", "true", "{}"]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(2), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--on", "ray"], "--on needs a check"),
        (["--on", "dask", *CHECK], "--on"),
        (["--on", "ray", "--resources", "GPU", *CHECK], "GPU=1,CPU=4"),
        (["--on", "ray", "--resources", "GPU=1,GPU=2", *CHECK], "each once"),
        (["--resources", "GPU=1", *CHECK], "--on ray"),
        (["--require-uniform", *CHECK], "--on ray"),
        (["--on", "ray", "--explain", *CHECK], "--explain cannot be combined with --on"),
        (["--on", "ray", "--artifacts", "a", "--", *CHECK], "--artifacts cannot be combined with --on"),
    ],
)
def test_what_cannot_be_done_is_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "reduce", "m.onnx", *[word for word in words if word != "--"]]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--artifacts", "a", "--on", "ray"], "--artifacts cannot be combined with --on"),
        (["--iter-info", "i.json", "--on", "ray"], "--iter-info cannot be combined with --on: no word"),
        (["--resources", "GPU=1"], "--on ray"),
    ],
)
def test_what_cannot_be_repeated_there_is_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "repeat", "--until", "2", *words, *CHECK]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--on needs a check"),
        (["--artifacts", "a", *CHECK], "--artifacts cannot be combined with --on"),
        (["--no-remove-intermediate", *CHECK], "--no-remove-intermediate cannot be combined with --on"),
        (["--engine", "onnxrt", "--iter-info", "i.json", *CHECK], "--iter-info cannot be combined with --on"),
    ],
)
def test_what_precision_cannot_do_there_is_told(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["debug", "precision", "m.onnx", "--on", "ray", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["reduce", "none.onnx"],
        ["precision", "none.onnx"],
        ["flags", "none.onnx", "--engine", "onnxrt"],
        ["build", "none.onnx", "--onnxrt"],
        ["version", "none.onnx", "--package", "onnxruntime"],
    ],
    ids=" ".join,
)
def test_a_model_that_is_missing_is_told_before_a_cluster_is_joined(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["debug", *words, "--on", "ray", *CHECK]) == 2
    told = capsys.readouterr()
    assert "there is no model none.onnx" in told.err
    assert "joining" not in told.out


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize(
    "words",
    [["reduce", "m.onnx"], ["repeat", "--until", "2"], ["precision", "m.onnx"], ["flags", "m.onnx"]],
    ids=" ".join,
)
def test_without_the_extra_a_line_says_what_to_type(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", *words, "--on", "ray", *CHECK]) == 4
    told = capsys.readouterr().err
    assert "need Ray, which is not installed" in told
    assert install_line("biopsy[ray]") in told
