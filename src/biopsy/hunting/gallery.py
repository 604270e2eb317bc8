"""The page of a hunt: its distinct bugs, and the matrix of models and engines."""

from __future__ import annotations

from biopsy.findings.document import Facts
from biopsy.findings.page.document import document_of
from biopsy.hunting.records import BUGS, JUDGED, KINDS, Hunt, Kind
from biopsy.text import count, printable, shortened

_SYMBOLS: dict[Kind, str] = {
    "wrong": "✗", "differs": "≠", "crash": "☠", "hang": "…", "refused": "⊘", "slower": "◷",
    "right": "✓", "rounding": "≈", "tie": "=",
}  # fmt: skip
_OTHER = "·"
_LONGEST = 400
_MOST_LINES = 20


def gallery_of(hunt: Hunt) -> str:
    """The page as one HTML document that loads nothing, with links to the pages of bugs in the folder of the hunt."""
    order = list(KINDS)
    judged = sum(number for kind, number in hunt.counts.items() if kind in JUDGED)
    unjudged = sum(number for kind, number in hunt.counts.items() if kind not in JUDGED and kind not in BUGS)
    headline = {
        0: "No bug was found",
        1: count(len(hunt.bugs), "distinct bug"),
        4: "No bug was found, and not all was judged",
    }
    marks = {
        "engines": list(map(printable, hunt.engines)),
        "kinds": [[kind, _SYMBOLS.get(kind, _OTHER), _tone(kind)] for kind in order],
        "models": [
            [printable(model.model), *(order.index(cell.kind) for cell in model.cells)] for model in hunt.models
        ],
    }
    return document_of(
        "hunt",
        marks,
        title=f"{headline[hunt.status]} · biopsy hunt",
        command="hunt",
        headline=headline[hunt.status],
        tone={0: "good", 1: "bad", 4: "unsure"}[hunt.status],
        figures=[
            (len(hunt.models), "models tried"),
            (judged, "agree"),
            (unjudged, "not judged"),
            (hunt.left, "not tried"),
        ],
        engines=Facts(rows=[*hunt.engines.items()]),
        bugs=_rows_of(hunt),
        legend=[(kind, _SYMBOLS.get(kind, _OTHER), meaning) for kind, meaning in KINDS.items()],
    )


def _tone(kind: Kind) -> str:
    return "bad" if kind in BUGS else "good" if kind in JUDGED else "unsure"


def _rows_of(hunt: Hunt) -> list[dict[str, object]]:
    """What the table of bugs shows of each."""
    return [
        {
            "kind": bug.kind,
            "engines": bug.engines,
            "models": bug.models,
            "unconfirmed": len(bug.unconfirmed),
            "text": shortened(bug.text, _LONGEST),
            "confirmed": bug.is_confirmed,
            "page": bug.examination and bug.examination.page,
            "known": bug.examination and bug.examination.known,
            "switch": bug.examination and bug.examination.switch,
            "graph": bug.graph.splitlines()[:_MOST_LINES],
            "line": bug.line,
        }
        for bug in hunt.bugs
    ]
