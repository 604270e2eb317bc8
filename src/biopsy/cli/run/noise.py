"""``biopsy run --compare-with noise``: is an engine wrong, or does it only round in its own way?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.comparison.describe import noise_lines
from biopsy.comparison.noise import DEFAULT_RATIO, NoiseReport, closest, compare_noise, excused, is_doubtful
from biopsy.engines.base import Engine
from biopsy.engines.registry import EXACT, PLAIN, create
from biopsy.tensors.results import RunnerResult
from biopsy.text import count, first_line

WIDER = 10.0
"""How many times more is rounding where float64 cannot run: inputs that are one rounding off do not show all of it."""

Run: TypeAlias = Callable[[Engine], RunnerResult]
"""Runs an engine on the model and the inputs of this command."""

RunChanged: TypeAlias = Callable[[Engine, int], RunnerResult]
"""Runs an engine on inputs that are so many roundings off. Raises CannotCompare if there are none."""

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
    suspects: Sequence[RunnerResult],
    run: Run,
    ratios: Mapping[str, float],
    console: Console,
    run_changed: RunChanged | None = None,
) -> list[NoiseReport]:
    """Judge every engine's outputs. Raises CannotCompare if there is nothing to measure them by.

    ``run_changed`` is the yardstick where float64 cannot run, without it there is none then; and the second chance of
    what seems to be wrong.
    """
    if not suspects:
        return []
    by = _yardstick(run, run_changed, console.warn)
    same = [one.runner for one in suspects if one.runner == by.exact.runner]
    if same:
        raise errors.CannotCompare(f"there is nothing to tell noise by: {same[0]} cannot be held against itself")
    limits = {name: ratio * by.times for name, ratio in {"": DEFAULT_RATIO, **ratios}.items()}
    reports = [compare_noise(suspect, by.plain, by.exact, limits) for suspect in suspects]
    if run_changed is not None and any(report.failures for report in reports):
        reports = _excused(reports, suspects, by, run_changed)
    for report in reports:
        _show(report, console)
    return reports


def _excused(
    reports: list[NoiseReport], suspects: Sequence[RunnerResult], by: Yardstick, run_changed: RunChanged
) -> list[NoiseReport]:
    try:
        moved = [run_changed(create(by.engine), roundings) for roundings in _CHANGES]
    except (errors.CannotCompare, errors.EngineFailure):
        return reports
    return [_excused_report(report, one, by, moved) for report, one in zip(reports, suspects, strict=True)]


def _excused_report(
    report: NoiseReport, suspect: RunnerResult, by: Yardstick, moved: Sequence[RunnerResult]
) -> NoiseReport:
    outputs = []
    for output in report.outputs:
        given = [run.iterations[output.iteration].outputs for run in (suspect, by.plain, by.exact, *moved)]
        if output.verdict == "bug" and all(output.name in one for one in given):
            one, plain, exact, *others = (outputs_[output.name] for outputs_ in given)
            outputs.append(excused(output, (one, plain, exact), others))
        else:
            outputs.append(output)
    return replace(report, outputs=tuple(outputs))


def undecided(reports: Sequence[NoiseReport]) -> str | None:
    """Why nobody can say whether an engine is wrong; None if all were judged."""
    report = next((one for one in reports if not one.conclusive), None)
    if report is None:
        return None
    first = report.unjudged[0]
    return f"no output of {report.suspect} can be judged: {first.name!r}: {first.reason}"


def summary(reports: Sequence[NoiseReport]) -> str:
    """How many outputs were judged, where none is wrong."""
    unjudged = sum(len(one.unjudged) for one in reports)
    judged = sum(len(one.outputs) for one in reports) - unjudged
    told = f"{count(judged, 'output')} judged, no error is more than rounding"
    return f"{told}; of {count(unjudged, 'output')} nobody can say" if unjudged else told


def _yardstick(run: Run, run_changed: RunChanged | None, warn: Callable[[str], None]) -> Yardstick:
    try:
        exact = _first_of([EXACT], run)
    except errors.CannotCompare as error:
        if run_changed is None:
            raise
        return _sensitivity(run, run_changed, error, warn)
    plain = _first_of(PLAIN, run)
    if not is_doubtful(plain, exact) or plain.runner == PLAIN[-1]:
        return Yardstick(plain, exact, plain.runner)
    try:
        other = _first_of(PLAIN[-1:], run)
    except errors.CannotCompare:
        warn(f"{plain.runner} is far from {exact.runner} itself: if it has a bug, the same bug looks like noise")
        return Yardstick(plain, exact, plain.runner)
    best = closest(plain, other, exact)
    return Yardstick(best, exact, plain.runner if best.runner == plain.runner else other.runner)


def _sensitivity(
    run: Run, run_changed: RunChanged, why: errors.CannotCompare, warn: Callable[[str], None]
) -> Yardstick:
    """Plain float32 as the exact values, and how far it moves with its inputs as its error."""
    try:
        exact = _first_of(PLAIN, run)
        moved = _first_of([exact.runner], lambda engine: run_changed(engine, 1))
    except errors.CannotCompare as error:
        raise errors.CannotCompare(f"{why.message}; {error.message}") from error
    warn(
        f"{why.message.partition(': ')[2]}: {exact.runner} is believed instead, and its noise is how far it moves when "
        f"every input is one rounding off; {DEFAULT_RATIO * WIDER:g} times that still is rounding"
    )
    moved = replace(moved, runner=f"{exact.runner} with inputs one rounding off")
    return Yardstick(moved, exact, exact.runner, WIDER)


def _first_of(specs: Sequence[str], run: Run) -> RunnerResult:
    failures = []
    for engine in map(create, specs):
        try:
            return replace(run(engine), runner=engine.label)
        except errors.EngineFailure as failure:
            failures.append(f"{engine.label} cannot {failure.stage} the model: {first_line(failure.message)}")
    raise errors.CannotCompare(f"there is nothing to tell noise by: {'; '.join(failures)}")


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


def yardsticks(run: Run) -> tuple[RunnerResult, RunnerResult]:
    """The exact values and those of plain float32. Raises CannotCompare if there is nothing to measure by."""
    by = _yardstick(run, None, lambda text: None)
    return by.exact, by.plain
