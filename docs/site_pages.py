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
SECTIONS = {"Tutorial": "tutorial", "How to": "how-to", "Reference": "reference", "Explanation": "explanation"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Order the pages of a section as its first page lists them, in the groups that its headings make."""
    config.nav = ["README.md"]
    for title, folder in SECTIONS.items():
        config.nav.append({title: _listed(Path(folder, "README.md"))})
    commands = {"Commands": _listed(Path("reference", "commands.md"))}
    reference = next(section["Reference"] for section in config.nav if "Reference" in section)
    reference[reference.index("reference/commands.md")] = commands
    config.nav.append({"Project": [*(name for name in OUTSIDE[1:] if name.endswith(".md")), "package.md"]})
    return config


def _listed(first: Path) -> list[str | dict[str, list[str]]]:
    """A page, and those of its folder and below that it lists, each where it is listed first."""
    begin, *groups = re.split(r"^## ", (ROOT / "docs" / first).read_text(encoding="utf-8"), flags=re.MULTILINE)
    grouped = [(group.partition("\n")[0], _links(group, first.parent)) for group in groups]
    above = [] if any(names for _, names in grouped) else _links(begin, first.parent)
    return [first.as_posix(), *above, *({heading: names} for heading, names in grouped if names)]


def _links(text: str, folder: Path) -> list[str]:
    links = re.findall(r"\]\(([a-z0-9-]+(?:/[a-z0-9-]+)?\.md)\)", text)
    return [f"{folder.as_posix()}/{link}" for link in dict.fromkeys(links)]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the page's links those of the site."""
    if page.file.src_uri in OUTSIDE:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    above = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({above}../", f"]({above}")
