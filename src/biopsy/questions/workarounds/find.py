"""Finding workarounds: where in the model to look, and one kind of change after the other in the order of what they
cost the user.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun
from biopsy.checks.command_line import parse as command_line_parse
from biopsy.checks.outcome import Outcome
from biopsy.checks.warm import command_check
from biopsy.engines.base import ModelInput
from biopsy.engines.runner import wider_sample
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.load import parse, read_bytes
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.builds.flags import STAGE, SettingProbe
from biopsy.questions.builds.settings import VARIABLE, SettingChange, VariedCheck, varied_check
from biopsy.questions.workarounds.changes import (
    MODEL_KINDS,
    candidates_of,
    refused,
    releases_to_try,
    setting_candidate,
    settings_that_pass,
)
from biopsy.questions.workarounds.question import FRESH, ChangeCandidate, Kind, PatchedFile, WorkaroundQuestion
from biopsy.questions.workarounds.result import FailureRate, TriedChange, Trust, VerifiedChange, Workarounds, labels
from biopsy.questions.workarounds.trusted_values import TrustedValues, TrustQuestion, fresh_samples, trusted_values
from biopsy.questions.workarounds.verification import Bench, ChangeTrials
from biopsy.reduction.job import RecordingOptions, ReductionJob, run_job
from biopsy.reduction.result import Target
from biopsy.session.checked_search import SearchOptions, prepared
from biopsy.session.judging import CheckRuns
from biopsy.session.trial import Budget, BudgetMeter, BudgetSpentError
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
            return WorkaroundSearch(question, check, place.candidate, scratch, listener).run(settings)


class WorkaroundSearch:
    """One search. ``candidate`` is where patched models stand, ``scratch`` a folder for everything else."""

    def __init__(
        self,
        question: WorkaroundQuestion,
        check: VariedCheck,
        candidate: Path,
        scratch: Path,
        listener: events.Listener,
    ) -> None:
        self._question = question
        self._check = check
        self._candidate = candidate
        self._scratch = scratch
        self._listener = listener
        self._meter = BudgetMeter(question.budget)
        runs = CheckRuns(STAGE, question.rules, self._bounded)
        self._probe = SettingProbe(check, question.model, runs, self._bounded)
        self._checks = 0
        self._started = time.monotonic()
        self._nodes: tuple[int, ...] | None = None
        self._found: list[VerifiedChange] = []
        self._tried: list[TriedChange] = []

    def run(self, settings: Sequence[SettingChange] | None = None) -> Workarounds:
        """Look at the original, learn what is right, try what may help; of settings only the known ones, if given."""
        self._look_up_places()
        self._require_failure()
        trusted = self._trusted()
        known = self._known(trusted)
        bench = Bench(
            question=self._question,
            probe=self._probe,
            candidate=self._candidate,
            scratch=self._scratch,
            trusted=trusted,
            model=parse(read_bytes(self._question.model), self._question.model),
            listener=self._bounded,
            settings=settings,
        )
        stopped, interrupted, output = None, False, None
        with ChangeTrials(bench) as trials:
            trials.require_symptom()
            if self._nodes is not None:
                self._listener(events.PlacesFound(self._labels))
            try:
                with self._meter.enforced():
                    self._warn_of_deaf_check()
                    for kind in self._question.kinds:
                        self._try(kind, bench, trials)
            except BudgetSpentError as limit:
                stopped = str(limit)
            except KeyboardInterrupt:
                stopped, interrupted = "an interruption", True
            known = replace(known, found=tuple(self._found))
            output = self._written(known, trials)
        return replace(
            known,
            output=output,
            tried=tuple(self._tried),
            piece=self._labels,
            checks=self._checks,
            seconds=time.monotonic() - self._started,
            stopped=stopped,
            interrupted=interrupted,
        )

    def _written(self, known: Workarounds, trials: ChangeTrials) -> Path | None:
        """Write the best patched model, if there is one and it is wanted, and have the file checked.

        Raises CheckError if the check does not pass with the file as it was written.
        """
        target, patched = self._question.target, known.patched
        if target is None or patched is None or patched.model is None:
            return None
        write_patched(patched.model, target, self._question.index)
        said = trials.check_file(target.path, patched)
        if said is not None:
            raise errors.CheckError(
                f"{target.path} was written with {patched.text}, and does not pass as it stands there: {said}",
                kept=f"{target.path}, which is not verified",
            )
        return target.path

    def _look_up_places(self) -> None:
        """The nodes that were named, before anything else: a wrong name is told at once."""
        question = self._question
        if question.nodes:
            self._nodes = nodes_named(question.index, question.nodes)
        elif question.piece is not None:
            self._nodes = nodes_of_piece(question.index, index_file(question.piece))

    def _require_failure(self) -> None:
        """See the failure. Raises OriginalPasses, or CheckError if nothing can be said."""
        try:
            self._probe.begin()
        except errors.OriginalPasses as error:
            raise errors.OriginalPasses(
                f"the model does not fail this check in {self._question.template.spec.text}: there is nothing to mend",
                next_steps=error.next_steps,
            ) from error

    def _known(self, trusted: TrustedValues) -> Workarounds:
        seen = self._probe.found
        return Workarounds(
            model=str(self._question.model),
            engine=self._question.template.spec.text,
            failure=FailureRate(text=seen.failure, failed=seen.failed, runs=seen.runs),
            trust=Trust(
                reference=trusted.engine,
                confirmed_by=trusted.confirmed_by,
                samples=trusted.own,
                fresh=trusted.fresh,
            ),
        )

    def _bounded(self, event: events.Event) -> None:
        """Hand on what is told, and count checks. Raises BudgetSpentError once the budget is spent."""
        self._checks += isinstance(event, events.Checked)
        self._listener(event)
        if isinstance(event, events.Checking):
            self._meter.spend()

    # What is right

    def _trusted(self) -> TrustedValues:
        question, index = self._question, self._question.index
        wanted = index.fed_types()
        fresh = fresh_samples(wanted, question.right.samples, question.right.drawn, FRESH)
        started = time.monotonic()
        asked = TrustQuestion(
            model=_model_input(question),
            references=question.right.references,
            named=question.right.named,
            suspect=question.template.spec.text,
            judge=question.right.judge,
            golden=question.right.golden,
            scratch=self._scratch,
            timeout=question.timeout or question.budget.seconds,
        )
        wider = wider_sample(index, wanted, question.right.drawn)
        found = trusted_values(asked, question.right.samples, fresh, wider, self._listener)
        if wanted and not found.fresh:
            told = (
                "no fresh inputs could be made: what is right for these inputs by luck is not told from what is right"
            )
            self._listener(events.Remark(told, warning=True))
        self._listener(
            events.Trusted(
                engine=found.engine,
                confirmed_by=found.confirmed_by,
                samples=found.own,
                fresh=found.fresh,
                seconds=time.monotonic() - started,
            )
        )
        return found

    # What may help

    def _warn_of_deaf_check(self) -> None:
        """Say if the check may not learn of other settings and releases: then none of them helps, whatever they do."""
        if not self._question.template.names_settings and {"setting", "release"} & set(self._question.kinds):
            told = f"the check has no {{engine}}: settings and releases help it only if it reads {VARIABLE}"
            self._listener(events.Remark(told, warning=True))

    def _try(self, kind: Kind, bench: Bench, trials: ChangeTrials) -> None:
        self._listener(events.StageStarted(kind, len(self._question.index.nodes), 0))
        if kind in MODEL_KINDS:
            self._try_patches(kind, bench, trials)
            return
        if kind == "release":
            self._try_releases(trials)
        else:
            for candidate in self._settings(bench):
                self._verify(candidate, trials)

    def _settings(self, bench: Bench) -> Sequence[ChangeCandidate]:
        """Those that are known already, else the fewest that help; what was tried is noted also if that is stopped."""
        question = self._question
        if bench.settings is not None:
            return [setting_candidate(change) for change in bench.settings]
        try:
            return settings_that_pass(self._probe, question.template, question.model, question.index.folder)
        finally:
            for one in refused(self._probe.found.tried):
                self._note(one)

    def _try_releases(self, trials: ChangeTrials) -> None:
        """The first release that helps."""
        try:
            candidates = releases_to_try(self._question.template.spec)
        except (errors.CannotInstall, errors.EngineMissing) as error:
            self._listener(events.Remark(f"no other release is tried: {error.summary}", warning=True))
            return
        for candidate in candidates:
            try:
                if self._holds(candidate, trials) and self._verify(candidate, trials):
                    return
            except errors.CannotInstall as error:
                reason = first_line(error.summary)
                self._note(TriedChange(kind="release", text=candidate.text, right=False, reason=reason))
                if error.concerns_all:
                    return

    def _try_patches(self, kind: Kind, bench: Bench, trials: ChangeTrials) -> None:
        """At the nodes of the piece; where nothing helps there, at those beside it."""
        nodes = self._places()
        if not nodes:
            return

        def holds(candidate: ChangeCandidate) -> bool:
            return self._holds(candidate, trials)

        for some in (nodes, neighbours(self._question.index, nodes)[:_MOST_NEIGHBOURS]):
            before = len(self._found)
            for candidate in candidates_of(kind, bench.model, some, holds):
                self._verify(candidate, trials)
            if len(self._found) > before:
                return

    def _places(self) -> tuple[int, ...]:
        """Where to look in the model, found and told once."""
        if self._nodes is None:
            self._nodes = self._nodes_of_smallest_piece()
            self._listener(events.PlacesFound(self._labels))
        return self._nodes

    @property
    def _labels(self) -> tuple[str, ...]:
        return labels(self._nodes or (), [node.label for node in self._question.index.nodes])

    def _nodes_of_smallest_piece(self) -> tuple[int, ...]:
        left = self._meter.seconds_left
        seconds = None if left is None else _SHARE_OF_REDUCTION * left
        try:
            return nodes_of_smallest_piece(self._question, self._scratch, seconds, self._listener)
        except errors.BiopsyError as error:
            told = f"the model could not be reduced, so no change of it is tried: {first_line(error.summary)}"
            self._listener(events.Remark(told, warning=True))
            return ()

    # One candidate

    def _holds(self, candidate: ChangeCandidate, trials: ChangeTrials) -> bool:
        """Whether the outputs are right with a candidate, in one run."""
        number = self._checks
        self._bounded(events.Checking(number=number, stage=candidate.kind, description=candidate.text, line=""))
        started = time.monotonic()
        said = trials.objection(candidate)
        outcome = Outcome.PASSES if said is None else Outcome.OTHER_FAILURE
        self._bounded(
            events.Checked(
                number=number,
                stage=candidate.kind,
                outcome=outcome.value,
                reason=said or "the outputs are right",
                seconds=time.monotonic() - started,
                output=b"",
            )
        )
        if said is not None:
            self._note(TriedChange(kind=candidate.kind, text=candidate.text, right=False, reason=said))
        return said is None

    def _verify(self, candidate: ChangeCandidate, trials: ChangeTrials) -> bool:
        """Whether a candidate is a workaround in full, which is noted."""
        found = trials.verified(candidate)
        if isinstance(found, VerifiedChange):
            self._found.append(found)
            self._note(TriedChange(kind=candidate.kind, text=candidate.text, right=True), found)
        else:
            self._note(TriedChange(kind=candidate.kind, text=candidate.text, right=False, reason=found))
        return isinstance(found, VerifiedChange)

    def _note(self, tried: TriedChange, found: VerifiedChange | None = None) -> None:
        self._tried.append(tried)
        ratio = None if found is None or found.latency is None else found.latency.ratio
        self._listener(
            events.ChangeTried(
                change=tried.kind, text=tried.text, right=tried.right, reason=tried.reason, latency=ratio
            )
        )


def _model_input(question: WorkaroundQuestion) -> ModelInput:
    return ModelInput(read_bytes(question.model), question.index.folder, question.model)


# Where to look for a workaround in a model: the nodes of the smallest piece of it that still fails.


def nodes_of_smallest_piece(
    question: WorkaroundQuestion, scratch: Path, seconds: float | None, listener: events.Listener
) -> tuple[int, ...]:
    """The places of the nodes in the smallest piece that fails the check.

    ``seconds`` is what that may take: what is known by then counts. Raises what ``run_job`` raises, but for an
    interruption, which is a KeyboardInterrupt.
    """
    words = question.template.with_change(SettingChange())
    command = command_line_parse(words)
    files = (command.input_files, command.golden_files) if isinstance(command, OwnRun) else ((), ())
    inputs, golden = map(bool, files)
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
    found: set[int] = set()
    for word in words:
        meant = [
            node.number
            for node in index.nodes
            if any((word == name or fnmatchcase(name, word)) for name in _names(index, node))
        ]
        if not meant:
            known = [name for node in index.nodes for name in _names(index, node)]
            raise errors.DoesNotFit(
                f"the model has no node {word!r}, and none that computes a tensor of this name",
                next_steps=[*did_you_mean(word, known), "biopsy inspect model MODEL --show layers    names its nodes"],
            )
        found.update(meant)
    return tuple(sorted(found))


def _names(index: ModelIndex, node: Node) -> Iterator[str]:
    if node.name:
        yield node.name
    yield from (index.names[tensor] for tensor in node.writes)


def nodes_of_piece(index: ModelIndex, piece: ModelIndex) -> tuple[int, ...]:
    """The places of those nodes of a model that a piece of it has too: same operator, and same outputs or same name.

    Raises DoesNotFit if there is none, since the piece is of another model then, or its names were changed.
    """
    by_output = {index.names[tensor]: node for node in index.nodes for tensor in node.writes}
    by_name: dict[str, list[Node]] = {}
    for node in index.nodes:
        by_name.setdefault(node.name, []).append(node)
    found: set[int] = set()
    for node in piece.nodes:
        computed = [by_output.get(piece.names[tensor]) for tensor in node.writes]
        named = by_name.get(node.name, []) if node.name else []
        alike = [one for one in (*computed, *(named if len(named) == 1 else ())) if one is not None]
        found.update(one.number for one in alike if (one.op_type, one.domain) == (node.op_type, node.domain))
    if not found:
        raise errors.DoesNotFit(
            f"no node of {piece.path or 'the piece'} is in the model, neither by its outputs nor by its name",
            next_steps=["--nodes NAME ...    the nodes that fail, by their names in the model"],
        )
    return tuple(sorted(found))


def neighbours(index: ModelIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes that write what these read, or read what these write, and are none of these."""
    known = set(nodes)
    found: set[int] = set()
    for node in nodes:
        found.update(index.producer[tensor] for tensor in index.nodes[node].reads if tensor in index.producer)
        for tensor in index.nodes[node].writes:
            found.update(index.consumers.get(tensor, ()))
    return tuple(sorted(found - known))


# The patched model as a file.


def write_patched(model: bytes, target: PatchedFile, index: ModelIndex) -> None:
    """Write a model that was made of an original, and refers to the same weights.

    In the folder of the original it goes on referring to weights in other files; elsewhere it gets them inside. Raises
    UsageError if it cannot be written, ModelError if weights are missing.
    """
    parsed = parse(model, target.path)
    save_with_weights(parsed, target.path, index.folder, target.external, target.threshold)
