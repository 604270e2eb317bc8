"""Comparisons as JSON: the facts that ``describe`` puts into words. The schema: docs/reference/file-formats.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.limits import JudgedLimit
from biopsy.comparison.noise import NoiseComparison, NoiseReport, explained_by
from biopsy.comparison.non_finite import NotFinite
from biopsy.comparison.runs import RunComparison


def run_tree(compared: RunComparison) -> dict[str, Any]:
    """One engine's outputs against what was expected of them."""
    return {
        "actual": compared.actual,
        "expected": compared.expected,
        "passed": compared.passed,
        "complete": compared.complete,
        "iterations": [
            {
                "number": iteration.number,
                "outputs": [output_tree(output) for output in iteration.outputs],
                "only_actual": list(iteration.only_actual),
                "only_expected": list(iteration.only_expected),
            }
            for iteration in compared.iterations
        ],
    }


def output_tree(output: OutputComparison) -> dict[str, Any]:
    """One output: the verdict, what was asked, what was measured."""
    sides = {
        "actual": (output.actual_dtype, output.actual_shape, output.actual_statistics),
        "expected": (output.expected_dtype, output.expected_shape, output.expected_statistics),
    }
    return {
        "name": output.name,
        "passed": output.passed,
        "reason": output.reason,
        "tolerances": {
            "decide": output.tolerances_decide,
            "atol": output.tolerance.atol,
            "rtol": output.tolerance.rtol,
            "stat": output.stat,
            "quantile": output.quantile,
        },
        "limits": [_limit_tree(one) for one in output.judged],
        "measured": plain(output.measured),
        "figures": plain(output.figures),
        "differences": plain(output.differences),
        **{side: plain({"dtype": dtype, "shape": shape, "statistics": statistics})
           for side, (dtype, shape, statistics) in sides.items()},
    }  # fmt: skip


def _limit_tree(one: JudgedLimit) -> dict[str, Any]:
    top = one.limit.top
    tree: dict[str, Any] = {
        "metric": one.limit.metric,
        "value": one.value,
        "limit": one.limit.value,
        "passed": one.passed,
    }
    if one.limit.metric == "indices":
        tree |= {"ranks": one.ranks, "top_k": None if top is None else top.k, "axis": None if top is None else top.axis}
    found: dict[str, Any] = plain({**tree, "worst": one.worst})
    return found


def noise_tree(report: NoiseReport) -> dict[str, Any]:
    """One engine's errors by the errors of plain float32."""
    return {
        "suspect": report.suspect,
        "plain": report.plain,
        "exact": report.exact,
        "passed": report.passed,
        "outputs": [_noise_output_tree(output) for output in report.outputs],
        "only_suspect": list(report.only_suspect),
    }


def _noise_output_tree(output: NoiseComparison) -> dict[str, Any]:
    tree: dict[str, Any] = plain(output)
    return tree | {"passed": output.passed, "explained_by": explained_by(output.ratio, output.dtype)}


def not_finite_tree(engine: str, found: NotFinite) -> dict[str, Any]:
    """An output that holds NaN or infinities."""
    tree: dict[str, Any] = plain(found)
    return {"engine": engine, **tree}


def plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists; what JSON has no numbers for as text: "nan", "inf", "-inf", "(1+2j)"."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value) if isinstance(value, complex | bytes) else value
