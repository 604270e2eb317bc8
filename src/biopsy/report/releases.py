"""The sections of a search for the release that broke a model, or mended it."""

from __future__ import annotations

from biopsy.blame.releases.findings import ReleaseFindings
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree


def releases_tree(found: ReleaseFindings) -> Tree:
    """The key ``releases``."""
    return found.as_json()


def releases_verdict(found: ReleaseFindings) -> Tree:
    """Which release it was, in words; ``workarounds`` are the releases to keep to."""
    sentence = f"{found.text}."
    workarounds = [
        {"text": f"Keep to {found.package}{pin}.", "line": f"pip install '{found.package}{pin}'"} for pin in found.pins
    ]
    unsure = [f"not confirmed when asked again: {one.text}" for one in found.borders if not one.verified]
    certainty = "; ".join([*unsure, *([found.doubt] if found.doubt else [])]) or None
    kind = "unknown" if found.answer is None else "passes" if found.answer == "no release tried fails" else "fails"
    return verdict_tree(kind, sentence, certainty=certainty, workarounds=workarounds)
