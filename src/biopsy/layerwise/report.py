"""What was found, as JSON and as CSV, and the ranking read back. The schema: docs/reference/file-formats.md."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.comparison.json_report import plain
from biopsy.filesystem.plain_file import read_whole
from biopsy.layerwise.findings import Findings, Layer, TensorError
from biopsy.shell_words import line_of
from biopsy.text import printable

VERSION = 1
"""Of the schema: it grows when a key changes its meaning or goes, not when one is added."""


@dataclass(frozen=True)
class Engines:
    """Who was compared: label and version of the reference and of the suspect."""

    reference: tuple[str, str]
    suspect: tuple[str, str]


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def as_json(found: Findings, model: Path, engines: Engines, samples: int) -> bytes:
    """The report as JSON."""
    first = found.first_wrong
    sides = {"reference": engines.reference, "suspect": engines.suspect}
    tree = {
        "biopsy_layers": VERSION,
        "verdict": "right" if found.passed else "unknown" if found.nothing_wrong else "wrong",
        "complete": found.complete,
        "model": {"path": str(model), "sha256": digest_of(model)},
        **{side: {"label": label, "version": version} for side, (label, version) in sides.items()},
        "samples": samples,
        "failure": plain(found.failure),
        "outputs": plain(list(found.outputs)),
        "masked": found.is_masked,
        "first_wrong": None if first is None else {"layer": first[0].number, "tensor": first[1].tensor},
        "ranking": plain(found.suspects),
        "groups": plain(list(found.groups)),
        "observed": plain(list(found.observed)),
        "origins": plain(list(found.origins)),
        "remarks": list(found.remarks),
        "layers": [_layer_tree(layer) for layer in found.layers],
    }
    return json.dumps(tree, indent=2, allow_nan=False).encode("ascii") + b"\n"


def _layer_tree(layer: Layer) -> dict[str, Any]:
    tree: dict[str, Any] = plain(layer)
    del tree["accused"]
    return {**tree, "verdict": layer.verdict}


_COLUMNS = (
    "number", "name", "operator", "outputs", "verdict", "rank",
    "introduced_absolute", "introduced_relative", "introduced_times",
    "propagated_absolute", "propagated_relative", "propagated_times",
    "failure", "note",
)  # fmt: skip


def as_csv(found: Findings) -> bytes:
    """One line per layer in the order of the graph; errors that were not measured are empty.

    Names are escaped where they are not printable, as on a terminal: a line is one line. The JSON report has them as
    they are.
    """
    ranks = {node: place for place, one in reversed(list(enumerate(found.suspects, 1))) for node in one.nodes}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    for layer in found.layers:
        writer.writerow(
            [
                layer.number, *map(printable, (layer.name, layer.op_type, " ".join(layer.outputs))), layer.verdict,
                ranks.get(layer.number, ""), *_figures(layer.introduced), *_figures(layer.propagated),
                printable(layer.failure.text) if layer.failure is not None else "", printable(layer.note),
            ]
        )  # fmt: skip
    return text.getvalue().encode("utf-8", "backslashreplace")


def _figures(error: TensorError | None) -> list[str]:
    return (
        ["", "", ""] if error is None else [f"{value:.9g}" for value in (error.absolute, error.relative, error.times)]
    )


def ranking_in(report: Path, model: Path) -> tuple[tuple[int, ...], ...]:
    """The suspects in a JSON report as numbers of nodes, the worst first.

    Raises UsageError if there is no such report, or if it was made of another model.
    """
    try:
        tree = json.loads(read_whole(report))
        ranking = tuple(tuple(int(node) for node in one["nodes"]) for one in tree["ranking"])
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
