"""The sections of a reduction: how the original fails, the piece, where in the model it stands, and how it was
found.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Judged
from biopsy.comparison.describe import plain
from biopsy.comparison.mismatch import ErrorSize, Mismatch, most_telling
from biopsy.findings.model import GRAPH_MOST_NODES, graph_tree, map_tree, numbers_in
from biopsy.findings.report import Tree, verdict_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.load import digest_of
from biopsy.reduction.result import Reduction
from biopsy.text import count

_MOST_OTHERS = 100


def reduction_sections(
    found: Reduction, index: ModelIndex, history: SearchHistory, mode: str, folder: Path
) -> dict[str, Any]:
    """The sections of a finished reduction of a model; paths are written as seen from ``folder``."""
    piece = _piece_of(found.output)
    numbers = found.kept if piece is None else [n for n in numbers_in(piece, index, found.kept) if n is not None]
    failure = None if found.judged_before is None else failure_tree(found.judged_before, found.error_before)
    return {
        "verdict": verdict_of(found),
        "failure": failure,
        "piece": None if piece is None else piece_tree(found, piece, index, folder),
        "whole": map_tree(index, numbers),
        "search": search_tree(found, history, mode),
        "other_failures": other_failures(found, folder),
    }


def verdict_of(found: Reduction) -> Tree:
    """What was found in words, and how sure that is."""
    size = f"{len(found.nodes)} of {count(found.nodes_before, 'node')}"
    left = f"The smallest part that still fails in the same way has {size}: {found.signature}."
    ended = f" The search was stopped by {found.stopped}: smaller results may exist." if found.stopped else ""
    doubt = "not sure: the original and the result have the same status, but print different things at the end"
    return verdict_tree("reduced", left + ended, certainty=doubt if found.last_words is not None else None)


def search_tree(found: Reduction, history: SearchHistory, mode: str) -> Tree:
    """The course of the search, and what it came to."""
    return {
        "mode": mode,
        **history.tree(),
        "nodes": found.nodes_before,
        "left": len(found.nodes),
        "outcomes": dict(found.outcomes),
        "remembered": found.remembered,
        "stopped": found.stopped,
        "cannot_say": dict(list(found.cannot_say.items())[:_MOST_OTHERS]),
    }


def other_failures(found: Reduction, folder: Path) -> list[Tree]:
    """Failures met on the way that are not the original's."""
    return [
        {"reason": reason, "times": times, "model": relative(found.other_models.get(reason), folder)}
        for reason, times in list(found.other_failures.items())[:_MOST_OTHERS]
    ]


def piece_tree(found: Reduction, piece: ModelIndex, original: ModelIndex, folder: Path) -> Tree:
    """The result: its file, how it fails, its graph with the error at each output that differs."""
    judged = found.judged_after
    mismatches = () if judged is None else judged.evidence.verdict.mismatches[:GRAPH_MOST_NODES]
    told = {one.output: _error_of(one) for one in mismatches}
    return {
        "path": relative(found.output, folder),
        "sha256": digest_of(found.output),
        "bytes": found.output.stat().st_size,
        "inputs_path": relative(found.inputs, folder),
        "failure": None if judged is None else failure_tree(judged, found.error_after),
        **graph_tree(piece, original=original, kept=found.kept, tensor_errors=told, sources=found.sources),
    }


def _error_of(found: Mismatch) -> Tree:
    """A mismatch in the form of an error of a layer."""
    worst = {"index": list(found.index), "actual": found.actual, "expected": found.expected, "error": found.error}
    return {
        "tensor": found.output,
        "sample": None,
        "passed": False,
        "reason": found.kind,
        "absolute": found.error,
        "relative": None,
        "tolerance_ratio": found.times_tolerance,
        "worst": None if found.error is None else worst,
    }


def relative(path: Path | None, folder: Path) -> str | None:
    """A path as seen from the folder of the report, where that is possible without a detour."""
    if path is None:
        return None
    try:
        seen = os.path.relpath(path, folder)
    except ValueError:  # on another drive
        return str(path)
    return str(path) if seen.startswith("..") and path.is_absolute() else seen


def _piece_of(output: Path) -> ModelIndex | None:
    """The result as it was written; None if it went into a pipe or a device."""
    if not output.is_file():
        return None
    try:
        return index_file(output)
    except errors.BiopsyError:
        return None


# How a model fails, from what its check left behind.

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
