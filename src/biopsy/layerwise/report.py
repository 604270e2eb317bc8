"""Findings as JSON and as CSV, and the ranking read back. The schema: docs/reference/file-formats.md."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.comparison.json_report import plain
from biopsy.filesystem.plain_file import read_whole
from biopsy.layerwise.findings import LayerFinding, LayerFindings, TensorError
from biopsy.model.digest import digest_of
from biopsy.shell_words import line_of
from biopsy.text import printable

VERSION = 1
"""Of the schema: it grows when a key changes its meaning or goes, not when one is added."""


@dataclass(frozen=True)
class Engines:
    """Who was compared: label and version of the reference and of the suspect."""

    reference: tuple[str, str]
    suspect: tuple[str, str]


def layers_tree(findings: LayerFindings, model: Path, engines: Engines, samples: int) -> dict[str, Any]:
    """All that was found, as plain values."""
    first = findings.first_wrong
    sides = {"reference": engines.reference, "suspect": engines.suspect}
    return {
        "biopsy_layers": VERSION,
        "verdict": "right" if findings.passed else "unknown" if findings.nothing_wrong else "wrong",
        "complete": findings.complete,
        "model": {"path": str(model), "sha256": digest_of(model)},
        **{side: {"label": label, "version": version} for side, (label, version) in sides.items()},
        "samples": samples,
        "unmeasured": list(findings.unmeasured),
        "golden": plain(findings.golden),
        "failure": plain(findings.failure),
        "outputs": plain(list(findings.outputs)),
        "masked": findings.is_masked,
        "first_wrong": None if first is None else {"layer": first[0].number, "tensor": first[1].tensor},
        "ranking": plain(findings.suspects),
        "groups": plain(list(findings.groups)),
        "observed": plain(list(findings.marking_effects)),
        "non_finite_origins": plain(list(findings.non_finite_origins)),
        "remarks": list(findings.remarks),
        "layers": [_layer_tree(layer) for layer in findings.layers],
    }


def _layer_tree(layer: LayerFinding) -> dict[str, Any]:
    tree: dict[str, Any] = plain(layer)
    del tree["is_accused"]
    source = layer.node.source
    node = {**tree.pop("node"), "source": None if source is None else source.as_tree()}
    return {**node, **tree, "verdict": layer.verdict}


_COLUMNS = (
    "number", "name", "operator", "outputs", "verdict", "rank",
    "introduced_absolute", "introduced_relative", "introduced_tolerance_ratio",
    "propagated_absolute", "propagated_relative", "propagated_tolerance_ratio",
    "failure", "note",
)  # fmt: skip


def as_csv(findings: LayerFindings) -> bytes:
    """One line per layer in the order of the graph; errors that were not measured are empty.

    Names are escaped where they are not printable, as on a terminal: a line is one line. The JSON report has them as
    they are.
    """
    ranked = reversed(list(enumerate(findings.suspects, 1)))
    ranks = {node: place for place, suspect in ranked for node in suspect.nodes}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for layer in findings.layers:
        node = layer.node
        writer.writerow(
            [
                node.number, *map(printable, (node.name, node.op_type, " ".join(node.outputs))), layer.verdict,
                ranks.get(node.number, ""), *_figures(layer.introduced), *_figures(layer.propagated),
                printable(layer.failure.text) if layer.failure is not None else "", printable(layer.note),
            ]
        )  # fmt: skip
    return text.getvalue().encode("utf-8", "backslashreplace")


def _figures(error: TensorError | None) -> list[str]:
    if error is None:
        return ["", "", ""]
    return [f"{value:.9g}" for value in (error.absolute, error.relative, error.tolerance_ratio)]


def ranking_in(report: Path, model: Path) -> tuple[tuple[int, ...], ...]:
    """The suspects in a JSON report as numbers of nodes, the worst first.

    Raises UsageError if there is no such report, or if it was made of another model.
    """
    try:
        tree = json.loads(read_whole(report))
        if "biopsy_report" in tree:  # before, the object of the layers was the whole report
            tree = tree["layers"]
        ranking = tuple(tuple(int(node) for node in suspect["nodes"]) for suspect in tree["ranking"])
        digest = tree["model"]["sha256"]
    except OSError as error:
        raise errors.UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise errors.UsageError(
            f"{report} is no report of biopsy debug layers", next_steps=["biopsy debug layers MODEL --report FILE.json"]
        ) from error
    if digest != digest_of(model):
        raise errors.UsageError(
            f"{report} was made of another model than {model}, or the model has changed since",
            next_steps=[line_of(["biopsy", "debug", "layers", as_word(model), "--report", as_word(report)])],
        )
    return ranking
