"""``biopsy report``: a page of a report that may come from anywhere."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from biopsy.cli.app import main
from support import reports
from support.models import chain, save

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.chdir(tmp_path)
    return lambda text: Path("report.json").write_text(text, encoding="utf-8") and None


def made() -> int:
    return main(["report", "report.json", "-o", "page.html"])


@pytest.mark.parametrize("name", reports.ALL)
def test_a_page_is_written_and_its_size_told(name: str, write: Callable[[str], None], capsys: Captured) -> None:
    write(json.dumps(reports.ALL[name]()))
    assert made() == 0
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "page.html: " in capsys.readouterr().out


def nested(depth: int) -> str:
    return '{"biopsy_report": 2, "x": ' + "[" * depth + "]" * depth + "}"


DAMAGED = {
    "empty": ("", "it is not JSON"),
    "torn": (json.dumps(reports.rich())[:-9], "it is not JSON"),
    "no object": ("[2]", "not a report of biopsy"),
    "foreign": ('{"name": "package"}', "not a report of biopsy"),
    "another report of ours": ('{"biopsy_layers": 1}', "not a report of biopsy"),
    "older": ('{"biopsy_report": 1}', "version 1, not 2"),
    "newer": ('{"biopsy_report": 3}', "version 3, not 2"),
    "no version": ('{"biopsy_report": [true]}', "version [True], not 2"),
    "deep": (nested(100), "nested too deeply"),
    "very deep": (nested(200_000), "nested too deeply"),
    "a number of many digits": ('{"biopsy_report": 2, "status": ' + "9" * 10_000 + "}", "it is not JSON"),
    "too many": ('{"biopsy_report": 2, "remarks": [' + "0," * 300_000 + "0]}", "'remarks' is not a list of at most"),
    "wrong kind": ('{"biopsy_report": 2, "search": {"checks": [{"left": "many"}]}}', "'search.checks[0].left'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_report_is_refused_in_one_line(name: str, write: Callable[[str], None], capsys: Captured) -> None:
    text, why = DAMAGED[name]
    write(text)
    assert made() == 2
    told = capsys.readouterr().err
    assert told.startswith("error: report.json")
    assert why in told.splitlines()[0]
    assert [path.name for path in Path().iterdir()] == ["report.json"]


@pytest.mark.parametrize("name", ["model.onnx", "nosuch"])
def test_what_holds_no_text_or_is_missing_is_refused_with_a_next_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"\x08\x0a\xa0")
    assert main(["report", name]) == 2
    told = capsys.readouterr().err
    assert name in told and "codec" not in told and "--report FILE.json" in told.partition("next")[2]


def test_a_file_that_is_too_large_is_not_read(write: Callable[[str], None], capsys: Captured) -> None:
    write("")
    with Path("report.json").open("r+b") as stream:
        stream.truncate(65 << 20)
    assert made() == 2
    assert "larger than 64 MiB" in capsys.readouterr().err


def test_a_page_that_stands_there_stays_if_the_report_is_damaged(write: Callable[[str], None]) -> None:
    write("{")
    Path("page.html").write_text("mine")
    assert made() == 2
    assert Path("page.html").read_text() == "mine"


def test_the_report_is_not_overwritten_by_its_page(write: Callable[[str], None]) -> None:
    write(json.dumps(reports.tiny()))
    assert main(["report", "report.json", "-o", "report.json"]) == 2
    assert json.loads(Path("report.json").read_text()) == reports.tiny()


def test_the_page_of_a_real_run_shows_the_engines_and_how_the_output_differs(write: Callable[[str], None]) -> None:
    save(chain(3), Path("model.onnx"))
    engines = ["--engine", "fake:offset.Relu=1", "--reference"]
    assert main(["run", "model.onnx", *engines, "--report", "report.json"]) == 1
    assert made() == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "fake:offset.Relu=1" in page
    assert 'data-marks="histogram-0"' in page
    assert 'data-marks="heat-0"' in page


def test_the_drawing_needs_no_package(
    write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "fast_sugiyama", missing)
    save(chain(3), Path("model.onnx"))
    check = ["--check", sys.executable, "-c", "import sys; sys.exit(3)", "{}"]
    words = ["debug", "reduce", "model.onnx", "-o", "r.onnx", "--allow-vacuous-check", "--report", "page.html"]
    assert main([*words, *check]) == 0
    assert "<svg" in Path("page.html").read_text(encoding="utf-8")
