"""``biopsy run --compare-with noise``: is an engine wrong, or does it only round in its own way?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from biopsy import errors
from biopsy.cli.console import Console
from biopsy.comparison.describe import noise_lines
from biopsy.comparison.noise import NoiseReport, compare_noise
from biopsy.engines.base import Engine
from biopsy.engines.registry import create
from biopsy.tensors.results import RunnerResult

PLAIN = ("onnxrt:optimization=none", "reference")
"""Engines that compute in the model's own types and fuse nothing; the second where the first cannot."""

EXACT = "reference:float64"

Run = Callable[[Engine], RunnerResult]
"""Runs an engine on the model and the inputs of this command."""

_MOST_SHOWN = 10


def judge_noise(
    suspects: Sequence[RunnerResult], run: Run, ratios: Mapping[str, float], console: Console
) -> list[NoiseReport]:
    """Judge every engine's outputs. Raises CannotCompare if there is nothing to measure them by."""
    if not suspects:
        return []
    exact, plain = _first_of([EXACT], run), _first_of(PLAIN, run)
    reports = [compare_noise(suspect, plain, exact, ratios) for suspect in suspects]
    for report in reports:
        _show(report, console)
    return reports


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
    return _first_of([EXACT], run), _first_of(PLAIN, run)
