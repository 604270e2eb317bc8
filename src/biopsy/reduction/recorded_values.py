"""Recorded values in candidates: feeding them to a check that loads inputs, and keeping those out of results that
golden values may contradict.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.journal import FRESH
from biopsy.checks.outcome import Check, Outcome
from biopsy.model.index import index_bytes
from biopsy.model.load import parse
from biopsy.reduction.driver import Driver
from biopsy.reduction.passes.common import PassContext
from biopsy.reduction.problem import Candidate, Problem
from biopsy.reduction.result import inputs_file
from biopsy.reduction.values import Values, is_no_comparison, recorded_outputs
from biopsy.session.files import write_all, write_inputs
from biopsy.session.oracle import Oracle
from biopsy.session.trial import VALUES, Trial

if TYPE_CHECKING:
    import onnx

_NOTE = "cuts are fed with"
_RECORDED, _RANDOM = "recorded", "random"
_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together: more are not kept on disk only to be fed."""


class Feeding:
    """Feeds the recorded values of a problem to a check that loads inputs, from a file in ``folder``.

    ``wanted``: the check loads inputs. If it does not, or nothing can be recorded, nothing is done. ``inputs`` is the
    file that the result is fed from; None if the user's files are enough.
    """

    def __init__(self, problem: Problem, oracle: Oracle, folder: Path, *, wanted: bool) -> None:
        self._problem = problem
        self._oracle = oracle
        self._folder = folder
        self.is_wanted = wanted
        self.inputs: Path | None = None
        self._plain: Check | None = None

    def begin(self) -> None:
        """Have candidates checked with recorded values from now on, unless the user's files hold inner tensors too.

        Raises UsageError where a journal's answers are about candidates that were fed with other values.
        """
        check, problem = self._oracle.check, self._problem
        path = self._folder / "recorded.safetensors"
        if self._plain is not None:
            self._oracle.pool.use(self._plain.cold().fed(path))
            return
        if not self.is_wanted or problem.elements > _MOST_ELEMENTS:
            return
        if problem.recording.holds_inner:
            return
        recording, index = problem.recording, problem.index
        recording.include(index.producer)
        try:
            trouble = None if write_all(index, recording, path) else "no values could be recorded"
        except errors.BiopsyError as error:
            trouble = error.message  # of a type that cannot be stored: what is cut is made up, as it was
        memory, now = self._oracle.memory, _RANDOM if trouble else _RECORDED
        before = memory.noted(_NOTE)
        if before is None:
            memory.note(_NOTE, now)
        elif before != now:
            why = f": {trouble}" if trouble else ""
            raise errors.UsageError(
                f"the answers in {memory.journal_path} are about candidates fed with {before} values, and now they "
                f"would be fed with {now} ones{why}",
                kept="the journal, as it is",
                next_steps=[FRESH],
            )
        if trouble is None:
            self._plain = check
            self._oracle.pool.use(check.fed(path))

    def settle(self, result: Iterable[bytes], output: Path) -> None:
        """Leave what the result is fed beside it, for the check from now on, unless the user's files are enough."""
        self.inputs = None
        if self._plain is None:
            return
        index, recording, data = self._problem.index, self._problem.recording, b"".join(result)
        fed = index_bytes(data)
        tensors = [index.ids.get(fed.names[tensor], -1) for tensor in fed.fed_inputs()]
        if not any(tensor in index.producer and index.names[tensor] in recording for tensor in tensors):
            self._oracle.pool.use(self._plain)
            return
        path = inputs_file(output)
        write_inputs(index, recording, data, path)
        self._oracle.pool.use(self._plain.fed(path))
        self.inputs = path


# Recorded values in candidates, where the check may compare with golden values that were given.
#
# Recorded values come from one run of the original. If a node of it is wrong by the golden values, what was recorded
# behind that node is wrong too. A candidate that holds such a value as a constant, or is fed with it, contradicts the
# golden values by itself, and its nodes are blamed for what another one did. So only what somebody vouches for may be
# used then: see ``Problem.is_vouched``.


