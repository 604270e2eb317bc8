"""How a model fails, from what its check left behind."""

from __future__ import annotations

from dataclasses import replace

from biopsy.checks.outcome import Judged
from biopsy.checks.signature import signature_of
from biopsy.comparison.json_report import plain
from biopsy.comparison.mismatch import ErrorSize, most_telling
from biopsy.report.tree import Tree

_MOST_MISMATCHES = 10
"""Of each kind."""

_MOST_OUTPUTS = 100
_LOOKED_AT = 1 << 12
"""Bytes of the end of what a check printed."""


def failure_tree(judged: Judged, error: ErrorSize | None = None) -> Tree:
    """One failure; ``error`` may know more of its rounding than the check itself has said."""
    evidence, said = judged.evidence, judged.evidence.verdict
    signature = signature_of(replace(evidence, output=evidence.output[-_LOOKED_AT:]))
    rounding = said.rounding if error is None else error.rounding or said.rounding
    found: Tree = plain(
        {
            "signature": str(signature),
            "reason": judged.reason,
            "engine": said.engine or None,
            "stage": said.stage or None,
            "kind": said.kind or None,
            "message": said.message or None,
            "outputs": list(said.outputs[:_MOST_OUTPUTS]),
            "mismatches": list(most_telling(said.mismatches, _MOST_MISMATCHES)),
            "rounding": rounding,
            "status": evidence.status,
            "output": evidence.output[-_LOOKED_AT:].decode("utf-8", "replace"),
        }
    )
    return found
