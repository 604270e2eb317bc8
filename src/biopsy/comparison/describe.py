"""Comparisons as text for people and as JSON, whose schema is in docs/reference/file-formats.md."""

from __future__ import annotations

import math
from typing import Any

from biopsy.comparison.compare import JudgedLimit, OutputComparison
from biopsy.comparison.differences import ErrorSummary
from biopsy.comparison.metrics import Element, Scalar, Statistics
from biopsy.comparison.noise import NoiseComparison, NoiseReport, explained_by
from biopsy.comparison.runs import RunComparison
from biopsy.comparison.tolerance import AT_LEAST, Tolerance, is_exact_by_default
from biopsy.records import plain, plain_of
from biopsy.text import option_line, printable


def report_lines(output: OutputComparison) -> list[str]:
    """The lines about one output: one if it passes; the verdict, then indented details if it fails."""
    dtypes = output.actual_dtype
    if output.actual_dtype != output.expected_dtype:
        dtypes += f" (expected {output.expected_dtype}) "
    title = f"{printable(output.name)}  {dtypes}{list(output.actual_shape)}"
    if output.passed:
        limits = "".join(f", {_limit_text(limit)}" for limit in output.judged)
        return [f"{title}  passes: {_passing(output)}{limits}"]
    lines = [f"{title}  FAILS: {output.reason}"]
    if output.measured is not None:
        lines += _worst_lines(output.measured)
        for limit in output.judged:
            lines.append(f"  {'limit' if limit.passed else 'LIMIT':<9} {_limit_text(limit)}")
            if not limit.passed and limit.worst is not None:
                lines[-1] += f", {'first' if limit.limit.metric == 'indices' else 'worst'} {_element(limit.worst)}"
        if output.tolerances_decide and output.actual_dtype != "string" and not output.forms:
            measured, tolerance = output.measured, output.tolerance
            current = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, {output.stat}"
            current += f" {output.quantile:g}" if output.stat == "quantile" else ""
            if tolerance == Tolerance(0, 0) and is_exact_by_default(output.expected_dtype):
                current += "; integers are compared exactly by default"
            passing = [("atol", measured.passing_atol), ("rtol", measured.passing_rtol)]
            options = [option_line(f"--{key}", f"{output.name}:{each:g}") for key, each in passing if each is not None]
            lines.append(f"  passes    with {' or '.join(options) or 'no tolerance'} (now: {current})")
    if output.actual_statistics is not None or output.expected_statistics is not None:
        lines.append(f"  actual    {statistics_text(output.actual_statistics)}")
        lines.append(f"  expected  {statistics_text(output.expected_statistics)}")
    return lines


def wide_tolerance(output: OutputComparison) -> str | None:
    """A warning if an output passes by an atol that is greater than all expected values, else None."""
    measured = output.measured
    if measured is None or not (output.passed and output.tolerances_decide and measured.differing):
        return None
    if not 0 < measured.greatest < output.tolerance.atol:
        return None
    return (
        f"atol {output.tolerance.atol:g} for {output.name!r} is more than any value expected there (at most "
        f"{measured.greatest:.3g}): any value near 0 would pass"
    )


def noise_lines(output: NoiseComparison) -> list[str]:
    """The lines about whether rounding explains the error of one output: one line if it does."""
    title = f"{printable(output.name)}  {output.dtype}{list(output.shape)}"
    if output.verdict == "unknown":
        return [f"{title}  cannot say: {output.reason}"]
    if output.suspect is None or output.plain is None:
        return [f"{title}  BUG: {output.reason}"]
    if output.passed:
        text = "no error" if output.ratio == 0 else f"{output.ratio:.3g} times the rounding error of a plain run"
        aside = f"; {output.aside} of its elements flip with a rounding of the inputs" if output.aside else ""
        return [f"{title}  rounding: {text}{aside}"]
    lines = [f"{title}  BUG: {output.reason} (at most {output.limit:g} is rounding)"]
    for label, side in (("error", output.suspect), ("plain run", output.plain)):
        where = "" if side.worst is None else f", {_element(side.worst)}"
        lines.append(f"  {label:<9} rms {side.rms:.3g}, greatest {side.maximum:.3g}{where}")
    narrower = explained_by(output.ratio, output.dtype)
    if narrower is not None:
        lines.append(f"  an engine that computes in {narrower} may err as much by rounding")
    return lines


def statistics_text(statistics: Statistics | None) -> str:
    """One line of statistics of a tensor, with counts of NaN and infinities if there are any."""
    if statistics is None:
        return "strings"
    if statistics.elements == 0:
        return "empty"
    odd = [f"{count} {name}" for count, name in ((statistics.nan, "NaN"), (statistics.inf, "inf")) if count]
    if statistics.minimum_at is None or statistics.maximum_at is None:
        return " and ".join(odd) + ", nothing finite"
    parts = [
        f"min={number(statistics.minimum)} at {index(statistics.minimum_at)}",
        f"max={number(statistics.maximum)} at {index(statistics.maximum_at)}",
        f"mean={number(statistics.mean)}",
        f"std={number(statistics.std)}",
        f"median={number(statistics.median)}",
    ]
    return ", ".join(parts + odd)


