"""Whether a change is a workaround: the whole model is right with it, and not only free of the symptom.

Four things are asked: the outputs are those that the trusted engine computes of the original, on all samples and on
fresh ones; inputs and outputs are declared as they were, and nobody refuses the model who accepts the original; the
check passes in fresh processes, as often as the failure needs; and the original still fails beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from biopsy import errors, events
from biopsy.checks.outcome import Outcome
from biopsy.checks.task import clear
from biopsy.engines.base import ModelInput
from biopsy.engines.other_release.release import RELEASE
from biopsy.engines.registry import parse_spec, release_now
from biopsy.engines.worker import Worker
from biopsy.filesystem.write import write_transient
from biopsy.isolation import cleanup
from biopsy.linting.lost_validity import lost_validity
from biopsy.tactics.flags import SettingProbe
from biopsy.tactics.setting_changes import SettingChange, VariedCheck
from biopsy.text import first_line
from biopsy.workarounds.candidate import ChangeCandidate, interface_objection, patched
from biopsy.workarounds.difference import difference
from biopsy.workarounds.latency import Latency, Side, side_by_side
from biopsy.workarounds.question import WorkaroundQuestion
from biopsy.workarounds.result import VerifiedChange, labels
from biopsy.workarounds.trusted_values import CANNOT_RUN, TrustedValues

if TYPE_CHECKING:
    import onnx

_LEAST_TIMEOUT = 60.0
"""Seconds for a run of an engine, where nobody has set a limit."""

_TIMES_THE_TRUSTED = 20


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What candidates are verified with: the question, its check, where candidates stand, what is right.

    ``probe`` has seen the failure of the original. ``scratch`` is for transient files. ``settings`` are changes that
    are known to help, None if that is to be found out.
    """

    question: WorkaroundQuestion
    check: VariedCheck
    probe: SettingProbe
    candidate: Path
    scratch: Path
    trusted: TrustedValues
    model: onnx.ModelProto
    listener: events.Listener
    settings: Sequence[SettingChange] | None = None


