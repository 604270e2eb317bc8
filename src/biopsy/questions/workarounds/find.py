"""The search for workarounds: the nodes to change, and one kind of change after the other, the cheapest first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun
from biopsy.checks.command_line import parse as parse_command
from biopsy.checks.judge import UNKNOWN_RATE, MeasuredRate
from biopsy.checks.outcome import Outcome
from biopsy.checks.warm import command_check
from biopsy.engines.latency import Latency
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.load import parse, read_bytes
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.builds.flags import STAGE, SettingProbe, switches_of
from biopsy.questions.builds.settings import VARIABLE, SettingChange, VariedCheck, varied_check
from biopsy.questions.workarounds.changes import MODEL_KINDS, candidates_of, releases_to_try
from biopsy.questions.workarounds.question import (
    ChangeCandidate,
    FailureRate,
    Kind,
    TriedChange,
    Trust,
    VerifiedChange,
    WorkaroundQuestion,
    Workarounds,
    labels,
)
from biopsy.questions.workarounds.trusted_values import trusted_values
from biopsy.questions.workarounds.verification import ChangeTrials
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Target
from biopsy.session.checked_search import Repeating, SearchOptions, prepared
from biopsy.session.trial import Budget, BudgetMeter, BudgetSpentError, CheckRuns
from biopsy.text import did_you_mean, first_line

_SHARE_OF_REDUCTION = 0.5
"""The share of the remaining time for a reduction; the rest is for the changes."""

_MOST_NEIGHBOURS = 24


def find_workarounds(
    question: WorkaroundQuestion,
    listener: events.Listener = events.ignore,
    settings: Sequence[SettingChange] | None = None,
) -> Workarounds:
    """Find changes with which the whole model is right in the engine that must be used.

    ``settings`` are changes of settings that are known to help; None: they are searched for. Every change is verified
    (``verification``). A limit of the budget, or Ctrl-C once the failure is known, ends the search with the results so
    far; ``stopped`` says so.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run, CannotCompare if the right
    outputs cannot be determined, DoesNotFit for nodes that the model does not have, ModelError for a damaged model.
    """
    template = question.template
    check = varied_check(template, question.default_name, question.timeout)
    with contextlib.closing(check), temporary_folder("biopsy-") as scratch:
        unchanged = check.with_change(SettingChange())
        candidate = Path(question.default_name)
        if question.index.has_external_data and unchanged.names_candidate:
            candidate = question.index.folder / candidate.name
        options = SearchOptions(rules=question.rules, candidate=candidate)
        with prepared(question.index, unchanged, options, listener) as place:
            return WorkaroundSearch(
                question=question, check=check, candidate=place.candidate, scratch=scratch, listener=listener
            ).run(settings)


@dataclass(kw_only=True)
class WorkaroundSearch:
    """One search. ``candidate`` is the path of patched models, ``scratch`` a folder for all other files."""

    question: WorkaroundQuestion
    check: VariedCheck
    candidate: Path
    scratch: Path
    listener: events.Listener
    _checks: int = 0
    _started: float = field(default_factory=time.monotonic)
    _nodes: tuple[int, ...] | None = None
    _verified: list[VerifiedChange] = field(default_factory=list)
    _tried: list[TriedChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._meter = BudgetMeter(self.question.budget)
        runs = CheckRuns(STAGE, self.question.rules, self._bounded)
        self._probe = SettingProbe(self.check, self.question.model, runs, self._bounded)

    def run(self, settings: Sequence[SettingChange] | None = None) -> Workarounds:
        """See the failure, determine the right outputs, and try changes; of settings only the known ones, if given."""
        question = self.question
        if question.nodes:  # first, as a name may be wrong
            self._nodes = nodes_named(question.index, question.nodes)
        elif question.piece is not None:
            self._nodes = nodes_of_piece(question.index, index_file(question.piece))
        try:
            self._probe.begin()
        except errors.OriginalPasses as error:
            raise errors.OriginalPasses(
                f"the model does not fail this check in {question.template.spec.text}: there is nothing to mend",
                next_steps=error.next_steps,
            ) from error
        trials = ChangeTrials(
            question=question,
            probe=self._probe,
            candidate=self.candidate,
            scratch=self.scratch,
            trusted=trusted_values(question, self.scratch, self.listener),
            model=parse(read_bytes(question.model), question.model),
            listener=self._bounded,
        )
        stopped, interrupted = None, False
        with trials:
            if not self._probe.is_of_cost:
                trials.require_symptom()
            if self._nodes is not None:
                self.listener(events.PlacesFound(self._labels))
            try:
                with self._meter.enforced():
                    if not question.template.names_settings and {"setting", "release"} & set(question.kinds):
                        remark = (
                            f"the check has no {{engine}}: settings and releases help it only if it reads {VARIABLE}"
                        )
                        self.listener(events.Remark(remark, warning=True))
                    for kind in question.kinds:
                        self.listener(events.StageStarted(kind, len(question.index.nodes), 0))
                        self._try(kind, trials, settings)
            except BudgetSpentError as limit:
                stopped = str(limit)
            except KeyboardInterrupt:
                stopped, interrupted = "an interruption", True
            flags, trusted = self._probe.flags, trials.trusted
            result = Workarounds(
                model=str(question.model),
                engine=question.template.spec.text,
                failure=FailureRate(text=flags.failure, failed=flags.failed, runs=flags.runs),
                trust=Trust(
                    reference=trusted.engine,
                    confirmed_by=trusted.confirmed_by,
                    samples=trusted.own,
                    fresh=trusted.fresh,
                ),
                found=tuple(self._verified),
                tried=tuple(self._tried),
                piece=self._labels,
                stopped=stopped,
                interrupted=interrupted,
            )
            output = self._write_best(result, trials)
        return replace(result, output=output, checks=self._checks, seconds=time.monotonic() - self._started)

    def _write_best(self, result: Workarounds, trials: ChangeTrials) -> Path | None:
        """Write the best patched model, if there is one and the question has a target, and run the check on the file.

        In the folder of the original it keeps its references to external weights; elsewhere it holds them. Raises
        UsageError if it cannot be written, ModelError if weights are missing, CheckError if the check does not pass
        with the written file.
        """
        target, patched = self.question.target, result.patched
        if target is None or patched is None or patched.model is None:
            return None
        model = parse(patched.model, target.path)
        save_with_weights(model, target.path, self.question.index.folder, target.external, target.threshold)
        objection = trials.check_file(target.path, patched)
        if objection is not None:
            raise errors.CheckError(
                f"{target.path} was written with {patched.text}, but the written file does not pass: {objection}",
                kept=f"{target.path}, which is not verified",
            )
        return target.path

    def _bounded(self, event: events.Event) -> None:
        """Pass an event on, and count checks. Raises BudgetSpentError once the budget is spent."""
        self._checks += isinstance(event, events.Checked)
        self.listener(event)
        if isinstance(event, events.Checking):
            self._meter.spend()

    def _try(self, kind: Kind, trials: ChangeTrials, settings: Sequence[SettingChange] | None) -> None:
        if kind in MODEL_KINDS:
            self._try_patches(kind, trials)
        elif kind == "release":
            self._try_releases(trials)
        else:
            for change in self._settings_that_pass() if settings is None else settings:
                self._verify(ChangeCandidate(kind="setting", text=change.text, change=change), trials)

    def _settings_that_pass(self) -> list[SettingChange]:
        """The smallest changes of settings with which the check passes; records the others that were tried."""
        question = self.question
        try:
            switches = switches_of(self._probe, question.template, question.model, question.index.folder).switches
        finally:  # also if the search is stopped
            for tried in self._probe.flags.tried:
                if not tried.gone:
                    still_fails = tried.outcome is Outcome.REPRODUCES
                    reason = "the check still fails" if still_fails else f"{tried.outcome.value}: {tried.reason}"
                    self._refuse("setting", tried.change.text, " ".join(reason.split())[:300])
        return [switch.change for switch in switches]

    def _try_releases(self, trials: ChangeTrials) -> None:
        """Try releases up to the first one that helps."""
        try:
            candidates = releases_to_try(self.question.template.spec)
        except (errors.CannotInstall, errors.EngineMissing) as error:
            self.listener(events.Remark(f"no other release is tried: {error.summary}", warning=True))
            return
        for candidate in candidates:
            try:
                if self._holds(candidate, trials) and self._verify(candidate, trials):
                    return
            except errors.CannotInstall as error:
                self._refuse("release", candidate.text, first_line(error.summary))
                if error.concerns_all:
                    return

    def _try_patches(self, kind: Kind, trials: ChangeTrials) -> None:
        """Try patches of the nodes of the piece, and then of their neighbours if none helps."""
        if self._nodes is None:
            seconds_left = self._meter.seconds_left
            seconds = None if seconds_left is None else _SHARE_OF_REDUCTION * seconds_left
            try:
                self._nodes = nodes_of_smallest_piece(
                    self.question, self.scratch, seconds, self.listener, self._probe.rate
                )
            except errors.BiopsyError as error:
                self._nodes = ()
                remark = f"the model could not be reduced, so no change of it is tried: {first_line(error.summary)}"
                self.listener(events.Remark(remark, warning=True))
            self.listener(events.PlacesFound(self._labels))
        if not self._nodes:
            return
        for nodes in (self._nodes, neighbours(self.question.index, self._nodes)[:_MOST_NEIGHBOURS]):
            before = len(self._verified)
            for candidate in candidates_of(kind, trials.model, nodes, lambda each: self._holds(each, trials)):
                self._verify(candidate, trials)
            if len(self._verified) > before:
                return

    @property
    def _labels(self) -> tuple[str, ...]:
        return labels(self._nodes or (), [node.label for node in self.question.index.nodes])

    def _holds(self, candidate: ChangeCandidate, trials: ChangeTrials) -> bool:
        """Whether the outputs are right with a candidate, in one run."""
        number = self._checks
        self._bounded(events.Checking(number=number, stage=candidate.kind, description=candidate.text, line=""))
        started = time.monotonic()
        objection = trials.objection(candidate)
        outcome = Outcome.PASSES if objection is None else Outcome.OTHER_FAILURE
        self._bounded(
            events.Checked(
                number=number,
                stage=candidate.kind,
                outcome=outcome.value,
                reason=objection or "the outputs are right",
                seconds=time.monotonic() - started,
                output=b"",
            )
        )
        if objection is not None:
            self._refuse(candidate.kind, candidate.text, objection)
        return objection is None

    def _verify(self, candidate: ChangeCandidate, trials: ChangeTrials) -> bool:
        """Verify a candidate and record the result; returns whether it is a workaround."""
        verified = trials.verified(candidate)
        if isinstance(verified, str):
            self._refuse(candidate.kind, candidate.text, verified)
            return False
        self._verified.append(verified)
        self._note(TriedChange(kind=candidate.kind, text=candidate.text, right=True), verified.latency)
        return True

    def _refuse(self, kind: Kind, text: str, reason: str) -> None:
        self._note(TriedChange(kind=kind, text=text, right=False, reason=reason))

    def _note(self, tried: TriedChange, latency: Latency | None = None) -> None:
        self._tried.append(tried)
        ratio = latency.ratio if latency is not None and latency.differs else None
        event = events.ChangeTried(
            change=tried.kind, text=tried.text, right=tried.right, reason=tried.reason, latency=ratio
        )
        self.listener(event)


def nodes_of_smallest_piece(
    question: WorkaroundQuestion,
    scratch: Path,
    seconds: float | None,
    listener: events.Listener,
    rate: MeasuredRate = UNKNOWN_RATE,
) -> tuple[int, ...]:
    """The places of the nodes in the smallest piece that fails the check, as far as it is reduced in ``seconds``.

    ``rate`` is how often the failure showed before.

    Raises what ``run_job`` raises, but KeyboardInterrupt for an interruption.
    """
    words = question.template.with_change(SettingChange())
    command = parse_command(words)
    has_inputs = isinstance(command, OwnRun) and bool(command.input_files)
    has_golden_values = isinstance(command, OwnRun) and bool(command.golden_files)
    if has_golden_values and not has_inputs:
        raise errors.UsageError(
            "the check compares with golden values, but makes up its inputs: no part of it can fail"
        )
    job = ReductionJob(
        target=Target(scratch / "piece.onnx"),
        search=SearchOptions(
            rules=question.rules,
            candidate=Path(question.default_name),
            budget=Budget(seconds=seconds),
            repeating=Repeating(known=rate),
        ),
        recording=RecordingOptions(samples=lambda: question.right.samples),
        command=command,
        feeds_recorded=has_inputs and not has_golden_values,
    )
    warm_check = command_check(words, question.default_name, question.timeout)
    with contextlib.closing(warm_check) as check, question.template.environment(SettingChange()):
        try:
            return run_job(question.index, check, job, listener).kept
        except errors.Interrupted as stop:
            raise KeyboardInterrupt from stop


def nodes_named(index: ModelIndex, words: Sequence[str]) -> tuple[int, ...]:
    """The places of the nodes that have these names or compute tensors with these names; shell patterns are allowed.

    Raises DoesNotFit for a name that the model does not have.
    """
    names = [[node.name, *(index.names[tensor] for tensor in node.writes)] for node in index.nodes]
    known = [name for names_of_node in names for name in names_of_node if name]
    places: set[int] = set()
    for word in words:
        matching = {
            node.number
            for node, names_of_node in zip(index.nodes, names, strict=True)
            if any(name and (word == name or fnmatchcase(name, word)) for name in names_of_node)
        }
        if not matching:
            raise errors.DoesNotFit(
                f"the model has no node {word!r}, and none that computes a tensor of this name",
                next_steps=[*did_you_mean(word, known), "biopsy inspect model MODEL --show layers    names its nodes"],
            )
        places |= matching
    return tuple(sorted(places))


def nodes_of_piece(index: ModelIndex, piece: ModelIndex) -> tuple[int, ...]:
    """The places of the nodes that a piece has too: with the same operator, and the same outputs or the same name.

    Raises DoesNotFit if there is none: the piece is then of another model, or was renamed.
    """
    by_output = {index.names[tensor]: node for node in index.nodes for tensor in node.writes}
    by_name: dict[str, list[Node]] = {}
    for node in index.nodes:
        by_name.setdefault(node.name, []).append(node)
    places: set[int] = set()
    for node in piece.nodes:
        computed = [by_output.get(piece.names[tensor]) for tensor in node.writes]
        named = by_name.get(node.name, []) if node.name else []
        alike = [each for each in (*computed, *(named if len(named) == 1 else ())) if each is not None]
        places.update(each.number for each in alike if (each.op_type, each.domain) == (node.op_type, node.domain))
    if not places:
        raise errors.DoesNotFit(
            f"no node of {piece.path or 'the piece'} is in the model, neither by its outputs nor by its name",
            next_steps=["--nodes NAME ...    the nodes that fail, by their names in the model"],
        )
    return tuple(sorted(places))


def neighbours(index: ModelIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """The nodes that write what these read, or read what these write."""
    near: set[int] = set()
    for node in nodes:
        near.update(index.producer[tensor] for tensor in index.nodes[node].reads if tensor in index.producer)
        for tensor in index.nodes[node].writes:
            near.update(index.consumers.get(tensor, ()))
    return tuple(sorted(near.difference(nodes)))
