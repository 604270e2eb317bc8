"""``biopsy debug known`` from the command line: what is looked up, and what may be written."""

import json
import sys
from pathlib import Path

import pytest

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.questions.known_failures.catalogue import read_entry
from support.known_pieces import convolution_with_a_sum
from support.models import chain, save
from support.real_failures import relu_clip_of_integers


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIOPSY_KNOWN_DIR", str(tmp_path / "config"))
    save(relu_clip_of_integers(), tmp_path / "piece.onnx")
    save(chain(2, ("Neg", "Exp")), tmp_path / "chain.onnx")
    return tmp_path


def known(*words: str) -> int:
    return main(["debug", "known", *words])


@pytest.mark.usefixtures("here")
def test_a_known_bug_is_named_with_what_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert known("piece.onnx", "--engine", "onnxrt", "--release", "1.24.4", "--stage", "build", "--kind", "Fail") == 0
    said = capsys.readouterr().out
    assert "It looks like microsoft/onnxruntime#23116: " in said
    for line in (
        "all nodes, and all conditions hold",
        "onnxrt, as known",
        "build · Fail, as known",
        "1.24.4 is known to fail",
    ):
        assert line in said


@pytest.mark.usefixtures("here")
def test_how_it_fails_is_learnt_from_one_run_of_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert known("piece.onnx", "--report", "r.json", "--check", "biopsy", "run", "{}", "--onnxrt") == 0
    told = json.loads(Path("r.json").read_text())
    assert told["known"]["seen"]["stage"] == "build"
    assert told["known"]["matches"][0]["signature_agrees"] is True
    assert told["known"]["matches"][0]["reference"] == "microsoft/onnxruntime#23116"
    assert told["verdict"]["text"].startswith("It looks like microsoft/onnxruntime#23116: ")
    assert f"build · {told['known']['seen']['kind']}" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_the_release_is_that_which_the_check_has_run() -> None:
    told = {"outcome": "fails", "engine": "onnxrt:release=1.20.1", "stage": "build", "kind": "Fail", "message": "no"}
    Path("check.py").write_text(
        f"import os\nopen(os.environ[{VERDICT_VARIABLE!r}], 'w').write({json.dumps(told)!r})\nraise SystemExit(1)\n"
    )
    check = ("--check", sys.executable, "check.py", "{}")
    assert known("piece.onnx", "--report", "r.json", "--engine", "onnxrt", *check) == 0
    assert json.loads(Path("r.json").read_text())["known"]["seen"]["release"] == "1.20.1"


@pytest.mark.usefixtures("here")
def test_an_engine_that_the_check_does_not_blame_is_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    assert known("piece.onnx", "--engine", "openvino", "--check", "biopsy", "run", "{}", "--onnxrt") == 2
    assert "onnxrt fails this check" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_piece_that_passes_its_check_or_cannot_be_checked_is_not_looked_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert known("chain.onnx", "--check", "biopsy", "run", "{}", "--onnxrt") == 3
    assert "next  it compares nothing: name a second engine" in capsys.readouterr().err
    assert known("chain.onnx", "--check", "biopsy", "run", "{}", "--engine", "onxrt") == 4
    assert "hint  did you mean 'onnxrt'?" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_what_is_not_known_is_status_0_and_can_be_added(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert known("chain.onnx", "--engine", "onnxrt", "--stage", "compare") == 0
    said = capsys.readouterr().out
    assert "It is not in the list of known failures." in said
    assert "biopsy debug known chain.onnx --engine onnxrt --add my-bug" in said
    assert known("chain.onnx", "--engine", "onnxrt", "--stage", "compare", "--add", "my-bug") == 0
    entry = read_entry(here / "config" / "my-bug.yaml")
    assert (entry.engine, [str(one) for one in entry.signatures]) == ("onnxrt", ["compare"])
    capsys.readouterr()
    assert known("chain.onnx", "--engine", "onnxrt") == 0
    assert "It looks like my-bug: onnxrt fails on Neg, Exp." in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_file_is_written_where_it_is_wanted_and_never_over_another(capsys: pytest.CaptureFixture[str]) -> None:
    line = ("chain.onnx", "--engine", "onnxrt", "--save", "new/bug.yaml")
    assert known(*line) == 0
    assert known(*line) == 2
    assert "new/bug.yaml is there already" in capsys.readouterr().err
    assert known("chain.onnx", "--known-dir", "new") == 0
    assert "It looks like bug: " in capsys.readouterr().out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["nothing.onnx"], 2, "there is no model nothing.onnx"),
        (["chain.onnx", "--engine", "onnxr"], 2, "onnxrt"),
        (["chain.onnx", "--known-dir", "nowhere"], 2, "there is no folder nowhere"),
        (["chain.onnx", "--add", "../x", "--engine", "onnxrt"], 2, "a name has only letters"),
        (["chain.onnx", "--add", "x"], 2, "which engine fails is not known"),
        (["torn.onnx"], 4, "torn.onnx"),
        (["chain.onnx", "--check", "no-such-program", "{}"], 4, "no-such-program"),
    ],
)
def test_what_cannot_be_used_is_said(
    words: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "torn.onnx").write_bytes((here / "piece.onnx").read_bytes()[:40])
    assert known(*words) == status
    assert told in capsys.readouterr().err
    assert not (here / "config").exists()


@pytest.mark.usefixtures("here")
def test_a_broken_file_of_the_user_is_a_warning(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "list").mkdir()
    (here / "list" / "odd.yaml").write_text("title: [\x1b]31m\n")
    assert known("piece.onnx", "--known-dir", "list") == 0
    warning = capsys.readouterr().err
    assert warning.startswith("warning: list/odd.yaml: ") and warning.count("\n") == 1 and "\x1b" not in warning


def test_the_same_from_python(here: Path) -> None:
    found = biopsy.known(relu_clip_of_integers(), "onnxrt", release="1.24.4", stage="build", kind="Fail")
    assert found.best is not None and found.best.is_sure
    assert found.best.failure.reference == "microsoft/onnxruntime#23116"
    assert repr(found).startswith("<KnownLookup: looks like microsoft/onnxruntime#23116: ")
    checked = biopsy.known(here / "piece.onnx", check=["biopsy", "run", "{}", "--onnxrt"])
    assert (checked.seen.engine, checked.seen.stage) == ("onnxrt", "build")
    mended = biopsy.known(convolution_with_a_sum(), "onnxrt", release="1.28.0")
    assert mended.best is not None and mended.best.release == "mended"
    with pytest.raises(errors.UsageError, match="stage='built'"):
        biopsy.known(here / "piece.onnx", stage="built")  # type: ignore[arg-type]