class ChangeTrials:
    """Verifies candidates. Use it in a ``with``: an engine is kept loaded for the models of one after the other."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._worker: Worker | None = None
        self._types: Mapping[str, np.dtype[Any]] = {}

    def __enter__(self) -> ChangeTrials:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._worker is not None:
            self._worker.close()
        with contextlib.suppress(OSError):
            clear(self._bench.candidate, whole=True)
        cleanup.keep(self._bench.candidate)

    @property
    def timeout(self) -> float:
        """Seconds that an engine may take for all samples: far more than the trusted one took, if nobody has said."""
        bench = self._bench
        return bench.question.timeout or max(_LEAST_TIMEOUT, _TIMES_THE_TRUSTED * bench.trusted.seconds)

    def require_symptom(self) -> None:
        """Raise CannotCompare if the engine gives for the original what is right, in as many runs as should show it.

        Then the values cannot tell a workaround from a change that hides the symptom.
        """
        bench = self._bench
        original = ChangeCandidate(kind="setting", text="the model as it is")
        for _ in range(bench.probe.needed):
            if self.objection(original) is not None:
                return
        suspect, trusted = bench.question.template.spec.text, bench.trusted
        raise errors.CannotCompare(
            f"cannot tell what is right: the check fails, but {suspect} gives the same as {trusted.engine} on these "
            "inputs",
            details=["whether a change mends the model, or hides the failure from the check, could not be told apart"],
            next_steps=[
                "--load-inputs FILE    the inputs with which it fails, before --check",
                "--atol and --rtol    what counts as different",
                "--reference-engine NAME    an engine that gives the right outputs",
            ],
        )

    def objection(self, candidate: ChangeCandidate) -> str | None:
        """Why the outputs with a candidate are not right, in one line; None if they are."""
        bench = self._bench
        model = bench.model if not candidate.patches else patched(bench.model, candidate.patches)
        if model is None:
            return "it does not fit the model"
        may_add = candidate.kind == "mark" or any(patch.kind == "mark" for patch in candidate.patches)
        said = interface_objection(bench.model, model, may_add=may_add)
        return said or self._of_values(_input_of(model, bench), candidate.change)

    def _of_values(self, model: ModelInput, change: SettingChange) -> str | None:
        bench = self._bench
        spec = bench.question.template.changed(change)
        if parse_spec(bench.trusted.engine) == spec and bench.trusted.confirmed_by is None:
            return f"{spec.text} is what counts as right here, and nothing confirms it"
        with self._running(change) as worker:
            try:
                found = worker.run(model, bench.trusted.feeds)
            except CANNOT_RUN as error:
                return first_line(error.summary)
        if not self._types and not change.settings:
            self._types = {name: value.dtype for name, value in found[0].items()}
        return bench.trusted.objection(found, bench.question.right.judge, self._types)

    @contextlib.contextmanager
    def _running(self, change: SettingChange) -> Iterator[Worker]:
        """The engine as it is set, kept; with other settings one of its own."""
        template = self._bench.question.template
        if not change.settings and not change.environment:
            if self._worker is None:
                self._worker = Worker(template.spec.text, self._bench.scratch, self.timeout)
            yield self._worker
            return
        changed = template.changed(change).text
        with template.environment(change), Worker(changed, self._bench.scratch, self.timeout) as worker:
            yield worker

    # In full

    def verified(self, candidate: ChangeCandidate) -> VerifiedChange | str:
        """The workaround, if a candidate is one; else why not, in one line."""
        bench = self._bench
        for _ in range(bench.probe.needed):
            said = self.objection(candidate)
            if said is not None:
                return said
        model = self._written(candidate)
        said = self._refused(model) if model is not None else None
        return said or self._checked(candidate) or self._workaround(candidate, model)

    def _written(self, candidate: ChangeCandidate) -> onnx.ModelProto | None:
        """The patched model, written to where the check finds it; None if the model stays as it is."""
        if not candidate.patches:
            return None
        made = patched(self._bench.model, candidate.patches)
        assert made is not None
        clear(self._bench.candidate)
        write_transient(self._bench.candidate, [made.SerializeToString(deterministic=True)])
        return made

    def _refused(self, model: onnx.ModelProto) -> str | None:
        bench = self._bench
        lost = lost_validity(model, bench.model.SerializeToString(), bench.question.index.folder)
        return None if lost is None or not lost.certain else str(lost)

    def _checked(self, candidate: ChangeCandidate) -> str | None:
        """What the check says against a candidate, or that the original does not fail beside it; None if nothing."""
        bench = self._bench
        runs = bench.probe.needed
        probe = self._probe_of(bench.candidate) if candidate.patches else bench.probe
        for _ in range(runs):
            judged = probe.once(candidate.change, f"fresh: {candidate.text}", cold=True)
            if judged.outcome is not Outcome.PASSES:
                return f"the check: {judged.outcome.value}: {judged.reason}"
        nothing = SettingChange()
        for _ in range(runs):
            if bench.probe.once(nothing, "fresh: as it was", cold=True).outcome is Outcome.REPRODUCES:
                return None
        return "the check passes, but then it passes as it was too: nothing can be said"

    def _probe_of(self, model: Path) -> SettingProbe:
        """What runs the check on another file than the original, and knows the original's failure."""
        bench = self._bench
        probe = SettingProbe(bench.check, model, bench.question.rules, bench.listener)
        probe.reference, probe.needed = bench.probe.reference, bench.probe.needed
        return probe

    def check_file(self, path: Path, change: VerifiedChange) -> str | None:
        """What the check says against a patched model as it was written, in a fresh process; None if it passes."""
        judged = self._probe_of(path).once(SettingChange(), f"as written: {change.text}", cold=True)
        return None if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: {judged.reason}"

    def _workaround(self, candidate: ChangeCandidate, model: onnx.ModelProto | None) -> VerifiedChange:
        bench = self._bench
        names = [node.label for node in bench.question.index.nodes]
        return VerifiedChange(
            kind=candidate.kind,
            text=candidate.text,
            engine=bench.question.template.changed(candidate.change).text,
            environment=candidate.change.environment,
            nodes=labels(candidate.nodes, names),
            difference=() if model is None else difference(bench.model, model).lines(),
            holds=tuple(dict.fromkeys(patch.holds for patch in candidate.patches if patch.holds)),
            model=None if model is None else model.SerializeToString(deterministic=True),
            latency=self._latency(candidate),
            runs=bench.probe.needed,
        )

    def _latency(self, candidate: ChangeCandidate) -> Latency | None:
        """How long the model takes beside the original; both from an environment of their own if one is."""
        bench = self._bench
        question, template = bench.question, bench.question.template
        unchanged = SettingChange()
        if RELEASE in candidate.change.settings and RELEASE not in template.spec.settings:
            unchanged = SettingChange({RELEASE: release_now(template.spec)})
        before = self._side(unchanged, question.model)
        after = self._side(candidate.change, bench.candidate if candidate.patches else question.model)
        found = side_by_side(before, after, self.timeout)
        return None if found is not None and found.ratio is None and RELEASE in candidate.change.settings else found

    def _side(self, change: SettingChange, model: Path) -> Side:
        bench = self._bench
        return Side(
            engine=bench.question.template.changed(change).text,
            model=model,
            folder=bench.question.index.folder,
            feeds=bench.trusted.feeds,
            environment=change.environment,
        )


def _input_of(model: onnx.ModelProto, bench: Bench) -> ModelInput:
    """A model as an engine is given it; the original is read where it stands."""
    index = bench.question.index
    if model is bench.model:
        return ModelInput(model.SerializeToString(), index.folder, bench.question.model)
    return ModelInput(model.SerializeToString(deterministic=True), index.folder)
