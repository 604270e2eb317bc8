"""What ``import biopsy`` gives: names that stay."""

import dataclasses
import inspect
import pkgutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy
import pytest

import biopsy
from support.distributions import built, copy_of_the_project, skip_without_setuptools

NAMES = [
    "BiopsyError",
    "Border",
    "Budget",
    "BuildFindings",
    "CannotCompare",
    "CannotInstall",
    "CheckError",
    "DataError",
    "Diagnosis",
    "EngineFailure",
    "EngineMissing",
    "Flags",
    "HighPrecisionFails",
    "Interrupted",
    "Iteration",
    "KnownLookup",
    "LayerFindings",
    "ModelError",
    "OriginalPasses",
    "Outcome",
    "OutputComparison",
    "Parallelism",
    "Passes",
    "PrecisionResult",
    "RayExecutor",
    "Reduction",
    "ReleaseFindings",
    "Repeating",
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
    is_option = name in {"Border", "Budget", "Parallelism", "Passes", "Repeating", "Rules"}
    assert is_option or {"__repr__", "_repr_html_"} <= set(vars(record))


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
        "shapes=None", "folder=None",
    ]  # fmt: skip
    assert options(biopsy.compare) == ["actual", "expected", "atol=1e-05", "rtol=1e-05", "stat='elemwise'"]
    assert options(biopsy.reduce)[:6] == [
        "model", "check", "output='reduced.onnx'", "takes='path'", "mode='minimal'", "inputs=None",
    ]  # fmt: skip


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
    comparison: biopsy.RunComparison = biopsy.compare(results[0], results[0], atol={"": 1e-3}, stat="max")
    print(biopsy.__version__, comparison.passed)
    found: biopsy.Reduction = biopsy.reduce(path, has_mul, "r.onnx", takes="model", budget=biopsy.Budget(checks=9))
    findings: biopsy.LayerFindings = biopsy.layers(path, "onnxrt")
    assert findings.passed, findings.suspects
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
