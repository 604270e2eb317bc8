"""A diagnosis as the sections of a report: what they are made from are the facts and the files of its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.diagnosis.facts import Diagnosis, FailureSeen, RoundingSeen
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.diagnosis.steps import changes, layers, origin
from biopsy.diagnosis.steps import piece as pieces
from biopsy.diagnosis.steps.failing import REPORT, run_of, tree_of
from biopsy.diagnosis.workarounds import next_lines
from biopsy.findings.model import MeasuredErrors, graph_tree, map_tree, model_tree, numbers_in
from biopsy.findings.reduction import file_tree
from biopsy.findings.report import Tree, versions_tree
from biopsy.model.index import index_file
from biopsy.records import plain


def diagnosis_sections(diagnosis: Diagnosis, question: DiagnosisQuestion, folder: Path) -> dict[str, Any]:
    """The sections of a diagnosis (docs/reference/report.md); paths are written as seen from ``folder``."""
    facts, further, piece = diagnosis.facts, diagnosis.facts.further, diagnosis.facts.piece
    small, numbers = None, list[int | None]()
    if piece is not None:
        with contextlib.suppress(errors.BiopsyError):  # somebody may have removed or changed it since
            small = index_file(Path(piece.path))
            numbers = numbers_in(small, question.index, piece.kept)

    def kept(report: str, fact: object) -> Tree | None:
        """What a step has left in the folder, if it has an answer."""
        return None if fact is None else tree_of(question.folder / report) or None

    of_piece = facts.layers is not None and facts.layers.of_piece
    has_passed = facts.failure is None or facts.failure.masked
    examined = kept(layers.MASKED_REPORT if has_passed and not of_piece else layers.REPORT, facts.layers)
    measured = _measured(examined, numbers if of_piece else range(len(question.index.nodes)))
    whole = map_tree(question.index, [number for number in numbers if number is not None], measured)
    others = [] if piece is None else piece.search.other_failures
    is_broken = further.transformation is not None and further.transformation.breaks
    return {
        "verdict": plain(diagnosis.verdict),
        "model": model_tree(question.index, question.model),
        "versions": versions_tree(facts.versions),
        "steps": plain(diagnosis.steps),
        "failure": None if facts.failure is None else _failure(facts.failure, facts.rounding),
        "piece": None
        if piece is None or small is None
        else {
            **file_tree(Path(piece.path), None if piece.inputs is None else Path(piece.inputs), folder),
            "failure": {"signature": piece.signature, "reason": piece.error_after or piece.signature},
            **graph_tree(
                small,
                original=question.index,
                kept=piece.kept,
                tensor_errors=_errors_of_tensors(examined if of_piece else None),
            ),
        },
        "whole": None if facts.failure is None else whole,
        "search": kept(pieces.REPORT, piece),
        "run": run_of(question.folder / REPORT) or None,
        "layers": examined,
        "settings": kept(changes.REPORT, facts.settings),
        "transformation": kept(origin.TRANSFORMATION_REPORT, further.transformation) if is_broken else None,
        "workaround": kept(changes.CHANGES_REPORT, further.changes),
        "releases": kept(origin.REPORT, further.releases),
        "precision": kept(layers.PRECISION_REPORT, facts.precision),
        "variation": kept(pieces.VARIATION_REPORT, facts.variation),
        "known": kept(pieces.KNOWN_REPORT, facts.known),
        "other_failures": None
        if piece is None
        else [{"reason": reason, "times": times, "model": None} for reason, times in others],
        "next": [{"line": text, "why": why} for text, why in next_lines(facts, question)],
    }


def _failure(failure: FailureSeen, rounding: RoundingSeen | None) -> Tree:
    said, told = failure.said, None
    if rounding is not None and rounding.verdicts:
        worst = next((verdict for verdict in ("bug", "unknown") if verdict in rounding.verdicts), "rounding")
        told = {"verdict": worst, "times": rounding.times, "reason": rounding.reason}
    return {
        "signature": said.signature,
        "reason": failure.error or said.signature,
        "engine": said.engine,
        "stage": said.stage,
        "kind": said.kind,
        "message": said.message,
        "outputs": list(said.outputs),
        "rounding": told,
        "status": failure.status,
        "output": failure.output,
        "trusted": failure.trusted,
        "suspect": failure.suspect,
        "check": list(failure.check),
    }


def _errors_of_tensors(examined: Tree | None) -> dict[str, Tree]:
    """The error of each tensor in the whole piece, by its name; of an output with no tensor marked."""
    examined = examined or {}
    of_layers = (layer.get("propagated") or layer.get("introduced") for layer in examined.get("layers", ()))
    return {error["tensor"]: error for error in (*of_layers, *examined.get("outputs", ())) if error is not None}


def _measured(examined: Tree | None, numbers: Sequence[int | None]) -> MeasuredErrors:
    """The errors of layers by the number of the node in the original, where ``numbers`` tells it."""
    ratios: dict[str, dict[int, float]] = {"introduced": {}, "propagated": {}}
    for layer in (examined or {}).get("layers", ()):
        number = numbers[layer["number"]] if layer["number"] < len(numbers) else None
        for kind, of_kind in ratios.items():
            if number is not None and layer.get(kind) is not None:
                of_kind[number] = layer[kind]["tolerance_ratio"]
    return MeasuredErrors(**ratios)
