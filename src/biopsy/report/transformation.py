"""The sections of a transformation that breaks a model."""

from __future__ import annotations

from typing import Any

from biopsy.blame.transformations.findings import TransformationFindings
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree

AGREE = (
    "in the reference evaluator both models give the same: the engine may be wrong about the transformed one, and not "
    "the tool"
)


def transformation_tree(found: TransformationFindings) -> dict[str, Any]:
    """The key ``transformation``."""
    return found.as_json()


def transformation_verdict(found: TransformationFindings) -> Tree:
    """What the tool does wrong, and how its pass is left out."""
    passes = found.passes
    if found.fault == "control":
        return verdict_tree("fails", found.sentence)
    lines = [line for line in (passes.omission.command, passes.omission.python) if line]
    workarounds = [{"text": "The piece is right without it.", "line": line} for line in lines if passes.verified]
    doubt = None if passes.verified or not passes.without else "not confirmed by fresh processes"
    if found.where.second_opinion == "right":
        doubt = AGREE
    return verdict_tree("fails", found.sentence, certainty=doubt, workarounds=workarounds)
