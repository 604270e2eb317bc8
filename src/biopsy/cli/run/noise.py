"""``biopsy run --compare-with noise``: is an engine wrong, or does it only round in its own way?"""

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
"""How many times more is rounding where float64 cannot run: inputs that are one rounding off do not show all of it."""

Run: TypeAlias = Callable[..., RunnerResult]
"""Runs an engine on the model and the inputs of this command, or, if a number of roundings is given, on inputs that are
so many roundings off. Raises CannotCompare if there are none."""

_CHANGES = (1, 4, 10)
"""By how many roundings inputs are moved before an output is called wrong."""

_MOST_SHOWN = 10


@dataclass(frozen=True)
class Yardstick:
    """What engines are held against, and by how many times more than usual they may err."""

    plain: RunnerResult
    exact: RunnerResult
    engine: str
    """The engine that computes in plain float32."""
    times: float = 1.0


def judge_noise(
    suspects: Sequence[RunnerResult], run: Run, ratios: Mapping[str, float], console: Console
) -> list[NoiseReport]:
    """Judge every engine's outputs. Raises CannotCompare if there is nothing to measure them by.

    Inputs that are roundings off are the yardstick where float64 cannot run, and the second chance of what seems to be
    wrong.
    """
    if not suspects:
        return []
    by = _yardstick(run, console.warn, or_sensitivity=True)
    same = [one.runner for one in suspects if one.runner == by.exact.runner]
    if same:
        raise errors.CannotCompare(f"there is nothing to tell noise by: {same[0]} cannot be held against itself")
    limits = {name: ratio * by.times for name, ratio in {"": DEFAULT_RATIO, **ratios}.items()}
    reports = [compare_noise(suspect, by.plain, by.exact, limits) for suspect in suspects]
    if any(report.failures for report in reports):
        with suppress(errors.CannotCompare, errors.EngineFailure):
            moved = [run(create(by.engine), roundings) for roundings in _CHANGES]
            reports = [_excused(report, one, by, moved) for report, one in zip(reports, suspects, strict=True)]
    for report in reports:
        _show(report, console)
    return reports


def _excused(report: NoiseReport, suspect: RunnerResult, by: Yardstick, moved: Sequence[RunnerResult]) -> NoiseReport:
    """The report without what a run whose inputs are roundings off does as well."""
    outputs = []
    for output in report.outputs:
        given = [run.iterations[output.iteration].outputs for run in (suspect, by.plain, by.exact, *moved)]
        if output.verdict == "bug" and all(output.name in one for one in given):
            one, plain, exact, *others = (arrays[output.name] for arrays in given)
            outputs.append(without_flips(output, (one, plain, exact), others))
        else:
            outputs.append(output)
    return replace(report, outputs=tuple(outputs))


def _yardstick(run: Run, warn: Callable[[str], None], *, or_sensitivity: bool) -> Yardstick:
    """float64 and plain float32; where float64 cannot run, how far float32 moves with its inputs, if that will do."""

    def first_of(specs: Sequence[str], *roundings: int) -> RunnerResult:
        failures = []
        for engine in map(create, specs):
            try:
                return replace(run(engine, *roundings), runner=engine.label)
            except errors.EngineFailure as failure:
                failures.append(f"{engine.label} cannot {failure.stage} the model: {first_line(failure.message)}")
        raise errors.CannotCompare(f"there is nothing to tell noise by: {'; '.join(failures)}")

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
            f"{why.message.partition(': ')[2]}: {exact.runner} is believed instead, and its noise is how far it moves "
            f"when every input is one rounding off; {DEFAULT_RATIO * WIDER:g} times that still is rounding"
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


# What ``biopsy run`` tells a reduction of a mismatch: its kinds, its size, and, if asked, whether it is rounding.

_ROUNDINGS = 10
_PERTURBED = 4
"""Runs with inputs changed by rounding: what is near a border is seen on its other side with 94 % in one of them."""


def sized(found: Findings, pairs: Sequence[tuple[RunnerResult, RunnerResult]], run: Run | None) -> Findings:
    """The findings with the size of the first mismatch, and with what float64 says of it, if that can be ``run``.

    ``pairs`` are what was compared, (actual, expected).
    """
    first = next((place for place, one in enumerate(found.compared) if not one.passed), None)
    if first is None:
        return found
    pair, compared = pairs[first], found.compared[first]
    rounding = None if run is None or compared.missing else _rounding(pair, compared, run)
    return replace(found, mismatches=run_mismatches(*pair, compared), rounding=rounding)


def _rounding(pair: tuple[RunnerResult, RunnerResult], compared: RunComparison, run: Run) -> Rounding:
    """Whether rounding explains what differs; "unknown" where float64 cannot run, or not on all that differs."""

    def perturbed() -> Iterator[RunnerResult]:
        for seed in range(_PERTURBED):
            try:
                result = run(create(EXACT), _ROUNDINGS, seed)
            except errors.CannotCompare:
                return  # no input can be changed by a rounding, and no output by it
            yield result

    names = {output.name for _, output in compared.failures}
    try:
        by = _yardstick(run, lambda text: None, or_sensitivity=False)
        actual, expected, plain, exact = (only(side, names) for side in (*pair, by.plain, by.exact))
        return explained(actual, expected, plain, exact, perturbed)
    except errors.BiopsyError as error:
        return Rounding("unknown", reason=first_line(error.message))
