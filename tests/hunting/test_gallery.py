"""The page of a hunt in a browser: nothing is loaded or logged, names are text, and the filters leave what they say."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from biopsy.hunting.hunt import gallery_of
from biopsy.hunting.records import Bug, BugExamination, Hunt, Kind, MatrixCell, ModelResult
from support.browser import browser, shown

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
    opened = chromium.new_page()
    logged, asked = list[str](), list[str]()
    opened.on("console", lambda message: logged.append(message.text))
    opened.on("pageerror", lambda error: logged.append(str(error)))
    opened.on("dialog", lambda dialog: (logged.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(page.as_uri())
    rows = opened.locator("#matrix .part .row")
    assert rows.count() == 10_000
    assert HOSTILE.replace("\x1b", "\\x1b") in (rows.last.text_content() or "")
    began = time.monotonic()
    opened.select_option("#kind", label="✗ wrong")
    assert opened.inner_text("#shown") == "2501 of 10000 models"
    opened.select_option("#engine", label="onnxrt")
    assert opened.inner_text("#shown") == "0 of 10000 models"
    opened.select_option("#engine", label="all")
    opened.fill("#path", "zoo/3/")
    assert rows.count() == len([number for number in range(9_999) if number % 7 == 3 and number % 4 == 1])
    assert time.monotonic() - began < 20  # a second on an idle machine
    assert opened.locator("#bugs a").get_attribute("href") == "bugs/b/report.html"
    assert asked == [page.as_uri()] and not logged
    opened.close()


LONG = "openvino:config.SNIPPETS_MODE=DISABLE,config.EXECUTION_MODE_HINT=ACCURACY"


def test_on_a_phone_and_on_paper_nothing_is_cut_off(tmp_path: Path, chromium: "Browser") -> None:
    hunt = found(40)
    (bug,) = hunt.bugs
    bug = replace(bug, engines=("openvino", LONG), models=tuple(f"zoo/{'n' * 90}{number}" for number in range(9)))
    cell = MatrixCell(engine=LONG, kind="wrong")
    models = tuple(replace(each, cells=(*each.cells, cell)) for each in hunt.models)
    page = gallery_of(replace(hunt, models=models, bugs=(bug,), engines={**hunt.engines, LONG: "2026.4"}))
    for width, media in ((390, "screen"), (1280, "screen"), (794, "print")):
        with shown(chromium, page, tmp_path, width=width) as there:
            there.page.emulate_media(media=media)  # type: ignore[arg-type]
            there.page.evaluate("dispatchEvent(new Event('beforeprint'))")
            assert there.page.evaluate("document.documentElement.scrollWidth") <= width, (width, media)
            assert there.page.locator("#verdict .facts").is_visible() and LONG in there.page.inner_text("#verdict")
            assert there.count("details:not([open])") == 0
            box = "document.getElementById('matrix')"
            if media == "print":
                assert there.page.evaluate(f"{box}.scrollHeight <= {box}.clientHeight")
            assert not there.console
