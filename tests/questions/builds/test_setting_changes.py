"""What there is to try, and where a command is told of it."""

import os

import pytest

from biopsy.checks.command_line import OwnRun, parse
from biopsy.cli.debug.checking import own_template
from biopsy.engines.registry import parse_spec
from biopsy.questions.builds.optimizers import optimizers_of, rules
from biopsy.questions.builds.settings import SettingChange, change_of, changes_to_try, without_optimizers
from support.models import chain, save


def own_run(words: str) -> OwnRun:
    command = parse(words.split())
    assert isinstance(command, OwnRun)
    return command


def worded(words: str, wanted: str | None = None, **settings: str) -> str:
    return " ".join(own_template(own_run(words), wanted).with_change(SettingChange(settings)))


@pytest.mark.parametrize(
    ("words", "wanted", "expected"),
    [
        ("biopsy run {} --onnxrt", None, "biopsy run {} --engine onnxrt:threads=1"),
        ("biopsy run {} --engine=onnxrt", None, "biopsy run {} --engine=onnxrt:threads=1"),
        ("biopsy run {} --reference --openvino", None, "biopsy run {} --reference --engine openvino:threads=1"),
        (
            "biopsy run {} --engine onnxrt:optimization=none --onnxrt --openvino",
            "onnxrt",
            "biopsy run {} --engine onnxrt:optimization=none --engine onnxrt:threads=1 --openvino",
        ),
        (
            "biopsy run {} --engine onnxrt:optimization=none --onnxrt",
            "onnxrt:optimization=none",
            "biopsy run {} --engine onnxrt:optimization=none,threads=1 --onnxrt",
        ),
    ],
)
def test_the_words_of_a_run_get_the_settings_of_one_engine(words: str, wanted: str | None, expected: str):
    assert worded(words, wanted, threads="1") == expected


def test_settings_of_the_plain_flag_are_kept():
    words = "biopsy run {} --onnxrt --threads 2 --optimization-level ORT_ENABLE_BASIC"
    assert "--engine onnxrt:optimization=basic,threads=2,execution=parallel" in worded(words, execution="parallel")


def test_what_is_set_already_is_not_tried():
    tried = [change.text for change in changes_to_try(parse_spec("onnxrt:threads=1,optimization=basic"))]
    assert "threads=1" not in tried
    assert "optimization=basic" not in tried
    assert {"optimization=all", "optimization=none", "execution=parallel"} <= set(tried)


def test_optimizers_are_added_to_those_that_are_off():
    spec = parse_spec("onnxrt:disabled_optimizers=A+B")
    assert without_optimizers(spec, ["B", "C"]).settings == {"disabled_optimizers": "A+B+C"}


def test_a_setting_may_hold_equals_signs_and_may_be_a_variable():
    assert change_of("a=b=c").settings == {"a": "b=c"}
    assert change_of("env.A=b=c").environment == {"A": "b=c"}


def test_the_environment_is_what_it_was_afterwards():
    template = own_template(own_run("biopsy run {} --onnxrt"), None)
    with template.environment(SettingChange(environment={"BIOPSY_TEST_VARIABLE": "1"})):
        assert os.environ["BIOPSY_TEST_VARIABLE"] == "1"
    assert "BIOPSY_TEST_VARIABLE" not in os.environ


def test_onnxruntime_tells_which_optimizers_change_a_model(tmp_path):
    path = save(chain(3, ("Identity", "Relu")), tmp_path / "model.onnx")
    found = optimizers_of(path, parse_spec("onnxrt:threads=1"))
    assert set(found.changed) <= set(found.ran)
    assert "Level1_RuleBasedTransformer" in found.changed  # EliminateIdentity
    without = optimizers_of(
        path, parse_spec("onnxrt:threads=1,disabled_optimizers=" + "+".join(rules(parse_spec("onnxrt"))))
    )
    assert "Level1_RuleBasedTransformer" not in without.changed
