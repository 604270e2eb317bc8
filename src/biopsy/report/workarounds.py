"""The sections of a search for workarounds."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree
from biopsy.workarounds.result import Workarounds


def workarounds_tree(found: Workarounds) -> Tree:
    """The key ``workaround``."""
    return found.as_json()


def workarounds_verdict(found: Workarounds, lines: Mapping[int, str]) -> Tree:
    """What makes the model right, if anything does. ``lines`` are the checks that show it, by place among the best."""
    if not found.found:
        told = f"Nothing that was tried makes the model right in {found.engine}."
        told = told if found.tried else "No change could be tried."
        return verdict_tree("unknown" if found.stopped else "fails", told)
    best = found.best[0]
    shown = [{"text": f"{one.text}.", "line": lines.get(number)} for number, one in enumerate(found.best, 1)]
    doubt = (
        None
        if found.trust.confirmed_by
        else f"what is right is what {found.trust.reference} gives; nothing else confirms it"
    )
    return verdict_tree("fails", f"The model is right with: {best.text}.", certainty=doubt, workarounds=shown)
