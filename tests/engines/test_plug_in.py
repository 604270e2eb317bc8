"""The engine that the documentation shows, installed for real, and broken ones beside it, each in real processes."""

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.models import chain, save
from support.pages import ROOT, blocks, commands, compare
from support.plug_ins import install

PAGE = ROOT / "docs" / "how-to" / "write-an-engine.md"


def type_in(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(folder / "site"), "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(
        shlex.split(command), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the page's files, its package installed in ``site`` beside them."""
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    (tmp_path / "make_model.py").write_text(files["make_model.py"])
    project = configparser.ConfigParser()
    project.optionxform = str  # type: ignore[assignment, method-assign]
    project.read_string(files["pyproject.toml"])
    declared = project['project.entry-points."biopsy.engines"']
    name = project["project"]["name"].strip('"')
    install(
        tmp_path / "site", name, "", "\n".join(f"{key} = {value.strip(chr(34))}" for key, value in declared.items())
    )
    for module in re.findall(r'"(\w+)"', project["tool.setuptools"]["py-modules"]):
        (tmp_path / "site" / f"{module}.py").write_text(files[f"{module}.py"])
    return tmp_path


@pytest.mark.slow
def test_the_page_shows_what_happens(installed: Path):
    typed = [one for block in blocks(PAGE) if block.text.startswith("$ ") for one in commands(block)]
    assert [one.command.split()[0] for one in typed] == ["pip", "biopsy", "python", "biopsy", "biopsy"]
    for one in typed[1:]:
        compare(one.shown, type_in(installed, one.command).stdout, one.command)


def test_the_engine_agrees_with_onnxruntime_and_its_option_matters(installed: Path):
    path = save(chain(4, ("Tanh", "Relu")), installed / "m.onnx")
    done = type_in(installed, f"biopsy run '{path}' --onnxrt --engine tiny")
    assert done.returncode == 0, done.stdout
    done = type_in(installed, f"biopsy run '{path}' --onnxrt --engine tiny:precision=float16")
    assert done.returncode == 1, done.stdout
    assert "tiny:precision=float16 differs from onnxrt" in done.stdout


BROKEN = {
    "no-import": ("import libfoo_that_nobody_has\n", "No module named 'libfoo_that_nobody_has'"),
    "no-syntax": ("class Engine(:\n", "SyntaxError"),
    "no-attribute": ("", "has no attribute 'Mine'"),
    "no-engine": ("Mine = dict\n", "it is not a subclass of Engine"),
    "no-build": (
        "from biopsy.engines.base import Engine\nclass Mine(Engine):\n    name = summary = package = 'x'\n",
        "it lacks build, version",
    ),
    "no-options": (
        "from biopsy.engines.base import Engine\nclass Mine(Engine):\n    name = summary = package = 'x'\n"
        "    options_declared = 3\n    build = version = None\n",
        "options_declared is not a tuple of Option",
    ),
    "no-exit": ("raise SystemExit('no licence')\n", "no licence"),
}


@pytest.fixture
def broken(installed: Path) -> Path:
    for name, (module, _) in BROKEN.items():
        install(installed / "site", name, module, f"{name} = {name.replace('-', '_')}:Mine")
    return installed


def test_doctor_names_every_broken_plug_in_and_shows_the_others(broken: Path):
    done = type_in(broken, "biopsy doctor")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    for name, (_, reason) in BROKEN.items():
        line = next(line for line in lines if line.startswith(f"{name} "))
        assert f"of package {name}) is broken" in line
        assert reason in line
    for name in ("onnxrt", "reference", "tiny"):
        assert "does not work" not in next(line for line in lines if line.startswith(f"{name} "))


def test_doctor_tells_of_a_broken_plug_in_that_is_asked_for(broken: Path):
    done = type_in(broken, "biopsy doctor no-import")
    assert done.returncode == 4
    assert "No module named 'libfoo_that_nobody_has'" in done.stdout


@pytest.mark.parametrize("engine", ["tiny", "onnxrt", "reference"])
def test_commands_that_do_not_ask_for_a_broken_plug_in_go_on_without_it(broken: Path, engine: str):
    path = save(chain(2, ("Tanh",)), broken / "m.onnx")
    done = type_in(broken, f"biopsy run '{path}' --engine {engine}")
    assert done.returncode == 0, done.stdout
    assert "broken" not in done.stdout


def test_a_command_that_asks_for_it_concludes_nothing_and_says_why(broken: Path):
    path = save(chain(2, ("Tanh",)), broken / "m.onnx")
    done = type_in(broken, f"biopsy run '{path}' --engine no-engine")
    assert done.returncode == 4
    assert "the plug-in of engine 'no-engine' (no_engine:Mine of package no-engine) is broken" in done.stdout


def test_the_test_of_the_page_passes_for_its_engine(installed: Path):
    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    (installed / "test_tiny.py").write_text(files["test_tiny.py"])
    done = type_in(installed, f"'{sys.executable}' -m pytest -q -p no:cacheprovider test_tiny.py")
    assert done.returncode == 0, done.stdout
