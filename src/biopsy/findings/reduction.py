"""The sections of a reduction: how the original fails, the piece, its place in the model, and the search for it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.judge import signature_of
from biopsy.checks.outcome import Judged
from biopsy.comparison.mismatch import ErrorSize, form_text, most_telling
from biopsy.findings.model import GRAPH_MOST_NODES, graph_tree, map_tree, numbers_in
from biopsy.findings.report import SearchHistory, Tree
from biopsy.findings.verdict import Verdict
from biopsy.model.index import ModelIndex, index_file
from biopsy.processes.reading import digest_of
from biopsy.records import plain, plain_of
from biopsy.reduction.result import Reduction
from biopsy.text import count

_MOST_OTHERS = 100
_MOST_MISMATCHES = 10
"""The most mismatches of each kind in the record."""

_MOST_OUTPUTS = 100
_SHOWN_OUTPUT = 1 << 12
"""Bytes of the end of what a check printed."""


def reduction_sections(
    reduction: Reduction, index: ModelIndex, history: SearchHistory, mode: str, folder: Path
) -> dict[str, Any]:
    """The sections of a finished reduction of the model ``index``; paths are relative to ``folder``."""
    piece, numbers, before = None, list(reduction.kept), reduction.judged_before
    if reduction.output.is_file():  # not a pipe or a device
        with contextlib.suppress(errors.BiopsyError):
            piece = index_file(reduction.output)
            numbers = [number for number in numbers_in(piece, index, reduction.kept) if number is not None]
    size = f"{len(reduction.nodes)} of {count(reduction.nodes_before, 'node')}"
    text = f"The smallest part that still fails in the same way has {size}: {reduction.signature}."
    text += f" The search was stopped by {reduction.stopped}: smaller results may exist." if reduction.stopped else ""
    doubt = "not sure: the original and the result have the same status, but print different things at the end"
    others = list(reduction.other_failures.items())[:_MOST_OTHERS]
    return {
        "verdict": Verdict(kind="reduced", text=text, certainty=doubt if reduction.last_words is not None else None),
        "failure": None if before is None else failure_tree(before, reduction.error_before),
        "piece": None if piece is None else _piece_tree(reduction, piece, index, folder),
        "whole": map_tree(index, numbers),
        "search": search_tree(reduction, history, mode),
        "other_failures": [
            {"reason": reason, "times": times, "model": relative(reduction.other_models.get(reason), folder)}
            for reason, times in others
        ],
    }


def search_tree(reduction: Reduction, history: SearchHistory, mode: str) -> Tree:
    """The course of the search and its result."""
    return {
        "mode": mode,
        **history.tree(),
        "nodes": reduction.nodes_before,
        "left": len(reduction.nodes),
        **plain_of(reduction, "outcomes remembered stopped"),
        "cannot_say": dict(list(reduction.cannot_say.items())[:_MOST_OTHERS]),
    }


def _piece_tree(reduction: Reduction, piece: ModelIndex, original: ModelIndex, folder: Path) -> Tree:
    judged = reduction.judged_after
    mismatches = () if judged is None else judged.evidence.verdict.mismatches[:GRAPH_MOST_NODES]
    tensor_errors = {}
    for each in mismatches:
        worst = {"index": list(each.index), "actual": each.actual, "expected": each.expected, "error": each.error}
        tensor_errors[each.output] = {  # the form that errors of layers have
            "tensor": each.output,
            "sample": None,
            "passed": False,
            "reason": form_text(each, "the other side") if each.is_of_form else each.kind,
            "absolute": each.error,
            "relative": None,
            "tolerance_ratio": each.times_tolerance,
            "worst": None if each.error is None else worst,
        }
    return {
        **file_tree(reduction.output, reduction.inputs, folder),
        "failure": None if judged is None else failure_tree(judged, reduction.error_after),
        **graph_tree(
            piece, original=original, kept=reduction.kept, tensor_errors=tensor_errors, sources=reduction.sources
        ),
    }


def file_tree(piece: Path, inputs: Path | None, folder: Path) -> Tree:
    """The file of a piece and that of its inputs, with paths relative to the folder of the report."""
    return {
        "path": relative(piece, folder),
        "sha256": digest_of(piece),
        "bytes": piece.stat().st_size,
        "inputs_path": relative(inputs, folder),
    }


def relative(path: Path | None, folder: Path) -> str | None:
    """A path relative to the folder of the report; an absolute path outside of that folder stays absolute."""
    if path is None:
        return None
    try:
        from_folder = os.path.relpath(path, folder)
    except ValueError:  # on another drive
        return str(path)
    return str(path) if from_folder.startswith("..") and path.is_absolute() else from_folder


def failure_tree(judged: Judged, error: ErrorSize | None = None) -> Tree:
    """How a model fails, from the evidence of its check; the rounding is that of ``error`` if it has one."""
    evidence, verdict = judged.evidence, judged.evidence.verdict
    output = evidence.output[-_SHOWN_OUTPUT:]
    tree: Tree = plain(
        {
            "signature": str(signature_of(replace(evidence, output=output))),
            "reason": judged.reason,
            "engine": verdict.engine or None,
            "stage": verdict.stage or None,
            "kind": verdict.kind or None,
            "message": verdict.message or None,
            "outputs": list(verdict.outputs[:_MOST_OUTPUTS]),
            "mismatches": list(most_telling(verdict.mismatches, _MOST_MISMATCHES)),
            "rounding": (None if error is None else error.rounding) or verdict.rounding,
            "status": None if evidence.returned else evidence.status,
            "output": output.decode("utf-8", "replace"),
        }
    )
    return tree
