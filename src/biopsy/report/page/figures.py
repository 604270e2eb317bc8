"""Numbers and short texts as the page writes them."""

from __future__ import annotations

import math

OUT_OF_TOLERANCE = 1.0
"""A ratio of an error to its tolerance above this fails."""


def figure(value: float) -> str:
    """A number with four significant digits: ``0.0412``, ``1.2e-07``, ``12000``, ``nan``."""
    if math.isfinite(value) and value == int(value):
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.3e}"
    return f"{value:.4g}"


def times(ratio: float) -> str:
    """A ratio: ``0.02×``, ``41×``."""
    if ratio < 1000 or not math.isfinite(ratio):
        return f"{ratio:.3g}×"
    return f"{ratio:,.0f}×" if ratio < 1e6 else f"{ratio:.1e}×"


def duration(seconds: float) -> str:
    """Seconds for people: ``1.3 ms``, ``0.28 s``, ``4.1 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def cut(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis if it has more than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def middle_cut(text: str, most: int) -> str:
    """The text, or both of its ends around an ellipsis: paths and names of layers differ at their ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) * 2 // 3
    return f"{text[: most - 1 - tail]}…{text[-tail:]}"
