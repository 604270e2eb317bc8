"""The question whether the piece is known: it takes what the diagnosis knows, runs nothing, and never ends it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from biopsy import errors, events
from biopsy.diagnosis.context import NO_PIECE, StepAnswer, StepContext
from biopsy.diagnosis.facts import EngineComparison, KnownFacts
from biopsy.diagnosis.steps import parts as known
from biopsy.diagnosis.verdict import verdict_of
from biopsy.questions.known_failures import catalogue
from support.diagnoses import facts, failure, piece, question
from support.models import chain, save
from support.real_failures import relu_clip_of_integers


def answered(folder: Path, model: Path, release: str = "1.32.0", kind: str = "Fail") -> StepAnswer:
    seen = facts(
        failure=failure(kind, "build"),
        piece=replace(piece("Relu", "Clip"), path=str(model)),
        compared=EngineComparison(engines=(("onnxrt", release),)),
    )
    with StepContext(question(folder), events.ignore) as context:
        assert known.known_bug.reason_to_skip(seen, context) is None
        return known.known_bug.answer(seen, context)


def test_the_piece_is_looked_up_with_engine_release_and_way_of_failing(tmp_path: Path) -> None:
    found = answered(tmp_path, save(relu_clip_of_integers(), tmp_path / "piece.onnx"))
    assert found.line.startswith("looks like microsoft/onnxruntime#23116: ")
    assert found.facts.known_bug is not None
    assert found.facts.known_bug.evidence == (
        "pattern all nodes, and all conditions hold; engine onnxrt, as known; fails build · Fail, as known; "
        "release 1.32.0 is known to fail (>=1.17.3,<=1.32.0)"
    )
    assert found.facts.known_bug.issue == "https://github.com/microsoft/onnxruntime/issues/23116"
    assert found.facts.known_bug.avoid
    assert found.facts.known_bug.avoid[0].rstrip(".") in " ".join(verdict_of(found.facts, (), question()).reasons)
    assert json.loads((tmp_path / known.KNOWN_REPORT).read_text())["matches"][0]["release"] == "fails"


def test_only_an_issue_of_the_catalogue_that_comes_with_biopsy_is_kept_as_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIOPSY_KNOWN_DIR", str(catalogue.OWN_FOLDER))
    monkeypatch.setattr(catalogue, "OWN_FOLDER", tmp_path / "none")
    found = answered(tmp_path, save(relu_clip_of_integers(), tmp_path / "piece.onnx"))
    assert found.facts.known_bug is not None and found.facts.known_bug.reference == "microsoft/onnxruntime#23116"
    assert found.facts.known_bug.issue == ""


def test_a_failure_of_another_kind_is_not_called_known(tmp_path: Path) -> None:
    found = answered(tmp_path, save(relu_clip_of_integers(), tmp_path / "piece.onnx"), kind="NoSuchFile")
    assert found.line.startswith("looks like microsoft/onnxruntime#23116, but fails otherwise: ")
    assert found.facts.known_bug is not None and found.facts.known_bug.reference == ""


def test_whatever_goes_wrong_is_an_error_that_a_diagnosis_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(chain(1), tmp_path / "piece.onnx")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(errors.BiopsyError):
        answered(tmp_path, path)
    monkeypatch.setattr(known, "look_up", lambda *_, **__: 1 / 0)  # an error of our own, which nobody can foresee
    with pytest.raises(errors.BiopsyError, match="the piece could not be looked up"):
        answered(tmp_path, path)


def test_it_is_not_asked_without_a_piece(tmp_path: Path) -> None:
    with StepContext(question(tmp_path), events.ignore) as context:
        assert known.known_bug.reason_to_skip(KnownFacts(), context) == NO_PIECE
