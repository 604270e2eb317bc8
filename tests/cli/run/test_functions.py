"""Functions of the user's in ``run``: only a clear yes passes, and what is not a verdict says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from biopsy.checks.command_line import parse
from biopsy.cli.app import main
from support.models import chain, save

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(save(chain(2), tmp_path / "model.onnx"))


def compared(model: str, body: str, *words: str) -> int:
    """The status of a run with two engines, judged by a function with this body."""
    Path("judge.py").write_text(f"import numpy as np\ndef compare_outputs(actual, expected):\n    {body}\n")
    return main(["run", model, "--reference", "--onnxrt", "--compare-func-script", "judge.py", *words])


@pytest.mark.parametrize(
    "body",
    [
        "return True",
        "return np.bool_(True)",
        "return {name: True for name in actual}",
        "return {name: np.array_equal(actual[name], expected[name]) or True for name in actual}",
        "return {'everything': True}",
    ],
)
def test_a_yes_to_every_output_passes_and_is_told(model: str, body: str, capsys: Captured) -> None:
    assert compared(model, body, "--iterations", "2") == 0
    assert "judge.py:compare_outputs says yes to all" in capsys.readouterr().out


@pytest.mark.parametrize(
    "body",
    [
        "return False",
        "return {name: False for name in actual}",
        "return {**{name: True for name in actual}, 'together': False}",
        "np.testing.assert_array_equal(list(actual.values())[0], 3)",
        "compare_outputs.calls = getattr(compare_outputs, 'calls', 0) + 1; return compare_outputs.calls < 3",
    ],
)
def test_one_no_in_any_iteration_fails(model: str, body: str, capsys: Captured) -> None:
    assert compared(model, body, "--iterations", "3") == 1
    out = capsys.readouterr().out
    assert "FAILS: judge.py:compare_outputs" in out and "FAILED |" in out


@pytest.mark.parametrize(
    "body",
    [
        "return None",
        "return 0",
        "return 1.0",
        "return 'yes'",
        "return {}",
        "return [True]",
        "return {name: None for name in actual}",
        "return np.array([True, True])",
        "return np.float32(1)",
        "return actual['no such output']",
        "raise SystemExit(0)",
    ],
)
def test_what_is_no_verdict_concludes_nothing(model: str, body: str, capsys: Captured) -> None:
    assert compared(model, body) == 4
    assert "judge.py" in capsys.readouterr().err


def test_what_a_function_does_to_its_arrays_changes_nothing_else(model: str) -> None:
    body = (
        "same = all(np.allclose(actual[n], expected[n]) for n in actual); "
        "[v.fill(7) for v in expected.values()]; return same"
    )
    assert compared(model, body, "--engine", "onnxrt:optimization=none") == 0


def test_tolerances_beside_a_function_are_said_to_have_no_effect(model: str, capsys: Captured) -> None:
    assert compared(model, "return True", "--atol", "1") == 0
    assert "--atol has no effect" in capsys.readouterr().err


def test_a_function_that_is_not_there_is_wrong_usage(model: str, capsys: Captured) -> None:
    Path("judge.py").write_text("def other(a, b): return True\n")
    words = ["run", model, "--reference", "--onnxrt", "--compare-func-script"]
    assert main([*words, "judge.py"]) == 2
    assert "--compare-func-script judge.py:other" in capsys.readouterr().err
    assert main([*words, "judge.py:other"]) == 0
    assert main([*words, "missing.py"]) == 2


def test_outputs_pass_through_a_function_before_they_are_compared(model: str) -> None:
    Path("post.py").write_text("def postprocess_outputs(outputs):\n    return {k: v * 0 for k, v in outputs.items()}\n")
    Path("golden.py").write_text(
        "def postprocess_outputs(outputs):\n"
        "    return {k: v + (outputs.runner_name[0] == 'g') for k, v in outputs.items()}\n"
    )
    assert main(["run", model, "--onnxrt", "--save-inputs", "i.npz", "--save-outputs", "golden.npz"]) == 0
    other = ["run", model, "--onnxrt", "--val-range", "[5,6]", "--load-outputs", "golden.npz"]
    assert main(other) == 1
    assert main([*other, "--postprocess-func-script", "post.py"]) == 0
    right = ["run", model, "--onnxrt", "--load-inputs", "i.npz", "--load-outputs", "golden.npz"]
    assert main([*right, "--postprocess-func-script", "golden.py"]) == 1


def test_a_postprocessing_function_that_gives_no_tensors_concludes_nothing(model: str, capsys: Captured) -> None:
    Path("post.py").write_text("def postprocess_outputs(outputs):\n    pass\n")
    assert main(["run", model, "--onnxrt", "--reference", "--postprocess-func-script", "post.py"]) == 4
    assert "not a dictionary of tensors" in capsys.readouterr().err


def test_saved_outputs_are_judged_by_a_function_too(model: str) -> None:
    Path("judge.py").write_text("def compare_outputs(actual, expected): return False\n")
    for name in ("a.npz", "b.npz"):
        assert main(["run", model, "--onnxrt", "--save-outputs", name]) == 0
    words = ["run", model, "--load-outputs", "a.npz", "b.npz"]
    assert main(words) == 0
    assert main([*words, "--compare-func-script", "judge.py"]) == 1


def test_the_words_of_a_check_name_its_functions(model: str) -> None:
    Path("judge.py").write_text("")
    check = parse(["biopsy", "run", "{}", "--onnxrt", "--compare-func-script", "judge.py:mine"])
    assert check.compares_recorded is None
    assert (Path("judge.py"), True) in list(check.files_named())
    assert Path("judge.py") in check.files("polygraphy_debug.onnx")
