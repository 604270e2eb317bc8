"""The sections of a look-up among known failures."""

from __future__ import annotations

from biopsy.known_failures.lookup import KnownLookup
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree


def known_tree(found: KnownLookup) -> Tree:
    """The key ``known``."""
    return found.as_json()


def known_verdict(found: KnownLookup) -> Tree:
    """Whether it looks like a known bug; that is no proof, so what would make it sure is said."""
    best = found.best
    if best is None:
        return verdict_tree("unknown", f"It is {found.sentence}.", not_tried=_left_open(found))
    doubt = None if best.is_sure else "pattern, engine, way of failing and release do not all agree, or are not known"
    if doubt is None and best.failure.conditions:
        doubt = f"what else it needs is not checked: {' '.join(best.failure.conditions)}"
    kind = "fails" if found.seen.stage or found.seen.kind else "unknown"
    return verdict_tree(kind, f"It {best.sentence}.", certainty=doubt, not_tried=_left_open(found))


def _left_open(found: KnownLookup) -> list[str]:
    return [f"Whether it looks like {reference}: comparing them took too long." for reference in found.undecided]
