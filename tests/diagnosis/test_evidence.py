"""What an interrupted diagnosis has left is believed only as it has left it."""

from pathlib import Path

import pytest

from biopsy import errors
from biopsy.diagnosis.evidence import EvidenceFile, KnownSteps
from biopsy.diagnosis.facts import StepReport

IDENTITY = {"model": "this one"}


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder in which the layers were examined, and nothing was asked after that."""
    (tmp_path / "layers.json").write_text('{"layers": []}')
    step = StepReport(name="layer", question="is it one node?", outcome="done", answer="two")
    EvidenceFile(tmp_path, IDENTITY, fresh=True).save(KnownSteps(steps=(step,)), complete=False)
    return tmp_path


def test_a_diagnosis_goes_on_with_the_files_that_it_has_left(left: Path) -> None:
    (left / "notes.txt").write_text("my own")
    found = EvidenceFile(left, IDENTITY, fresh=False)
    assert found.resumed and [step.name for step in found.known.steps] == ["layer"]


@pytest.mark.parametrize("text", ['{"layers": [{}]}', None])
def test_a_file_that_was_changed_or_removed_since_is_not_believed(left: Path, text: str | None) -> None:
    (left / "layers.json").unlink()
    if text is not None:
        (left / "layers.json").write_text(text)
    with pytest.raises(errors.UsageError, match=r"layers\.json is no longer what the earlier diagnosis"):
        EvidenceFile(left, IDENTITY, fresh=False)
    assert not EvidenceFile(left, IDENTITY, fresh=True).resumed
