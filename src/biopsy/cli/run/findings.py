"""What one ``biopsy run`` found: per engine, per comparison, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model.known_names import listed
from biopsy.quantities import count

if TYPE_CHECKING:
    from biopsy.comparison.mismatch import Mismatch, Rounding
    from biopsy.comparison.noise import NoiseReport
    from biopsy.comparison.non_finite import NotFinite
    from biopsy.comparison.runs import RunComparison
    from biopsy.engines.base import Engine
    from biopsy.tensors.results import RunnerResult


@dataclass(frozen=True)
class Ran:
    """What became of one engine: its outputs and remarks on them, or how it failed; neither if it was only built."""

    engine: Engine
    result: RunnerResult | None = None
    failure: errors.EngineFailure | None = None
    remarks: Sequence[str] = ()

    @property
    def crashed(self) -> bool:
        """Whether it ended the process that it ran in."""
        return isinstance(self.failure, errors.EngineCrash)


@dataclass(frozen=True)
class Findings:
    """All that a run found: per engine, per comparison, by noise, and NaN or infinity with the engine's label.

    ``mismatches`` and ``rounding`` are for whoever wants a verdict: of the first comparison that fails. ``guessed`` are
    the shapes of inputs that nobody said, by name.
    """

    ran: Sequence[Ran]
    compared: Sequence[RunComparison] = ()
    noise: Sequence[NoiseReport] = ()
    odd: Sequence[tuple[str, NotFinite]] = ()
    mismatches: Sequence[Mismatch] = ()
    rounding: Rounding | None = None
    hint: str = ""
    guessed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """``fails``, ``passes``, or ``unknown`` where nobody can say."""
        if self.reasons:
            return "fails"
        return "passes" if self.undecided is None else "unknown"

    @property
    def undecided(self) -> str | None:
        """Why nobody can say whether an engine is wrong; None if all could be judged."""
        if not self.noise:
            return None
        from biopsy.cli.run.noise import undecided

        return undecided(self.noise)

    @property
    def reasons(self) -> list[str]:
        """Why the model fails, in a few words each; empty if it passes."""
        found = [f"{one.engine.label} failed to {_stage(one)} the model" for one in self.ran if one.failure is not None]
        if self.odd:
            found.append(f"NaN or infinity in {listed(unique(odd.name for _, odd in self.odd))}")
        for one in self.compared:
            if not one.passed:
                names = listed(unique([*one.missing, *(output.name for _, output in one.failures)]))
                found.append(f"{names} of {one.actual} differs from {one.expected}")
        for judged in self.noise:
            if judged.failures:
                names = listed(unique(output.name for output in judged.failures))
                found.append(f"{names} of {judged.suspect} is wrong by more than rounding")
        return found


def _stage(one: Ran) -> str:
    return one.failure.stage if one.failure is not None else ""


def what_passed(found: Findings) -> str:
    """What was compared or judged, where nothing fails."""
    parts = []
    outputs = sum(len(iteration.outputs) for one in found.compared for iteration in one.iterations)
    if outputs:
        empty = sum(
            math.prod(o.actual_shape) == 0 for one in found.compared for it in one.iterations for o in it.outputs
        )
        judge = found.compared[0].judged_by
        how = f"{judge} says yes to all" if judge else "all within the tolerances"
        parts.append(f"{count(outputs, 'output')} compared{f' ({empty} empty)' if empty else ''}, {how}")
    if found.noise:
        from biopsy.cli.run.noise import summary

        parts.append(summary(found.noise))
    ran = ", ".join(one.engine.label for one in found.ran)
    if found.ran and all(one.result is None for one in found.ran):
        return f"{ran} built the model; nothing was run"
    return "; ".join(parts) or f"{ran} ran; there was nothing to compare with"


def unique(names: Iterable[str]) -> list[str]:
    """Names of outputs, each once, in order: an output may fail in several iterations."""
    return list(dict.fromkeys(names))


def names_failing(found: Findings) -> list[str]:
    """The outputs that differ, or are not finite, each once."""
    odd = [one.name for _, one in found.odd]
    return unique([*odd, *(output.name for one in found.compared for _, output in one.failures)])
