"""Where the script of a bundle is run: biopsy cannot be imported or called there, and all other packages can."""

import subprocess
from pathlib import Path

import pytest

from biopsy.findings.bundle.reproduction import CleanEnvironment, clean_environment
from support.command_line import environment

TRIED = """
import importlib.util, subprocess, sys
for name in ("biopsy", "biopsy.cli.app", "polygraphy"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print("no", error.name)
    else:
        print("IMPORTED", name)
import numpy, onnx
print("packages", numpy.__name__, onnx.__name__)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"])
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return clean_environment(tmp_path_factory.mktemp("clean") / "environment")


def run(clean: CleanEnvironment, *words: str) -> subprocess.CompletedProcess[str]:
    variables = environment(clean.variables)
    return subprocess.run(words, env=variables | dict(clean.variables), capture_output=True, text=True, timeout=60)


def test_biopsy_cannot_be_imported_not_even_by_a_child_and_what_it_needs_can(
    clean: CleanEnvironment, tmp_path: Path
) -> None:
    script = tmp_path / "tried.py"
    script.write_text(TRIED)
    done = run(clean, str(clean.python), str(script))
    once = ["no biopsy", "no biopsy", "no polygraphy", "packages numpy onnx"]
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == sorted(once * 2)


def test_pythonpath_does_not_bring_it_back(clean: CleanEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    import biopsy

    monkeypatch.setenv("PYTHONPATH", str(Path(biopsy.__file__).parents[1]))
    assert "No module named 'biopsy'" in run(clean, str(clean.python), "-c", "import biopsy").stderr


@pytest.mark.parametrize("program", ["biopsy", "polygraphy"])
def test_the_program_is_not_there_either(clean: CleanEnvironment, program: str) -> None:
    done = run(clean, "/bin/sh", "-c", f"{program} --version")
    assert (done.returncode, "not installed" in done.stderr) == (127, True)


def test_python_on_the_path_is_that_of_the_environment(clean: CleanEnvironment) -> None:
    done = run(clean, "/bin/sh", "-c", "python -c 'import sys; print(sys.prefix)'")
    assert done.stdout.strip() == str(clean.python.parents[1])
