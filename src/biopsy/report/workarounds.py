"""The sections of a search for workarounds."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy.engines.registry import parse_spec
from biopsy.model.index import ModelIndex
from biopsy.report.engine_calls import calls_of
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree
from biopsy.workarounds.result import Workarounds


def workarounds_tree(found: Workarounds, index: ModelIndex) -> Tree:
    """The key ``workaround``; ``python`` of the best are the lines that call the engine in this way."""
    tree = found.as_json()
    for told, one in zip(tree["best"], found.best, strict=True):
        told["python"] = list(calls_of(parse_spec(one.engine), index))
    return tree


def workarounds_verdict(found: Workarounds, lines: Mapping[int, str]) -> Tree:
    """What makes the model right, if anything does. ``lines`` are the checks that show it, by place among the best."""
    if not found.found:
        nothing = f"Nothing that was tried makes the model right in {found.engine}."
        told = nothing if found.tried else "No change could be tried."
        return verdict_tree("unknown" if found.stopped or not found.tried else "fails", told)
    best = found.best[0]
    shown = [{"text": f"{one.text}.", "line": lines.get(number)} for number, one in enumerate(found.best, 1)]
    doubt = (
        None
        if found.trust.confirmed_by
        else f"what is right is what {found.trust.reference} gives; nothing else confirms it"
    )
    return verdict_tree("fails", f"The model is right with: {best.text}.", certainty=doubt, workarounds=shown)
