"""What ``import biopsy`` gives: names that stay."""

import inspect
import subprocess
import sys

import pytest

import biopsy

NAMES = [
    "BiopsyError",
    "CannotCompare",
    "CheckError",
    "DataError",
    "EngineFailure",
    "EngineMissing",
    "Interrupted",
    "Iteration",
    "ModelError",
    "OriginalPasses",
    "Outcome",
    "OutputComparison",
    "Reduction",
    "RunComparison",
    "RunnerResult",
    "UsageError",
    "compare",
    "reduce",
    "run",
]


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(biopsy.__all__) == NAMES
    assert dir(biopsy) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_can_be_had_and_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(biopsy, name))


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
