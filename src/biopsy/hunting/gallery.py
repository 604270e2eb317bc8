"""The page of a hunt: its distinct bugs, and the matrix of models and engines."""

from __future__ import annotations

from biopsy.findings.document import Facts
from biopsy.findings.page.document import document_of
from biopsy.hunting.records import BUGS, JUDGED, KINDS, NOT_JUDGED, Hunt, Kind
from biopsy.text import count, printable

_SYMBOLS: dict[Kind, str] = {
    "wrong": "✗", "differs": "≠", "crash": "☠", "hang": "…", "refused": "⊘", "slower": "◷", "larger": "▣",
    "right": "✓", "rounding": "≈", "tie": "=",
}  # fmt: skip
_OTHER = "·"


def gallery_of(hunt: Hunt) -> str:
    """The page as one HTML document that loads nothing, with links to the pages of bugs in the folder of the hunt."""
    order = list(KINDS)
    judged, unjudged = (sum(hunt.counts.get(kind, 0) for kind in kinds) for kinds in (JUDGED, NOT_JUDGED))
    bugs = count(len(hunt.bugs), "distinct bug")
    headline = {0: "No bug was found", 1: bugs, 4: "No bug was found, and not all was judged"}[hunt.status]
    marks = {
        "engines": list(map(printable, hunt.engines)),
        "kinds": [
            [kind, _SYMBOLS.get(kind, _OTHER), "bad" if kind in BUGS else "good" if kind in JUDGED else "unsure"]
            for kind in order
        ],
        "models": [
            [printable(model.model), *(order.index(cell.kind) for cell in model.cells)] for model in hunt.models
        ],
    }
    return document_of(
        "hunt",
        marks,
        title=f"{headline} · biopsy hunt",
        command="hunt",
        headline=headline,
        tone={0: "good", 1: "bad", 4: "unsure"}[hunt.status],
        figures=[
            (len(hunt.models), "models tried"),
            (judged, "agree"),
            (unjudged, "not judged"),
            (hunt.left, "not tried"),
        ],
        engines=Facts(rows=[*hunt.engines.items()]),
        bugs=hunt.bugs,
        refuted=hunt.refuted,
        legend=[(kind, _SYMBOLS.get(kind, _OTHER), meaning) for kind, meaning in KINDS.items()],
    )
