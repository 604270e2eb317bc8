"""Takes the screenshots of the docs; needs Chromium.

``python docs/images/take.py REDUCTION.json DIAGNOSIS.json CRASH.json TORCH.json``: reports of ``debug reduce`` and
``diagnose`` on the model of the demonstration, of ``diagnose`` on a crash, and of ``torch``.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from biopsy.findings.page.document import page_of
from biopsy.findings.page.reading import read_report

HERE = Path(__file__).parent
SIZES = {"report-wide.png": (1600, 1500), "report-narrow.png": (360, 1400)}
PIECE_BESIDE_VERDICT = """() => {
    const verdict = document.querySelector('.verdict'), beside = document.createElement('div');
    beside.append(...verdict.children);
    beside.style.cssText = 'display: flex; flex-direction: column; gap: 1.2rem';
    const graph = document.querySelector('#piece .graph');
    graph.style.cssText = 'zoom: 0.9';
    verdict.append(beside, graph);
    verdict.style.cssText = 'display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 2rem';
    verdict.querySelector('.act').style.cssText = 'grid-template-columns: minmax(0, 1fr)';
    const left_out = ['.workaround .line + .line', '.act > section:not(.workaround)', '.figures div:last-child',
        'figcaption'];
    document.querySelectorAll(left_out.map(each => '.verdict ' + each)).forEach(each => each.remove());
}"""


def main() -> None:
    """Write each picture."""
    reduction, diagnosis, crash, torch = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            with shown(browser, Path(reduction), width, height) as page:
                page.screenshot(path=HERE / name)
        with shown(browser, Path(diagnosis), 1500, 1000) as page:
            page.evaluate(PIECE_BESIDE_VERDICT)
            page.locator(".verdict").screenshot(path=HERE / "verdict.png")
        for name, report in (("crash.png", crash), ("pytorch-fault.png", torch)):
            with shown(browser, Path(report), 1280, 900) as page:
                page.screenshot(path=HERE / name)
        browser.close()


@contextmanager
def shown(browser: Browser, report: Path, width: int, height: int) -> Iterator[Page]:
    """The page of a report, in a window of this size."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page_of(read_report(report)), encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=0.7)
        page.goto(path.as_uri())
        yield page


if __name__ == "__main__":
    main()
