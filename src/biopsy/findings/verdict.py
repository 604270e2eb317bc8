"""What was found, in words: the kind of an answer, how sure it is, what avoids a failure, and what was not asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biopsy import errors


@dataclass(frozen=True, kw_only=True)
class Workaround:
    """What avoids a failure: it was tried, and passed. ``line`` is to paste."""

    text: str
    line: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found, in words. ``certainty`` says how sure that is and why, ``not_tried`` what was left open."""

    kind: str
    text: str
    certainty: str | None = None
    workarounds: Sequence[Workaround] = ()
    not_tried: Sequence[str] = ()


def verdict_of_error(error: errors.BiopsyError) -> Verdict:
    """What it means that a command ended with an error."""
    if isinstance(error, errors.OriginalPasses):
        return Verdict(kind="passes", text=error.message)
    if isinstance(error, errors.EngineFailure):
        return Verdict(kind="fails", text=error.message)
    kept = f" Kept: {error.kept}." if error.kept else ""
    return Verdict(kind="unknown", text=f"{error.message}{kept}")
