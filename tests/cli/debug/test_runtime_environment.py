"""The file of ``--runtime-env``: its three forms, and what is refused in one line before any machine is asked."""

from pathlib import Path

import pytest

from biopsy import errors
from biopsy.cli.app import main
from biopsy.cli.debug.other_machines import runtime_environment
from support.models import chain, save


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "fields"),
    [
        ("r.txt", "# engines\nonnxruntime==1.20.1\n\nnumpy<3\n", {"pip": ["onnxruntime==1.20.1", "numpy<3"]}),
        ("e.yaml", "pip: [numpy]\nenv_vars: {THREADS: 1}\n", {"pip": ["numpy"], "env_vars": {"THREADS": "1"}}),
        ("e.yml", "image_uri: ray:2.60", {"image_uri": "ray:2.60"}),
        ("e.json", '{"conda": {"dependencies": ["python=3.11"]}}', {"conda": {"dependencies": ["python=3.11"]}}),
    ],
)
def test_the_form_follows_from_the_name(name: str, text: str, fields: dict[str, object]) -> None:
    assert runtime_environment(written(name, text)) == fields


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("e.toml", "pip = []", r"e\.toml: its name says no form"),
        ("e.yaml", "", "it holds no fields"),
        ("e.yaml", "- pip", "it holds no fields"),
        ("e.yaml", "pip: [numpy", r"e\.yaml: line 2"),
        ("e.yaml", "a: &x [1]\nb: *x", "anchors"),
        ("e.yaml", "pipp: [numpy]", "there is no field 'pipp'"),
        ("e.yaml", "working_dir: .", "working_dir would send files that no check names"),
        ("e.json", '{"py_modules": ["m"]}', "py_modules would send files"),
        ("e.yaml", "worker_process_setup_hook: os.abort", "there is no field 'worker_process_setup_hook'"),
    ],
)
def test_what_is_no_such_environment_is_refused(name: str, text: str, match: str) -> None:
    with pytest.raises(errors.UsageError, match=match):
        runtime_environment(written(name, text))


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(2), Path("m.onnx"))
    words = ["debug", "reduce", "m.onnx", "--on", "ray", "--runtime-env", "e.yaml", "--check", "true", "{}"]
    assert main(words) == 2
    assert "e.yaml: No such file" in capsys.readouterr().err


def test_it_speaks_of_other_machines_alone(capsys: pytest.CaptureFixture[str]) -> None:
    save(chain(2), Path("m.onnx"))
    written("r.txt", "numpy")
    assert main(["debug", "reduce", "m.onnx", "--runtime-env", "r.txt", "--check", "true", "{}"]) == 2
    assert "--runtime-env is for the machines of --on" in capsys.readouterr().err
