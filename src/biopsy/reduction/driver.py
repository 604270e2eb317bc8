"""The driver: checks what passes propose, remembers every outcome, keeps the smallest candidate that reproduces."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.artifacts import Artifacts, write_iteration
from biopsy.checks.interactive import UndoError
from biopsy.checks.judge import Rules, judge
from biopsy.checks.outcome import Check, Evidence, Judged, Outcome
from biopsy.checks.signature import Signature
from biopsy.model.index import index_file, label
from biopsy.model.load import parse
from biopsy.model.slice import Boundary, candidate_parts
from biopsy.model.write import write_whole
from biopsy.reduction.candidate import Candidate, NamedPass, Proposal, Round
from biopsy.reduction.change import Change, NamedModelPass
from biopsy.reduction.problem import Problem
from biopsy.reduction.workspace import Workspace
from biopsy.tensors.results import Array

if TYPE_CHECKING:
    import onnx


_PROBES = frozenset({"identity", "values", "final"})
"""Stages whose models are no candidates: they are no iterations, and no artifacts of theirs are sorted."""


class RestartError(Exception):
    """An answer was taken back: the search must be run again, with every other answer remembered."""


@dataclass(frozen=True)
class IterationFiles:
    """Files that each check may read or leave: see the options of the same names."""

    artifacts: Artifacts = field(default_factory=Artifacts)
    info: Path | None = None
    inputs: Path | None = None
    keep_last: bool = False


@dataclass
class Tally:
    """What a search has cost and met: outcomes counted, other failures by their reason."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    other_failures: Counter[str] = field(default_factory=Counter)

    @property
    def checks(self) -> int:
        """Checks that were run."""
        return sum(self.outcomes.values())


