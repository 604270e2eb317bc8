"""A diagnosis as the sections of a report: what they are made from are the facts and the files of its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.comparison.describe import plain
from biopsy.diagnosis.facts import Diagnosis, FailureSeen, KnownFacts, PieceFound, RoundingSeen
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.diagnosis.steps import changes, layers, origin, piece
from biopsy.diagnosis.steps.failing import REPORT, run_of, tree_of
from biopsy.diagnosis.workarounds import next_lines
from biopsy.findings.model import MeasuredErrors, graph_tree, map_tree, model_tree, numbers_in
from biopsy.findings.reduction import relative
from biopsy.findings.report import Tree, versions_tree
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.load import digest_of


def diagnosis_sections(found: Diagnosis, question: DiagnosisQuestion, folder: Path) -> dict[str, Any]:
    """The sections of a diagnosis (docs/reference/report.md); paths are written as seen from ``folder``."""
    facts = found.facts
    small = None if facts.piece is None else _index_of(facts.piece)
    examined = _tree(question.folder / _report_of_layers(facts)) if facts.layers is not None else None
    of_piece = facts.layers is not None and facts.layers.of_piece
    numbers = [] if small is None or facts.piece is None else numbers_in(small, question.index, facts.piece.kept)
    whole = map_tree(
        question.index,
        [number for number in numbers if number is not None],
        _measured(examined, numbers if of_piece else range(len(question.index.nodes))),
    )
    return {
        "verdict": plain(found.verdict),
        "model": model_tree(question.index, question.model),
        "versions": versions_tree([label for label, _ in facts.compared.engines] if facts.compared else []),
        "steps": [plain(step) for step in found.steps],
        "failure": None if facts.failure is None else _failure(facts.failure, found),
        "piece": None
        if facts.piece is None or small is None
        else _piece(facts.piece, small, question, examined if of_piece else None, folder),
        "whole": None if facts.failure is None else whole,
        "search": _tree(question.folder / piece.REPORT) if facts.piece is not None else None,
        "run": run_of(question.folder / REPORT) or None,
        "layers": examined,
        "settings": _tree(question.folder / changes.REPORT) if facts.settings is not None else None,
        "transformation": _tree(question.folder / origin.TRANSFORMATION_REPORT) if _is_broken(facts) else None,
        "workaround": _tree(question.folder / changes.CHANGES_REPORT) if facts.further.changes is not None else None,
        "releases": _tree(question.folder / origin.REPORT) if facts.further.releases is not None else None,
        "precision": _tree(question.folder / layers.PRECISION_REPORT) if facts.precision is not None else None,
        "variation": _tree(question.folder / piece.VARIATION_REPORT) if facts.variation is not None else None,
        "known": _tree(question.folder / piece.KNOWN_REPORT) if facts.known is not None else None,
        "other_failures": None if facts.piece is None else _other_failures(facts.piece),
        "next": [{"line": text, "why": why} for text, why in next_lines(facts, question)],
    }


def _report_of_layers(facts: KnownFacts) -> str:
    """The file of the step that has said last what is known of layers."""
    of_piece = facts.layers is not None and facts.layers.of_piece
    has_passed = facts.failure is None or facts.failure.masked
    return layers.MASKED_REPORT if has_passed and not of_piece else layers.REPORT


def _is_broken(facts: KnownFacts) -> bool:
    return facts.further.transformation is not None and facts.further.transformation.breaks


def _failure(failure: FailureSeen, found: Diagnosis) -> Tree:
    said = failure.said
    rounding = found.facts.rounding
    return {
        "signature": said.signature,
        "reason": failure.error or said.signature,
        "engine": said.engine,
        "stage": said.stage,
        "kind": said.kind,
        "message": said.message,
        "outputs": list(said.outputs),
        "rounding": _rounding(rounding) if rounding is not None and rounding.verdicts else None,
        "status": failure.status,
        "output": failure.output,
        "trusted": failure.trusted,
        "suspect": failure.suspect,
        "check": list(failure.check),
    }


def _rounding(seen: RoundingSeen) -> Tree:
    worst = next((one for one in ("bug", "unknown") if one in seen.verdicts), "rounding")
    return {"verdict": worst, "times": seen.times, "reason": seen.reason}


def _index_of(found: PieceFound) -> ModelIndex | None:
    """The piece as it was written; None if somebody has removed or changed it since."""
    try:
        return index_file(Path(found.path))
    except errors.BiopsyError:
        return None


def _piece(
    found: PieceFound, small: ModelIndex, question: DiagnosisQuestion, examined: Tree | None, folder: Path
) -> Tree:
    path = Path(found.path)
    return {
        "path": relative(path, folder),
        "sha256": digest_of(path),
        "bytes": path.stat().st_size,
        "inputs_path": relative(None if found.inputs is None else Path(found.inputs), folder),
        "failure": {"signature": found.signature, "reason": found.error_after or found.signature},
        **graph_tree(
            small, original=question.index, kept=found.kept, tensor_errors=dict(_errors_of_tensors(examined or {}))
        ),
    }


def _errors_of_tensors(examined: Mapping[str, Any]) -> Iterator[tuple[str, Tree]]:
    """The error of each tensor in the whole piece, by its name; of an output with no tensor marked."""
    for layer in examined.get("layers", ()):
        error = layer.get("propagated") or layer.get("introduced")
        if error is not None:
            yield error["tensor"], error
    for error in examined.get("outputs", ()):
        yield error["tensor"], error


def _measured(examined: Tree | None, numbers: Sequence[int | None]) -> MeasuredErrors:
    """The errors of layers by the number of the node in the original, where ``numbers`` tells it."""
    found: dict[str, dict[int, float]] = {"introduced": {}, "propagated": {}}
    for layer in (examined or {}).get("layers", ()):
        number = numbers[layer["number"]] if layer["number"] < len(numbers) else None
        for kind, ratios in found.items():
            if number is not None and layer.get(kind) is not None:
                ratios[number] = layer[kind]["tolerance_ratio"]
    return MeasuredErrors(**found)


def _other_failures(found: PieceFound) -> list[Tree]:
    return [{"reason": reason, "times": times, "model": None} for reason, times in found.search.other_failures]


def _tree(path: Path) -> Tree | None:
    return tree_of(path) or None
