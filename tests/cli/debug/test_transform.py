"""``biopsy debug transform`` from the command line, with a tool of ours that changes bytes: it costs little."""

import json
import os
import sys
from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from support.transformations import graph, own_tool

MODEL = graph(
    "g (float[4] in_x) => (float[4] out_y) <float[4] c = {1, 2, 3, 4}> "
    "{ a = Relu (in_x)  b = Add (a, c)  out_y = Neg (b) }"
)
WRONG = "if 'wrong' in passes: data = data.replace(b'Add', b'Sub')"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "model.onnx")
    return tmp_path


def transform(*words: str) -> int:
    return main(["debug", "transform", "model.onnx", *words])


def test_the_piece_before_and_after_its_pass_and_the_files_are_shown(here: Path, capsys):
    by = own_tool(here, WRONG)
    report = ("--report", "r.json", "--events", "events.jsonl")
    assert transform("--by", by, "--passes", "right", "wrong", "-o", "piece.onnx", *report) == 0
    shown = capsys.readouterr().out
    assert "wrong alone does it, of 2." in shown
    assert "b = Add(a, c)" in shown and "b = Sub(a, c)" in shown
    assert {"piece.onnx", "piece.after.onnx", "piece.onnx.inputs.safetensors"} <= {path.name for path in here.iterdir()}
    tree = json.loads(Path("r.json").read_text())
    assert tree["transformation"]["passes"]["without"] == [["wrong"]]
    assert tree["verdict"]["kind"] == "fails"
    assert tree["transformation"]["second_opinion"] == "wrong"
    assert json.loads(Path("events.jsonl").read_text().splitlines()[-1])["status"] == 0


def test_each_end_has_its_status(here: Path, capsys):
    right, control = own_tool(here, ""), own_tool(here, WRONG)
    assert transform("--by", right) == 3
    assert "is right" in capsys.readouterr().err
    own_tool(here, "data = data.replace(b'Add', b'Sub')")
    assert transform("--by", control, "--passes", "right", "--no-reduce") == 1
    assert "no pass at all" in capsys.readouterr().out
    assert transform("--by", "no-such-tool {} {out}") == 4
    assert "cannot be started" in capsys.readouterr().err


def test_an_interrupt_of_the_search_for_passes_leaves_the_piece_and_the_line_that_goes_on(here: Path, capsys):
    by = own_tool(here, f"{WRONG}\nif passes == ['right']: os.kill({os.getpid()}, 2)")
    assert transform("--by", by, "--passes", "right", "wrong", "-o", "piece.onnx") == 5
    shown = capsys.readouterr()
    assert "is not known: the search was interrupted." in shown.out
    assert "biopsy debug transform piece.onnx" in shown.err + shown.out
    assert Path("piece.onnx").exists()


def test_rounding_is_no_failure_unless_tolerances_are_said(here: Path, capsys):
    """The weight 40 is one rounding greater, which is more in the output than the usual tolerances allow."""
    text = "g (float[64] x) => (float[64] y) <float k = {40.0}> { s = Mul (x, k)  a = Exp (s)  y = Mul (a, k) }"
    onnx.save(graph(text), "model.onnx")
    by = own_tool(here, "data = data.replace(bytes([0, 0, 0x20, 0x42]), bytes([1, 0, 0x20, 0x42])) if passes else data")
    assert transform("--by", by, "--passes", "rounds", "--no-reduce") == 3
    assert transform("--by", by, "--passes", "rounds", "--no-reduce", "--rtol", "1e-7", "--atol", "0") == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--by", "onnxslom"), "onnxslim"),
        (("--by", "onnxscript", "--onnxrt", "--openvino"), "too many engines"),
        (("--by", "onnxscript", "--onnxrt", "--check", "true"), "exclude each other"),
        (("--by", "onnxscript", "--control", "cp {} {out}"), "--control is for"),
        (("--by", "cp {} {out}", "--package", "onnx==1.19.0"), "brings its own"),
        (("--by", "cp {} {out}", "-o", "model.onnx"), "model.onnx"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(here: Path, capsys, words: tuple[str, ...], told: str):
    before = Path("model.onnx").read_bytes()
    assert transform(*words) == 2
    assert told in capsys.readouterr().err
    assert Path("model.onnx").read_bytes() == before


def test_names_of_strangers_are_made_safe_to_show(here: Path, capsys):
    model = onnx.ModelProto.FromString(MODEL.SerializeToString())
    model.graph.node[1].name = "\x1b[31mred"
    onnx.save(model, "model.onnx")
    by = own_tool(here, WRONG)
    assert transform("--by", by, "--passes", "wrong", "--no-reduce") == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_of_a_report_shows_both_models(here: Path):
    pytest.importorskip("jinja2")
    by = f"{own_tool(here, WRONG)}"
    assert transform("--by", by, "--passes", "wrong", "--no-reduce", "--report", "r.html") == 0
    page = Path("r.html").read_text()
    assert "Before and after" in page and "Sub(a, c)" in page
    assert sys.executable.split("/")[-1] in page
