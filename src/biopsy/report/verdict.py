"""What was found, in words: the kind of an answer, how sure it is, and what was not asked."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy import errors
from biopsy.report.tree import Tree


def verdict_tree(
    kind: str,
    text: str,
    *,
    certainty: str | None = None,
    workarounds: Sequence[Tree] = (),
    not_tried: Sequence[str] = (),
) -> Tree:
    """A verdict. ``workarounds`` have ``text`` and ``line``, and were tried; ``not_tried`` are sentences."""
    return {
        "kind": kind,
        "text": text,
        "certainty": certainty,
        "workarounds": list(workarounds),
        "not_tried": list(not_tried),
    }


def verdict_of_error(error: errors.BiopsyError) -> Tree:
    """What it means that a command ended with an error."""
    if isinstance(error, errors.OriginalPasses):
        return verdict_tree("passes", error.message)
    if isinstance(error, errors.EngineFailure):
        return verdict_tree("fails", error.message)
    kept = f" Kept: {error.kept}." if error.kept else ""
    return verdict_tree("unknown", f"{error.message}{kept}")
