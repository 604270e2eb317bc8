"""Recorded values in candidates: feeds them to a check that loads inputs, and keeps those out of results that golden
values may contradict.

Recorded values come from one run of the original. If a node of it is wrong by the golden values, the recorded values
behind that node are wrong, too. A candidate with such a value, as a constant or an input, contradicts the golden values
by itself, and its nodes are blamed for the error of another one. So with golden values, only those recorded values may
be used that are right for sure (``Problem.is_vouched``).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
from biopsy.slow_imports import onnx

_NOTE = "cuts are fed with"
_RECORDED, _RANDOM = "recorded", "random"
_MOST_ELEMENTS = 1 << 28
"""Elements of all tensors together; more are not written to disk just for feeding."""


class Feeding:
    """Feeds recorded values to a check that loads inputs (``wanted``), from a file in ``folder``.

    Nothing is done if nothing can be recorded. ``inputs`` is the file with which the result is fed; None if the user's
    files are enough.
    """

    def __init__(self, problem: Problem, oracle: Oracle, folder: Path, *, wanted: bool) -> None:
        self._problem = problem
        self._oracle = oracle
        self._folder = folder
        self.is_wanted = wanted
        self.inputs: Path | None = None
        self._plain: Check | None = None

    def begin(self) -> None:
        """Have candidates fed with recorded values from now on, unless the user's files hold inner tensors.

        Raises UsageError if the answers in the journal are about candidates that were fed with other values.
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
            obstacle = None if write_all(index, recording, path) else "no values could be recorded"
        except errors.BiopsyError as error:
            obstacle = error.message  # a type that cannot be stored; the check then makes up random values
        memory, values = self._oracle.memory, _RANDOM if obstacle else _RECORDED
        values_before = memory.noted(_NOTE)
        if values_before is None:
            memory.note(_NOTE, values)
        elif values_before != values:
            why = f": {obstacle}" if obstacle else ""
            raise errors.UsageError(
                f"the answers in {memory.journal_path} are about candidates fed with {values_before} values, and now "
                f"they would be fed with {values} ones{why}",
                kept="the journal, as it is",
                next_steps=[FRESH],
            )
        if obstacle is None:
            self._plain = check
            self._oracle.pool.use(check.fed(path))

    def settle(self, result: Iterable[bytes], output: Path) -> None:
        """Write the inputs of the result beside it, and use them from now on, unless the user's files are enough."""
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


