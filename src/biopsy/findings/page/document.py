"""The page as one HTML document, which is safe for any report.

A report may come from a stranger. Every expression of a template is made printable and escaped, without exception. The
page loads nothing, and allows only its own script and style, by their hashes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from biopsy.findings.document import Columns, DocumentBlock, Section
from biopsy.findings.page import failure, model_map, sections
from biopsy.findings.page.drawing import Drawing, Graph
from biopsy.findings.page.piece import piece_blocks
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.sections import LABELS, top
from biopsy.findings.page.wording import cut
from biopsy.findings.report import Tree
from biopsy.processes.writing import require_writable, write_whole
from biopsy.text import printable

_TEMPLATES = Path(__file__).parent / "templates"

_LONGEST = 2000
"""Characters of any text of a page; only command lines are never cut, since half a line is another command."""

_SECTIONS: Sequence[tuple[str, str | None, str, Callable[[Branch], Iterable[DocumentBlock]]]] = (
    ("torch", "torch", "Lines of the module", sections.module),
    ("piece", "piece", "The failing piece", piece_blocks),
    ("evidence", None, "Evidence", sections.evidence),
    ("steps", None, "What was asked", sections.steps),
    ("failure", "failure", "What fails", failure.failure_blocks),
    ("run", "run", "What ran", failure.run_blocks),
    ("map", "whole", "The whole model", model_map.map_blocks),
    ("layers", "layers", "Layer by layer", model_map.layers_blocks),
    ("search", "search", "The course of the search", failure.search_blocks),
    ("settings", "settings", "Settings and optimizers", sections.settings),
    ("releases", "releases", "Releases", sections.releases),
    ("transformation", "transformation", "Before and after", sections.transformation),
    ("workaround", "workaround", "What makes the model right", sections.workaround),
    ("precision", "precision", "Precision", sections.precision),
    ("variation", "variation", "What may vary", sections.variation),
    ("known", "known", "Known failures", sections.known),
    ("runs", "repeat", "Repeated runs", sections.runs),
    ("builds", "builds", "Repeated builds", sections.builds),
    ("others", None, "Other failures met", sections.others),
    ("remarks", None, "Remarks", sections.remarks),
    ("versions", None, "Model and versions", sections.model_and_versions),
)
"""The sections in their order: name, key of the report (None: several keys), title, and the function that gives the
blocks. A section without blocks is left out.
"""


def page_of(report: Mapping[str, Any]) -> str:
    """The HTML page of a report, which is the tree of a report.json.

    Raises DamagedReport if a key holds a value of the wrong kind.
    """
    tree = Branch(report)
    first = top(tree)
    shown = []
    for name, key, title, blocks_of in _SECTIONS:
        part = tree if key is None else tree.part(key)
        if part is not None and (blocks := [*blocks_of(part)]):
            shown.append(Section(name=name, title=title, blocks=blocks))
    title = " · ".join(text for text in (first.headline.text, first.model, "biopsy") if text)
    return document_of(
        "page",
        _marks(shown),
        title=cut(title, 200),
        command=first.command,
        top=first,
        notes={label: [note for note in first.notes if note.label == label] for label in LABELS},
        sections=shown,
        anchors={section.name: section.name for section in shown},
    )


def document_of(template: str, marks: object, **values: object) -> str:
    """The document that a template makes of ``values``, in the frame that all have: ``title``, ``command``, contents.

    Its script gets ``marks`` as JSON. The style is that of the page of a report, and what the template adds to it.
    """
    # Without angle brackets and ampersands, no HTML parser finds an end or a comment in this data.
    data = json.dumps(marks, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for char in "<>&":
        data = data.replace(char, f"\\u{ord(char):04x}")
    names = dict.fromkeys(("page.css", f"{template}.css"))
    style = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("frame.js", f"{template}.js"))
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (style, script)]
    allowed = {
        "default-src": "'none'",
        "style-src": f"'sha256-{hashes[0]}'",
        "script-src": f"'sha256-{hashes[1]}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }
    unescaped = {"marks": data, "style": style, "script": script}
    return (
        _environment()
        .get_template(f"{template}.jinja")
        .render(
            policy="; ".join(f"{name} {value}" for name, value in allowed.items()),
            **values,
            **{name: Markup(text) for name, text in unescaped.items()},  # noqa: S704 -- our own files, and JSON
        )
    )


def reports_of(report: bytes) -> dict[str, bytes]:
    """The files of a report in a bundle by name: its JSON, and its page."""
    return {"report.json": report, "report.html": page_of(json.loads(report)).encode()}


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported:
    """A result with its ``report``: what ``--report`` of the command writes (docs/reference/report.md)."""

    report: Tree = field(default_factory=dict, repr=False, compare=False)

    def page(self, path: str | PathLike[str]) -> Path:
        """Write a page that shows the result, one HTML file that loads nothing, and return its path.

        Raises UsageError if it cannot be written.
        """
        require_writable(Path(path))
        write_whole(Path(path), [page_of(self.report).encode()])
        return Path(path)

    def framed_page(self) -> str:
        """The page in a frame that runs no script, for a notebook; "" if there is none to show."""
        page = page_of(self.report) if self.report else ""
        style = "width: 100%; height: 40rem; border: 0"
        return page and f'<iframe sandbox title="the report" style="{style}" srcdoc="{escape(page)}"></iframe>'


def _environment() -> Environment:
    def finalized(value: Any) -> Any:
        """The value of any expression of a template: a text is made one printable line of bounded length."""
        return cut(printable(value), _LONGEST) if type(value) is str else value

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = lambda text: escape(printable(text))  # for texts that must not be cut
    return environment


def _marks(sections: Sequence[Section]) -> dict[str, dict[str, Any]]:
    """The positions and texts of the marks of each drawing, for the script."""

    def text(lines: Sequence[str]) -> str:
        return cut("\n".join(printable(line) for line in lines), _LONGEST)

    marks: dict[str, dict[str, Any]] = {}
    outer = [block for section in sections for block in section.blocks]
    for block in chain(*(chain(*each.columns) if isinstance(each, Columns) else [each] for each in outer)):
        if isinstance(block, Drawing):
            marks[block.name] = {
                "x": [mark.x for mark in block.marks],
                "y": [mark.y for mark in block.marks],
                "text": [] if block.pointing.texts_of else [text(mark.lines) for mark in block.marks],
                "flags": list(block.pointing.flags),
            }
        elif isinstance(block, Graph):
            marks["graph"] = {
                "text": [text(box.lines) for box in block.boxes] + [text(edge.lines) for edge in block.edges]
            }
    return marks
