"""What a failure is not, as far as the bundle's own runs tell."""

from __future__ import annotations

from collections.abc import Iterator

from biopsy.report.bundle.failure import ObservedFailure
from biopsy.report.bundle.observation import Observation
from biopsy.report.bundle.reproduction import Reproduction


def exclusions(observation: Observation, failure: ObservedFailure, reproduction: Reproduction) -> Iterator[str]:
    """A sentence on each thing; and one on each that could not be excluded."""
    rounding = observation.evidence.verdict.rounding
    if failure.kind == "comparison" and rounding is not None:
        if rounding.verdict == "bug":
            times = "" if rounding.times is None else f", {rounding.times:.3g} times that of plain float32"
            yield f"rounding: the error is larger than rounding explains, measured against float64{times}"
        else:
            why = f" ({rounding.reason})" if rounding.reason else ""
            yield f"not excluded, rounding: measured against float64, the verdict is '{rounding.verdict}'{why}"
    if observation.runs > 1:
        yield f"not excluded, chance: it failed only in run {observation.runs} of the check"
    elif reproduction.standing != "not":
        yield "chance: it failed in the check and in reproduce.py, each in a process of its own"
    engine = failure.engine
    if engine is not None and failure.against.partition(":")[0] == engine.name:
        yield f"the model: the same engine, run as '{failure.against}', gives the expected values"
    elif failure.against and failure.against != "golden values":
        yield f"the model: {failure.against} gives the expected values"
