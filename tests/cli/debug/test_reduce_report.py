"""``debug reduce --report``: all that a reduction has found, in one object."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from biopsy.cli.app import main
from support.models import chain, save

CHECK = ("--check", "biopsy", "run", "{}", "--onnxrt", "--engine", "fake:scale.n2=1.5")


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(6), tmp_path / "m.onnx")


def reduce(*words: str) -> int:
    return main(["debug", "reduce", "m.onnx", "-o", "r.onnx", *words])


def told(path: str = "found.json") -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(Path(path).read_text())
    return tree


def test_a_report_tells_the_piece_where_it_stands_and_how_it_was_found() -> None:
    assert reduce("--report", "found.json", *CHECK) == 0
    tree = told()
    assert (tree["biopsy_report"], tree["command"], tree["status"]) == (2, "debug reduce", 0)
    assert tree["verdict"]["kind"] == "reduced"
    assert tree["model"]["path"] == "m.onnx"
    (node,) = tree["piece"]["nodes"]
    assert (node["number"], node["name"], tree["whole"]["piece"]) == (2, "n2", [2])
    for failure in (tree["failure"], tree["piece"]["failure"]):
        assert (failure["stage"], failure["kind"], failure["status"]) == ("compare", "mismatch", 1)
    (error,) = [one["error"] for one in tree["piece"]["tensors"].values() if one["error"] is not None]
    assert error["absolute"] == tree["piece"]["failure"]["mismatches"][0]["error"]
    search = tree["search"]
    assert (search["nodes"], search["left"], search["verified"]) == (6, 1, {"failed": 1, "runs": 1, "machine": None})
    assert {"original", "suspects", "final"} <= {check["stage"] for check in search["checks"]}
    labels = [engine["label"] for engine in tree["versions"]["engines"]]
    assert labels == ["onnxrt", "fake:scale.n2=1.5"]


def test_paths_are_told_as_seen_from_the_report() -> None:
    Path("reports").mkdir()
    assert reduce("--report", "reports/found.json", *CHECK) == 0
    path = told("reports/found.json")["piece"]["path"]
    assert Path("reports", path).resolve() == Path("r.onnx").resolve()


def test_an_original_that_passes_is_told_too() -> None:
    assert reduce("--report", "found.json", "--repeat", "1", "--check", "biopsy", "run", "{}", "--onnxrt") == 3
    tree = told()
    assert (tree["status"], tree["verdict"]["kind"]) == (3, "passes")
    assert tree["search"]["checks"][0]["outcome"] == "passed"
    assert "piece" not in tree


def test_a_search_that_a_limit_has_ended_is_told_as_far_as_it_came() -> None:
    assert reduce("--report", "found.json", "--max-checks", "3", *CHECK) == 5
    tree = told()
    assert (tree["status"], tree["search"]["stopped"]) == (5, "--max-checks 3")


@pytest.mark.parametrize("name", ["taken", "r.onnx", "m.onnx"])
def test_a_report_that_cannot_be_written_is_told_before_anything_is_checked(name: str) -> None:
    Path("taken").mkdir()
    assert reduce("--report", name, "--events", "events.jsonl", *CHECK) == 2
    assert not Path("events.jsonl").exists()
    assert not Path("r.onnx").exists()


@pytest.mark.parametrize("name", [b"<script>alert(1)</script>", b"not UTF-8: \xff"])
def test_a_page_is_made_whatever_the_names(name: bytes) -> None:
    """What it shows is tested where it is made."""
    pytest.importorskip("jinja2")
    made = chain(6)
    made.graph.node[2].name = "?" * len(name)
    Path("m.onnx").write_bytes(made.SerializeToString().replace(b"?" * len(name), name))
    Path("relu.py").write_text("import sys; sys.exit(b'Relu' in open(sys.argv[1], 'rb').read())")
    assert reduce("--report", "found.html", "--check", sys.executable, "relu.py", "{}") == 0
    page = Path("found.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "<script>alert" not in page
