"""A sweep of all node tests of onnx over every engine: no verdict is one that a person would call wrong.

Each of them is run against the outputs that onnx ships, and judged by noise, with our own ``run`` in forks of one warm
process. What a verdict must be is told by a few lines of NumPy here, which share nothing with the program. The counts
below were measured once; they are held to where the same versions are installed, since engines get better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from biopsy.tensors.files import read_results
from biopsy.tensors.results import Array
from support.node_tests import NodeTest, Ran, each_in, node_tests, run_forked, warm_up

pytestmark = pytest.mark.slow

ENGINES = ("onnxrt:optimization=none", "onnxrt", "openvino", "reference")
SUSPECTS = ("onnxrt", "openvino")

MEASURED_WITH = {"onnx": "1.23.2", "onnxruntime": "1.31.1", "openvino": "2026.4.1"}

EXPECTED: Mapping[str, Mapping[str, int]] = {
    "onnxrt:optimization=none": {"passed": 1416, "wrong": 22, "refused": 409, "cannot say": 11},
    "onnxrt": {"passed": 1416, "wrong": 22, "refused": 409, "cannot say": 11},
    "openvino": {"passed": 1412, "wrong": 117, "refused": 320, "cannot say": 9},
    "reference": {"passed": 1826, "wrong": 6, "refused": 12, "cannot say": 14},
    "noise onnxrt": {"passed": 1429, "wrong": 9, "refused": 409, "cannot say": 11},
}
"""How the models end that have only tensors as inputs and outputs: by engine against the shipped outputs, and by
suspect with noise. ``refused``: the engine cannot load, build or run the model."""

WORST_ROUNDING = 1e-2
"""What noise calls rounding is no greater, relative to the greatest value: float16 and bfloat16 are among it."""


@cache
def sweep(folder: Path) -> Mapping[tuple[str, str], Ran]:
    """(name of the test, engine or ``noise ENGINE``) -> how it ended; outputs are saved beside."""
    warm_up("onnxrt", "openvino", "reference")
    found = {}
    for test, place in each_in(folder, [test for test in node_tests() if test.complete]):
        limits = ("--atol", f"{test.atol}", "--rtol", f"{test.rtol}")
        for engine in ENGINES:
            words = ("--engine", engine, "--load-inputs", "inputs.json", "--load-outputs", "golden.json", *limits)
            saved = f"{ENGINES.index(engine)}.json"
            found[test.name, engine] = run_forked(place, (*words, "--save-outputs", saved))
        for engine in SUSPECTS:
            words = ("--engine", engine, "--load-inputs", "inputs.json", "--compare-with", "noise")
            found[test.name, f"noise {engine}"] = run_forked(place, words)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node_tests")


@pytest.fixture(scope="module")
def ran(folder: Path) -> Mapping[tuple[str, str], Ran]:
    return sweep(folder)


@pytest.fixture(scope="module")
def tests() -> Mapping[str, NodeTest]:
    return {test.name: test for test in node_tests() if test.complete}


def kind(one: Ran) -> str:
    """How a command ended, in one word."""
    last = one.printed.strip().splitlines()[-1] if one.printed.strip() else ""
    if one.status == 1 and "failed to" in last:
        return "refused"
    return {0: "passed", 1: "wrong", 4: "cannot say"}.get(one.status, f"status {one.status}")


def outputs(folder: Path, name: str, engine: str) -> Mapping[str, Array] | None:
    """What an engine gave; None if it gave nothing."""
    path = folder / name / f"{ENGINES.index(engine)}.json"
    return read_results(path)[0].iterations[0].outputs if path.exists() else None


def agree(actual: Array, expected: Array, rtol: float, atol: float) -> bool:
    """Whether two tensors are the same within tolerances: the rule of the standard's own test runner."""
    if actual.shape != expected.shape:
        return False
    if expected.dtype.kind in "USO" or actual.dtype.kind in "USO":
        return actual.astype(np.str_).tolist() == expected.astype(np.str_).tolist()
    if expected.dtype.kind in "iub":  # indices and identifiers: compared exactly, whatever the tolerances
        atol = rtol = 0
    return bool(np.all(np.isclose(wide(actual), wide(expected), rtol=rtol, atol=atol, equal_nan=True)))


def wide(value: Array) -> Array:
    return value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)


