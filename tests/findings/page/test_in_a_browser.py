"""The page as a real browser shows it: what it draws, how it is used, and that it does nothing else."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from biopsy.findings.page.document import page_of
from support import browser as browsers
from support import reports
from support.hostile_reports import FORGED, hostile_report

Opened = Callable[..., Any]

PAGES = {**reports.ALL, "hostile": partial(hostile_report, 3000)}
QUICK = ["rich", "hostile"]
EVERY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PAGES]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browsers.browser() as opened:
        yield opened


@pytest.fixture
def shown(chromium: Any, tmp_path: Path) -> Opened:
    return partial(_shown, chromium, tmp_path)


def _shown(chromium: Any, folder: Path, report: reports.Tree, **options: Any) -> Any:
    return browsers.shown(chromium, page_of(report), folder, **options)


@pytest.mark.parametrize("name", EVERY)
def test_a_page_asks_for_nothing_and_its_console_is_silent(name: str, shown: Opened) -> None:
    with shown(PAGES[name]()) as page:
        page.page.mouse.move(400, 400)
        page.page.wait_for_load_state("networkidle")
        assert page.requests == [page.page.url]
        assert page.console == []
        assert page.dialogs == []


def test_names_that_hold_markup_make_no_element_and_run_nothing(shown: Opened) -> None:
    with shown(hostile_report(3000)) as page:
        assert page.page.evaluate(f"window.{FORGED}") is None
        assert page.count("script") == 2
        assert page.count("img, iframe, object, embed, link, base, form, [onerror], [onload], [style]") == 0
        assert page.page.evaluate("[...document.links].every(link => /^(#|[.][/])/.test(link.getAttribute('href')))")


@pytest.mark.slow
def test_the_policy_stops_what_is_no_part_of_the_page(shown: Opened) -> None:
    image = "Object.assign(document.createElement('img'), {src: '/forged.png'})"
    with shown(reports.tiny()) as page:
        with page.page.expect_console_message() as told:
            page.page.evaluate(f"document.body.append({image})")
        assert "Content Security Policy" in told.value.text


def test_the_graph_has_the_nodes_and_tensors_of_the_report(shown: Opened) -> None:
    piece = reports.piece()
    with shown(reports.rich()) as page:
        assert page.count(".graph .box.node") == len(piece["nodes"]) == 6
        assert page.count(".graph .box.input") == page.count(".graph .box.output") == 1
        # Each tensor that is read and is not a weight: sub twice, pow, mean, add, sqrt, div, and mul by the output.
        assert page.count(".graph .edge[data-tip]") == 8
        assert page.page.locator(".graph .node .title").all_text_contents() == [
            node["op_type"] for node in piece["nodes"]
        ]
        assert page.count(".graph .edge.wrong[data-tip]") == 2


def test_the_plots_have_what_the_report_has(shown: Opened) -> None:
    report = reports.rich()
    differences = reports.output()["differences"]
    with shown(report) as page:
        dots = ".dot, .within, .carried, .made-1, .made-2, .made-3"
        assert sum(page.drawn(f"[data-marks=map] {style}") for style in dots.split(", ")) == 458
        assert page.drawn("[data-marks=map] .frame") == 6
        assert page.drawn("[data-marks=map] .flow") == sum(map(len, report["whole"]["reads"]))
        assert page.drawn("[data-marks=map] .made-2") == 1
        for plot in ("checks", "seconds"):
            for outcome, style in (("reproduced", "reproduces"), ("passed", "passes"), ("another failure", "other")):
                wanted = [check for check in report["search"]["checks"] if check["outcome"] == outcome]
                assert page.drawn(f"[data-marks={plot}] .{style}") == len(wanted)
        bars = page.drawn("[data-marks=histogram-0] .bar") + page.drawn("[data-marks=histogram-0] .far-bar")
        assert bars == len(differences["histogram"]["counts"]) + 1  # and the elements that are equal
        levels = sum(page.drawn(f"[data-marks=heat-0] .heat-{level}") for level in range(1, 6))
        assert levels == sum(value != 0 for row in differences["heat"]["rows"] for value in row)


def test_pointing_at_a_node_shows_all_that_is_known_of_it(shown: Opened) -> None:
    with shown(reports.rich()) as page:
        page.bring(page.page.locator(".box.node").nth(1)).hover()
        page.expect_tip("ReduceMean", "keepdims = 0", "float32 [32, 32]", "last  int64 [1]  (weight)", "values [-1]",
                        "adapter.py:42 in Adapter.forward", "✓ error 0.05× the tolerance")  # fmt: skip
        page.page.mouse.move(1, 1)
        page.expect_no_tip()


def test_the_tab_key_goes_from_box_to_box_and_shows_them(shown: Opened) -> None:
    with shown(reports.rich()) as page:
        page.page.locator(".box").first.focus()
        page.expect_tip("input sub")
        page.page.keyboard.press("Tab")
        page.expect_tip(re.compile("^Pow"))
        page.page.keyboard.press("Escape")
        page.expect_no_tip()


def test_arrow_keys_go_through_a_plot_and_n_to_what_matters(shown: Opened) -> None:
    with shown(reports.rich()) as page:
        page.page.locator("[data-marks=map]").focus()
        page.page.keyboard.press("ArrowRight")
        page.expect_tip("node 0")
        page.page.keyboard.press("n")
        page.expect_tip("node 301")
        page.expect_spoken("in the piece")
        page.page.locator("[data-marks=seconds]").focus()
        page.page.keyboard.press("End")
        page.expect_tip("check 24: passed")


def test_pointing_at_a_check_shows_its_outcome_and_reason(shown: Opened) -> None:
    with shown(reports.rich()) as page:
        plot = page.bring(page.page.locator("[data-marks=checks]"))
        where = plot.evaluate(
            "plot => { const told = JSON.parse(document.getElementById('marks').textContent).checks;"
            " const at = new DOMPoint(told.x[10], told.y[10]).matrixTransform(plot.getScreenCTM());"
            " return [at.x, at.y] }"
        )
        page.page.mouse.move(*where)
        page.expect_tip("check 11: another failure")
        page.expect_tip("the last 12 nodes")


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_text_can_be_read_in_both_colour_schemes(scheme: str, shown: Opened) -> None:
    with shown(reports.rich(), color_scheme=scheme) as page:
        found = page.page.evaluate(CONTRASTS)
        assert len(found) > 50
        assert {text: ratio for text, ratio in found if ratio < 4.5} == {}
        ground = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(f"[{ground[4:-1]}]")) > 380) is (scheme == "light")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("width", [360, pytest.param(1600, marks=pytest.mark.slow)])
def test_a_page_fits_its_width(name: str, width: int, shown: Opened) -> None:
    with shown(PAGES[name](), width=width) as page:
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_on_paper_everything_is_unfolded_and_nothing_is_a_button(shown: Opened, tmp_path: Path) -> None:
    with shown(reports.rich(), width=700) as page:  # about the width of A4
        page.page.emulate_media(media="print")
        page.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 700
        assert page.count("details:not([open])") == 0
        assert not page.page.locator("nav, .copy").first.is_visible()
        page.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        assert page.count("details[open]") == 0
        assert page.page.pdf().startswith(b"%PDF")


@pytest.mark.slow
def test_the_copy_button_copies_the_line_that_is_shown(shown: Opened) -> None:
    with shown(reports.rich(), permissions=["clipboard-read", "clipboard-write"]) as page:
        section = page.page.locator("section", has=page.page.locator("#repeat"))
        section.get_by_role("button", name="Copy").click()
        section.get_by_role("button", name="Copied").wait_for()
        assert page.page.evaluate("navigator.clipboard.readText()") == reports.LINE


@pytest.mark.slow
def test_without_javascript_all_texts_and_drawings_are_there(shown: Opened) -> None:
    with shown(reports.rich(), java_script_enabled=False) as page:
        assert page.page.get_by_text("FuseLayerNormalization computes something else").is_visible()
        assert page.count(".graph .box") == 8
        assert not page.page.locator(".copy").first.is_visible()


@pytest.mark.slow
def test_everything_that_can_be_reached_has_a_name(shown: Opened) -> None:
    with shown(reports.rich()) as page:
        unnamed = page.page.evaluate(
            "[...document.querySelectorAll('[tabindex=\"0\"], button, a, summary')]"
            ".filter(one => !(one.getAttribute('aria-label') || one.textContent).trim()).length"
        )
        assert unnamed == 0
        levels = page.page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => Number(one.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.slow
def test_ten_thousand_nodes_are_drawn_by_few_elements_of_a_small_page(shown: Opened) -> None:
    report = reports.large(10_000)
    assert len(page_of(report).encode()) < 3_000_000
    with shown(report) as page:
        assert page.count("[data-marks=map] path") < 20
        styles = (".dot", ".within", ".carried", ".made-2")
        assert sum(page.drawn(f"[data-marks=map] {style}") for style in styles) == 10_000
        page.page.locator("[data-marks=map]").focus()
        page.page.keyboard.press("n")
        page.expect_tip("node 5000")
        assert page.console == []


CONTRASTS = """
() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = channels(colour).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const said = [...document.querySelectorAll("h1, h2, h3, p, dt, dd, td, th, li, a, code, summary, svg text, button")];
  return said.filter((one) => one.textContent.trim() && one.checkVisibility()).map((one) => {
    const style = getComputedStyle(one);
    const ink = one instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(one))].sort((x, y) => y - x);
    return [one.textContent.slice(0, 30), (a + 0.05) / (b + 0.05)];
  });
}
"""
"""The ratio of contrast of each text to what it stands on, as WCAG 2.2 defines it."""
