"""Finding out what may vary in a small failing model and what must stay as it is: the question, the search with a
check, and the changed models that the check is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun
from biopsy.checks.judge import Signature, signature_of
from biopsy.checks.outcome import Check, Judged, Outcome
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
    input_features,
    weight_features,
)
from biopsy.questions.variation.features import (
    Answer,
    Edit,
    ExaminedFeature,
    Feature,
    FedModel,
    Trying,
    in_turn,
    varied,
)
from biopsy.questions.variation.result import Claim, Finding, Together, Variation, claim_of, finding_of
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
from biopsy.session.trial import IDENTITY, Budget, BudgetSpentError, Stage, Trial
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array
from biopsy.text import count

if TYPE_CHECKING:
    import onnx

USUAL_CHECKS = 60
USUAL_SECONDS = 300.0

USUAL_BUDGET = Budget(checks=USUAL_CHECKS, seconds=USUAL_SECONDS)
"""What finding out what may vary costs, if nobody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class VariationJob:
    """How a check is asked what may vary in a model that fails.

    ``search`` has the rules, the place of candidates, the journal and the budget. ``inputs`` is what a check that is
    our own ``run`` feeds: then inputs are varied too, and resized with the model; None for any other check.
    ``values_free``: the check does not compare with recorded values (see ``reduction.values``); None to conclude it
    from the failure. ``reference`` is the failure that counts as the same one; None for that of the model itself.
    ``allow_vacuous_check`` goes on where the check fails on anything.
    """

    search: SearchOptions = field(default_factory=lambda: SearchOptions(budget=USUAL_BUDGET))
    inputs: Inputs | None = None
    values_free: bool | None = None
    reference: Signature | None = None
    allow_vacuous_check: bool = False


# Finding out what may vary in a small failing model, and what must be as it is.
#
# After the phase of Hypothesis that explains a failure (MacIver and others): parts of a minimal example are replaced
# by other ones, and those are reported with which it fails in any case. Here the parts are attributes, sizes, element
# types, weights and inputs, and each is changed in several different ways before anything is said of it.


def vary(index: ModelIndex, check: Check, job: VariationJob, listener: events.Listener = events.ignore) -> Variation:
    """Find out what may vary in a model that fails a check, and still fails in the same way.

    Meant for a small model, such as the result of a reduction. ``check`` is closed at the end. Raises OriginalPasses if
    the model does not fail, CheckError if the check cannot be run or fails on anything, Interrupted if it is stopped,
    UsageError for a check that is a person or a journal that cannot be used, ModelError for a damaged model.
    """
    if not check.automatic:
        raise errors.UsageError(
            "what may vary is asked of a check, many times, and not of a person", next_steps=["--check COMMAND ..."]
        )
    model = _with_its_weights(index)
    feeds = _feeds(index, check, job.inputs)
    with prepared(index, check, job.search, listener) as place, temporary_folder("biopsy-") as folder:
        oracle = oracle_of(index, check, job.search, place, listener, advances=None)
        laboratories = [
            Laboratory(FedModel(model, one), check, folder) for one in ([feeds, None] if feeds is not None else [None])
        ]
        task = VariationTask(index, oracle, laboratories, job)
        search = CheckedSearch(task, oracle, ResultFile([], task.write, listener))
        with contextlib.ExitStack() as stack:
            for laboratory in laboratories:
                stack.callback(laboratory.close)
            values, failure = job.values_free, job.reference
            options = {
                "--values": "found out" if values is None else values,
                "failure": None if failure is None else str(failure),
            }
            run_resumable(search, JournalIdentity(index=index, check=check, search=job.search, options=options))
        return task.variation


