"""Finding workarounds: one kind of change after the other, in the order of what they cost the user.

found = find_workarounds(question)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Outcome
from biopsy.engines.base import ModelInput
from biopsy.engines.wider_inputs import wider_sample
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.index import index_file
from biopsy.model.load import parse, read_bytes
from biopsy.session.budget import BudgetMeter, BudgetSpentError
from biopsy.session.options import SearchOptions
from biopsy.session.setup import prepared
from biopsy.tactics.flags import SettingProbe
from biopsy.tactics.setting_changes import VARIABLE, SettingChange, VariedCheck, varied_check
from biopsy.text import first_line
from biopsy.workarounds.candidate import ChangeCandidate
from biopsy.workarounds.engine_changes import refused, releases_to_try, setting_candidate, settings_that_pass
from biopsy.workarounds.fresh_samples import fresh_samples
from biopsy.workarounds.model_changes import MODEL_KINDS, candidates_of
from biopsy.workarounds.node_places import neighbours, nodes_named, nodes_of_piece
from biopsy.workarounds.patched_file import write_patched
from biopsy.workarounds.question import FRESH, Kind, WorkaroundQuestion
from biopsy.workarounds.result import FailureRate, TriedChange, Trust, VerifiedChange, Workarounds, labels
from biopsy.workarounds.smallest_piece import nodes_of_smallest_piece
from biopsy.workarounds.trusted_values import TrustedValues, TrustQuestion, trusted_values
from biopsy.workarounds.verification import Bench, ChangeTrials

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
        self._probe = SettingProbe(check, question.model, question.rules, self._bounded)
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
            check=self._check,
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

        for some in (nodes, self._beside(nodes)):
            before = len(self._found)
            for candidate in candidates_of(kind, bench.model, some, holds):
                self._verify(candidate, trials)
            if len(self._found) > before:
                return

    def _beside(self, nodes: Sequence[int]) -> Sequence[int]:
        return neighbours(self._question.index, nodes)[:_MOST_NEIGHBOURS]

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
