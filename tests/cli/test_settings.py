"""Options that a project gives once for all: they count as if typed, and a typed option counts more."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy.cli import settings as settings_files
from biopsy.cli.app import main
from biopsy.cli.commands import COMMANDS
from biopsy.cli.parser import parser_of
from biopsy.cli.settings import applied
from biopsy.errors import UsageError
from biopsy.tensors.files import write_feeds

MODEL = "<ir_version: 9, opset_import: ['' : 17]> g (float[N] x) => (float[N] y) { t = Exp (x) y = Neg (t) }"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, in which somebody works."""
    onnx.save(onnx.parser.parse_model(MODEL.replace("'", '"')), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settle(project: Path, text: str) -> None:
    (project / "biopsy.toml").write_text(text)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main(list(words))
    output = capsys.readouterr()
    return status, output.out + output.err


def test_options_of_the_project_count_as_if_typed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engines = '["onnxrt:optimization=none", "reference"]'
    settle(project, f'engines = {engines}\natol = 0.5\ninput-shapes = ["x:[3]"]\nvalidate = true\n')
    status, shown = told(capsys, "run", "model.onnx")
    assert status == 0
    words = "--engine onnxrt:optimization=none --engine reference --atol 0.5 --input-shapes 'x:[3]' --validate"
    assert f"settings   biopsy.toml: {words}" in shown
    settings = "atol=0.5, engines=onnxrt:optimization=none reference, input-shapes='x:[3]'"
    assert f"PASSED, with {settings} of biopsy.toml | 1 output compared" in shown


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--onnxrt"], "--atol 0.5 --seed 3"),
        (["--onnxrt", "--abs-tol", "0.25"], "--seed 3"),
        (["--onnxrt", "--atol=0.25", "--seed", "4"], None),
        (["--engine", "reference"], "--atol 0.5 --seed 3"),
    ],
)
def test_an_option_that_is_typed_in_any_spelling_takes_the_place_of_the_projects(
    project: Path, capsys: pytest.CaptureFixture[str], typed: list[str], left: str | None
) -> None:
    settle(project, 'engines = ["onnxrt", "reference"]\natol = 0.5\nseed = 3\n')
    _, shown = told(capsys, "run", "model.onnx", *typed)
    lines = [line for line in shown.split("\n") if line.startswith("settings")]
    assert lines == ([f"settings   biopsy.toml: {left}"] if left else [])


def test_an_option_that_excludes_the_projects_takes_its_place(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, 'load-inputs = "missing.npz"\n')
    (project / "loader.py").write_text("import numpy\ndef load_data():\n    yield {'x': numpy.ones(2, 'float32')}\n")
    status, shown = told(capsys, "run", "model.onnx", "--onnxrt", "--data-loader-script", "loader.py")
    assert status == 0, shown


def test_options_of_the_project_reach_a_check_that_is_a_command_of_ours(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, 'engines = ["onnxrt"]\ninput-shapes = "x:[2]"\n')
    np.savez(project / "golden.npz", y=np.zeros(2, np.float32), t=np.zeros(2, np.float32))
    np.savez(project / "inputs.npz", x=np.zeros(2, np.float32), t=np.ones(2, np.float32))
    words = ["--load-inputs", "inputs.npz", "--load-outputs", "golden.npz"]
    status, shown = told(
        capsys, "debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--check", "biopsy", "run", "{}", *words
    )
    assert status == 0, shown
    assert "settings   biopsy.toml: check: --engine onnxrt --input-shapes 'x:[2]'" in shown
    assert shown.rstrip().endswith("result     with engines=onnxrt, input-shapes='x:[2]' of biopsy.toml")
    assert "1 of 2 nodes" in shown


def test_a_command_that_only_explains_why_it_lacks_an_option_does_not_get_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, 'load-inputs = "inputs.npz"\n')
    status, shown = told(capsys, "convert", "model.onnx", "-o", "written.onnx")
    assert status == 0, shown


def test_a_check_with_a_check_of_its_own_is_left_alone(project: Path) -> None:
    settle(project, 'load-inputs = "inputs.npz"\n')
    command = next(one for one in COMMANDS if one.words == ("debug", "repeat"))
    check = ["biopsy", "debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--check", "check.sh"]
    assert applied("biopsy", command, ["--until", "2"], "--check", check).check == check


def test_operands_behind_two_dashes_stay_operands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, 'engines = ["onnxrt"]\n')
    status, shown = told(capsys, "run", "--", "model.onnx")
    assert status == 0, shown


