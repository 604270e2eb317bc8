"""The lines that a diagnosis advises ask what was asked."""

import shlex
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from biopsy.cli import commands
from biopsy.cli.advice import of_diagnosis
from biopsy.cli.arguments.groups import InputOptions
from biopsy.cli.parser import parser_of
from biopsy.diagnosis.evidence import EvidenceFile, KnownSteps, held_folder
from biopsy.diagnosis.facts import EngineComparison, KnownFacts
from biopsy.diagnosis.following import next_lines
from biopsy.diagnosis.question import Samples
from biopsy.engines.runner import Inputs
from biopsy.model.index import index_bytes
from support.diagnoses import question


def test_other_random_inputs_are_made_like_those_that_passed() -> None:
    made = Inputs(shapes={"x": (None, 3), "y": (2,)}, symbols={"N": 8}, val_range={"": (0.0, 1.0), "x": (-2.5, 5.0)})
    asked = replace(question(), samples=Samples(inputs=made))
    ((line, why),) = next_lines(KnownFacts(compared=EngineComparison(rows=(("onnxrt", "reference"),))), asked)
    program, *words = shlex.split(line)
    assert (program, why) == ("biopsy", "other random inputs")
    command = commands.read(words).command
    assert command is not None
    parsed = InputOptions.of(parser_of("biopsy", command).parse_args(words[1:])).inputs()
    assert replace(parsed, seed=made.seed, iterations=made.iterations) == made
    assert parsed.seed != made.seed


def test_after_random_inputs_that_pass_wider_ones_are_advised_for_floats() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }'
    asked = replace(question(), index=index_bytes(onnx.parser.parse_model(text).SerializeToString()))
    ((line, why),) = next_lines(KnownFacts(compared=EngineComparison(rows=(("onnxrt", "reference"),))), asked)
    assert "--val-range 'x:[-4,4]'" in line and "i:" not in line and why == "other random inputs, of a wider range"


def test_what_another_command_asks_is_asked_in_the_diagnosis_whose_page_is_to_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert of_diagnosis(Path("model.onnx")) == []
    folder = Path("model_diagnosis")
    asked = ("diagnose", "model.onnx", "--check", "biopsy", "run", "{}", "--onnxrt")
    with held_folder(folder):
        EvidenceFile(folder, {}, asked, fresh=False).save(KnownSteps(), complete=True)
    for model in (Path("model.onnx"), folder / "piece.onnx"):
        (advice,) = of_diagnosis(model)
        assert advice.line == "biopsy diagnose --thorough model.onnx --check biopsy run {} --onnxrt"
    (folder / "diagnosis.json").write_text("{}")
    assert of_diagnosis(Path("model.onnx")) == []
