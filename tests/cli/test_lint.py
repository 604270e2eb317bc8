"""``biopsy check lint``: every node that is to blame is named, in a report as Polygraphy's and on the terminal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from biopsy.cli.app import main
from support.exporters import copied
from support.models import chain, info, model, save

SEVERAL = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[2,3] x, float[4,5] w) => (float[2,5] y, float[2,3] z, float[2,3] v, float[2,3] u)
{
   [a] h = MatMul(x, w)
   [b] y = Relu(h)
   [c] z = Reluu(x)
   [d] v = Softmax<axis="a">(x)
   [e] u = Add(x, x)
}"""

AT_RUN_TIME = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[6] x, int64[2] s) => (float[N,M] y, float[6] z)
{
   [a] h = Reshape(x, s)
   [b] y = Relu(h)
   [c] z = Relu(x)
}"""


def lint(path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    report = path.with_suffix(".report")
    status = main(["check", "lint", str(path), "-o", str(report), *words])
    return status, json.loads(report.read_text())


def parsed(text: str, folder: Path) -> Path:
    return save(onnx.parser.parse_model(text), folder / "m.onnx")


def test_several_invalid_nodes_are_all_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = lint(parsed(SEVERAL, tmp_path))
    assert status == 1
    assert report["summary"] == {"passing": ["e"], "failing": ["a", "c", "d"]}
    blamed = {(entry["source"], *entry["nodes"]) for entry in report["lint_entries"] if entry["level"] == "exception"}
    assert {("onnxruntime", "a"), ("onnxruntime", "c"), ("onnxruntime", "d"), ("onnx_checker", "c")} <= blamed
    out = capsys.readouterr().out
    assert "error    'c': No Op registered for Reluu with domain_version of 17  [onnx_checker, onnxruntime]" in out
    assert "FAILED | 3 errors and 0 warnings · 1 of 5 nodes run, 3 have errors, 1 could not be tested" in out


def test_a_sound_model_passes_with_every_node(tmp_path: Path) -> None:
    status, report = lint(save(chain(3), tmp_path / "m.onnx"))
    assert (status, report) == (0, {"summary": {"passing": ["n0", "n1", "n2"], "failing": []}, "lint_entries": []})


def test_what_fails_with_the_inputs_of_the_user_is_named(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.ones(6, "float32"), s=np.array([4, 4]))
    status, report = lint(parsed(AT_RUN_TIME, tmp_path), "--load-inputs", str(inputs))
    assert (status, report["summary"]) == (1, {"passing": ["c"], "failing": ["a"]})
    np.savez(inputs, x=np.ones(6, "float32"), s=np.array([2, 3]))
    status, report = lint(parsed(AT_RUN_TIME, tmp_path), "--load-inputs", str(inputs))
    assert (status, report["summary"]) == (0, {"passing": ["a", "b", "c"], "failing": []})


def test_what_fails_because_of_made_up_values_alone_is_a_warning(tmp_path: Path) -> None:
    divides = "g (int64[4] a, int64[4] b) => (int64[4] y) { [div] d = Div(a, b) [neg] y = Neg(d) }"
    status, report = lint(parsed(f'<ir_version: 8, opset_import: ["" : 17]> {divides}', tmp_path))
    assert (status, report["summary"]) == (0, {"passing": ["div", "neg"], "failing": []})
    (entry,) = report["lint_entries"]
    assert (entry["level"], entry["nodes"]) == ("warning", ["div"])
    assert "it fails with some made-up inputs, and runs with others" in entry["message"]


def test_what_fails_because_of_a_guessed_size_alone_is_a_warning(tmp_path: Path) -> None:
    folds = "g (float[N, 4] x) => (float[M, 8] y) <int64[2] s = {-1, 8}> { [a] h = Reshape(x, s) [b] y = Relu(h) }"
    status, report = lint(parsed(f'<ir_version: 8, opset_import: ["" : 17]> {folds}', tmp_path))
    assert (status, report["summary"]) == (0, {"passing": ["a", "b"], "failing": []})
    assert [entry["level"] for entry in report["lint_entries"]] == ["warning"]


def test_what_fails_with_all_made_up_inputs_stays_an_error(tmp_path: Path) -> None:
    folds = (
        "g (float[6] x, int64[2] s) => (float[N, M] y) <int64[1] k = {99}> { [m] t = Mul(s, k) [a] y = Reshape(x, t) }"
    )
    status, report = lint(parsed(f'<ir_version: 8, opset_import: ["" : 17]> {folds}', tmp_path), "--val-range", "[1,2]")
    assert (status, report["summary"]) == (1, {"passing": ["m"], "failing": ["a"]})


def test_an_operator_that_nobody_knows_is_a_warning(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17, "com.x" : 1]> g (float[2] x) => (float[2] y, float[2] z)'
        "{ [f] y = com.x.Foo(x)\n [r] z = Relu(x) }"
    )
    status, report = lint(save(made, tmp_path / "m.onnx"))
    assert (status, report["summary"]) == (0, {"passing": ["r"], "failing": []})
    assert [(entry["level"], entry["nodes"]) for entry in report["lint_entries"]] == [("warning", ["f"])]


@pytest.mark.parametrize(("content", "words"), [(b"", "empty"), (b"no model at all", "it is text")])
def test_what_is_no_model_is_an_exception_of_the_loader(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    status, report = lint(path)
    assert status == 1
    assert [(entry["level"], entry["source"]) for entry in report["lint_entries"]] == [("exception", "onnx_loader")]
    assert words in report["lint_entries"][0]["message"]


def test_a_model_without_nodes_is_only_warned_of(tmp_path: Path) -> None:
    status, report = lint(save(model([], [info("x")], [info("x")]), tmp_path / "m.onnx"))
    assert (status, [entry["level"] for entry in report["lint_entries"]]) == (0, ["warning"])


def test_a_missing_file_and_two_engines_are_wrong_usage(tmp_path: Path) -> None:
    assert main(["check", "lint", str(tmp_path / "none.onnx")]) == 2
    assert main(["check", "lint", str(save(chain(1), tmp_path / "m.onnx")), "--onnxrt", "--reference"]) == 2


@pytest.mark.slow
def test_an_engine_that_dies_is_the_fault_of_the_node(tmp_path: Path) -> None:
    status, report = lint(save(chain(3, ["Relu", "Exp", "Abs"]), tmp_path / "m.onnx"), "--engine", "fake:crash.Exp=run")
    assert status == 1
    assert report["summary"] == {"passing": ["n0"], "failing": ["n1"]}


def test_names_of_strangers_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = chain(2)
    made.graph.node[1].name = "n\x1b[31m\n"
    made.graph.node[1].op_type = "Nothing"
    status, _ = lint(save(made, tmp_path / "m.onnx"))
    assert status == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_node_that_is_to_blame_is_told_with_its_line_of_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = copied("custom", tmp_path)
    assert main(["check", "lint", str(path)]) == 0
    assert "\n         modules.py:44 in Custom.forward: x = torch.ops.mine.swish(x)\n" in capsys.readouterr().out


def test_inputs_are_not_looked_at_for_what_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").write_text("no model")
    Path("inputs.json").write_text("{")
    assert main(["check", "lint", "m.onnx", "--load-inputs", "inputs.json"]) == 1
    assert "m.onnx is not an ONNX model" in capsys.readouterr().out
