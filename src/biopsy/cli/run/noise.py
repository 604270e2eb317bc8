"""``biopsy run --compare-with noise``: tells errors of an engine from rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.run.findings import Findings
from biopsy.comparison.describe import noise_lines
from biopsy.comparison.mismatch_size import run_mismatches
from biopsy.comparison.noise import DEFAULT_RATIO, NoiseReport, compare_noise, without_flips
from biopsy.engines.registry import MOVED, create
from biopsy.engines.yardstick import Run, Yardstick, rounding_between, yardstick_of
from biopsy.tensors.results import RunnerResult

_CHANGES = (1, 4, 10)
"""Roundings by which inputs are moved before an output is called wrong."""

_MOST_SHOWN = 10


def judge_noise(
    suspects: Sequence[RunnerResult], run: Run, ratios: Mapping[str, float], console: Console
) -> list[NoiseReport]:
    """Judge and show the outputs of every engine. Raises CannotCompare if there is nothing to measure them with.

    Outputs are excused that runs with values moved by roundings get as wrong as the suspect. Where float64 cannot run,
    inputs are moved, and the same runs are the yardstick.
    """
    if not suspects:
        return []
    yardstick = yardstick_of(run, console.warn, or_sensitivity=True)
    if any(suspect.runner == yardstick.exact.runner for suspect in suspects):
        raise errors.CannotCompare(
            f"there is nothing to measure noise with: {yardstick.exact.runner} cannot be compared with itself"
        )
    limits = {name: ratio * yardstick.times for name, ratio in {"": DEFAULT_RATIO, **ratios}.items()}
    reports = [compare_noise(suspect, yardstick.plain, yardstick.exact, limits) for suspect in suspects]
    if any(report.failures for report in reports):
        with suppress(errors.CannotCompare, errors.EngineFailure):
            if yardstick.exact.runner == yardstick.engine:  # float64 cannot run
                moved = [run(create(yardstick.engine), roundings) for roundings in _CHANGES]
            else:
                moved = [run(create(spec)) for spec in MOVED]
            reports = [
                _without_flips(report, suspect, yardstick, moved)
                for report, suspect in zip(reports, suspects, strict=True)
            ]
    for report in reports:
        _show(report, console)
    return reports


def _without_flips(
    report: NoiseReport, suspect: RunnerResult, yardstick: Yardstick, moved: Sequence[RunnerResult]
) -> NoiseReport:
    """The report, without the failures that runs with ``moved`` values have too."""
    outputs = []
    for output in report.outputs:
        results = (suspect, yardstick.plain, yardstick.exact, *moved)
        values = [result.iterations[output.iteration].outputs for result in results]
        if output.verdict == "bug" and all(output.name in arrays for arrays in values):
            actual, plain, exact, *others = (arrays[output.name] for arrays in values)
            outputs.append(without_flips(output, (actual, plain, exact), others))
        else:
            outputs.append(output)
    return replace(report, outputs=tuple(outputs))


def _show(report: NoiseReport, console: Console) -> None:
    console.note("", f"{report.suspect}, its error by that of {report.plain}, both against {report.exact}")
    if report.only_suspect:
        names = ", ".join(map(repr, report.only_suspect[:5]))
        console.warn(f"not judged, because {report.plain} or {report.exact} does not give it: {names}")
    for output in report.unjudged:
        console.warn(noise_lines(output)[0])
    several = len({output.iteration for output in report.outputs}) > 1
    passing = [output for output in report.outputs if output.passed]
    shown = len(passing) if console.verbosity > 0 or len(passing) <= _MOST_SHOWN else 0
    for output in (*passing[:shown], *report.failures):
        where = f"iteration {output.iteration}: " if several else ""
        first, *rest = noise_lines(output)
        say = console.note if output.passed else console.say
        say(f"  {where}{first}")
        for line in rest:
            say(f"  {line}")
    if len(passing) > shown:
        console.note(f"  {len(passing)} outputs have no more error than rounding explains (-v shows them)")
    console.note("")


def sized(findings: Findings, pairs: Sequence[tuple[RunnerResult, RunnerResult]], run: Run | None) -> Findings:
    """The findings with the sizes of the first mismatch and, given ``run``, whether rounding explains it.

    A reduction reads both from the verdict file. ``pairs`` are the compared results, (actual, expected).
    """
    first = next((place for place, compared in enumerate(findings.compared) if not compared.passed), None)
    if first is None:
        return findings
    pair, compared = pairs[first], findings.compared[first]
    rounding = None if run is None or compared.missing else rounding_between(pair, compared, run)
    return replace(findings, mismatches=run_mismatches(*pair, compared), rounding=rounding)
