"""What one ``biopsy run`` found, per engine, per comparison and in words; and what a person must know of a failure:
whose it may be, and what makes it worth nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.comparison.mismatch import Mismatch, Rounding
from biopsy.engines.base import Engine
from biopsy.model.known_names import listed
from biopsy.tensors.results import RunnerResult
from biopsy.text import count

if TYPE_CHECKING:
    from biopsy.comparison.metrics import NotFinite
    from biopsy.comparison.noise import NoiseReport
    from biopsy.comparison.runs import RunComparison


@dataclass(frozen=True)
class Ran:
    """What became of one engine: its outputs and remarks on them, or how it failed; neither if it was only built."""

    engine: Engine
    result: RunnerResult | None = None
    failure: errors.EngineFailure | None = None
    remarks: Sequence[str] = ()


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
        report = next((one for one in self.noise if not one.conclusive), None)
        if report is None:
            return None
        first = report.unjudged[0]
        return f"no output of {report.suspect} can be judged: {first.name!r}: {first.reason}"

    @property
    def reasons(self) -> list[str]:
        """Why the model fails, in a few words each; empty if it passes."""
        failed = [(one.engine.label, one.failure.stage) for one in self.ran if one.failure is not None]
        found = [f"{label} failed to {stage} the model" for label, stage in failed]
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
        unjudged = sum(len(one.unjudged) for one in found.noise)
        judged = sum(len(one.outputs) for one in found.noise) - unjudged
        left = f"; of {count(unjudged, 'output')} nobody can say" if unjudged else ""
        parts.append(f"{count(judged, 'output')} judged, no error is more than rounding{left}")
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


# What a person must know of a failure that ``biopsy run`` found: whose it may be, and what makes it worth nothing.


def whose_fault(found: Findings, golden: Sequence[RunnerResult]) -> str:
    """That several engines fail alike, so that it is hardly the fault of one of them; "" if they do not."""
    engines = {one.engine.name for one in found.ran}
    if len(engines) < 2:
        return ""
    if all(one.failure is not None for one in found.ran):
        return (
            f"every engine fails on this model ({_listed(engines)}): either none of them supports it, or the model or "
            "its inputs are wrong"
        )
    labels = {one.engine.label for one in found.ran}
    not_finite = set.intersection(*({odd.name for by, odd in found.odd if by == label} for label in labels))
    if not_finite:
        names = _listed(map(repr, not_finite))
        return f"every engine gives NaN or infinity in {names}: probably the model or its inputs are wrong"
    # Engines that agree with each other, and not with golden values.
    loaded = {one.runner for one in golden}
    against = [one for one in found.compared if one.expected in loaded]
    mutual = [one for one in found.compared if one.expected not in loaded]
    engines = {one.engine.name for one in found.ran if one.result is not None}
    if not loaded or len(engines) < 2 or not mutual or not all(one.passed for one in mutual):
        return ""
    everyone = {(label, runner) for label in labels for runner in loaded}
    if any(one.passed for one in against) or {(one.actual, one.expected) for one in against} != everyone:
        return ""
    return (
        f"the engines agree with each other ({_listed(engines)}) and all differ from {_listed(loaded)}: either the "
        "golden values are wrong, or from another model or other inputs, or the engines share a bug"
    )


def nothing_compared(found: Findings, *, validated: bool) -> str:
    """That a run which passes compared nothing, and what to add; "" if it did compare.

    ``validated``: it looked for NaN and infinity.
    """
    if found.compared or found.noise:
        return ""
    if all(one.result is None for one in found.ran):
        return "it only builds the model: leave out --build-only, and it runs too"
    if validated:
        return "it finds neither NaN nor infinity: give the inputs that lead to them, with --load-inputs"
    return "it compares nothing: name a second engine behind the first, or golden values with --load-outputs"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