class Vouching:
    """Makes sure that no result rests on a recorded value that golden values may contradict.

    If the check's words say that it has golden values (``compares``), no such value becomes a constant. If they say
    nothing, the search goes on as if it had none. If its result then rests on such a value, the check is asked about
    a model that computes nothing: its outputs are constants, the recorded values of the outputs of the result. If that
    passes, the failure is in the nodes of the result. If not, the search goes back to the last result without such
    values. ``feeds``: candidates are fed with recorded values from a file, and golden values of the same tensors may
    confirm them.
    """

    def __init__(
        self, driver: Driver, context: PassContext, *, values: Values, has_golden: bool | None, feeds: bool
    ) -> None:
        self._driver = driver
        self._context = context
        self._values = values
        self._told_golden = has_golden
        self._feeds = feeds
        self._has_golden = False
        self._is_settled = False
        self._ground = driver.problem.whole
        self._believed: Candidate | None = None

    def begin(self) -> None:
        """Decide what the check's words decide, once the original has failed and before candidates are made.

        A failure that no values decide is none of a comparison, unless the user's rules let a mismatch count as the
        same.
        """
        problem, failure = self._driver.problem, self._driver.oracle.failure
        rules, reference = failure.rules, failure.reference
        is_narrow = not rules.decide_alone and rules.match not in {"any", "status"}
        is_none = is_narrow and reference is not None and is_no_comparison(reference)
        compares = False if is_none or self._values == "free" else self._told_golden
        self._has_golden, self._is_settled = bool(compares), compares is False
        if compares:
            problem.freeze_vouched_only()
        self._ground, self._believed = problem.whole, None
        self.found(self._driver.best)

    def found(self, best: Candidate | None) -> None:
        """Remember a candidate that reproduces, as one to go back to if it rests on nothing doubtful."""
        if best is not None and not self.is_doubtful(best):
            self._ground = best

    def holds(self) -> bool:
        """Whether the best so far may be believed; if not, it is given up, and the search must be run again.

        Then nothing is used any more that nobody vouches for. It may cost checks.
        """
        best, problem = self._driver.best, self._driver.problem
        if best is None or not self.is_doubtful(best):
            return True
        fed = True  # whether the answer is about the values that it is fed, too
        if self._has_golden:
            is_believed = self._passes_what_it_is_fed(best) or self._passes_what_was_recorded(best) is True
        else:
            passes = self._passes_what_was_recorded(best)
            is_believed = bool(passes)
            if passes is None:  # what is fed has other values in each sample, and then no constant tells anything
                is_believed = not problem.doubtful(best, fed=False) or self._context.may_change_values
                fed = False
        if is_believed:
            self._believed = best
            return True
        self._driver.go_back(self._ground)
        problem.freeze_vouched_only()
        problem.feeds_vouched_only |= fed and self._feeds
        self._driver.listener(
            events.Remark(
                "values     recorded values may contradict those that the check compares with: searching again without"
            )
        )
        return False

    def settle(self, *, may_ask: bool) -> None:
        """Give up a best result that is not to be believed, if a limit ended the search before that was asked.

        Where nothing more may be asked, a doubtful result is given up.
        """
        if may_ask:
            self.holds()
        elif self.is_doubtful(self._driver.best):
            self._driver.go_back(self._ground)

    def is_doubtful(self, best: Candidate | None) -> bool:
        """Whether a best candidate may turn out to be no result."""
        if best is None or best == self._believed or self._is_settled or self._context.are_values_free:
            return False
        problem = self._driver.problem
        is_fed = self._feeds and not problem.feeds_vouched_only and problem.doubtful(best, fed=True)
        return is_fed or problem.doubtful(best, fed=False)

    def _passes_what_it_is_fed(self, best: Candidate) -> bool:
        """Whether golden values confirm all that a candidate is fed and nobody vouches for, each by a check.

        It says nothing of a tensor that it has no golden value of.
        """
        problem = self._driver.problem
        model = self._model_of(best)
        if model is None:
            return False
        ids, producer = problem.index.ids, problem.index.producer
        fed = [
            info for info in model.graph.input if ids[info.name] in producer and not problem.is_vouched(ids[info.name])
        ]
        problem.recording.include(ids[info.name] for info in fed)
        del model.graph.input[:]
        for info in fed:
            del model.graph.output[:]
            model.graph.output.append(info)
            if self._passes_constants(model, best, f"a constant, as recorded, for {info.name!r}") is not True:
                return False
        return True

    def _passes_what_was_recorded(self, best: Candidate) -> bool | None:
        """Whether the check passes the recorded outputs of a candidate, without its nodes; None if nobody can tell."""
        model = self._model_of(best)
        if model is None:
            return None
        recording, index = self._driver.problem.recording, self._driver.problem.index
        border = [entry.name for entry in (*model.graph.input, *model.graph.output)]
        inner = [name for name in border if index.ids[name] in index.producer]
        recording.include(map(index.ids.__getitem__, inner))
        if not all(map(recording.confirms, inner)):
            return False  # values that the user gave are others than those of the run, behind a wrong node
        return self._passes_constants(model, best, "constants, as recorded, for what its nodes compute")

    def _passes_constants(self, model: onnx.ModelProto, best: Candidate, description: str) -> bool | None:
        """Whether the check passes a model whose outputs are constants, as recorded; None if it cannot be asked."""
        constants = recorded_outputs(model, self._driver.problem.recording.computed_value)
        if constants is None:
            return None
        data = constants.SerializeToString(deterministic=True)
        trial = Trial(parts=[data], size=best.size, stage=VALUES, description=description)
        return {Outcome.PASSES: True, Outcome.REPRODUCES: False}.get(self._driver.oracle.judge(trial).outcome)

    def _model_of(self, best: Candidate) -> onnx.ModelProto | None:
        """A candidate as a protobuf object, which cannot hold every model that bytes can."""
        try:
            return parse(b"".join(self._driver.parts(best)), None)
        except errors.ModelError:
            return None
