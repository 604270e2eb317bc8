"""The sections of ``biopsy run``: engines, comparisons, what noise says, NaN and infinity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from biopsy import errors
from biopsy.comparison.json_report import noise_tree, not_finite_tree, run_tree
from biopsy.comparison.noise import NoiseReport
from biopsy.comparison.non_finite import NotFinite
from biopsy.comparison.runs import RunComparison
from biopsy.engines.base import Engine
from biopsy.report.tree import Tree


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """What became of one engine: seconds of each iteration, None where not measured, or how it failed."""

    engine: Engine
    seconds: Sequence[float | None] = ()
    remarks: Sequence[str] = ()
    failure: errors.EngineFailure | None = None

    @property
    def version(self) -> str | None:
        """The version of its package; None of one that has crashed: to ask it could crash this process too."""
        return None if isinstance(self.failure, errors.EngineCrash) else self.engine.version()


def run_section(
    engines: Sequence[EngineRun],
    compared: Sequence[RunComparison] = (),
    noise: Sequence[NoiseReport] = (),
    not_finite: Sequence[tuple[str, NotFinite]] = (),
) -> Tree:
    """The key ``run``; ``not_finite`` are found with the label of their engine."""
    return {
        "engines": [_engine_tree(one) for one in engines],
        "comparisons": [run_tree(one) for one in compared],
        "noise": [noise_tree(one) for one in noise],
        "not_finite": [not_finite_tree(engine, odd) for engine, odd in not_finite],
    }


def _engine_tree(one: EngineRun) -> Tree:
    failure = one.failure
    return {
        "label": one.engine.label,
        "name": one.engine.name,
        "version": one.version,
        "seconds": list(one.seconds),
        "remarks": list(one.remarks),
        "failure": None
        if failure is None
        else {"stage": failure.stage, "kind": failure.kind, "message": failure.message},
    }
