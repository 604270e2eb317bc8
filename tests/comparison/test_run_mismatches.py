"""How the outputs of two runs differ, as a reduction is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from biopsy.comparison.mismatch_size import run_mismatches
from biopsy.comparison.runs import compare_runs
from biopsy.tensors.results import Iteration, RunnerResult


def result(name: str, **outputs: object) -> RunnerResult:
    return RunnerResult(name, (Iteration({key: np.asarray(value) for key, value in outputs.items()}),))


def test_an_output_that_one_engine_lacks_is_a_kind_of_mismatch() -> None:
    pair = result("a", y=[1.0]), result("b", y=[1.0], z=[2.0])
    compared = compare_runs(*pair)
    assert compared.passed, "golden values may hold more"
    compared = replace(compared, missing=compared.iterations[0].only_expected)
    assert not compared.passed
    (found,) = run_mismatches(*pair, compared)
    assert (found.output, found.kind) == ("z", "missing-output")


def test_the_greatest_mismatches_of_each_kind_are_told() -> None:
    many = {f"y{number}": [1.0, 2.0, 3.0 + number] for number in range(30)}
    pair = (
        result("a", odd=[np.nan, 1.0], **many),
        result("b", odd=[0.0, 1.0], **{name: [1.0, 2.0, 3.5] for name in many}),
    )
    found = run_mismatches(*pair, compare_runs(*pair))
    assert [one.kind for one in found].count("nan-mismatch") == 1
    assert [one.kind for one in found].count("mismatch") == 8
    assert found[1].output == "y29"
