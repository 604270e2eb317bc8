"""The page of a hunt in a browser: nothing is loaded or logged, names are text, and the filters leave what they say."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biopsy.hunt.gallery import gallery_of
from biopsy.hunt.records import Bug, BugExamination, Hunt, Kind, MatrixCell, ModelResult
from support.browser import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "zoo/<img src=x onerror=alert(1)>\x1b[31m.onnx"


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    with browser() as opened:
        yield opened


def result(number: int, kind: Kind, name: str = "") -> ModelResult:
    cells = (MatrixCell(engine="onnxrt", kind="right"), MatrixCell(engine="openvino", kind=kind))
    return ModelResult(model=name or f"zoo/{number % 7}/m{number}.onnx", state="", cells=cells)


def found(models: int) -> Hunt:
    kinds: list[Kind] = ["right", "wrong", "unsupported", "crash"]
    results = [result(number, kinds[number % 4]) for number in range(models - 1)]
    bug = Bug(
        name="b",
        engines=("openvino",),
        example=MatrixCell(engine="openvino", kind="wrong", text="<script>alert(2)</script> is wrong"),
        models=(HOSTILE,),
        line="biopsy diagnose '<b>.onnx'",
        examination=BugExamination(verdict="", page="bugs/b/report.html"),
    )
    hunt = (*results, result(0, "wrong", HOSTILE))
    return Hunt(engines={"onnxrt": "1.32.0", "openvino": "2026.4"}, models=hunt, bugs=(bug,))


def test_ten_thousand_models_are_filtered_at_once(tmp_path: Path, chromium: "Browser") -> None:
    page = tmp_path / "hunt.html"
    page.write_text(gallery_of(found(10_000)))
    shown = chromium.new_page()
    logged, asked = list[str](), list[str]()
    shown.on("console", lambda message: logged.append(message.text))
    shown.on("pageerror", lambda error: logged.append(str(error)))
    shown.on("dialog", lambda dialog: (logged.append(dialog.message), dialog.dismiss()))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(page.as_uri())
    rows = shown.locator("#matrix .part .row")
    assert rows.count() == 10_000
    assert HOSTILE.replace("\x1b", "\\x1b") in (rows.last.text_content() or "")
    began = time.monotonic()
    shown.select_option("#kind", label="✗ wrong")
    assert shown.inner_text("#shown") == "2501 of 10000 models"
    shown.select_option("#engine", label="onnxrt")
    assert shown.inner_text("#shown") == "0 of 10000 models"
    shown.select_option("#engine", label="all")
    shown.fill("#path", "zoo/3/")
    assert rows.count() == len([number for number in range(9_999) if number % 7 == 3 and number % 4 == 1])
    assert time.monotonic() - began < 20  # a second on an idle machine
    assert shown.locator("#bugs a").get_attribute("href") == "bugs/b/report.html"
    assert asked == [page.as_uri()] and not logged
    shown.close()
