"""The report as JSON and CSV, and the ranking read back."""

import csv
import hashlib
import io
import json
import math
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.questions.layers.findings import (
    Engines,
    Failure,
    LayerFinding,
    LayerFindings,
    LayerNode,
    NonFiniteOrigin,
    TensorError,
    as_csv,
    layers_tree,
    ranking_in,
)

ENGINES = Engines(("onnxrt:optimization=none", "1.2"), ("fake", "3"))


def finding(number: int, name: str, **found: object) -> LayerFinding:
    node = LayerNode(
        number=number, name=name, op_type="Neg", label=f"Neg '{name}'", inputs=("x",), outputs=(f"t{number}",)
    )
    return LayerFinding(node=node, **found)


def far(ratio: float) -> TensorError:
    return TensorError(
        tensor="t",
        sample=0,
        passed=ratio <= 1,
        reason="too far",
        absolute=ratio,
        relative=0.5,
        tolerance_ratio=ratio,
        worst=None,
    )


FINDINGS = LayerFindings(
    layers=[
        finding(0, "right", introduced=far(0), propagated=far(0)),
        finding(1, "wrong", introduced=far(math.inf), rounding_ratio=12.0),
        finding(2, "two\nlines", failure=Failure("build", "NotImplemented", "no kernel")),
    ],
    non_finite_origins=[NonFiniteOrigin(engine="fake", number=1, label="Neg 'wrong'", tensor="t1", nan=1, inf=2)],
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a model")
    return path


def test_a_layer_is_one_flat_object_with_its_verdict(model: Path) -> None:
    tree = layers_tree(FINDINGS, model, ENGINES, 2)
    _, wrong, fails = tree["layers"]
    assert (wrong["number"], wrong["name"], wrong["op_type"], wrong["verdict"]) == (1, "wrong", "Neg", "introduces")
    assert (wrong["introduced"]["tolerance_ratio"], wrong["rounding_ratio"]) == ("inf", 12.0)
    assert (fails["verdict"], fails["failure"]["kind"]) == ("fails", "NotImplemented")
    assert tree["ranking"][0]["nodes"] == [2] and tree["verdict"] == "wrong" and tree["samples"] == 2
    assert tree["non_finite_origins"] == [
        {"engine": "fake", "number": 1, "label": "Neg 'wrong'", "tensor": "t1", "nan": 1, "inf": 2, "reads_inf": False}
    ]


def test_the_report_names_model_and_engines(model: Path) -> None:
    tree = layers_tree(FINDINGS, model, ENGINES, 2)
    assert tree["model"] == {"path": str(model), "sha256": hashlib.sha256(b"a model").hexdigest()}
    assert tree["reference"] == {"label": "onnxrt:optimization=none", "version": "1.2"}


def test_the_csv_has_a_line_per_layer_and_leaves_empty_what_was_not_measured() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(FINDINGS).decode())))
    assert [row["rank"] for row in rows] == ["", "2", "1"]
    assert rows[1]["introduced_tolerance_ratio"] == "inf" and rows[1]["propagated_tolerance_ratio"] == ""
    assert rows[2]["name"] == "two\\nlines" and rows[2]["failure"].startswith("cannot build: NotImplemented")


def test_the_ranking_of_a_report_can_be_read_back(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    tree = layers_tree(FINDINGS, model, ENGINES, 1)
    report.write_text(json.dumps({"biopsy_report": 2, "layers": tree}))
    assert ranking_in(report, model) == ((2,), (1,))
    report.write_text(json.dumps(tree))  # as a report was before it had anything else
    assert ranking_in(report, model) == ((2,), (1,))


def test_the_report_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps(layers_tree(FINDINGS, model, ENGINES, 1)))
    model.write_bytes(b"another model")
    with pytest.raises(errors.UsageError, match="made of another model"):
        ranking_in(report, model)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "3", '{"biopsy_report": 2, "run": {}}', '{"ranking": 1}', '{"ranking": [{"nodes": ["x"]}]}'],
)
def test_what_is_no_report_is_refused(text: str, model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(text)
    with pytest.raises(errors.UsageError, match="is not a report of biopsy debug layers"):
        ranking_in(report, model)