def _with_its_weights(index: ModelIndex) -> onnx.ModelProto:
    """The model, its weights inside. Raises UsageError if they are too many, ModelError if they are missing."""
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
    """What our own ``run`` feeds a model; None where the check is another one, or that cannot be told."""
    if inputs is None or not isinstance(check, CommandCheck) or not isinstance(check.command, OwnRun):
        return None
    wanted = {index.names[tensor]: index.declared_type(index.names[tensor]) for tensor in index.fed_inputs()}
    try:
        with inside_a_check():
            given = feeds_for(wanted, inputs).feeds
        feeds = [{name: np.asarray(feed[name]) for name in wanted if name in feed} for feed in given]
    except errors.BiopsyError:
        return None  # the check itself will tell what is wrong with them
    return feeds or None


# Finding out what may vary, as a search with a check: every change is asked about, and nothing is written.

_ANSWERS: dict[Outcome, Answer] = {Outcome.REPRODUCES: "fails", Outcome.PASSES: "passes"}

_COMPARES = (
    "the check compares with recorded values, or may do so, and any change would fail by itself; a check that runs two "
    "engines on each candidate does not (biopsy run {} --engine A --engine B), and --values free says so of any other"
)

_AT_ONCE = 2
"""Answers about all free features changed at once, otherwise each time."""

_MOST_AT_ONCE = 5
"""Times that this is tried: some changes do not go together."""