def number(value: Scalar) -> str:
    """A value with at most seven digits (integers with all digits); strings are quoted."""
    if isinstance(value, (str, bytes)):
        return repr(value)
    if isinstance(value, (bool, int)):
        return str(value)
    return f"{value:.7g}"


def index(place: tuple[int, ...]) -> str:
    """An index in brackets: ``[0, 17, 3]``; ``[]`` for a scalar."""
    return str(list(place))


def _passing(output: OutputComparison) -> str:
    measured = output.measured
    if output.actual_shape != output.expected_shape:  # the user's comparison function may accept it
        return f"{list(output.expected_shape)} expected"
    if measured is None or measured.elements == 0:
        return "empty"
    if measured.worst_absolute is None:
        return "equal"
    return (
        f"max |difference| {measured.absolute.maximum:.3g} at {index(measured.worst_absolute.index)}, "
        f"relative {measured.relative.maximum:.3g}"
    )


def _worst_lines(measured: ErrorSummary) -> list[str]:
    absolute, relative = measured.worst_absolute, measured.worst_relative
    if absolute is None:
        return []
    if isinstance(absolute.actual, (str, bytes)):
        return [f"  first     {_element(absolute)}"]
    lines = [f"  absolute  {_element(absolute)}, |difference| {absolute.error:.3g}"]
    if relative is not None and relative.index != absolute.index:
        lines.append(f"  relative  {_element(relative)}, |difference| / |expected| {relative.error:.3g}")
    elif relative is not None and math.isfinite(relative.error):
        lines[0] += f", relative {relative.error:.3g}"
    mean, median = measured.absolute.mean, measured.absolute.median
    share = f"{measured.mismatching} of {measured.elements} elements outside ({100 * measured.fraction:.3g}%)"
    lines.append(f"  errors    {share}; absolute: mean {mean:.3g}, median {median:.3g}")
    return lines


def _element(worst: Element) -> str:
    return f"at {index(worst.index)}: {number(worst.actual)}, expected {number(worst.expected)}"


def _limit_text(judged: JudgedLimit) -> str:
    limit = judged.limit
    if limit.metric == "indices":
        ranked = "indices" if limit.top is None else f"top {limit.top.k}"
        return f"{ranked}: {judged.value:.0f} of {judged.ranks} moved by more than {limit.value:g}"
    unit = " dB" if limit.metric in ("psnr", "snr") else ""
    bound = "at least" if limit.metric in AT_LEAST else "at most"
    return f"{limit.metric} {judged.value:.7g}{unit} ({bound} {limit.value:g})"


def run_tree(comparison: RunComparison) -> dict[str, Any]:
    """The comparison of one engine's outputs, as JSON."""
    return {
        **plain_of(comparison, "actual expected passed complete"),
        "iterations": [
            {
                "number": iteration.number,
                "outputs": [output_tree(output) for output in iteration.outputs],
                **plain_of(iteration, "only_actual only_expected"),
            }
            for iteration in comparison.iterations
        ],
    }


def output_tree(output: OutputComparison) -> dict[str, Any]:
    """The comparison of one output, as JSON: the verdict, the criteria and the measurements."""
    limits: list[dict[str, Any]] = []
    for judged in output.judged:
        limit, top = judged.limit, judged.limit.top
        tree: dict[str, Any] = {"metric": limit.metric, "value": judged.value}
        tree |= {"limit": limit.value, "passed": judged.passed}
        if limit.metric == "indices":
            tree |= {"ranks": judged.ranks, "top_k": top.k if top else None, "axis": top.axis if top else None}
        limits.append({**tree, "worst": judged.worst})
    tolerances = {**plain_of(output.tolerance, "atol rtol"), **plain_of(output, "stat quantile")}
    facts = ("dtype", "shape", "statistics")
    return {
        **plain_of(output, "name passed reason"),
        "tolerances": {"decide": output.tolerances_decide, **tolerances},
        "limits": plain(limits),
        **plain_of(output, "measured figures differences"),
        **{side: {of: plain(getattr(output, f"{side}_{of}")) for of in facts} for side in ("actual", "expected")},
    }


def noise_tree(report: NoiseReport) -> dict[str, Any]:
    """The comparison of one engine's errors with those of plain float32, as JSON."""
    return {
        **plain_of(report, "suspect plain exact passed"),
        "outputs": [
            {**plain(output), "passed": output.passed, "explained_by": explained_by(output.ratio, output.dtype)}
            for output in report.outputs
        ],
        **plain_of(report, "only_suspect"),
    }
