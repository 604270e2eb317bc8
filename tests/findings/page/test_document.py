"""The page of a report: what it has to say, in whatever report, and that no text leaves its place."""

import copy
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy.findings.page.document import page_of
from biopsy.findings.page.reading import DamagedReport
from support import reports
from support.hostile_reports import FORGED, hostile_report, hostile_text

VOID = {"meta", "br", "wbr", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """The elements and texts of a page, as a parser of HTML sees them; what is left open is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text.append(data)

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.tags if name == tag)


def titles(page: Page) -> list[str]:
    return [each["href"] or "" for each in page.all("a")]


@pytest.mark.parametrize("name", reports.ALL)
def test_every_report_has_a_page_of_well_formed_html(name: str) -> None:
    assert Page(page_of(reports.ALL[name]())).tags


def test_a_page_has_a_section_for_what_the_report_has_and_no_other() -> None:
    assert titles(Page(page_of(reports.tiny()))) == ["#main", "#verdict"]
    every = titles(Page(page_of(reports.rich())))
    sections = ("steps", "piece", "failure", "map", "layers", "search", "settings", "variation", "known", "others")
    for name in (*sections, "versions"):
        assert f"#{name}" in every


def test_the_checks_of_a_diagnosis_are_those_of_all_its_questions() -> None:
    report = reports.rich()
    asked = sum(step.get("checks") or 0 for step in report["steps"])
    text = " ".join(" ".join(Page(page_of(report)).text).split())
    assert asked and f" {asked} checks " in text


def test_repeated_runs_and_builds_are_told_with_what_goes_with_the_bad_ones() -> None:
    text = " ".join("".join(Page(page_of(reports.repeated())).text).split())
    for said in ("56 % of runs", "between 27 % and 81 %", "exit status 3", "Conv_3 tactic 0x5f3a", "0.03"):
        assert said in text


def test_a_module_of_pytorch_is_told_by_its_lines_their_code_and_the_parts_that_they_are_of() -> None:
    text = " ".join("".join(Page(page_of(reports.from_pytorch())).text).split())
    told = ["The exporter is to blame", "/home/me/models.py:17", "module readers.0", "aten.attention.default"]
    told += [
        "seen = attention(query, key, value, mask)",
        "module readers.1",
        "0.0274 at",
        "14 of 44 tensors",
        "13 of 40",
    ]
    places = [text.index(said) for said in told]
    assert places == sorted(places)
    assert "0 checks" not in text


def test_a_report_that_lacks_any_one_key_has_a_page() -> None:
    report = small()
    for key in report:
        assert "<h1>" in page_of({name: value for name, value in report.items() if name != key})


def test_the_verdict_comes_first_with_its_workaround_and_then_its_evidence() -> None:
    text = " ".join("".join(Page(page_of(reports.rich())).text).split())
    places = [text.index(said) for said in ("FuseLayerNormalization computes", "Workaround", "How sure")]
    assert places == sorted(places)
    assert reports.LINE in text


def test_a_piece_of_too_many_nodes_for_boxes_is_drawn_as_a_map() -> None:
    report = reports.rich()
    report["piece"]["nodes"] = [reports.node("Relu", [f"t{i}"], f"t{i + 1}", i) for i in range(400)]
    page = page_of(report)
    assert 'data-marks="piece-map"' in page
    assert 'class="box' not in page


def test_cycles_missing_tensors_and_nodes_without_anything_are_drawn() -> None:
    nodes: list[reports.Tree] = [reports.node("A", ["b", "nobody", ""], "a"), reports.node("B", ["a", "a"], "b"), {}]
    drawn = page_of({**reports.tiny(), "piece": {"nodes": nodes, "outputs": [{"name": "nowhere"}]}})
    assert drawn.count('class="box node') == 3


def test_numbers_that_json_lacks_are_shown_as_they_are() -> None:
    report = reports.rich()
    for each in report["piece"]["tensors"].values():
        if each["error"]:
            each["error"] |= {"tolerance_ratio": "inf", "passed": None}
    report["whole"]["introduced"]["305"] = "nan"
    report["run"]["comparisons"][0]["iterations"][0]["outputs"][0]["differences"]["heat"]["rows"][0][0] = "nan"
    page = page_of(report)
    assert "✕ error inf× the tolerance" in page
    assert "an error that is not a number" in page
    assert 'class="heat-no-number"' in page


# What strangers may write


@pytest.fixture(scope="module")
def hostile() -> str:
    return page_of(hostile_report())


def test_a_page_of_hostile_texts_of_100_kb_each_stays_small(hostile: str) -> None:
    assert len(hostile.encode()) < 3_000_000


@pytest.mark.slow
def test_ten_thousand_nodes_with_long_names_and_many_edges_stay_within_the_budget() -> None:
    report = reports.large(10_000)
    report["whole"]["names"] = ["n" * 120] * 10_000
    report["whole"]["reads"] = [list(range(max(0, place - 64), place)) for place in range(10_000)]
    for check in report["search"]["checks"]:
        check["description"] = check["reason"] = "w" * 4000
    assert len(page_of(report).encode()) < 3_000_000


def test_a_piece_of_few_nodes_and_very_many_edges_is_drawn_at_once() -> None:
    nodes = [reports.node("Concat", [f"t{place % 100}" for place in range(1000)], f"t{i}", i) for i in range(100)]
    assert 'data-marks="piece-map"' in page_of({**reports.tiny(), "piece": {"nodes": nodes}})


def test_no_text_becomes_markup(hostile: str) -> None:
    page, harmless = Page(hostile), Page(page_of(reports.rich()))
    allowed = {tag for tag, _ in harmless.tags}
    assert {tag for tag, _ in page.tags} <= allowed
    attributes = {name for _, attrs in harmless.tags for name in attrs}
    assert {name for _, attrs in page.tags for name in attrs} <= attributes
    assert not any(name.startswith("on") or name == "style" for name in attributes)


def test_nothing_in_a_page_is_hidden_or_turned_around(hostile: str) -> None:
    assert {char for char in hostile if not char.isprintable()} == {"\n"}


def test_json_in_a_page_cannot_end_its_script(hostile: str) -> None:
    data = re.findall(r'<script type="application/json" id="marks">(.*?)</script>', hostile, re.DOTALL)
    assert len(data) == 1
    assert not set(data[0]) & set("<>&")
    assert f"</script><script>window.{FORGED}=1" in json.loads(data[0])["graph"]["text"][0]


def test_the_policy_names_the_only_script_and_style_and_lets_nothing_load() -> None:
    page = page_of(reports.rich())
    policy = next(each["content"] or "" for each in Page(page).all("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_template_expression_is_not_evaluated_in_a_name() -> None:
    report = {**reports.tiny(), "verdict": {"kind": "fails", "text": "{{ 7 * 7 }}{% raw %}"}}
    assert "{{ 7 * 7 }}{% raw %}" in page_of(report)


def test_a_command_line_is_shown_whole_or_not_at_all() -> None:
    line = f"biopsy run {'x' * 30_000}"
    page = page_of({**reports.tiny(), "line": line})
    assert "xxxx" not in page
    assert "too long to be shown" in page
    assert hostile_text("biopsy", 100)[:6] in page_of({**reports.tiny(), "line": hostile_text("biopsy", 100)})


def places(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every value of a tree."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in below:
        yield (*here, key)
        yield from places(value, (*here, key))


def small() -> reports.Tree:
    report = {**reports.rich(), "torch": reports.from_pytorch()["torch"]}
    report["whole"] = reports.whole(12, piece_at=[3], wrong=4)
    report["run"]["comparisons"][0]["iterations"][0]["outputs"][0]["differences"]["heat"]["rows"] = [[0.5, 0.0]]
    report["search"]["checks"] = report["search"]["checks"][:5]
    return report


PLACES = sorted(places(small()), key=str)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)


@settings(max_examples=25)
@given(st.sampled_from(PLACES), ANYTHING)
def test_a_value_of_another_kind_is_shown_or_refused_by_its_place(place: tuple[Any, ...], value: Any) -> None:
    report = copy.deepcopy(small())  # reports share their parts, and what is written there is read by other tests
    above: Any = report
    for key in place[:-1]:
        above = above[key]
    above[place[-1]] = value
    try:
        page = page_of(report)
    except DamagedReport as refused:
        assert str(place[0]) in refused.message
    else:
        Page(page)
