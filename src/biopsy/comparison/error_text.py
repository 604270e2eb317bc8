"""The size of an error in words: its worst element, by the tolerance, and by what float32 itself rounds."""

from __future__ import annotations

from biopsy.comparison.mismatch import ErrorSize, Mismatch


def error_text(size: ErrorSize) -> str:
    """One line: ``0.458 at [8, 4] of 'logits' · 458 times the tolerance · ... · 740 of 1024 elements``."""
    worst = size.worst
    if worst.kind != "mismatch":
        return f"{worst.kind} of {worst.output!r}"
    parts = [_element(worst)] if worst.error is not None else []
    if worst.times_tolerance is not None:
        parts.append(f"{worst.times_tolerance:.3g} times the tolerance")
    if worst.discrete:
        parts.append("of a discrete output")
    elif worst.times_rounding is not None:
        parts.append(f"{worst.times_rounding:.3g} times one rounding")
    if size.rounding is not None and size.rounding.times is not None:
        parts.append(f"{size.rounding.times:.3g} times the error of plain float32")
    parts.append(f"{worst.wrong} of {worst.elements} elements")
    return " · ".join(parts)


def _element(worst: Mismatch) -> str:
    sides = worst.actual, worst.expected
    values = "" if None in sides else f": {worst.actual:.7g}, expected {worst.expected:.7g}"
    return f"{worst.error:.3g} at {list(worst.index)} of {worst.output!r}{values}"
