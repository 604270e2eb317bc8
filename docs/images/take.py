"""Takes the screenshots of the how-to guide: ``python docs/images/take.py REPORT.json``; needs Chromium."""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from biopsy.findings.page.document import page_of
from biopsy.findings.page.reading import read_report

HERE = Path(__file__).parent
SIZES = {"report-wide.png": (1600, 1500), "report-narrow.png": (360, 1400)}


def main() -> None:
    """Write each picture."""
    html = page_of(read_report(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "report.html"
        page_path.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=0.7)
            page.goto(page_path.as_uri())
            page.screenshot(path=HERE / name)
        browser.close()


if __name__ == "__main__":
    main()
