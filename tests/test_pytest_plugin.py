"""The pytest plug-in: real engines, in a pytest of their own."""

import json
import re
import tomllib
from pathlib import Path

import onnx
import pytest

from biopsy.cli.demo import demonstration_model
from support import bug
from support.models import chain, save
from support.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "test-models-with-pytest.md"
PLUG_IN = "biopsy.pytest_plugin"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with the plug-in alone, whether or not this installation of biopsy has its entry point."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")
    (pytester.path / "models").mkdir()
    save(chain(3, ["Relu", "Neg", "Abs"]), pytester.path / "models" / "m.onnx")
    return pytester


def run(project: pytest.Pytester, test: str, *words: str) -> tuple[pytest.RunResult, str]:
    """The outcome of one test, and what pytest shows of its failure."""
    project.makepyfile(test_models=f"import numpy as np\n\n\ndef test_model(onnx_engines):\n    {test}\n")
    result = project.runpytest_subprocess("-p", PLUG_IN, "-q", "--tb=short", *words)
    shown = re.search(r"_ test_model _+\n(.*?)(?:\n-+ Captured|\n=+ short)", result.stdout.str(), re.DOTALL)
    return result, shown[1] if shown else ""


def test_the_entry_point_is_the_plug_in() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert settings["entry-points"]["pytest11"] == {"biopsy": PLUG_IN}
    assert "pytest>=8.3" in settings["optional-dependencies"]["pytest"]


def test_the_plug_in_loads_nothing_else_of_biopsy_when_pytest_starts(project: pytest.Pytester) -> None:
    project.makepyfile(
        "import sys\n\n\ndef test_loaded():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith(('biopsy', 'numpy', 'onnx')))\n"
        "    assert ours == ['biopsy', 'biopsy.pytest_plugin']\n"
    )
    project.runpytest_subprocess("-p", PLUG_IN).assert_outcomes(passed=1)


