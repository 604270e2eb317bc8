"""A diagnosis as the tree of a report: what it is made from are the facts and the files of its folder."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy.comparison.json_report import plain
from biopsy.diagnosis.facts import Diagnosis, FailureSeen, PieceFound, SettingsSeen
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.diagnosis.run_report import REPORT, tree_of
from biopsy.diagnosis.steps import layers, precision, variation
from biopsy.diagnosis.workarounds import next_lines
from biopsy.filesystem.plain_file import read_whole
from biopsy.model.digest import digest_of

VERSION = 2

_OF_A_RUN = ("engines", "comparisons", "noise", "not_finite")


def report_tree(
    found: Diagnosis, question: DiagnosisQuestion, *, status: int, line: str, created: str
) -> dict[str, Any]:
    """The report (docs/reference/file-formats.md). ``line`` repeats the command, which began at ``created``."""
    facts = found.facts
    tree: dict[str, Any] = {
        "biopsy_report": VERSION,
        "command": "diagnose",
        "line": line,
        "status": status,
        "created": created,
        "seconds": found.seconds,
        "verdict": plain(found.verdict),
        "model": _model(question),
        "versions": _versions(found),
        "steps": [plain(step) for step in found.steps],
        "failure": None if facts.failure is None else _failure(facts.failure, found),
        "piece": None if facts.piece is None else _piece(facts.piece),
        "search": None if facts.piece is None else _search(facts.piece),
        "run": _run(question.folder / REPORT),
        "layers": _tree(question.folder / layers.REPORT) if facts.layers is not None else None,
        "settings": None if facts.settings is None else _settings(facts.settings),
        "precision": None if facts.precision is None else _tree(question.folder / precision.REPORT),
        "variation": None if facts.variation is None else _tree(question.folder / variation.REPORT),
        "other_failures": [] if facts.piece is None else _other_failures(facts.piece),
        "next": [{"line": text, "why": why} for text, why in next_lines(facts, question)],
    }
    return {key: value for key, value in tree.items() if value is not None}


def as_bytes(tree: Mapping[str, Any]) -> bytes:
    """The tree as a file holds it."""
    return json.dumps(tree, indent=2, allow_nan=False).encode("ascii") + b"\n"


def _model(question: DiagnosisQuestion) -> dict[str, Any]:
    index = question.index
    return {
        "path": str(question.model),
        "sha256": digest_of(question.model),
        "nodes": len(index.nodes),
        "weight_bytes": index.weight_bytes,
    }


def _versions(found: Diagnosis) -> dict[str, Any]:
    from importlib.metadata import version

    compared = found.facts.compared
    engines = [] if compared is None else compared.engines
    return {
        "biopsy": version("biopsy"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": {name: version(name) for name in ("numpy", "onnx")},
        "engines": [{"label": label, "name": label.partition(":")[0], "version": text} for label, text in engines],
        "os": platform.platform(),
    }


def _failure(failure: FailureSeen, found: Diagnosis) -> dict[str, Any]:
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
        "rounding": None if rounding is None else _rounding(rounding.verdicts, rounding.times, rounding.reason),
        "status": failure.status,
        "output": failure.output,
        "trusted": failure.trusted,
        "suspect": failure.suspect,
        "check": list(failure.check),
    }


def _rounding(verdicts: Sequence[str], times: float | None, reason: str) -> dict[str, Any]:
    worst = next((one for one in ("bug", "unknown") if one in verdicts), "rounding")
    return {"verdict": worst, "times": times, "reason": reason}


def _piece(piece: PieceFound) -> dict[str, Any]:
    data = read_whole(Path(piece.path))
    return {
        "path": piece.path,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "inputs_path": piece.inputs,
    }


def _search(piece: PieceFound) -> dict[str, Any]:
    search = piece.search
    return {
        "mode": "minimal",
        "nodes": piece.nodes_before,
        "left": len(piece.nodes),
        "outcomes": dict(search.outcomes),
        "remembered": search.remembered,
        "stopped": search.stopped,
    }


def _other_failures(piece: PieceFound) -> list[dict[str, Any]]:
    return [{"reason": reason, "times": times, "model": None} for reason, times in piece.search.other_failures]


def _settings(seen: SettingsSeen) -> dict[str, Any]:
    return {
        "engine": seen.engine,
        "tried": [{"change": change, "outcome": outcome, "reason": reason} for change, outcome, reason in seen.tried],
        "switches": [plain(switch) for switch in seen.switches],
        "checks": seen.checks,
    }


def _run(path: Path) -> dict[str, Any] | None:
    tree = tree_of(path)
    return {key: tree[key] for key in _OF_A_RUN if key in tree} or None


def _tree(path: Path) -> dict[str, Any] | None:
    return tree_of(path) or None