class Driver:
    """Runs checks on candidates of one problem, one after the other."""

    def __init__(
        self,
        problem: Problem,
        check: Check,
        rules: Rules,
        workspace: Workspace,
        listener: events.Listener,
        files: IterationFiles = IterationFiles(),
    ) -> None:
        self.problem = problem
        self.check = check
        self.workspace = workspace
        self.listener = listener
        self.tally = Tally()
        self.best: Candidate | None = None
        self.refined: onnx.ModelProto | None = None
        self.passing: list[Candidate] = []
        self.reference: Signature | None = None
        self._rules = rules
        self._files = files
        self._memory: dict[Candidate | bytes, Judged] = {}  # bytes: the digest of a model that is no candidate
        self._iteration = 0

    def search(self, named: NamedPass, target: Candidate) -> Candidate:
        """Run one pass to its end; returns the smallest candidate that reproduced, ``target`` if none did."""
        started, checks = time.monotonic(), self.tally.checks
        self.listener(events.StageStarted(named.name, target.size))
        before = target.size
        search = named.search(self.problem, target)
        answer: Candidate | None = None
        while True:
            try:
                proposals = search.send(answer)
            except StopIteration:
                break
            answer = self._first_that_reproduces(proposals, target, named.name)
            target = answer or target
        self.listener(
            events.StageDone(named.name, before, target.size, self.tally.checks - checks, time.monotonic() - started)
        )
        return target

    def refine(self, named: NamedModelPass) -> None:
        """Run one pass over the model itself to its end; ``refined`` is then the simplest that reproduced.

        Whether values may change is asked, which can cost checks, only if the pass has something to propose.
        """
        started, checks, before = time.monotonic(), self.tally.checks, self.left
        search = named.search(self.best_model())
        changes = next(search, None)
        if changes is None or not (named.keeps_values or self.problem.may_change_values):
            return
        self.listener(events.StageStarted(named.name, before))
        while changes is not None:
            try:
                changes = search.send(self._first_change_that_reproduces(changes, named.name))
            except StopIteration:
                changes = None
        taken = self.tally.checks - checks
        if taken:
            self.listener(events.StageDone(named.name, before, self.left, taken, time.monotonic() - started))

    def _first_change_that_reproduces(self, changes: Iterable[Change], stage: str) -> onnx.ModelProto | None:
        current = _digest(b"".join(self.best_parts()))
        for change in changes:
            data = change.model.SerializeToString(deterministic=True)
            digest = _digest(data)
            if digest == current:
                return change.model
            judged = self._memory.get(digest)
            if judged is None:
                judged = self.check_bytes([data], len(change.model.graph.node), stage, change.doing)
                self._memory[digest] = replace(judged, evidence=replace(judged.evidence, output=b""))
                self._note_other_failure(judged)
            if judged.outcome is Outcome.REPRODUCES:
                self.refined = change.model
                return change.model
        return None

    @property
    def left(self) -> int:
        """Nodes of the best model so far."""
        if self.refined is not None:
            return len(self.refined.graph.node)
        return self.best.size if self.best else len(self.problem.index.nodes)

    def parts(self, candidate: Candidate) -> list[bytes]:
        """A candidate as bytes, its external weights referred to from the folder where candidates stand."""
        return candidate_parts(self.problem.subset(candidate), self.boundary(candidate))

    def best_parts(self) -> list[bytes]:
        """The best model so far as bytes, as it was checked."""
        if self.refined is not None:
            return [self.refined.SerializeToString(deterministic=True)]
        assert self.best is not None
        return self.parts(self.best)

    def best_model(self) -> onnx.ModelProto:
        """The best model so far as a protobuf object, external weights not loaded."""
        return self.refined if self.refined is not None else parse(b"".join(self.best_parts()), None)

    def labels(self) -> tuple[str, ...]:
        """The nodes of the best model so far, by operator and name, in order."""
        if self.refined is not None:
            return tuple(label(node.op_type, node.name, number) for number, node in enumerate(self.refined.graph.node))
        assert self.best is not None
        return tuple(self.problem.index.nodes[number].label for number in self.best.nodes)

    def _first_that_reproduces(self, proposals: Round, target: Candidate, stage: str) -> Candidate | None:
        for proposal in proposals:
            candidate = self.problem.closed(proposal.candidate)
            if candidate == target:
                return target  # nothing can be left out of what was proposed: the answer is known
            if candidate is None or candidate.size >= target.size:
                continue
            for sampled in self.problem.samples_of(candidate):
                judged = self.judge_candidate(replace(proposal, candidate=sampled), stage)
                if judged.outcome is Outcome.REPRODUCES:
                    self.best = sampled
                    return sampled
        return None

    def judge_candidate(self, proposal: Proposal, stage: str) -> Judged:
        """The outcome of a candidate that is closed, from memory if it was checked before."""
        candidate = proposal.candidate
        known = self._memory.get(candidate)
        if known is not None:
            return known
        judged = self.check_once(candidate, self.boundary(candidate), stage, proposal.doing)
        self._memory[candidate] = replace(judged, evidence=replace(judged.evidence, output=b""))
        if judged.outcome is Outcome.PASSES:
            self.passing.append(candidate)
        self._note_other_failure(judged)
        return judged

    def _note_other_failure(self, judged: Judged) -> None:
        if judged.outcome is Outcome.OTHER_FAILURE:
            self.tally.other_failures[judged.reason] += 1

    def boundary(self, candidate: Candidate) -> Boundary:
        """The border of a candidate, its weights referred to from where candidates stand."""
        return replace(self.problem.boundary(candidate), places=self.workspace.places)

    def check_once(self, candidate: Candidate, boundary: Boundary, stage: str, doing: str) -> Judged:
        """Write a candidate, run the check on it, sort artifacts. Raises CheckError if the check could not be run."""
        parts = candidate_parts(self.problem.subset(candidate), boundary)
        write_whole(self.workspace.candidate, parts)
        return self.check_file(self.workspace.candidate, candidate.size, stage, doing)

    def check_bytes(self, parts: Sequence[bytes], size: int, stage: str, doing: str) -> Judged:
        """Check a model that is no candidate of the search over nodes, such as a probe."""
        write_whole(self.workspace.candidate, parts)
        return self.check_file(self.workspace.candidate, size, stage, doing)

    def check_file(self, path: Path, size: int, stage: str, doing: str) -> Judged:
        """Run the check on a model that stands on disk; counts as one iteration unless it is a probe of ours."""
        number = self.tally.checks
        if stage not in _PROBES and self._files.info is not None:
            write_iteration(self._files.info, self._iteration)
        self.listener(events.Checking(number, stage, doing, size, self.left, self.check.line(path)))
        try:
            judged = self._judge(path)
        except UndoError:
            self._take_back()
        seconds = judged.evidence.seconds
        self.tally.outcomes[judged.outcome] += 1
        left = size if judged.outcome is Outcome.REPRODUCES else self.left
        self.listener(
            events.Checked(
                number, stage, judged.outcome.value, judged.reason, size, left, seconds, judged.evidence.output
            )
        )
        if judged.outcome is Outcome.INFRASTRUCTURE:
            raise errors.CheckError(
                f"the check could not be run: {judged.reason}",
                kept="nothing was concluded from it",
                next_steps=[f"run it by hand: {self.check.line(path)}"],
            )
        if stage not in _PROBES:
            for missing in self._files.artifacts.sort(judged.outcome, self._iteration, stage):
                self.listener(events.Remark(f"the artifact {missing} was not there after iteration {self._iteration}"))
            self._iteration += 1
        return judged

    def _judge(self, path: Path) -> Judged:
        if self._files.inputs is not None:
            try:
                self._write_inputs(path, self._files.inputs)
            except errors.CannotCompare as error:
                if self.reference is None:
                    raise  # not even the original has values
                return Judged(Outcome.INVALID, error.message, Evidence(0))
        return judge(self.check.run(path), self._rules, self.reference)

    def tidy(self) -> None:
        """Leave no candidate and no copied weights behind."""
        if not self._files.keep_last:
            with contextlib.suppress(OSError):  # what went wrong before is told, not this
                self.workspace.candidate.unlink(missing_ok=True)
        self.workspace.remove_copies()
        self.check.close()

    def _take_back(self) -> None:
        """Forget the newest answer and have the search run again up to it."""
        if self._memory:
            newest = next(reversed(self._memory))
            judged = self._memory.pop(newest)
            self.tally.outcomes[judged.outcome] -= 1
            self._iteration -= 1
            self.passing = [candidate for candidate in self.passing if candidate != newest]
        else:
            self.listener(events.Remark("there is no answer to take back"))
        raise RestartError

    def _write_inputs(self, model: Path, path: Path) -> None:
        """Write the recorded values of what a model must be fed; names that nothing was recorded for are left out."""
        from biopsy.tensors.files import write_feeds

        index, recording = self.problem.index, self.problem.recording
        found = index_file(model)
        feeds: list[dict[str, Array]] = [{} for _ in range(recording.count)]
        for name in (found.names[tensor] for tensor in found.fed_inputs()):
            values = recording.values(index.ids[name]) if name in index.ids else None
            for feed, value in zip(feeds, values or (), strict=False):
                feed[name] = value
        if not any(feeds) and found.fed_inputs():
            raise errors.CannotCompare(
                f"no values are recorded for the inputs of {model}, so they cannot be written to {path}",
                next_steps=["give inputs that the model runs with by --load-inputs", "or leave --iter-inputs out"],
            )
        write_feeds(path, feeds)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()
