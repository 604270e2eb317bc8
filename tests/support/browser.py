"""A real Chromium of the system that shows pages, and whatever one of them did besides."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The path of a Chromium; without one the test is skipped."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        pytest.skip(f"there is no Chromium ({', '.join(_NAMES)}): apt-get install chromium")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    # Chromium refuses to make its sandbox as root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield opened
        finally:
            opened.close()


@dataclass
class Shown:
    """A page that is open, and what it did: messages of its console, errors, dialogs and requests."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return self.page.locator(selector).count()

    def drawn(self, selector: str) -> int:
        """How many things paths draw, by what they say of themselves."""
        told = self.page.locator(selector).evaluate_all("all => all.map(one => Number(one.dataset.count))")
        return sum(told)

    def bring(self, place: Locator) -> Locator:
        """Scroll to a place, and wait until the page has noticed."""
        place.scroll_into_view_if_needed()
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.page.evaluate(frames)
        return place

    def expect_tip(self, *texts: str | re.Pattern[str]) -> None:
        """Wait until the tip says all of this: what shows it runs after the event. Fails if it never does."""
        from playwright.sync_api import expect

        for text in texts:
            expect(self.page.locator("#tip:visible")).to_contain_text(text, use_inner_text=True)

    def expect_spoken(self, text: str) -> None:
        """Wait until screen readers are told this. Fails if they never are."""
        from playwright.sync_api import expect

        expect(self.page.locator("#spoken")).to_contain_text(text)

    def expect_no_tip(self) -> None:
        """Wait until no tip is shown. Fails if one stays."""
        from playwright.sync_api import expect

        expect(self.page.locator("#tip")).to_be_hidden()


@contextmanager
def shown(opened: Browser, html: str, folder: Path, *, width: int = 1280, **options: Any) -> Iterator[Shown]:
    """A page that is opened as a file; ``options`` are those of a browser context."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    context = opened.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        page = context.new_page()
        here = Shown(page)
        page.on("console", lambda message: here.console.append(message.text))
        page.on("pageerror", lambda error: here.console.append(str(error)))
        page.on("request", lambda request: here.requests.append(request.url))
        page.on("dialog", lambda dialog: (here.dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        yield here
    finally:
        context.close()