def test_models_on_which_engines_agree_pass_from_any_folder_and_also_in_memory_and_with_given_inputs(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.makepyfile(
        test_models="import numpy as np\nimport onnx\n\n\n"
        "def test_file(onnx_engines):\n    onnx_engines.check('models/m.onnx', onnxrt=True)\n\n\n"
        "def test_in_memory(onnx_engines):\n"
        "    inputs = {'t0': np.ones((2, 2), np.float32)}\n"
        "    tolerances = {'': 1e-5, 't3': 1e-4}\n"
        "    model = onnx.load('m.onnx')\n"
        "    onnx_engines.check(model, onnxrt=True, reference=True, inputs=inputs, atol=tolerances)\n"
    )
    monkeypatch.chdir(project.path / "models")
    result = project.runpytest_subprocess("-p", PLUG_IN, "--rootdir", str(project.path), str(project.path))
    result.assert_outcomes(passed=2)


def test_a_model_that_fails_says_how_and_what_to_type_next_without_a_traceback(project: pytest.Pytester) -> None:
    (project.path / "biopsy.toml").write_text("atol = 1e9\n")  # decides nothing in a test
    check = "onnx_engines.check('models/m.onnx', reference=True, fake={'scale.n1': 1.5}, rtol=0)"
    result, shown = run(project, check, "--biopsy=off")
    result.assert_outcomes(failed=1)
    lines = shown.splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith("models/m.onnx: 't3' of fake:scale.n1=1.5 differs from reference")
    assert lines[-1].strip().startswith("biopsy diagnose models/m.onnx --engine reference --engine fake:scale.n1=1.5")
    assert "Traceback" not in shown
    assert "engine_tests.py" not in shown
    assert not list(project.path.rglob("bundle"))


def test_reduce_finds_the_piece_and_keeps_a_bundle_of_it_for_each_failing_test(project: pytest.Pytester) -> None:
    check = "onnx_engines.check('models/m.onnx', reference=True, fake={'scale.Neg': 1.5}, atol=1e-3, rtol=0)"
    result, shown = run(project, check, "--biopsy=reduce", "--biopsy-dir=kept", "-p", "xdist", "-n", "1")
    result.assert_outcomes(failed=1)
    (folder,) = (project.path / "kept").iterdir()
    assert folder.name == "test_models.py-test_model"
    report = json.loads((folder / "report.json").read_bytes())
    assert [node["op_type"] for node in report["piece"]["nodes"]] == ["Neg"]
    assert [node.op_type for node in onnx.load(folder / "bundle" / "model.onnx").graph.node] == ["Neg"]
    lines = shown.splitlines()
    assert len(lines) <= 15
    for line in (
        report["verdict"]["text"],
        "piece      Neg 'n1'",
        f"bundle     {folder / 'bundle'}",
        f"report     {folder / 'report.json'}",
    ):
        assert line in lines


@pytest.mark.slow
def test_a_diagnosis_is_the_message_of_a_real_bug_and_reduces_it(project: pytest.Pytester) -> None:
    bug.skip_without_it()
    save(demonstration_model(), project.path / "models" / "wrong.onnx")
    check = "onnx_engines.check('models/wrong.onnx', onnxrt=[{'optimization': 'none'}, {}], atol=1e-3, rtol=1e-3)"
    result, shown = run(project, check, "--biopsy-dir=kept", "--biopsy-max-time=5m")
    result.assert_outcomes(failed=1)
    (folder,) = (project.path / "kept").iterdir()
    report = json.loads((folder / "report.json").read_bytes())
    assert report["command"] == "diagnose"
    assert len(report["piece"]["nodes"]) <= 6
    lines = shown.splitlines()
    assert len(lines) <= 15
    assert report["verdict"]["text"] in lines
    assert f"bundle     {folder / 'bundle'}" in lines
    assert (folder / "bundle" / "reproduce.py").is_file()


@pytest.mark.slow
def test_an_engine_that_crashes_fails_its_test_alone(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_models="def test_crash(onnx_engines):\n"
        "    onnx_engines.check('models/m.onnx', reference=True, fake={'crash.n1': 'run'})\n\n\n"
        "def test_right(onnx_engines):\n    onnx_engines.check('models/m.onnx', reference=True, onnxrt=True)\n"
    )
    result = project.runpytest_subprocess("-p", PLUG_IN, "-p", "xdist", "-n", "1", "--biopsy=off")
    result.assert_outcomes(failed=1, passed=1)
    assert "models/m.onnx: fake:crash.n1=run" in result.stdout.str()


NOTHING_TO_COMPARE = {
    "'models/gone.onnx'": "models/gone.onnx: there is no such file",
    "'models/m.onnx', onnxrt=True, atoll=1e-3": "did you mean atol=...?",
    "'models/m.onnx', onnxrt={'optimisation': 'none'}": "optimization",
    "'models/m.onnx', onnxrt=False": "no engine is left to run",
    "'models/m.onnx', onnxrt=True, atol=-1": "atol=-1: it is a number, 0 or more",
    "'models/m.onnx', reference=True, fake=True, inputs={'t0': np.ones((3, 3), np.float32)}": "nothing could be",
}


def test_what_cannot_be_compared_is_no_pass(project: pytest.Pytester) -> None:
    tests = [
        f"def test_{number}(onnx_engines):\n    onnx_engines.check({arguments})\n"
        for number, arguments in enumerate(NOTHING_TO_COMPARE)
    ]
    project.makepyfile(test_models="import numpy as np\n\n\n" + "\n\n".join(tests))
    result = project.runpytest_subprocess("-p", PLUG_IN, "-q", "--tb=short")
    result.assert_outcomes(failed=len(NOTHING_TO_COMPARE))
    failures = result.stdout.str().partition("short test summary")[0]
    assert "Traceback" not in failures
    for number, (arguments, told) in enumerate(NOTHING_TO_COMPARE.items()):
        shown = re.search(rf"_ test_{number} _+\n(.*?)\n[_=-]{{3}}", failures, re.DOTALL)
        assert shown and told in shown[1], arguments
        assert len(shown[1].splitlines()) <= 15


def test_the_page_shows_tests_that_pass_and_a_workflow_that_is_yaml(project: pytest.Pytester) -> None:
    import yaml

    files = {block.file: block.text for block in blocks(PAGE) if block.file}
    (project.path / "test_models.py").write_text(files["test_models.py"])
    exec(compile(files["make_model.py"], "make_model.py", "exec"), {})
    result = project.runpytest_subprocess("-p", PLUG_IN)
    result.assert_outcomes(passed=2)
    steps = yaml.safe_load(files["models.yml"])["jobs"]["test"]["steps"]
    (line,) = (step["run"] for step in steps if step.get("run", "").startswith("pytest"))
    for option in (word.partition("=")[0] for word in line.split() if word.startswith("--")):
        assert f'"{option}"' in Path(ROOT / "src/biopsy/pytest_plugin.py").read_text(encoding="utf-8")