def test_the_nearest_file_counts_up_to_the_root_of_the_project(tmp_path: Path) -> None:
    inner = tmp_path / "root" / "one" / "two"
    inner.mkdir(parents=True)
    (tmp_path / "biopsy.toml").write_text("seed = 1\n")
    assert settings_files.of_project(inner) is None
    (tmp_path / "root" / ".git").mkdir()
    assert settings_files.of_project(inner) is None
    (tmp_path / "root" / "pyproject.toml").write_text("[tool.biopsy]\nseed = 2\n")
    (tmp_path / "root" / "one" / "pyproject.toml").write_text("[tool.biopsies]\nseed = 3\n")
    found = settings_files.of_project(inner)
    assert found is not None
    assert (found.file, found.values) == (tmp_path / "root" / "pyproject.toml", {"seed": ("2",)})
    (tmp_path / "root" / "one" / "biopsy.toml").write_text("seed = 4\n")
    found = settings_files.of_project(inner)
    assert found is not None
    assert found.values == {"seed": ("4",)}


def test_files_are_meant_from_the_folder_of_the_settings(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settle(project, 'load-inputs = ["in.npz"]\n')
    write_feeds(project / "in.npz", [{"x": np.ones(2, np.float32)}])
    for folder in (project / ".git", project / "deep"):
        folder.mkdir()
    monkeypatch.chdir(project / "deep")
    status, shown = told(capsys, "run", "../model.onnx", "--onnxrt")
    assert status == 0
    assert "settings   ../biopsy.toml: --load-inputs ../in.npz" in shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("atoll = 1\n", "there is no setting 'atoll'"),
        ("save-outputs = 'x.json'\n", "it may not give save-outputs"),
        ("data-loader-script = 'x.py'\n", "it may not give data-loader-script"),
        ("atol = []\n", "atol has no value"),
        ("#" * ((1 << 20) + 1), "is not read for settings: it is larger than 1 MiB"),
        ("[run]\natol = 0.5\n", "there are no sections here, and so no [run]"),
        ("atol = true\n", "atol is text, a number, or a list of them"),
        ("validate = 1\n", "validate is true or false"),
        ("engines = ['--save-outputs=x']\n", "begins with a dash"),
        ("atol = ", "is not valid TOML"),
        ("a" * 100, "is not valid TOML"),
    ],
)
def test_a_setting_that_no_project_may_give_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    settle(project, text)
    status, shown = told(capsys, "run", "model.onnx", "--onnxrt")
    assert status == 2
    assert problem in shown
    assert "biopsy.toml" in shown


@pytest.mark.parametrize("name", ["./--save-outputs=stolen.npz", "sub/../--save-outputs=stolen.npz"])
def test_a_file_that_is_called_like_an_option_is_a_file(
    project: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_feeds(project / "in.npz", [{"x": np.ones(2, np.float32)}])
    settle(project, f"load-inputs = ['in.npz', '{name}']\n")
    status, text = told(capsys, "run", "model.onnx", "--onnxrt")
    assert status == 2
    assert "--load-inputs in.npz ./--save-outputs=stolen.npz" in text
    assert not (project / "stolen.npz").exists()


def test_a_wrong_value_names_the_option(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, "seed = -1\n")
    status, shown = told(capsys, "run", "model.onnx", "--onnxrt")
    assert status == 2
    assert "--seed" in shown


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_settings_of_another_user_are_not_followed(project: Path) -> None:
    settle(project, "seed = 1\n")
    os.chown(project / "biopsy.toml", 12345, 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        settings_files.of_project(project)


def test_validate_is_no_list(project: Path) -> None:
    settle(project, "validate = [true, true]\n")
    with pytest.raises(UsageError, match="a switch is true or false"):
        settings_files.of_project(project)


def test_the_help_of_a_command_needs_no_settings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, "no TOML")
    assert main(["run", "--help"]) == 0


def test_doctor_shows_the_settings(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(project, 'engines = ["onnxrt", "reference"]\natol = 0.5\n')
    status, shown = told(capsys, "doctor")
    assert status == 0
    assert f"settings of this project, in {project / 'biopsy.toml'}" in shown
    assert "engines  onnxrt, reference" in shown


def test_every_setting_is_an_option_of_run() -> None:
    run = parser_of("biopsy", next(command for command in COMMANDS if command.words == ("run",)))
    for key in settings_files.shared_keys():
        assert run.has_option("--engine" if key == settings_files.ENGINES else f"--{key}"), key