def far(actual: Array, expected: Array) -> float:
    """The greatest error relative to the greatest expected value; inf where one is not finite alone."""
    if actual.shape != expected.shape:
        return math.inf
    if expected.dtype.kind in "USO" or actual.dtype.kind in "USO":
        return 0.0 if actual.astype(np.str_).tolist() == expected.astype(np.str_).tolist() else math.inf
    one, other = wide(actual), wide(expected)
    odd = ~(np.isfinite(one) & np.isfinite(other))
    if not np.array_equal(one[odd], other[odd], equal_nan=True):
        return math.inf
    error, size = np.abs(one[~odd] - other[~odd]).max(initial=0), np.abs(other[~odd]).max(initial=0)
    return float(error / size) if size else float(error > 0) * math.inf if error else 0.0


def test_nothing_crashes_and_every_status_is_documented(ran: Mapping[tuple[str, str], Ran]) -> None:
    assert len(ran) > 1500 * (len(ENGINES) + len(SUSPECTS))
    assert {one.status for one in ran.values()} <= {0, 1, 4}
    assert [key for key, one in ran.items() if "itself failed" in one.printed] == []


def test_an_engine_passes_if_and_only_if_it_gives_what_onnx_ships(
    ran: Mapping[tuple[str, str], Ran], tests: Mapping[str, NodeTest], folder: Path
) -> None:
    astray = []
    for name, test in tests.items():
        for engine in ENGINES:
            given, how = outputs(folder, name, engine), kind(ran[name, engine])
            if given is None:
                expected = how in {"refused", "cannot say"}
            elif all(value.size == 0 for value in given.values()):
                expected = how == "cannot say"
            else:
                same = all(
                    agree(value, test.expected[output], test.rtol, test.atol)
                    for output, value in given.items()
                    if output in test.expected
                )
                expected = how == ("passed" if same else "wrong")
            if not expected:
                astray.append((name, engine, how))
    assert astray == []


def test_noise_never_calls_rounding_what_is_far_from_what_onnx_ships(
    ran: Mapping[tuple[str, str], Ran], tests: Mapping[str, NodeTest], folder: Path
) -> None:
    astray = []
    for (name, key), one in ran.items():
        engine = key.removeprefix("noise ")
        given = outputs(folder, name, engine)
        if key == engine or given is None or kind(one) != "passed" or "random operators" in one.printed:
            continue
        judged = [output for report in one.report["run"]["noise"] for output in report["outputs"]]
        whole = [
            output["name"]
            for output in judged
            if output["verdict"] == "rounding" and not output["aside"] and not output["dtype"].startswith("float8")
        ]
        error = max((far(given[output], tests[name].expected[output]) for output in whole), default=0.0)
        if error > WORST_ROUNDING:
            astray.append((name, engine, error))
    assert astray == []


def test_noise_never_calls_a_bug_what_onnx_ships(
    ran: Mapping[tuple[str, str], Ran], tests: Mapping[str, NodeTest], folder: Path
) -> None:
    astray = []
    for (name, key), one in ran.items():
        engine = key.removeprefix("noise ")
        if key == engine or kind(one) != "wrong":
            continue
        if "computes the model's f64 tensors in f32" in one.printed or "random operators" in one.printed:
            continue  # that much is lost, and no tolerance of onnx's sees it
        given = outputs(folder, name, engine) or {}
        if all(agree(value, tests[name].expected[output], 1e-6, 1e-7) for output, value in given.items()):
            astray.append((name, engine))
    assert astray == []


def test_what_cannot_be_judged_by_noise_is_empty_or_no_tensor(
    ran: Mapping[tuple[str, str], Ran], tests: Mapping[str, NodeTest]
) -> None:
    astray = []
    for (name, key), one in ran.items():
        if key.startswith("noise ") and kind(one) == "cannot say":
            empty = all(value.size == 0 for value in tests[name].expected.values())
            if not empty and "no output in common" not in one.printed:
                astray.append((name, key, one.printed.strip().splitlines()[-1]))
    assert astray == []


def test_the_counts_are_those_of_the_table(ran: Mapping[tuple[str, str], Ran]) -> None:
    counted: dict[str, Counter[str]] = {}
    for (_, key), one in ran.items():
        counted.setdefault(key, Counter())[kind(one)] += 1
    if any(version(package) != number for package, number in MEASURED_WITH.items()):
        pytest.skip(f"measured with {MEASURED_WITH}")
    for key, expected in EXPECTED.items():
        assert counted[key].keys() == expected.keys(), key
        for word, count in expected.items():
            assert abs(counted[key][word] - count) <= 5, (key, word, dict(counted[key]))
