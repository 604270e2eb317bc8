"""``biopsy run --compare-with noise``: tells errors of an engine from rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.cli.run.findings import Findings
from biopsy.comparison.describe import noise_lines
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.noise import DEFAULT_RATIO, NoiseReport, closest, compare_noise, is_doubtful, without_flips
from biopsy.comparison.runs import RunComparison
from biopsy.engines.registry import EXACT, PLAIN, create
from biopsy.tensors.results import RunnerResult
from biopsy.text import first_line

WIDER = 10.0
"""Factor for limits where float64 cannot run: inputs moved by one rounding show only a part of the noise."""

Run: TypeAlias = Callable[..., RunnerResult]
"""Runs an engine on the model and the inputs of this command, called with (engine), or with (engine, roundings, seed)
to move the inputs by a number of roundings first. Raises CannotCompare if that changes no input."""

_CHANGES = (1, 4, 10)
"""Roundings by which inputs are moved before an output is called wrong."""

_MOST_SHOWN = 10


@dataclass(frozen=True)
class Yardstick:
    """The results that errors are measured with. ``times``: a factor for the limits."""

    plain: RunnerResult
    exact: RunnerResult
    engine: str
    """The engine that computes in plain float32."""
    times: float = 1.0


def judge_noise(
    suspects: Sequence[RunnerResult], run: Run, ratios: Mapping[str, float], console: Console
) -> list[NoiseReport]:
    """Judge and show the outputs of every engine. Raises CannotCompare if there is nothing to measure them with.

    Runs with inputs moved by roundings serve twice: as the yardstick where float64 cannot run, and to excuse outputs
    that such a run gets as wrong as the suspect.
    """
    if not suspects:
        return []
    yardstick = _yardstick(run, console.warn, or_sensitivity=True)
    if any(suspect.runner == yardstick.exact.runner for suspect in suspects):
        raise errors.CannotCompare(
            f"there is nothing to measure noise with: {yardstick.exact.runner} cannot be compared with itself"
        )
    limits = {name: ratio * yardstick.times for name, ratio in {"": DEFAULT_RATIO, **ratios}.items()}
    reports = [compare_noise(suspect, yardstick.plain, yardstick.exact, limits) for suspect in suspects]
    if any(report.failures for report in reports):
        with suppress(errors.CannotCompare, errors.EngineFailure):
            moved = [run(create(yardstick.engine), roundings) for roundings in _CHANGES]
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
    """The report, without the failures that runs with ``moved`` inputs have too."""
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


def _yardstick(run: Run, warn: Callable[[str], None], *, or_sensitivity: bool) -> Yardstick:
    """The results of float64 and of plain float32.

    Where float64 cannot run: those of float32, and of float32 with moved inputs, if ``or_sensitivity``. Raises
    CannotCompare.
    """

    def first_of(specs: Sequence[str], *roundings: int) -> RunnerResult:
        failures = []
        for engine in map(create, specs):
            try:
                return replace(run(engine, *roundings), runner=engine.label)
            except errors.EngineFailure as failure:
                failures.append(f"{engine.label} cannot {failure.stage} the model: {first_line(failure.message)}")
        raise errors.CannotCompare(f"there is nothing to measure noise with: {'; '.join(failures)}")

    try:
        exact = first_of([EXACT])
    except errors.CannotCompare as why:
        if not or_sensitivity:
            raise
        try:
            exact = first_of(PLAIN)
            moved = first_of([exact.runner], 1)
        except errors.CannotCompare as error:
            raise errors.CannotCompare(f"{why.message}; {error.message}") from error
        warn(
            f"{why.message.partition(': ')[2]}: {exact.runner} is the reference instead, and its noise is how far its "
            f"outputs move when every input is one rounding off; {DEFAULT_RATIO * WIDER:g} times that still is rounding"
        )
        moved = replace(moved, runner=f"{exact.runner} with inputs one rounding off")
        return Yardstick(moved, exact, exact.runner, WIDER)
    plain = first_of(PLAIN)
    if not is_doubtful(plain, exact) or plain.runner == PLAIN[-1]:
        return Yardstick(plain, exact, plain.runner)
    try:
        other = first_of(PLAIN[-1:])
    except errors.CannotCompare:
        warn(f"{plain.runner} is far from {exact.runner} itself: if it has a bug, the same bug looks like noise")
        return Yardstick(plain, exact, plain.runner)
    best = closest(plain, other, exact)
    return Yardstick(best, exact, plain.runner if best.runner == plain.runner else other.runner)


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


_ROUNDINGS = 10
_PERTURBED = 4
"""Runs with perturbed inputs: a value near a threshold lies on its other side in one of them with 94 % probability."""


def sized(findings: Findings, pairs: Sequence[tuple[RunnerResult, RunnerResult]], run: Run | None) -> Findings:
    """The findings with the sizes of the first mismatch and, given ``run``, whether rounding explains it.

    A reduction reads both from the verdict file. ``pairs`` are the compared results, (actual, expected).
    """
    first = next((place for place, compared in enumerate(findings.compared) if not compared.passed), None)
    if first is None:
        return findings
    pair, compared = pairs[first], findings.compared[first]
    rounding = None if run is None or compared.missing else _rounding(pair, compared, run)
    return replace(findings, mismatches=run_mismatches(*pair, compared), rounding=rounding)


def _rounding(pair: tuple[RunnerResult, RunnerResult], compared: RunComparison, run: Run) -> Rounding:
    """Whether rounding explains the differences; "unknown" if float64 cannot run, or lacks an output that differs."""

    def perturbed() -> Iterator[RunnerResult]:
        for seed in range(_PERTURBED):
            try:
                result = run(create(EXACT), _ROUNDINGS, seed)
            except errors.CannotCompare:
                return  # rounding changes no input, and so no output
            yield result

    names = {output.name for _, output in compared.failures}
    try:
        yardstick = _yardstick(run, lambda text: None, or_sensitivity=False)
        results = (*pair, yardstick.plain, yardstick.exact)
        actual, expected, plain, exact = (only(result, names) for result in results)
        return explained(actual, expected, plain, exact, perturbed)
    except errors.BiopsyError as error:
        return Rounding("unknown", reason=first_line(error.message))