class VariationTask:
    """What a search with a check is told of a model whose features are varied.

    ``laboratories`` make its trials: the first in which the model fails does. The last one leaves the inputs to the
    check.
    """

    def __init__(
        self, index: ModelIndex, oracle: Oracle, laboratories: Sequence[Laboratory], job: VariationJob
    ) -> None:
        self._index = index
        self._oracle = oracle
        self._laboratories = laboratories
        self._job = job
        self._flakiness = Flakiness(oracle, job.search.repeating)
        self._laboratory: Laboratory | None = None
        self._examinations: list[ExaminedFeature] = []
        self._found = Variation()
        self._asked: set[tuple[int, bytes]] = set()

    # What a search with a check asks

    @property
    def has_result(self) -> bool:
        """Whether the model is known to fail."""
        return self._laboratory is not None

    @property
    def is_worth_resuming(self) -> bool:
        """Whether any change was answered."""
        return any(one.seen for one in self._examinations)

    @property
    def progress(self) -> str:
        """How many changes were tried."""
        return f"{count(sum(len(one.seen) for one in self._examinations), 'change')} tried of what may vary"

    def preflight(self) -> None:
        """Check the model as it is, which must fail, and how often it does.

        Raises OriginalPasses if it passes, CheckError if the check cannot say.
        """
        failure = self._oracle.failure
        failure.reference = self._job.reference
        *fed, as_it_is = self._laboratories
        for laboratory in fed:
            with contextlib.suppress(errors.CheckError):  # what it says of its own inputs will be told
                judged = self._oracle.again(laboratory.unchanged)
                if judged.outcome is Outcome.REPRODUCES:
                    return self._begin_with(laboratory, judged, 1)
        judged, tries = self._flakiness.failure(lambda: as_it_is.unchanged)
        if judged.outcome is not Outcome.REPRODUCES:
            line = self._oracle.check.line(self._index.path or self._job.search.candidate)
            if judged.outcome is Outcome.INVALID:
                raise errors.CheckError(
                    f"the check cannot say whether the model fails: {judged.reason}", next_steps=[line]
                )
            raise errors.OriginalPasses(
                f"the model does not fail this check ({judged.outcome.value}: {judged.reason}), so nothing can be "
                "varied",
                next_steps=[f"run it by hand: {line}"],
            )
        return self._begin_with(as_it_is, judged, tries)

    def _begin_with(self, laboratory: Laboratory, judged: Judged, tries: int) -> None:
        self._laboratory = laboratory
        trial, oracle = laboratory.unchanged, self._oracle
        oracle.left = trial.size
        oracle.failure.reference = oracle.failure.reference or signature_of(judged.evidence)
        oracle.check.expect(judged.evidence.seconds)
        weigh_original(oracle, trial, judged.evidence.verdict)
        self._flakiness.begin(trial, tries)

    def begin(self) -> None:
        """Collect what may be changed, where values may be others."""
        reference = self._oracle.failure.reference
        assert self._laboratory is not None and reference is not None
        free = self._job.values_free
        if not (is_no_comparison(reference) if free is None else free):
            self._found = replace(self._found, kept=_COMPARES)
            return
        bits = COARSE if is_no_comparison(reference) else AS_FLOAT32 if self._oracle.failure.original else EXACT
        self._examinations = [ExaminedFeature(one) for one in features_of(self._laboratory, bits)]

    def search(self) -> bool:
        """Ask about every change, as far as the budget goes."""
        try:
            with self._oracle.budget.enforced():
                drive(varied(self._examinations), self._answered)
                self._vary_joined_sizes()
                self._found = replace(self._found, together=self._all_at_once())
        except BudgetSpentError:
            self._found = replace(self._found, complete=False)
        self._oracle.pool.abandon_all()
        self._require_meaning()
        return True

    def _vary_joined_sizes(self) -> None:
        """Change all places of a size together, where changing some of them was not enough."""
        assert self._laboratory is not None
        alone = [one.feature for one in self._examinations if one.feature.what == "size" and claim_of(one) != "free"]
        sizes = {one.numbers.present for one in alone if one.numbers is not None}
        names = {one.name for one in alone}
        joined = [
            ExaminedFeature(one) for one in joined_size_features(self._laboratory.base, sizes) if one.name not in names
        ]
        self._examinations += joined
        drive(varied(joined), self._answered)
        failing = {one.feature.numbers.present for one in joined if one.feature.numbers and one.that("fails")}
        for one in list(self._examinations):
            numbers = one.feature.numbers if one.feature.what == "size" and one not in joined else None
            if numbers is not None and numbers.present in failing and not one.that("fails"):
                self._examinations.remove(one)

    def undo(self, digest: bytes | None) -> bool:
        """Nobody takes an answer back: persons are not asked."""
        return False

    def write(self) -> None:
        """Nothing is written."""

    def rescue(self) -> str | None:
        """Nothing is kept but the journal."""
        return None

    def verify(self) -> bool:
        """Nothing was written."""
        return False

    # Questions and answers

    def _answered(self, tryings: Round[Trying]) -> Sequence[Answer]:
        """Have every change of a round checked, several at once where that is possible, and note each answer."""
        asked = [(one, self._trial(one)) for one in tryings]
        waiting = [trial for _, trial in asked if trial is not None]
        answers = []
        for trying, trial in asked:
            answer: Answer = "invalid"
            if trial is not None:
                if self._oracle.jobs > 1:
                    self._oracle.ahead(iter(waiting))
                waiting = waiting[1:]
                answer = self._answer(trial)
            trying.examination.seen.append((trying.alternative, answer))
            answers.append(answer)
        return answers

    def _trial(self, trying: Trying) -> Trial | None:
        assert self._laboratory is not None
        title = finding_of(ExaminedFeature(trying.examination.feature)).title
        trial = self._laboratory.changed(trying.alternative.edit, f"{title}: {trying.alternative.text}")
        if trial is None or (id(trying.examination), trial.digest) in self._asked:
            return None  # several kinds of change may come to the same
        self._asked.add((id(trying.examination), trial.digest))
        return trial

    def _answer(self, trial: Trial) -> Answer:
        return _ANSWERS.get(self._oracle.judge(trial).outcome, "neither")

    def _all_at_once(self) -> Together | None:
        """Change all free features at once."""
        assert self._laboratory is not None
        free = [one.that("fails") for one in self._examinations if claim_of(one) == "free"]
        answers: list[Answer] = []
        for number in range(_MOST_AT_ONCE if len(free) > 1 else 0):
            edits = [some[number % len(some)].edit for some in free]
            trial = self._laboratory.changed(in_turn(edits), "all that may vary at once")
            answer: Answer = "invalid" if trial is None else self._answer(trial)
            answers += [answer] if answer in {"fails", "passes"} else []
            if len(answers) == _AT_ONCE:
                break
        if not answers:
            return None
        return "sometimes" if len(set(answers)) > 1 else "always" if answers[0] == "fails" else "never"

    def _require_meaning(self) -> None:
        """Raise CheckError where no change passes, and a model of one Identity node fails too: a check says nothing."""
        if self._job.allow_vacuous_check or any(one.that("passes") for one in self._examinations):
            return
        if not any(one.that("fails") for one in self._examinations):
            return
        identity = Trial(
            parts=[identity_of(self._index)], size=1, stage=IDENTITY, description="a one-node Identity model"
        )
        try:
            judged = self._oracle.again(identity)
        except errors.CheckError:
            return  # what an engine or a script makes of a stranger's inputs is no matter of the user's model
        if judged.outcome is Outcome.REPRODUCES:
            raise errors.CheckError(
                f"a model of one Identity node fails this check in the same way ({judged.reason}): the check fails on "
                "anything, and what may vary says nothing",
                next_steps=["--allow-vacuous-check    continues anyway"],
            )

    @property
    def variation(self) -> Variation:
        """What was found, once the search has ended."""
        claims: dict[Claim, list[Finding]] = {"free": [], "fixed": [], "open": []}
        for one in self._examinations:
            if one.seen:
                claims[claim_of(one)].append(finding_of(one))
        free, fixed, unknown = map(tuple, claims.values())
        return replace(self._found, free=free, fixed=fixed, unknown=unknown, checks=self._oracle.tally.checks)


