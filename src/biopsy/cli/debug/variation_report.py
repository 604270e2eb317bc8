"""What may vary, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.variation.result import Finding, Variation

_COLUMN = 9
_WIDEST_TITLE = 40
_WIDEST_TEXT = 66


def say_variation(console: Console, variation: Variation | None) -> None:
    """A line for each feature that must be as it is, or may be another; nothing if that was not asked."""
    if variation is None:
        return
    if variation.kept:
        console.say(f"{'may vary':<{_COLUMN}} not known: {variation.kept}")
        return
    free = [one for one in variation.free if one.is_given or console.verbosity > 0]
    width = min(_WIDEST_TITLE, max((len(one.title) for one in (*free, *variation.fixed)), default=0))
    _say(console, "may vary", free, width)
    _say(console, "must be", variation.fixed, width)
    if console.verbosity > 0:
        _say(console, "unknown", variation.unknown, width)
    console.say(f"{'':<{_COLUMN}} {_cost(variation)}")


def _say(console: Console, head: str, found: Sequence[Finding], width: int) -> None:
    for place, one in enumerate(found):
        console.say(f"{'' if place else head:<{_COLUMN}} {one.title:<{width}}  {_told(one, console.verbosity)}")


def _told(found: Finding, verbosity: int) -> str:
    """All that was tried where that is short, or asked for by ``-v``; else how much was."""
    if verbosity > 0 or len(found.text) <= _WIDEST_TEXT:
        return found.text
    if not found.gone:
        return f"any of {len(found.still)} tried"
    tried = len(found.still) + len(found.gone)
    return f"{found.short} ({count(tried, 'change')} tried, {len(found.gone)} of them passed)"


def _cost(variation: Variation) -> str:
    told = [count(variation.checks, "check")]
    if not variation.free and not variation.fixed:
        told.append("nothing can be said of what may vary")
    if variation.unknown:
        told.append(f"of {count(len(variation.unknown), 'more feature')} nothing is known (-v)")
    if variation.together is not None:
        at_once = {"always": "fails", "sometimes": "does not always fail", "never": "does not fail"}
        told.append(f"{at_once[variation.together]} where all that may vary is changed at once")
    if not variation.complete:
        told.append("the budget was too small for more: --explain-checks N")
    return " · ".join(told)