class Vouching:
    """Makes sure that no result depends on a recorded value that golden values may contradict.

    If the command line shows that the check has golden values (``has_golden``), no such value becomes a constant. If it
    does not show that (None), the search goes on as if there were none. If its result then has such a value, the check
    gets a model that computes nothing: its outputs are constants, the recorded values of the result's outputs. If this
    passes, the failure is in the nodes of the result. If not, the search goes back to the last result without such
    values. ``feeds``: candidates are fed with recorded values from a file, which golden values of the same tensors may
    confirm.
    """

    def __init__(
        self, driver: Driver, context: PassContext, *, values: Values, has_golden: bool | None, feeds: bool
    ) -> None:
        self._driver = driver
        self._context = context
        self._values = values
        self._has_golden_by_command = has_golden
        self._feeds = feeds
        self._has_golden = False
        self._is_settled = False
        self._last_certain = driver.problem.original
        self._verified: Candidate | None = None

    def begin(self) -> None:
        """Decide whether the check has golden values as far as that is known before there are candidates.

        A failure without a comparison has none, unless the user's rules let a mismatch count as the same failure.
        """
        problem, failure = self._driver.problem, self._driver.oracle.failure
        rules, reference = failure.rules, failure.reference
        is_specific = not rules.decide_alone and rules.match not in {"any", "status"}
        is_without_comparison = is_specific and reference is not None and is_no_comparison(reference)
        has_golden = False if is_without_comparison or self._values == "free" else self._has_golden_by_command
        self._has_golden, self._is_settled = bool(has_golden), has_golden is False
        if has_golden:
            problem.freeze_vouched_only()
        self._last_certain, self._verified = problem.original, None
        self.remember(self._driver.best)

    def remember(self, best: Candidate | None) -> None:
        """Remember a candidate that reproduces, to go back to it, if it is not doubtful."""
        if best is not None and not self.is_doubtful(best):
            self._last_certain = best

    def holds(self) -> bool:
        """Whether the best candidate is not an artefact of its recorded values, which may cost checks to find out.

        If it is one, the driver goes back to the last certain candidate, only vouched values are used from now on, and
        the search must run again.
        """
        best, problem = self._driver.best, self._driver.problem
        if best is None or not self.is_doubtful(best):
            return True
        concerns_fed_values = True
        if self._has_golden:
            is_right = self._passes_fed_values(best) or self._passes_recorded_outputs(best) is True
        else:
            passes = self._passes_recorded_outputs(best)
            is_right = bool(passes)
            if passes is None:  # the outputs differ between samples, so constants say nothing
                is_right = not problem.doubtful(best, fed=False) or self._context.may_change_values
                concerns_fed_values = False
        if is_right:
            self._verified = best
            return True
        self._driver.go_back(self._last_certain)
        problem.freeze_vouched_only()
        problem.feeds_vouched_only |= concerns_fed_values and self._feeds
        self._driver.listener(
            events.Remark(
                "values     recorded values may contradict those that the check compares with: searching again without"
            )
        )
        return False

    def settle(self, *, may_ask: bool) -> None:
        """At the end of a search, give up a best candidate that is an artefact or, without ``may_ask``, may be one."""
        if may_ask:
            self.holds()
        elif self.is_doubtful(self._driver.best):
            self._driver.go_back(self._last_certain)

    def is_doubtful(self, best: Candidate | None) -> bool:
        """Whether a candidate may be an artefact of its recorded values."""
        if best is None or best == self._verified or self._is_settled or self._context.are_values_free:
            return False
        problem = self._driver.problem
        is_fed = self._feeds and not problem.feeds_vouched_only and problem.doubtful(best, fed=True)
        return is_fed or problem.doubtful(best, fed=False)

    def _passes_fed_values(self, best: Candidate) -> bool:
        """Whether the check confirms each recorded value that a candidate is fed with and that is not vouched for.

        It cannot confirm a tensor of which it has no golden value.
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

    def _passes_recorded_outputs(self, best: Candidate) -> bool | None:
        """Whether the check passes the recorded outputs of a candidate, without its nodes; None if that is unknown."""
        model = self._model_of(best)
        if model is None:
            return None
        recording, index = self._driver.problem.recording, self._driver.problem.index
        border = [entry.name for entry in (*model.graph.input, *model.graph.output)]
        inner = [name for name in border if index.ids[name] in index.producer]
        recording.include(map(index.ids.__getitem__, inner))
        if not all(map(recording.confirms, inner)):
            return False  # the user's values differ from the recorded ones, which are behind a wrong node
        return self._passes_constants(model, best, "constants, as recorded, for what its nodes compute")

    def _passes_constants(self, model: onnx.ModelProto, best: Candidate, description: str) -> bool | None:
        """Whether the check passes the recorded values of a model's outputs as constants; None if it says nothing."""
        constants = recorded_outputs(model, self._driver.problem.recording.computed_value)
        if constants is None:
            return None
        data = constants.SerializeToString(deterministic=True)
        trial = Trial(parts=[data], size=best.size, stage=VALUES, description=description)
        return {Outcome.PASSES: True, Outcome.REPRODUCES: False}.get(self._driver.oracle.judge(trial).outcome)

    def _model_of(self, best: Candidate) -> onnx.ModelProto | None:
        """A candidate as a protobuf object; None if only bytes can hold it."""
        try:
            return parse(b"".join(self._driver.parts(best)), None)
        except errors.ModelError:
            return None
