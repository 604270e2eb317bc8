"""Finds out which features of a small failing model may vary, and which must stay, by checks of changed models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun
from biopsy.checks.judge import RUNS_TO_TELL_APART, Signature, signature_of
from biopsy.checks.outcome import Check, Judged, Outcome
from biopsy.comparison.mismatch import COSTS
from biopsy.engines.runner import Inputs, feeds_for
from biopsy.model.external import byte_size, external_tensors
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import inside_a_check
from biopsy.model.load import parse
from biopsy.model.slice import identity_of
from biopsy.model.weights_file import MOST_INLINE, inlined_parts
from biopsy.model.wire import pieces
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.variation.elements import (
    AS_FLOAT32,
    COARSE,
    EXACT,
    attribute_features,
    dtype_features,
    edits_of_inputs,
    edits_of_others,
    input_features,
    weight_features,
)
from biopsy.questions.variation.features import (
    Alternative,
    Answer,
    Edit,
    ExaminedFeature,
    Feature,
    FedModel,
    ProposedChange,
    chained,
    proposed_changes,
)
from biopsy.questions.variation.plain import make_plain
from biopsy.questions.variation.result import Claim, Finding, Together, Variation, claim_of, condition_of, finding_of
from biopsy.questions.variation.shapes import joined_size_features, rank_features, size_features
from biopsy.questions.variation.validity import Validity
from biopsy.reduction.preflight import weigh_original
from biopsy.reduction.values import is_no_comparison
from biopsy.search.drive import Round, drive
from biopsy.session.checked_search import (
    CheckedSearch,
    Flakiness,
    JournalIdentity,
    SearchOptions,
    digest_of_feeds,
    oracle_of,
    prepared,
    run_resumable,
)
from biopsy.session.files import ResultFile
from biopsy.session.oracle import Oracle
from biopsy.session.trial import (
    IDENTITY,
    ROUNDING,
    Budget,
    BudgetSpentError,
    Stage,
    Trial,
    steps_after_pass,
    until_no_pass,
)
from biopsy.slow_imports import onnx
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array
from biopsy.text import count

USUAL_CHECKS = 250
USUAL_SECONDS = 300.0

USUAL_BUDGET = Budget(checks=USUAL_CHECKS, seconds=USUAL_SECONDS)
"""The default budget."""


@dataclass(frozen=True, kw_only=True)
class VariationJob:
    """The settings of ``vary``.

    ``search`` has the rules, the path of candidates, the journal and the budget. ``inputs`` are those of a check that
    is ``biopsy run``; they are then varied too, and resized with the model. ``values_free``: the check does not compare
    with recorded values (see ``reduction.values``); None to conclude it from the failure. ``reference`` is the failure
    that counts as the same; None for the model's own. ``allow_vacuous_check`` accepts a check that fails on anything.
    ``asks_of_plain``: what holds of the model is asked again of its plain form.
    """

    search: SearchOptions = field(default_factory=lambda: SearchOptions(budget=USUAL_BUDGET))
    inputs: Inputs | None = None
    values_free: bool | None = None
    reference: Signature | None = None
    allow_vacuous_check: bool = False
    asks_of_plain: bool = False


def vary(index: ModelIndex, check: Check, job: VariationJob, listener: events.Listener = events.ignore) -> Variation:
    """Find out which features of a model may vary so that it still fails a check in the same way.

    Meant for a small model, such as the result of a reduction. Like Hypothesis's explain phase, it replaces parts of a
    minimal example; here attributes, sizes, types, weights and inputs, each in several ways. ``check`` is closed at the
    end. Raises OriginalPasses if the model does not fail, CheckError if the check cannot be run or fails on anything,
    Interrupted, UsageError for a check by a person or an unusable journal, ModelError for a damaged model.
    """
    if not check.automatic:
        raise errors.UsageError(
            "what may vary is asked of a check, many times, and not of a person", next_steps=["--check COMMAND ..."]
        )
    model = _with_inline_weights(index)
    feeds = _feeds(index, check, job.inputs)
    with prepared(index, check, job.search, listener) as place, temporary_folder("biopsy-") as folder:
        oracle = oracle_of(index, check, job.search, place, listener, advances=None)
        trial_makers = [
            TrialMaker(FedModel(model, each), check, folder)
            for each in ([feeds, None] if feeds is not None else [None])
        ]
        task = VariationTask(index, oracle, trial_makers, job)
        search = CheckedSearch(task, oracle, ResultFile([], task.write, listener))
        with contextlib.ExitStack() as stack:
            for trial_maker in trial_makers:
                stack.callback(trial_maker.close)
            values, failure = job.values_free, job.reference
            options = {
                "--values": "found out" if values is None else values,
                "failure": None if failure is None else str(failure),
            }
            run_resumable(search, JournalIdentity(index=index, check=check, search=job.search, options=options))
        return task.variation


def _with_inline_weights(index: ModelIndex) -> onnx.ModelProto:
    """The model with inline weights. Raises UsageError if they are too large, ModelError if they are missing."""
    data = b"".join(pieces(index.buffer))
    model = parse(data, index.path)
    if not index.has_external_data:
        return model
    if sum(map(byte_size, external_tensors(model))) > MOST_INLINE:
        raise errors.UsageError(
            "the model is too large to be varied: its weights take more than 1 GB",
            next_steps=["biopsy debug reduce --simplify    makes it smaller"],
        )
    return parse(b"".join(inlined_parts(data, model, index.folder)), index.path)


def _feeds(index: ModelIndex, check: Check, inputs: Inputs | None) -> Sequence[Mapping[str, Array]] | None:
    """The inputs that a check by ``biopsy run`` feeds; None for another check, or if they are not known."""
    if inputs is None or not isinstance(check, CommandCheck) or not isinstance(check.command, OwnRun):
        return None
    wanted = {index.names[tensor]: index.declared_type(index.names[tensor]) for tensor in index.fed_inputs()}
    try:
        with inside_a_check():
            given = feeds_for(wanted, inputs).feeds
        feeds = [{name: np.asarray(feed[name]) for name in wanted if name in feed} for feed in given]
    except errors.BiopsyError:
        return None  # the check itself will report the error
    return feeds or None


_ANSWERS: dict[Outcome, Answer] = {Outcome.REPRODUCES: "fails", Outcome.PASSES: "passes"}

_COMPARES = (
    "the check compares with recorded values, or may do so, so that any change would fail; a check that runs two "
    "engines on each candidate does not (biopsy run {} --engine A --engine B), and --values free says so of any other"
)

_MOST_CONFIRMED = 3
"""Other values of all other tensors with which values that pass are asked about again."""

_ANSWERS_TOGETHER = 2
"""Answers about all free features changed at once, with other values each time."""

_MOST_TRIES_TOGETHER = 5
"""Tries to get them, as some changes exclude each other."""


class VariationTask:
    """The task of varying a model, for ``CheckedSearch``. It writes no model.

    The first of ``trial_makers`` with which the model fails makes the trials; the last one feeds no inputs.
    """

    def __init__(
        self, index: ModelIndex, oracle: Oracle, trial_makers: Sequence[TrialMaker], job: VariationJob
    ) -> None:
        self._index = index
        self._oracle = oracle
        self._trial_makers = trial_makers
        self._job = job
        self._flakiness = Flakiness(oracle, job.search.repeating)
        self._trial_maker: TrialMaker | None = None
        self._wrong_place: int | None = None
        self._bits = EXACT
        self._examinations: list[ExaminedFeature] = []
        self._variation = Variation()
        self._tried: set[tuple[int, bytes]] = set()

    @property
    def has_result(self) -> bool:
        """Whether the model is known to fail."""
        return self._trial_maker is not None

    @property
    def is_worth_resuming(self) -> bool:
        """Whether any change was answered."""
        return any(each.answers for each in self._examinations)

    @property
    def progress(self) -> str:
        """The number of changes tried, in words."""
        return f"{count(sum(len(each.answers) for each in self._examinations), 'change')} tried of what may vary"

    def preflight(self) -> None:
        """Check that the unchanged model fails, and how often.

        Raises OriginalPasses if it passes, CheckError if the check cannot say.
        """
        failure = self._oracle.failure
        failure.reference = self._job.reference
        *feeding, not_feeding = self._trial_makers
        for trial_maker in feeding:
            with contextlib.suppress(errors.CheckError):  # it is raised below, if the check's own inputs cause it
                judged = self._oracle.again(trial_maker.unchanged)
                if judged.outcome is Outcome.REPRODUCES:
                    return self._begin_with(trial_maker, judged, 1)
        judged, tries = self._flakiness.failure(lambda: not_feeding.unchanged)
        if judged.outcome is not Outcome.REPRODUCES:
            line = self._oracle.check.line(self._index.path or self._job.search.candidate)
            if judged.outcome is Outcome.INVALID:
                raise errors.CheckError(
                    f"the check cannot say whether the model fails: {judged.reason}", next_steps=[line]
                )
            raise errors.OriginalPasses(
                f"the model does not fail this check ({judged.outcome.value}: {judged.reason}), so nothing can be "
                "varied",
                next_steps=steps_after_pass(judged, line),
            )
        return self._begin_with(not_feeding, judged, tries)

    def _begin_with(self, trial_maker: TrialMaker, judged: Judged, tries: int) -> None:
        self._trial_maker = trial_maker
        trial, oracle = trial_maker.unchanged, self._oracle
        oracle.left = trial.size
        oracle.failure.reference = oracle.failure.reference or signature_of(judged.evidence)
        oracle.check.expect(judged.evidence.seconds)
        weigh_original(oracle, trial, judged.evidence.verdict)
        self._flakiness.begin(trial, tries)

    def begin(self) -> None:
        """Collect the features, if the check allows other values."""
        reference = self._oracle.failure.reference
        assert self._trial_maker is not None and reference is not None
        free = self._job.values_free
        if not (is_no_comparison(reference) if free is None else free):
            self._variation = replace(self._variation, kept=_COMPARES)
            return
        self._bits = bits = (
            COARSE if is_no_comparison(reference) else AS_FLOAT32 if self._oracle.failure.original else EXACT
        )
        self._examinations = [ExaminedFeature(feature) for feature in features_of(self._trial_maker, bits)]
        if reference.stage == "compare" and reference.kind not in COSTS:
            unchanged = self._trial_maker.unchanged
            answers = ((number, self._alone(number, unchanged)) for number in (1, 0))
            self._wrong_place = next((number for number, answer in answers if answer is Outcome.OTHER_FAILURE), None)

    def search(self) -> bool:
        """Check every change, as far as the budget allows."""
        try:
            with self._oracle.budget.enforced():
                drive(proposed_changes(self._examinations), self._check_round)
                self._vary_joined_sizes()
                self._confirm_conditions_on_values()
                self._variation = replace(self._variation, together=self._vary_together())
        except BudgetSpentError:
            self._variation = replace(self._variation, complete=False)
            for each in self._examinations:  # no condition on values was confirmed
                each.is_entangled = True
        if self._examinations:
            self._require_failure()  # whatever was tried says nothing of a failure that has stopped
        if not self._variation.kept:
            self._make_plain()
        if self._variation.plain is not None and self._job.asks_of_plain:
            self._vary_plain(self._variation.plain)
        self._oracle.pool.abandon_all()
        self._require_meaningful_check()
        return True

    def _vary_joined_sizes(self) -> None:
        """Change all places of a size together if changing some of them was not enough."""
        assert self._trial_maker is not None
        tried = [each for each in self._examinations if each.feature.what == "size"]
        sizes = [each.feature for each in tried if claim_of(each) != "free"]
        names = {feature.name for feature in sizes}
        numbers = {feature.numbers.present for feature in sizes if feature.numbers is not None}
        features = joined_size_features(self._trial_maker.base, numbers)
        joined = [ExaminedFeature(feature) for feature in features if feature.name not in names]
        self._examinations += joined
        drive(proposed_changes(joined), self._check_round)
        failing = [each.feature.numbers for each in joined if each.with_answer("fails")]
        present = {number.present for number in failing if number is not None}
        for each in tried:
            number = each.feature.numbers
            if number is not None and number.present in present and not each.with_answer("fails"):
                self._examinations.remove(each)

    def undo(self, digest: bytes | None) -> bool:
        """Answers cannot be undone, as no person gives them."""
        return False

    def write(self) -> None:
        """Nothing is written."""

    def rescue(self) -> str | None:
        """Only the journal is kept."""
        return None

    def verify(self) -> bool:
        """Nothing was written."""
        return False

    def _check_round(self, changes: Round[ProposedChange]) -> Sequence[Answer]:
        """Check every change of a round, several at once if possible, and add the answers to the examinations."""
        trials = [(change, self._trial(change)) for change in changes]
        waiting = [trial for _, trial in trials if trial is not None]
        answers = []
        for change, trial in trials:
            answer: Answer = "invalid"
            if trial is not None:
                if self._oracle.jobs > 1:
                    self._oracle.ahead(iter(waiting))
                waiting = waiting[1:]
                answer = self._answer(trial, of_values=change.examination.feature.values is not None)
            if trial is not None and answer == "passes" and change.examination.feature.values is None:
                lost = self._fails_with_other_values(change.alternative, trial.description)
                answer = "fails" if lost else "passes"
            change.examination.answers.append((change.alternative, answer))
            answers.append(answer)
        return answers

    def _fails_with_other_values(self, change: Alternative, description: str) -> bool:
        """Whether a change that passes is not the reason, as the values that fail were lost by it."""
        assert self._trial_maker is not None
        others = [chained([change.edit, other]) for other in edits_of_inputs(self._trial_maker.base)]
        return self._any_fails([*change.variants, *others], description)

    def _any_fails(self, edits: Sequence[Edit], description: str) -> bool:
        assert self._trial_maker is not None
        trials = (self._trial_maker.changed(edit, f"{description}, with other values") for edit in edits)
        return any(trial is not None and self._answer(trial) == "fails" for trial in trials)

    def _confirm_conditions_on_values(self) -> None:
        """Find out whether values that pass still do with any values of the other tensors."""
        assert self._trial_maker is not None
        for each in self._examinations:
            if each.feature.values is None or not (each.with_answer("passes") and condition_of(each)):
                continue
            others = edits_of_others(self._trial_maker.base, each.feature)
            for number, change in enumerate(each.with_answer("passes") if others else ()):
                some = [others[(number + step) % len(others)] for step in range(min(_MOST_CONFIRMED, len(others)))]
                edits = [chained([change.edit, other]) for other in some]
                title = f"{finding_of(each).title}: {change.text}"
                each.is_entangled = each.is_entangled or self._any_fails(edits, title)

    def _trial(self, change: ProposedChange) -> Trial | None:
        """A trial of the changed model; None if it is not valid, or equal to an earlier one."""
        assert self._trial_maker is not None
        title = finding_of(ExaminedFeature(change.examination.feature)).title
        trial = self._trial_maker.changed(change.alternative.edit, f"{title}: {change.alternative.text}")
        if trial is None or (id(change.examination), trial.digest) in self._tried:
            return None
        self._tried.add((id(change.examination), trial.digest))
        return trial

    def _answer(self, trial: Trial, *, of_values: bool = False) -> Answer:
        """The answer about a trial. It passes if the engine that was wrong is right: then the other one is wrong.

        That is not asked again for each change ``of_values`` alone, which are many.
        """
        answer = _ANSWERS.get(self._oracle.judge(trial).outcome, "neither")
        number = None if of_values or answer != "fails" else self._wrong_place
        return "passes" if number is not None and self._alone(number, trial) is Outcome.PASSES else answer

    def _alone(self, number: int, trial: Trial) -> Outcome | None:
        """What float64 says of one of the two engines of the check; None if it says nothing."""
        check = (trial.check or self._oracle.check).alone(number)
        if check is None:
            return None
        asking = replace(trial, stage=ROUNDING, description=f"{trial.description}, against float64", check=check)
        try:
            return self._oracle.again(asking).outcome
        except errors.CheckChanged:
            raise
        except errors.CheckError:
            return None

    def _vary_together(self) -> Together | None:
        """Change all free features at once."""
        assert self._trial_maker is not None
        free = [each.with_answer("fails") for each in self._examinations if claim_of(each) == "free"]
        answers: list[Answer] = []
        for number in range(_MOST_TRIES_TOGETHER if len(free) > 1 else 0):
            edits = [alternatives[number % len(alternatives)].edit for alternatives in free]
            trial = self._trial_maker.changed(chained(edits), "all that may vary at once")
            answer: Answer = "invalid" if trial is None else self._answer(trial)
            answers += [answer] if answer in {"fails", "passes"} else []
            if len(answers) == _ANSWERS_TOGETHER:
                break
        if not answers:
            return None
        return "sometimes" if len(set(answers)) > 1 else "always" if answers[0] == "fails" else "never"

    def _make_plain(self) -> None:
        """Keep the plainest form of the model that still fails, as far as the budget allows."""
        assert self._trial_maker is not None
        failure = self._oracle.failure.reference
        is_of_shape = failure is not None and failure.kind == "shape-mismatch"
        with contextlib.suppress(BudgetSpentError), self._oracle.budget.enforced():
            make_plain(self._trial_maker.base, self._examinations, self._is_plainer, is_of_shape=is_of_shape)

    def _vary_plain(self, plain: FedModel) -> None:
        """Ask of the plain model what is said in brief of the model: other sizes and values may hide a condition."""
        maker, whole, found = self._trial_maker, self._examinations, self.variation
        assert maker is not None
        titles = {finding.title for finding in found.in_brief}
        self._trial_maker = TrialMaker(plain, maker.check, maker.folder)
        try:
            with contextlib.closing(self._trial_maker), self._oracle.budget.enforced():
                features = [ExaminedFeature(feature) for feature in features_of(self._trial_maker, self._bits)]
                self._examinations = [each for each in features if finding_of(each).title in titles]
                drive(proposed_changes(self._examinations), self._check_round)
                self._confirm_conditions_on_values()
                of_plain = replace(self.variation, together=None, plain=None).brief
        except BudgetSpentError:
            of_plain = ""
        self._trial_maker, self._examinations = maker, whole
        self._variation = replace(self._variation, of_plain=of_plain)

    def _is_plainer(self, edit: Edit, description: str) -> bool:
        """Whether the model still fails after an edit that makes it plainer; if so, the edited model is kept."""
        assert self._trial_maker is not None
        edited = self._trial_maker.edited(edit)
        if edited is None or self._answer(self._trial_maker.trial(edited, description)) != "fails":
            return False
        self._variation = replace(self._variation, plain=edited)
        return True

    def _require_failure(self) -> None:
        """Raise OriginalPasses if the unchanged model fails no more, so that what passed since is no evidence."""
        assert self._trial_maker is not None
        unchanged, runs = self._trial_maker.unchanged, max(self._oracle.memory.repetitions, RUNS_TO_TELL_APART)
        judged, _ = until_no_pass(lambda: self._oracle.again(unchanged), runs)
        if judged.outcome is Outcome.PASSES:
            raise errors.OriginalPasses("the model fails no more: nothing can be said of what may vary")

    def _require_meaningful_check(self) -> None:
        """Raise CheckError if the check fails on anything: no change passes, and a lone Identity node fails too."""
        if self._job.allow_vacuous_check or any(each.with_answer("passes") for each in self._examinations):
            return
        if not any(each.with_answer("fails") for each in self._examinations):
            return
        identity = Trial(
            parts=[identity_of(self._index)], size=1, stage=IDENTITY, description="a one-node Identity model"
        )
        runs = max(self._oracle.memory.repetitions, RUNS_TO_TELL_APART)
        try:
            judged, _ = until_no_pass(lambda: self._oracle.again(identity), runs)
        except errors.CheckError:
            return  # an engine or script that cannot run this model says nothing about the user's
        if judged.outcome is Outcome.REPRODUCES:
            raise errors.CheckError(
                f"a model of one Identity node fails this check in the same way ({judged.reason}): the check fails on "
                "anything, and what may vary says nothing",
                next_steps=["--allow-vacuous-check    continues anyway"],
            )

    @property
    def variation(self) -> Variation:
        """The result, once the search has ended."""
        claims: dict[Claim, list[Finding]] = {"free": [], "fixed": [], "open": []}
        for each in self._examinations:
            if each.answers:
                claims[claim_of(each)].append(finding_of(each))
        free, fixed, unknown = map(tuple, claims.values())
        return replace(self._variation, free=free, fixed=fixed, unknown=unknown, checks=self._oracle.tally.checks)


def features_of(trial_maker: TrialMaker, bits: int) -> Iterator[Feature]:
    """All features, in an order in which they can all be changed together, one after the other."""
    fed, validity = trial_maker.base, trial_maker.validity
    yield from dtype_features(fed, validity, bits)
    yield from size_features(fed, validity)
    yield from attribute_features(fed)
    yield from weight_features(fed)
    yield from input_features(fed)
    yield from rank_features(fed, validity)


VARIED = Stage("explain", is_iteration=False)
"""A model with one of its features changed."""


@dataclass
class TrialMaker:
    """Makes trials of changed models; the files of their inputs are in ``folder``."""

    base: FedModel
    check: Check
    folder: Path
    _fed: dict[str, Check] = field(default_factory=dict)

    @cached_property
    def validity(self) -> Validity:
        """Tests the validity of changed models."""
        return Validity(self.base.model)

    def close(self) -> None:
        """Close the child process of ``validity``."""
        if "validity" in vars(self):
            self.validity.close()

    @property
    def unchanged(self) -> Trial:
        """A trial of the unchanged model."""
        return self.trial(self.base, "the model as it is")

    def edited(self, edit: Edit) -> FedModel | None:
        """The edited model; None if the edit is impossible or gives no valid model."""
        edited = edit(self.base)
        if edited is None or edited.model is self.base.model:
            return edited
        valid = self.validity.validated(edited.model)
        return None if valid is None else replace(edited, model=valid)

    def changed(self, edit: Edit, description: str) -> Trial | None:
        """A trial of the edited model; None if the edit is impossible, gives no valid model, or changes nothing."""
        edited = self.edited(edit)
        trial = None if edited is None else self.trial(edited, description)
        return None if trial is None or trial.digest == self.unchanged.digest else trial

    def trial(self, fed: FedModel, description: str) -> Trial:
        """A trial of a model with its inputs."""
        digest, check = "", None
        if fed.feeds is not None:
            digest = digest_of_feeds(fed.feeds)
            if digest not in self._fed:
                assert isinstance(self.check, CommandCheck)
                path = self.folder / f"{digest}.safetensors"
                write_feeds(path, fed.feeds)
                self.check.start()  # before it is copied for each set of inputs
                self._fed[digest] = self.check.fed(path)
            check = self._fed[digest]
        return Trial(
            parts=[fed.model.SerializeToString(deterministic=True)],
            size=len(fed.model.graph.node),
            stage=VARIED,
            description=description,
            check=check,
            inputs=digest,
        )
