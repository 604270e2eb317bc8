"""What ``import biopsy`` gives: names that stay."""

import ast
import dataclasses
import doctest
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy
import pytest

import biopsy
from support.distributions import built, copy_of_the_project, skip_without_setuptools
from support.pages import ROOT

NAMES = [
    "BiopsyError",
    "BuildFindings",
    "CannotCompare",
    "CannotInstall",
    "CheckError",
    "DataError",
    "DiagnosedModel",
    "EngineFailure",
    "EngineMissing",
    "Flags",
    "HighPrecisionFails",
    "Hunt",
    "Interrupted",
    "Iteration",
    "KnownLookup",
    "LayerFindings",
    "ModelError",
    "OriginalPasses",
    "Outcome",
    "OutputComparison",
    "PrecisionResult",
    "RayExecutor",
    "ReducedModel",
    "ReleaseFindings",
    "Rules",
    "RunComparison",
    "RunnerResult",
    "TransformationFindings",
    "UnknownEngine",
    "UsageError",
    "Variation",
    "Workarounds",
    "build",
    "compare",
    "diagnose",
    "flags",
    "hunt",
    "known",
    "layers",
    "precision",
    "reduce",
    "releases",
    "run",
    "transform",
    "vary",
    "workaround",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(biopsy.__all__) == NAMES
    assert dir(biopsy) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_had_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(biopsy, name))


def test_no_public_name_is_that_of_a_module_which_would_take_its_place_once_imported() -> None:
    rooms = {module.name for module in pkgutil.iter_modules(biopsy.__path__)}
    assert not rooms & set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if dataclasses.is_dataclass(getattr(biopsy, name))])
def test_every_record_is_frozen_and_short_to_look_at(name: str) -> None:
    record = getattr(biopsy, name)
    assert record.__dataclass_params__.frozen
    is_option = name in {"Rules"}
    assert is_option or {"__repr__", "_repr_html_"} <= set().union(*map(vars, record.__mro__[:2]))


def test_what_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bisect'"):
        biopsy.bisect  # noqa: B018 -- the access is the test


def test_importing_the_package_imports_nothing_of_it() -> None:
    code = "import sys, biopsy; print(*(name for name in sys.modules if name.startswith(('biopsy.', 'numpy', 'onnx'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_options_of_the_functions_keep_their_names_and_defaults() -> None:
    def options(function: object) -> list[str]:
        return [
            f"{parameter.name}={parameter.default!r}" if parameter.default is not parameter.empty else parameter.name
            for parameter in inspect.signature(function).parameters.values()  # type: ignore[arg-type]
            if parameter.name != "listener"
        ]

    assert options(biopsy.run) == [
        "model", "engines=('onnxrt',)", "inputs=None", "outputs=None", "iterations=1", "seed=1", "val_range=None",
        "input_shapes=None", "external_data_dir=None",
    ]  # fmt: skip
    assert options(biopsy.compare) == ["actual", "expected", "atol=1e-05", "rtol=1e-05", "check_error_stat='elemwise'"]
    assert options(biopsy.reduce)[:6] == [
        "model", "check", "output='reduced.onnx'", "takes=None", "mode='minimal'", "inputs=None",
    ]  # fmt: skip


COMMANDS = {
    "run": "run", "diagnose": "diagnose", "reduce": "debug reduce", "layers": "debug layers", "flags": "debug flags",
    "precision": "debug precision", "build": "debug build", "releases": "debug version", "known": "debug known",
    "transform": "debug transform", "workaround": "debug workaround", "hunt": "hunt",
}  # fmt: skip
ONLY_HERE = {"model", "models", "piece", "listener", "takes", "executor", "rules", "journal"}
"""Arguments that are no option of a command: what is asked about, and what only Python has."""
OTHER_WORDS = {
    "inputs": "load_inputs", "engines": "engine", "outputs": "onnx_outputs", "directory": "dir", "folders": "known_dir",
    "beside": "with", "every": "all", "packages": "package", "kinds": "only", "low": "precision", "high": "native",
    "form": "emulate",
}  # fmt: skip
"""Arguments with another word than the option: that is a word of Python, or several options are one argument."""


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_are_the_options_of_the_command_by_the_same_names(name: str) -> None:
    page = ROOT / "docs" / "reference" / "commands" / f"{COMMANDS[name].replace(' ', '-')}.md"
    section = page.read_text(encoding="utf-8")
    section = section.replace("--model-input-shapes", "--model-input-shapes --input-shapes")  # one option of run
    options = {option.replace("-", "_") for option in re.findall(r"--([a-z][\w-]*)", section)}
    arguments = inspect.signature(getattr(biopsy, name)).parameters.keys() - ONLY_HERE
    assert {OTHER_WORDS.get(argument, argument) for argument in arguments} <= options


FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(biopsy, name))]


@pytest.mark.parametrize("name", [*FUNCTIONS, "RayExecutor"])
def test_help_has_an_example_that_fits_the_signature_and_no_address(name: str) -> None:
    shown = pydoc.render_doc(getattr(biopsy, name), renderer=pydoc.plaintext)
    assert " at 0x" not in shown
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(biopsy, name)) or "")
    calls = [node for each in examples for node in ast.walk(ast.parse(each.source)) if isinstance(node, ast.Call)]
    ours = [call for call in calls if ast.unparse(call.func).startswith("biopsy.")]
    assert f"biopsy.{name}" in {ast.unparse(call.func) for call in ours}
    for call in ours:
        function = getattr(biopsy, ast.unparse(call.func).partition(".")[2])
        inspect.signature(function).bind(*call.args, **{word.arg: word.value for word in call.keywords if word.arg})


def test_help_of_the_package_is_about_its_public_names_alone() -> None:
    shown = pydoc.render_doc(biopsy, renderer=pydoc.plaintext)
    assert " at 0x" not in shown
    assert "_HOME" not in shown
    assert all(re.search(rf"^    {name}\b", shown, re.MULTILINE) for name in FUNCTIONS)


def test_the_version_is_that_of_the_package_and_of_the_command() -> None:
    assert biopsy.__version__ == version("biopsy")
    told = subprocess.run(
        [sys.executable, "-m", "biopsy", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout == f"biopsy {biopsy.__version__}\n"


USE = """
from pathlib import Path

import numpy as np
import onnx

import biopsy


def has_mul(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "Mul" for node in model.graph.node)


def main(path: Path) -> tuple[str, ...]:
    results = biopsy.run(path, engines=["onnxrt"], inputs={"x": np.zeros((2, 2), np.float32)})
    comparison: biopsy.RunComparison = biopsy.compare(results[0], results[0], atol={"": 1e-3}, check_error_stat="max")
    print(biopsy.__version__, comparison.passed)
    found: biopsy.ReducedModel = biopsy.reduce(path, has_mul, "r.onnx", max_checks=9)
    findings: biopsy.LayerFindings = biopsy.layers(path, "onnxrt")
    assert findings.passed, findings.suspects
    print(found.page("page.html").name)
    diagnosed: biopsy.DiagnosedModel = biopsy.diagnose(path, max_time=60, jobs=2)
    print(diagnosed.verdict.text, diagnosed.issue())
    return found.nodes
"""

WRONG = """
import biopsy

biopsy.reduce("m.onnx", "biopsy run", mode="fastest")
biopsy.reduce("m.onnx", None)
number: int = biopsy.__version__
"""


@pytest.mark.slow
def test_a_script_is_type_checked_against_the_wheel_that_users_install(tmp_path: Path) -> None:
    """The wheel is built as ``pip install .`` does, unpacked into a fresh environment, and mypy sees nothing else."""
    skip_without_setuptools()
    wheel = built("wheel", copy_of_the_project(tmp_path / "source"), tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    assert (packages / "biopsy" / "py.typed").exists()
    ours = Path(numpy.__file__).parents[1]
    for name in ("numpy", "onnx", "google", "typing_extensions.py", "ml_dtypes"):
        if (ours / name).exists():
            (packages / name).symlink_to(ours / name)
    (tmp_path / "use.py").write_text(USE)
    (tmp_path / "wrong.py").write_text(WRONG)

    def checked(script: str) -> str:
        words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(tmp_path / "env/bin/python")]
        told = subprocess.run([*words, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        return told.stdout + told.stderr

    assert checked("use.py").startswith("Success"), checked("use.py")
    told = checked("wrong.py")
    assert told.count("error:") >= 3, told
    assert '"mode"' in told
