"""Finding workarounds: where in the model to look, and one kind of change after the other in the order of what they
cost the user.
"""

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
from biopsy.checks.outcome import Outcome
from biopsy.checks.warm import command_check
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.load import parse, read_bytes
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.builds.flags import STAGE, SettingProbe, switches_of
from biopsy.questions.builds.settings import VARIABLE, SettingChange, VariedCheck, varied_check
from biopsy.questions.workarounds.changes import MODEL_KINDS, candidates_of, releases_to_try
from biopsy.questions.workarounds.latency import Latency
from biopsy.questions.workarounds.question import ChangeCandidate, Kind, WorkaroundQuestion
from biopsy.questions.workarounds.result import FailureRate, TriedChange, Trust, VerifiedChange, Workarounds, labels
from biopsy.questions.workarounds.trusted_values import trusted_values
from biopsy.questions.workarounds.verification import ChangeTrials
from biopsy.reduction.reduce import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Target
from biopsy.session.checked_search import SearchOptions, prepared
from biopsy.session.trial import Budget, BudgetMeter, BudgetSpentError, CheckRuns
from biopsy.text import did_you_mean, first_line

_SHARE_OF_REDUCTION = 0.5
"""Of the time that is left: something must be left for what is tried around the piece."""

_MOST_NEIGHBOURS = 24


def find_workarounds(
    question: WorkaroundQuestion,
    listener: events.Listener = events.ignore,
    settings: Sequence[SettingChange] | None = None,
) -> Workarounds:
    """Find changes with which the whole model is right in the engine that must be used.

    ``settings`` are changes of settings that are known to help: no others are looked for. None: they are looked for.

    Each is verified as ``verification`` has it. A limit of the budget, or Ctrl-C once the failure is known, ends the
    search with what was found by then: ``stopped`` of the result says so.

    Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run, CannotCompare if nobody can
    tell what is right, DoesNotFit for nodes that the model does not have, ModelError for a damaged model.
    """
    template = question.template
    check = varied_check(template, question.default_name, question.timeout)
    with contextlib.closing(check), temporary_folder("biopsy-") as scratch:
        unchanged = check.with_change(SettingChange())
        wanted = Path(question.default_name)
        if question.index.has_external_data and unchanged.names_candidate:
            wanted = question.index.folder / wanted.name
        options = SearchOptions(rules=question.rules, candidate=wanted)
        with prepared(question.index, unchanged, options, listener) as place:
            return WorkaroundSearch(
                question=question, check=check, candidate=place.candidate, scratch=scratch, listener=listener
            ).run(settings)


