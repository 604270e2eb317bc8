"""What one ``biopsy run`` found, by engine and by comparison, the words for it, and hints on its cause."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.comparison.mismatch import Mismatch, Rounding, form_text
from biopsy.engines.base import Engine
from biopsy.model.known_names import listed
from biopsy.tensors.results import RunnerResult
from biopsy.text import count, first_of

if TYPE_CHECKING:
    from biopsy.comparison.metrics import NotFinite
    from biopsy.comparison.noise import NoiseReport
    from biopsy.comparison.runs import RunComparison
    from biopsy.engines.latency import Latency
    from biopsy.engines.peak_memory import PeakMemory


@dataclass(frozen=True)
class EngineResult:
    """The outputs of an engine or its failure, and its remarks. It has neither if the model was only built."""

    engine: Engine
    result: RunnerResult | None = None
    failure: errors.EngineFailure | None = None
    remarks: Sequence[str] = ()


_DOUBTS = {
    "unknown": "the measurements are too uneven to say whether that is {:g} times",
    "cost of a call": "the difference may be the cost of a call: time a larger part of the model, or give larger "
    "inputs if its shapes are open (--input-shapes)",
    "too little": "the difference may be an allocator's reserve: give larger inputs if its shapes are open "
    "(--input-shapes)",
}


@dataclass(frozen=True, kw_only=True)
class CostComparison:
    """What ``suspect`` needs compared with ``trusted``, both labels of engines: time if ``kind`` is ``slower``, memory
    if it is ``larger``. It fails if that is known to be at least ``limit`` times as much.
    """

    kind: str
    suspect: str
    trusted: str
    limit: float
    measured: Latency | PeakMemory

    @property
    def fails(self) -> bool:
        """Whether the suspect is known to need that much more."""
        return self.measured.side_of(self.limit) == self.kind

    @property
    def undecided(self) -> str | None:
        """Why it cannot be said whether it does; None if it can."""
        doubt = _DOUBTS.get(self.measured.side_of(self.limit))
        return None if doubt is None else f"{self.text}: {doubt.format(self.limit)}"

    @property
    def text(self) -> str:
        """``A takes 5.37 times as long as B (5.2 to 5.6 by 99 %; 1.18 ms instead of 0.22 ms)``."""
        return f"{self.suspect} {self.measured.compared_with(self.trusted)}"


@dataclass(frozen=True)
class Findings:
    """All that a run found. ``not_finite`` are outputs with NaN or infinity, with the label of their engine.

    ``mismatches`` and ``rounding`` describe the first comparison that fails, for the verdict file. ``guessed`` are
    shapes of inputs, by name, that neither the model nor an option gives.
    """

    runs: Sequence[EngineResult]
    compared: Sequence[RunComparison] = ()
    noise: Sequence[NoiseReport] = ()
    not_finite: Sequence[tuple[str, NotFinite]] = ()
    mismatches: Sequence[Mismatch] = ()
    rounding: Rounding | None = None
    hint: str = ""
    guessed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    costs: Sequence[CostComparison] = ()

    @property
    def verdict(self) -> str:
        """``fails``, ``passes`` or ``unknown``."""
        if self.reasons:
            return "fails"
        return "passes" if self.undecided is None else "unknown"

    @property
    def undecided(self) -> str | None:
        """Why the outputs of an engine could not be judged, or None."""
        report = next((report for report in self.noise if not report.conclusive), None)
        if report is None:
            return next((cost.undecided for cost in self.costs if cost.undecided is not None), None)
        first = report.unjudged[0]
        return f"no output of {report.suspect} can be judged: {first.name!r}: {first.reason}"

    @property
    def reasons(self) -> list[str]:
        """Why the model fails, in a few words each; empty if it passes."""
        reasons = []
        for label, failure in ((run.engine.label, run.failure) for run in self.runs if run.failure is not None):
            if errors.is_crash(failure.stage, failure.kind):
                verb = errors.STAGE_VERBS[failure.stage]
                reasons.append(f"{label} crashes when it {verb} the model ({failure.kind})")
            else:
                reasons.append(f"{label} failed to {failure.stage} the model")
        if self.not_finite:
            reasons.append(f"NaN or infinity in {listed(unique(output.name for _, output in self.not_finite))}")
        for compared in self.compared:
            if not compared.passed:
                reasons += _differences(compared)
        for report in self.noise:
            if report.failures:
                names = listed(unique(output.name for output in report.failures))
                reasons.append(f"{names} of {report.suspect} is wrong by more than rounding")
        return [*reasons, *(cost.text for cost in self.costs if cost.fails)]


def _differences(compared: RunComparison) -> Iterator[str]:
    """The missing outputs, those of a wrong type or shape, and those whose values differ."""
    if compared.missing:
        yield f"{compared.actual} does not give {listed(compared.missing)}"
    forms = {output.name: output.forms[0] for _, output in reversed(compared.failures) if output.forms}
    if forms:
        texts = [form_text(form, compared.expected) for form in reversed(forms.values())]
        yield f"{compared.actual} gives {first_of(texts, _MOST_FORMS)}"
    names = unique(output.name for _, output in compared.failures if output.name not in forms)
    if names:
        yield f"{listed(names)} of {compared.actual} differs from {compared.expected}"


_MOST_FORMS = 3


def what_passed(findings: Findings) -> str:
    """What was compared or judged by a run that passes."""
    parts = []
    outputs = [
        output for compared in findings.compared for iteration in compared.iterations for output in iteration.outputs
    ]
    if outputs:
        empty = sum(math.prod(output.actual_shape) == 0 for output in outputs)
        judge = findings.compared[0].judged_by
        how = f"{judge} says yes to all" if judge else "all within the tolerances"
        parts.append(f"{count(len(outputs), 'output')} compared{f' ({empty} empty)' if empty else ''}, {how}")
    if findings.noise:
        unjudged = sum(len(report.unjudged) for report in findings.noise)
        judged = sum(len(report.outputs) for report in findings.noise) - unjudged
        remark = f"; {count(unjudged, 'output')} could not be judged" if unjudged else ""
        parts.append(f"{count(judged, 'output')} judged, no error is more than rounding{remark}")
    parts += [f"{cost.text}: below {cost.limit:g}" for cost in findings.costs]
    labels = ", ".join(run.engine.label for run in findings.runs)
    if findings.runs and all(run.result is None for run in findings.runs):
        return f"{labels} built the model; nothing was run"
    return "; ".join(parts) or f"{labels} ran; there was nothing to compare with"


def unique(names: Iterable[str]) -> list[str]:
    """The names, each once, in order: an output may fail in several iterations."""
    return list(dict.fromkeys(names))


def names_failing(findings: Findings) -> list[str]:
    """The outputs that differ or are not finite, each once."""
    not_finite = [output.name for _, output in findings.not_finite]
    return unique([*not_finite, *(output.name for compared in findings.compared for _, output in compared.failures)])


def whose_fault(findings: Findings, golden: Sequence[RunnerResult]) -> str:
    """A hint that several engines fail alike, so that the cause is probably outside of them; "" if they do not."""
    engines = {run.engine.name for run in findings.runs}
    if len(engines) < 2:
        return ""
    if all(run.failure is not None for run in findings.runs):
        return (
            f"every engine fails on this model ({_listed(engines)}): either none of them supports it, or the model or "
            "its inputs are wrong"
        )
    labels = {run.engine.label for run in findings.runs}
    not_finite = set.intersection(
        *({output.name for runner, output in findings.not_finite if runner == label} for label in labels)
    )
    if not_finite:
        names = _listed(map(repr, not_finite))
        return f"every engine gives NaN or infinity in {names}: probably the model or its inputs are wrong"
    # Do the engines agree with each other, but not with the golden values?
    loaded = {result.runner for result in golden}
    with_golden = [compared for compared in findings.compared if compared.expected in loaded]
    mutual = [compared for compared in findings.compared if compared.expected not in loaded]
    engines = {run.engine.name for run in findings.runs if run.result is not None}
    if not loaded or len(engines) < 2 or not mutual or not all(compared.passed for compared in mutual):
        return ""
    all_pairs = {(label, runner) for label in labels for runner in loaded}
    failing = {(compared.actual, compared.expected) for compared in with_golden if not compared.passed}
    if any(compared.passed for compared in with_golden) or failing != all_pairs:
        return ""
    return (
        f"the engines agree with each other ({_listed(engines)}) and all differ from {_listed(loaded)}: either the "
        "golden values are wrong, or from another model or other inputs, or the engines share a bug"
    )


def nothing_compared(findings: Findings, *, validated: bool) -> str:
    """A hint that a run which passes compared nothing, and what to add; "" if it compared something.

    ``validated``: outputs were searched for NaN and infinity.
    """
    if findings.compared or findings.noise:
        return ""
    if all(run.result is None for run in findings.runs):
        return "it only builds the model: leave out --build-only, and it runs too"
    if validated:
        return "it finds neither NaN nor infinity: give the inputs that lead to them, with --load-inputs"
    return "it compares nothing: name a second engine after the first, or golden values with --load-outputs"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
