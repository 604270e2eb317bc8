"""The site's pages that lie outside ``docs/``: the README, which is its first page, and those that it leads to.

A hook of MkDocs (https://www.mkdocs.org/user-guide/configuration/#hooks). Links are written for readers of the
repository; between a page in ``docs/`` and one outside they are one folder shorter on the site.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "alias/README.md",
    "benchmarks/RESULTS.md",
    "LICENSE",
    "Dockerfile",
)
SECTIONS = {"How to": "how-to", "Reference": "reference", "Explanation": "explanation"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Order the pages of a section as its first page lists them."""
    config.nav = ["README.md", {"Tutorial": ["tutorial/reduce-your-first-model.md", "tutorial/from-pytorch.md"]}]
    for title, folder in SECTIONS.items():
        text = (ROOT / "docs" / folder / "README.md").read_text()
        listed = re.findall(r"\]\(([a-z0-9-]+\.md)\)", text)
        config.nav.append({title: [f"{folder}/{name}" for name in ("README.md", *dict.fromkeys(listed))]})
    config.nav.append({"Project": [*(name for name in OUTSIDE[1:] if name.endswith(".md")), "package.md"]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the page's links those of the site."""
    if page.file.src_uri in OUTSIDE:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    return re.sub(r"\]\(\.\./\.\./", "](../", markdown)