@dataclass(kw_only=True)
class WorkaroundSearch:
    """One search. ``candidate`` is where patched models stand, ``scratch`` a folder for everything else."""

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
        """Look at the original, learn what is right, try what may help; of settings only the known ones, if given."""
        question = self.question
        if question.nodes:  # a wrong name is told before anything else
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
            seen, trusted = self._probe.found, trials.trusted
            result = Workarounds(
                model=str(question.model),
                engine=question.template.spec.text,
                failure=FailureRate(text=seen.failure, failed=seen.failed, runs=seen.runs),
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
            output = self._written(result, trials)
        return replace(result, output=output, checks=self._checks, seconds=time.monotonic() - self._started)

    def _written(self, result: Workarounds, trials: ChangeTrials) -> Path | None:
        """Write the best patched model, if there is one and it is wanted, and have the file checked.

        In the folder of the original it goes on referring to weights in other files; elsewhere it gets them inside.
        Raises UsageError if it cannot be written, ModelError if weights are missing, CheckError if the check does not
        pass with the file as it was written.
        """
        target, patched = self.question.target, result.patched
        if target is None or patched is None or patched.model is None:
            return None
        model = parse(patched.model, target.path)
        save_with_weights(model, target.path, self.question.index.folder, target.external, target.threshold)
        objection = trials.check_file(target.path, patched)
        if objection is not None:
            raise errors.CheckError(
                f"{target.path} was written with {patched.text}, and does not pass as it stands there: {objection}",
                kept=f"{target.path}, which is not verified",
            )
        return target.path

    def _bounded(self, event: events.Event) -> None:
        """Hand on what is told, and count checks. Raises BudgetSpentError once the budget is spent."""
        self._checks += isinstance(event, events.Checked)
        self.listener(event)
        if isinstance(event, events.Checking):
            self._meter.spend()

    # What may help

    def _try(self, kind: Kind, trials: ChangeTrials, settings: Sequence[SettingChange] | None) -> None:
        if kind in MODEL_KINDS:
            self._try_patches(kind, trials)
        elif kind == "release":
            self._try_releases(trials)
        else:
            for change in self._settings_that_pass() if settings is None else settings:
                self._verify(ChangeCandidate(kind="setting", text=change.text, change=change), trials)

    def _settings_that_pass(self) -> list[SettingChange]:
        """The smallest changes of settings with which the check passes; the others that were tried are noted."""
        question = self.question
        try:
            switches = switches_of(self._probe, question.template, question.model, question.index.folder).switches
        finally:  # also if it is stopped
            for tried in self._probe.found.tried:
                if not tried.gone:
                    still = tried.outcome is Outcome.REPRODUCES
                    why = "the check still fails" if still else f"{tried.outcome.value}: {tried.reason}"
                    self._refuse("setting", tried.change.text, " ".join(why.split())[:300])
        return [switch.change for switch in switches]

    def _try_releases(self, trials: ChangeTrials) -> None:
        """The first release that helps."""
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
        """At the nodes of the piece; where nothing helps there, at those beside it."""
        if self._nodes is None:
            left = self._meter.seconds_left
            seconds = None if left is None else _SHARE_OF_REDUCTION * left
            try:
                self._nodes = nodes_of_smallest_piece(self.question, self.scratch, seconds, self.listener)
            except errors.BiopsyError as error:
                self._nodes = ()
                remark = f"the model could not be reduced, so no change of it is tried: {first_line(error.summary)}"
                self.listener(events.Remark(remark, warning=True))
            self.listener(events.PlacesFound(self._labels))
        if not self._nodes:
            return
        for nodes in (self._nodes, neighbours(self.question.index, self._nodes)[:_MOST_NEIGHBOURS]):
            before = len(self._verified)
            for candidate in candidates_of(kind, trials.model, nodes, lambda one: self._holds(one, trials)):
                self._verify(candidate, trials)
            if len(self._verified) > before:
                return

    @property
    def _labels(self) -> tuple[str, ...]:
        return labels(self._nodes or (), [node.label for node in self.question.index.nodes])

    # One candidate

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
        """Whether a candidate is a workaround in full, which is noted."""
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
        ratio = None if latency is None else latency.ratio
        event = events.ChangeTried(
            change=tried.kind, text=tried.text, right=tried.right, reason=tried.reason, latency=ratio
        )
        self.listener(event)


def nodes_of_smallest_piece(
    question: WorkaroundQuestion, scratch: Path, seconds: float | None, listener: events.Listener
) -> tuple[int, ...]:
    """The places of the nodes in the smallest piece that fails the check.

    ``seconds`` is what that may take: what is known by then counts. Raises what ``run_job`` raises, but for an
    interruption, which is a KeyboardInterrupt.
    """
    words = question.template.with_change(SettingChange())
    command = parse_command(words)
    inputs = isinstance(command, OwnRun) and bool(command.input_files)
    golden = isinstance(command, OwnRun) and bool(command.golden_files)
    if golden and not inputs:
        raise errors.UsageError(
            "the check compares with golden values, but makes up its inputs: no part of it can fail"
        )
    job = ReductionJob(
        target=Target(scratch / "piece.onnx"),
        search=SearchOptions(
            rules=question.rules, candidate=Path(question.default_name), budget=Budget(seconds=seconds)
        ),
        recording=RecordingOptions(samples=lambda: question.right.samples),
        command=command,
        feeds_recorded=inputs and not golden,
    )
    made = command_check(words, question.default_name, question.timeout)
    with contextlib.closing(made) as check, question.template.environment(SettingChange()):
        try:
            return run_job(question.index, check, job, listener).kept
        except errors.Interrupted as stop:
            raise KeyboardInterrupt from stop


# Which nodes of a model are meant: by those of a piece of it, by names, and those beside them.


def nodes_named(index: ModelIndex, words: Sequence[str]) -> tuple[int, ...]:
    """The places of nodes of these names, or that compute tensors of these names; patterns are allowed.

    Raises DoesNotFit for a word that means nothing in the model.
    """
    names = [[node.name, *(index.names[tensor] for tensor in node.writes)] for node in index.nodes]
    known = [name for some in names for name in some if name]
    places: set[int] = set()
    for word in words:
        meant = {
            node.number
            for node, some in zip(index.nodes, names, strict=True)
            if any(name and (word == name or fnmatchcase(name, word)) for name in some)
        }
        if not meant:
            raise errors.DoesNotFit(
                f"the model has no node {word!r}, and none that computes a tensor of this name",
                next_steps=[*did_you_mean(word, known), "biopsy inspect model MODEL --show layers    names its nodes"],
            )
        places |= meant
    return tuple(sorted(places))


def nodes_of_piece(index: ModelIndex, piece: ModelIndex) -> tuple[int, ...]:
    """The places of those nodes of a model that a piece of it has too: same operator, and same outputs or same name.

    Raises DoesNotFit if there is none, since the piece is of another model then, or its names were changed.
    """
    by_output = {index.names[tensor]: node for node in index.nodes for tensor in node.writes}
    by_name: dict[str, list[Node]] = {}
    for node in index.nodes:
        by_name.setdefault(node.name, []).append(node)
    places: set[int] = set()
    for node in piece.nodes:
        computed = [by_output.get(piece.names[tensor]) for tensor in node.writes]
        named = by_name.get(node.name, []) if node.name else []
        alike = [one for one in (*computed, *(named if len(named) == 1 else ())) if one is not None]
        places.update(one.number for one in alike if (one.op_type, one.domain) == (node.op_type, node.domain))
    if not places:
        raise errors.DoesNotFit(
            f"no node of {piece.path or 'the piece'} is in the model, neither by its outputs nor by its name",
            next_steps=["--nodes NAME ...    the nodes that fail, by their names in the model"],
        )
    return tuple(sorted(places))


def neighbours(index: ModelIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes that write what these read, or read what these write, and are none of these."""
    known = set(nodes)
    beside: set[int] = set()
    for node in nodes:
        beside.update(index.producer[tensor] for tensor in index.nodes[node].reads if tensor in index.producer)
        for tensor in index.nodes[node].writes:
            beside.update(index.consumers.get(tensor, ()))
    return tuple(sorted(beside - known))
