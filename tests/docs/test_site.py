"""The documentation as a site: MkDocs builds it without a complaint, and its links lead somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.browser import browser
from support.pages import ROOT, pages


class Addresses(HTMLParser):
    """What a page links to and loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.add(str(given["href"]))
        elif tag in {"script", "link", "img"}:
            self.loaded.add(str(given.get("src") or given.get("href")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    place = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    return place


def test_every_page_is_in_the_site(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    for page in pages():
        name = page.relative_to(ROOT).as_posix().removeprefix("docs/")
        assert name.replace("README.md", "index.html").replace(".md", ".html") in made, name


def test_every_link_of_a_page_leads_to_a_file_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in Addresses(page).links:
            path = link.partition("#")[0]
            assert "://" in path or not path or (page.parent / path).exists(), (page, link)


@pytest.mark.slow
def test_a_page_is_not_wider_than_a_phone_and_long_lines_scroll_in_their_box(site: Path) -> None:
    with browser() as opened:
        page = opened.new_page(viewport={"width": 390, "height": 800})
        for path in site.rglob("*.html"):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
            boxes = page.locator("pre > code")
            styles = boxes.evaluate_all("boxes => boxes.map(box => getComputedStyle(box).overflowX)")
            assert set(styles) <= {"auto", "scroll"}, path


def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [address for address in Addresses(page).loaded if "//" in address], page
