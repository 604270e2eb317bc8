"""``--package``: the release that engines are run from, installed from an index of our own."""

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from biopsy.cli.app import main
from support.command_line import typed
from support.made_up_release import PACKAGE
from support.models import chain, info, save
from support.package_index import PackageIndex, only_index

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    """An index with two made-up releases of onnxruntime, the newer of which is wrong; a model stands in the folder."""
    made = chain(3, ("Identity",))
    for old, port in (("t0", made.graph.input[0]), ("t3", made.graph.output[0])):
        new = {"t0": "x", "t3": "y"}[old]
        port.CopyFrom(info(new, (2,)))
        for node in made.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    save(made, tmp_path / "model.onnx")
    with only_index(tmp_path, monkeypatch) as running:
        for version, plus in (("0.1", 0), ("0.2", 1)):
            source = PACKAGE.replace("0.0.7", version).replace('"plus", 0', f'"plus", {plus}')
            modules = {"onnxruntime/__init__.py": source, "numpy.pth": sysconfig.get_paths()["platlib"]}
            running.add("onnxruntime", version, modules=modules)
        monkeypatch.chdir(tmp_path)
        yield running


def test_a_release_is_installed_said_and_compared_with_another(index: PackageIndex) -> None:
    ran = typed("run", "model.onnx", "--engine", "onnxrt:release=0.1", "--engine", "onnxrt:release=0.2",
                "--report", "report.json")  # fmt: skip
    assert ran.status == 1, ran.told
    assert "onnxruntime==0.1" in ran.told
    assert "'y' of onnxrt:release=0.2 differs from onnxrt:release=0.1" in ran.told
    told = json.loads(Path("report.json").read_text())["versions"]["engines"]
    assert [engine["version"] for engine in told] == ["0.1", "0.2"]
    assert told[0]["environment"]["onnxruntime"] == "0.1"
    assert told[0]["environment"]["python"] == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.slow
def test_a_package_is_that_of_the_engines_that_name_no_release(index: PackageIndex) -> None:
    ran = typed("run", "model.onnx", "--package", "onnxruntime==0.2", "--engine", "onnxrt:release=0.1", "--onnxrt")
    assert "'y' of onnxrt:release=0.2 differs from onnxrt:release=0.1" in ran.told


@pytest.mark.slow
def test_a_package_alone_names_its_engine(index: PackageIndex) -> None:
    ran = typed("run", "model.onnx", "--package", "onnxruntime==0.2")
    assert ran.status == 0, ran.told
    assert "PASSED | onnxrt:release=0.2 ran" in ran.told


@pytest.mark.slow
def test_a_reduction_is_made_with_a_release_and_its_journal_is_refused_by_another(index: PackageIndex) -> None:
    line = ("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--check", "biopsy", "run", "{}", "--reference",
            "--onnxrt")  # fmt: skip
    passing = typed(*line[:5], "--package", "onnxruntime==0.1", *line[5:])
    assert passing.status == 3, passing.told
    stopped = typed(*line[:5], "--package", "onnxruntime==0.2", "--allow-vacuous-check", "--max-checks", "2", *line[5:])
    assert stopped.status == 5, stopped.told
    assert "onnxrt:release=0.2" in stopped.told
    other = typed(*line[:5], "--package", "onnxruntime==0.1", "--allow-vacuous-check", *line[5:])
    assert other.status == 2, other.told
    assert "journal" in other.told


@pytest.mark.slow
def test_a_foreign_check_gets_the_interpreter_of_the_release(index: PackageIndex) -> None:
    Path("check.py").write_text("import onnxruntime, sys; sys.exit(onnxruntime.__version__ == '0.2')")
    line = ("debug", "reduce", "model.onnx", "-o", "reduced.onnx", "--allow-vacuous-check", "--package")
    assert typed(*line, "onnxruntime==0.1", "--check", "{python}", "check.py", "{}").status == 3
    assert typed(*line, "onnxruntime==0.2", "--check", "{python}", "check.py", "{}").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run m.onnx --package onnxruntime --onnxrt", "--package onnxruntime is not NAME==VERSION"),
        ("run m.onnx --package onnxruntime>=1.20 --onnxrt", "--package onnxruntime>=1.20 is not NAME==VERSION"),
        ("run m.onnx --package openvino==2025.1.0 --onnxrt", "is of the engine openvino, and what runs here is onnxrt"),
        ("run m.onnx --package six==1.0 --onnxrt", "--package six==1.0 is of no engine that runs here: onnxrt"),
        ("run m.onnx --with numpy<2 --onnxrt", "--with belongs to --package, which is missing"),
        ("run m.onnx --python 3.11 --onnxrt", "--python belongs to --package, which is missing"),
        ("run m.onnx --package onnxruntime==1 --package onnxruntime==2 --onnxrt", "onnxruntime is given twice"),
        ("run m.onnx --engine trt:release=10", "engine 'trt' cannot be run from another release"),
        ("debug reduce m.onnx --python 3.11 --check biopsy run {} --onnxrt", "--python belongs to --package"),
        ("debug reduce m.onnx --package onnxruntime==1", "--package belongs to a check, and there is none"),
        ("debug reduce m.onnx --package onnxruntime==1 --check python c.py {}", "say where its interpreter goes"),
        ("debug reduce m.onnx --package onnxruntime==1 --check biopsy inspect model {}", "this check runs no engine"),
        ("debug reduce m.onnx --package onnx==1 --check biopsy run {} --onnxrt", "is of the engine reference"),
        ("debug reduce m.onnx --package onnxruntime==1 --with ./x --check biopsy run {} --onnxrt", "with=./x is not"),
    ],
)
def test_misuse_is_one_clear_line(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(1), Path("m.onnx"))
    assert main(words.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert said in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run m.onnx --package onnxslim --onnxrt", "next  --package onnxslim==VERSION"),
        ("run m.onnx --package onnxruntme==1.20.1 --onnxrt", "hint  did you mean 'onnxruntime'?"),
        ("debug flags m.onnx --package onnxruntime==1.20.1 --check x", "--engine NAME:release=VERSION"),
    ],
)
def test_misuse_tells_what_to_type(
    words: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(1), Path("m.onnx"))
    assert main(words.split()) == 2
    assert told in capsys.readouterr().err


def test_a_release_that_there_is_not_is_said(index: PackageIndex) -> None:
    ran = typed("run", "model.onnx", "--engine", "onnxrt:release=9.9")
    assert ran.status == 4
    assert "9.9" in ran.told
