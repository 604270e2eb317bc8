"""``biopsy run --compare-with noise``: is an engine wrong, or does it only round in its own way?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.comparison.describe import noise_lines
from biopsy.comparison.noise import DEFAULT_RATIO, NoiseReport, compare_noise
from biopsy.comparison.second_opinion import closest, is_doubtful
from biopsy.engines.base import Engine
from biopsy.engines.registry import create
from biopsy.tensors.results import RunnerResult

PLAIN = ("onnxrt:optimization=none", "reference")
"""Engines that compute in the model's own types and fuse nothing; the second where the first cannot, or is in doubt."""

EXACT = "reference:float64"

WIDER = 10.0
"""How many times more is rounding where float64 cannot run: inputs that are one rounding off do not show all of it."""

Run: TypeAlias = Callable[[Engine], RunnerResult]
"""Runs an engine on the model and the inputs of this command."""

_MOST_SHOWN = 10


@dataclass(frozen=True)
class Yardstick:
    """What engines are held against, and by how many times more than usual they may err."""

    plain: RunnerResult
    exact: RunnerResult
    times: float = 1.0


def judge_noise(
    suspects: Sequence[RunnerResult],
    run: Run,
    ratios: Mapping[str, float],
    console: Console,
    run_changed: Run | None = None,
) -> list[NoiseReport]:
    """Judge every engine's outputs. Raises CannotCompare if there is nothing to measure them by.

    ``run_changed`` runs an engine on inputs that are one rounding off: the yardstick where float64 cannot run. Without
    it there is none then. It raises CannotCompare if there are no such inputs.
    """
    if not suspects:
        return []
    by = _yardstick(run, run_changed, console)
    same = [one.runner for one in suspects if one.runner == by.exact.runner]
    if same:
        raise errors.CannotCompare(f"there is nothing to tell noise by: {same[0]} cannot be held against itself")
    limits = {name: ratio * by.times for name, ratio in {"": DEFAULT_RATIO, **ratios}.items()}
    reports = [compare_noise(suspect, by.plain, by.exact, limits) for suspect in suspects]
    for report in reports:
        _show(report, console)
    return reports


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
    told = f"{_counted(judged)} judged, no error is more than rounding"
    return f"{told}; of {_counted(unjudged)} nobody can say" if unjudged else told


def _counted(count: int) -> str:
    return f"{count} output{'' if count == 1 else 's'}"


def _yardstick(run: Run, run_changed: Run | None, console: Console) -> Yardstick:
    try:
        exact = _first_of([EXACT], run)
    except errors.CannotCompare as error:
        if run_changed is None:
            raise
        return _sensitivity(run, run_changed, error, console)
    plain = _first_of(PLAIN, run)
    if not is_doubtful(plain, exact) or plain.runner == PLAIN[-1]:
        return Yardstick(plain, exact)
    try:
        other = _first_of(PLAIN[-1:], run)
    except errors.CannotCompare:
        console.warn(
            f"{plain.runner} is far from {exact.runner} itself: if it has a bug, the same bug looks like noise"
        )
        return Yardstick(plain, exact)
    return Yardstick(closest(plain, other, exact), exact)


def _sensitivity(run: Run, run_changed: Run, why: errors.CannotCompare, console: Console) -> Yardstick:
    """Plain float32 as the exact values, and how far it moves with its inputs as its error."""
    try:
        exact = _first_of(PLAIN, run)
        moved = _first_of([exact.runner], run_changed)
    except errors.CannotCompare as error:
        raise errors.CannotCompare(f"{why.message}; {error.message}") from error
    console.warn(
        f"{why.message.partition(': ')[2]}: {exact.runner} is believed instead, and its noise is how far it moves when "
        f"every input is one rounding off; {DEFAULT_RATIO * WIDER:g} times that still is rounding"
    )
    return Yardstick(replace(moved, runner=f"{exact.runner} with inputs one rounding off"), exact, WIDER)


def _first_of(specs: Sequence[str], run: Run) -> RunnerResult:
    failures = []
    for engine in map(create, specs):
        try:
            return replace(run(engine), runner=engine.label)
        except errors.EngineFailure as failure:
            failures.append(f"{engine.label} cannot {failure.stage} the model: {failure.message.splitlines()[0]}")
    raise errors.CannotCompare(f"there is nothing to tell noise by: {'; '.join(failures)}")


def _show(report: NoiseReport, console: Console) -> None:
    console.note(f"\n{report.suspect}, its error by that of {report.plain}, both against {report.exact}")
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