def features_of(laboratory: Laboratory, bits: int) -> Iterator[Feature]:
    """Everything that may be changed, in an order in which all changes can be made one after the other."""
    fed, validity = laboratory.base, laboratory.validity
    yield from dtype_features(fed, validity, bits)
    yield from size_features(fed, validity)
    yield from attribute_features(fed)
    yield from weight_features(fed)
    yield from input_features(fed)
    yield from rank_features(fed, validity)


# Changed models as they are given to the check: made, held against what is valid, and fed.

VARIED = Stage("explain", is_iteration=False)
"""A model with one of its features changed."""


@dataclass
class Laboratory:
    """Makes trials of changed models; ``folder`` is where the inputs stand that they are fed."""

    base: FedModel
    check: Check
    folder: Path
    _fed: dict[str, Check] = field(default_factory=dict)

    @cached_property
    def validity(self) -> Validity:
        """What is true of the model."""
        return Validity(self.base.model)

    def close(self) -> None:
        """End what looks at models."""
        if "validity" in vars(self):
            self.validity.close()

    @property
    def unchanged(self) -> Trial:
        """The model as it is."""
        return self.trial(self.base, "the model as it is")

    def changed(self, edit: Edit, description: str) -> Trial | None:
        """The model after an edit; None if that cannot be made, is not valid, or changes nothing."""
        made = edit(self.base)
        if made is not None and made.model is not self.base.model:
            told = self.validity.told(made.model)
            made = None if told is None else replace(made, model=told)
        if made is None:
            return None
        trial = self.trial(made, description)
        return None if trial.digest == self.unchanged.digest else trial

    def trial(self, fed: FedModel, description: str) -> Trial:
        """A model with its inputs, to be checked."""
        digest = "" if fed.feeds is None else digest_of_feeds(fed.feeds)
        return Trial(
            parts=[fed.model.SerializeToString(deterministic=True)],
            size=len(fed.model.graph.node),
            stage=VARIED,
            description=description,
            check=None if fed.feeds is None else self._check_fed(digest, fed.feeds),
            inputs=digest,
        )

    def _check_fed(self, digest: str, feeds: Sequence[Mapping[str, Array]]) -> Check:
        if digest not in self._fed:
            assert isinstance(self.check, CommandCheck)
            path = self.folder / f"{digest}.safetensors"
            write_feeds(path, feeds)
            self.check.start()  # once, and not for each set of inputs
            self._fed[digest] = self.check.fed(path)
        return self._fed[digest]
