"""The page as one HTML document, and what keeps it harmless.

All of its text may be a stranger's. Every expression of a template is made printable and escaped, without exception;
the page loads nothing, and runs no script and no style but those of its own, which it names by their hashes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.findings.document import Columns, DocumentBlock, Section
from biopsy.findings.page import failure, model_map, sections
from biopsy.findings.page.drawing import Drawing, Graph
from biopsy.findings.page.piece import piece_blocks
from biopsy.findings.page.reading import Branch
from biopsy.findings.page.search import course
from biopsy.findings.page.sections import LABELS, top
from biopsy.findings.page.wording import cut
from biopsy.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"

_LONGEST = 2000
"""Characters of any text of a page; only command lines, half of which would be others, are never cut."""

_SECTIONS: Sequence[tuple[str, str | None, str, Callable[[Branch], Iterable[DocumentBlock]]]] = (
    ("torch", "torch", "Lines of the module", sections.module),
    ("steps", None, "What was asked", sections.steps),
    ("piece", "piece", "The failing piece", piece_blocks),
    ("failure", "failure", "What fails", failure.failing),
    ("run", "run", "What ran", failure.ran),
    ("map", "whole", "The whole model", model_map.map_blocks),
    ("layers", "layers", "Layer by layer", model_map.layers_blocks),
    ("search", "search", "The course of the search", course),
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
    ("versions", None, "Model and versions", sections.surroundings),
)
"""From the top of the page: the name of a section, the key of the report that it is of (None: it is of several), its
title, and its blocks; there is none where the report has nothing for it.
"""


def require_possible() -> None:
    """Raise BiopsyError if no page can be made here: a package of the extra `report` is not installed."""
    _environment()


def page_of(report: Mapping[str, Any]) -> str:
    """The page that shows a report, from the tree of its file alone.

    Raises DamagedReport if a key holds something else than its kind of value, and BiopsyError without what
    the extra `report` installs.
    """
    environment = _environment()
    from markupsafe import Markup

    tree = Branch(report)
    first = top(tree)
    parts = [(*entry, tree if entry[1] is None else tree.part(entry[1])) for entry in _SECTIONS]
    made = [
        Section(name=name, title=title, blocks=[*of(part)]) for name, _, title, of, part in parts if part is not None
    ]
    shown = [section for section in made if section.blocks]
    title = " · ".join(text for text in (first.headline.text, first.model, "biopsy") if text)
    # No HTML parser finds an end or a comment in the script's data: it has no angle brackets and no ampersands.
    marks = json.dumps(_marks(shown), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for char in "<>&":
        marks = marks.replace(char, f"\\u{ord(char):04x}")
    own = {name: (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")}
    hashes = {name: b64encode(sha256(text.encode()).digest()).decode() for name, text in own.items()}
    allowed = {  # nothing is loaded, and only this style and this script count
        "default-src": "'none'",
        "style-src": f"'sha256-{hashes['page.css']}'",
        "script-src": f"'sha256-{hashes['page.js']}'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
    }
    unescaped = {"marks": marks, "style": own["page.css"], "script": own["page.js"]}
    return environment.get_template("page.jinja").render(
        title=cut(title, 200),
        top=first,
        notes={label: [note for note in first.notes if note.label == label] for label in LABELS},
        sections=shown,
        anchors={section.name: section.name for section in shown},
        policy="; ".join(f"{name} {value}" for name, value in allowed.items()),
        **{name: Markup(text) for name, text in unescaped.items()},  # noqa: S704 -- our own files, and JSON
    )


def _environment() -> Environment:
    try:
        import fast_sugiyama  # noqa: F401 -- the drawing of a piece needs it, late in the making of a page
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import escape
    except ImportError as error:
        raise errors.BiopsyError(
            f"a page needs the package {error.name}, which is not installed",
            next_steps=['pip install "biopsy[report]"'],
        ) from error

    def finalized(value: Any) -> Any:
        """What every expression of a template passes: a text is one line, hides nothing, and has an end."""
        return cut(printable(value), _LONGEST) if type(value) is str else value

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = lambda text: escape(printable(text))  # for what must not be cut
    return environment


def _marks(sections: Sequence[Section]) -> dict[str, dict[str, Any]]:
    """For each drawing, where its marks are and what they say."""

    def text(lines: Sequence[str]) -> str:
        return cut("\n".join(printable(line) for line in lines), _LONGEST)

    marks: dict[str, dict[str, Any]] = {}
    outer = [each for section in sections for each in section.blocks]
    for block in (
        each for shown in outer for each in (chain(*shown.columns) if isinstance(shown, Columns) else [shown])
    ):
        if isinstance(block, Drawing):
            marks[block.name] = {
                "x": [mark.x for mark in block.marks],
                "y": [mark.y for mark in block.marks],
                "text": [] if block.pointing.alike else [text(mark.lines) for mark in block.marks],
                "flags": list(block.pointing.flags),
            }
        elif isinstance(block, Graph):
            marks["graph"] = {
                "text": [text(box.lines) for box in block.boxes] + [text(edge.lines) for edge in block.edges]
            }
    return marks
