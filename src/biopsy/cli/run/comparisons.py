"""Comparing what engines gave: with each other, with golden values, with float64; what is compared with what."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.cli.run.execution import ModelExecution
    from biopsy.comparison.compare import Detail
    from biopsy.comparison.comparison_function import ComparisonFunction
    from biopsy.comparison.noise import NoiseReport
    from biopsy.comparison.non_finite import NotFinite
    from biopsy.comparison.runs import RunComparison
    from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
    from biopsy.engines.base import Engine, ModelInput
    from biopsy.tensors.results import RunnerResult


def pairs_of(
    done: Sequence[RunnerResult], golden: Sequence[RunnerResult], *, first_worked: bool
) -> list[tuple[RunnerResult, RunnerResult]]:
    """(actual, expected): the others against the first engine, then all against every loaded runner."""
    against_first = [(result, done[0]) for result in done[1:]] if first_worked else []
    return [*against_first, *((result, expected) for result in done for expected in golden)]


def compare(
    pairs: Sequence[tuple[RunnerResult, RunnerResult]],
    golden: Sequence[RunnerResult],
    settings: tuple[Tolerances, Stats, MetricLimits],
    args: argparse.Namespace,
    console: Console,
    *,
    function: ComparisonFunction | None = None,
) -> list[RunComparison]:
    """Compare each pair (actual, expected), and show what was found; --fail-fast ends at the first that differs.

    A ``function`` decides alone.
    """
    compared: list[RunComparison] = []
    if not pairs:
        return compared
    from biopsy.cli.run.report import show_comparison
    from biopsy.comparison.runs import compare_runs, compare_runs_by

    tolerances, stats, limits = settings
    detail: Detail = "brief" if args.report is None else "full"
    for actual, expected in pairs:
        comparison = (
            compare_runs(actual, expected, tolerances, stats, args.fail_fast, limits=limits, detail=detail)
            if function is None
            else compare_runs_by(function, actual, expected, fail_fast=args.fail_fast, detail=detail)
        )
        loaded = any(expected is result for result in golden)  # they may hold every tensor: none of them is missing
        if not loaded:
            comparison = replace(comparison, missing=comparison.iterations[0].only_expected)
        compared.append(comparison)
        show_comparison(comparison, console)
        if args.fail_fast and not comparison.passed:
            break
    return compared


def judge_rounding(
    done: Sequence[RunnerResult], execution: ModelExecution, ratios: Mapping[str, float]
) -> list[NoiseReport]:
    """Hold every engine against float64, by the error of plain float32. Raises CannotCompare if that cannot be had."""
    from biopsy.cli.run.noise import judge_noise

    feeder = execution.feeder

    def run(engine: Engine) -> RunnerResult:
        return execution.run_again(engine, feeder)

    def run_changed(engine: Engine, roundings: int) -> RunnerResult:
        return execution.run_again(engine, feeder.roundings_off(roundings))

    return judge_noise(done, run, ratios, execution.console, run_changed)


def find_not_finite(done: Sequence[RunnerResult], console: Console) -> list[tuple[str, NotFinite]]:
    """The outputs with NaN or infinity, by runner; shows them."""
    from biopsy.cli.run.report import show_not_finite
    from biopsy.comparison.non_finite import not_finite

    outputs = [(result.runner, output) for result in done for output in not_finite(result)]
    show_not_finite(outputs, console)
    return outputs


def warn_of_random(model: ModelInput, console: Console) -> None:
    """Say so if the model has random operators, whose values nothing can be compared with."""
    from biopsy.cli.run.hints import random_hint

    hint = random_hint(model)
    if hint is not None:
        console.warn(hint)
