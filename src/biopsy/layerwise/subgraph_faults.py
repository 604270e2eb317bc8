"""How a subgraph is wrong in the suspect: run unmarked, fed with recorded values, and judged by its ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from biopsy import errors, events
from biopsy.checks.message import message_of
from biopsy.comparison.noise import NoiseComparison
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.layerwise.findings import Failure, Rate, TensorError, failure_of
from biopsy.layerwise.isolated_layers import RUNS_IF_FLAKY, RUNS_TO_BE_SURE
from biopsy.layerwise.reference_values import CANNOT_RUN, ReferenceValues, Runs
from biopsy.layerwise.rounding import RoundingJudge
from biopsy.layerwise.subgraphs import Subgraphs
from biopsy.layerwise.tensor_errors import worst


@dataclass(frozen=True)
class SubgraphFault:
    """How a subgraph is wrong: by the error of its worst end, or because the engine fails at it.

    ``noise`` holds the error against plain float32's; None if that is not known. ``is_of_model``: the suspect gives
    what the model says there, and the golden values are of something else.
    """

    error: TensorError | None = None
    failure: Failure | None = None
    noise: NoiseComparison | None = None
    is_of_model: bool = False

    def is_like(self, other: SubgraphFault) -> bool:
        """Whether two subgraphs are wrong in the same way: both give wrong values, or fail with the same words."""
        if self.failure is None or other.failure is None:
            return self.failure is other.failure
        return _same_failure(self.failure, other.failure)


def _same_failure(left: Failure, right: Failure) -> bool:
    """Whether two failures are the same one; of a signal, what the dying process printed does not matter."""
    if (left.stage, left.kind) != (right.stage, right.kind):
        return False
    return left.kind.startswith("SIG") or message_of(left.message).means(message_of(right.message))


class SubgraphRuns:
    """Runs subgraphs one by one, at most ``budget`` times, and remembers what came of them.

    ``runs_each``: how often one is run until it is wrong, in a flaky suspect more than once. ``rounded``: subgraphs
    that are out of tolerance by no more than rounding, and what shows it.
    """

    def __init__(
        self,
        subgraphs: Subgraphs,
        suspect: Worker,
        reference: ReferenceValues,
        rounding: RoundingJudge,
        listener: events.Listener,
        *,
        flaky: bool = False,
        budget: int = 400,
    ) -> None:
        self.subgraphs = subgraphs
        self.suspect = suspect
        self.reference = reference
        self.listener = listener
        self.runs_each = RUNS_IF_FLAKY if flaky else 1
        self.rounded: dict[tuple[int, ...], NoiseComparison] = {}
        self._rounding = rounding
        self._runs = 0
        self._budget = budget
        self._known: dict[tuple[int, ...], SubgraphFault | None] = {}

    @property
    def is_spent(self) -> bool:
        """Whether no more runs are allowed."""
        return self._runs >= self._budget

    def fault(self, nodes: Iterable[int]) -> SubgraphFault | None:
        """How a subgraph is wrong; None if it is right, or says nothing."""
        closed = self.subgraphs.closed(nodes)
        if not closed or self.is_spent:
            return None
        if closed not in self._known:
            self._known[closed] = self.fault_at(closed, self.subgraphs.ends(closed))
        return self._known[closed]

    def fault_at(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> SubgraphFault | None:
        """How a closed subgraph with these outputs is wrong: of a flaky suspect, in the first run that shows it."""
        tries = range(self.runs_each if outputs else 0)
        return next((fault for _ in tries if (fault := self._run(nodes, outputs)) is not None), None)

    def flaky_rate(self, nodes: tuple[int, ...], fault: SubgraphFault) -> Rate | None:
        """In how many runs a subgraph is wrong in this way; None if in all of them."""
        closed = self.subgraphs.closed(nodes) or nodes
        is_costly = fault.failure is not None and self.runs_each == 1  # a new process for each run
        runs = RUNS_TO_BE_SURE if is_costly else RUNS_IF_FLAKY
        more = (self._run(closed, self.subgraphs.ends(closed)) for _ in range(runs - (self.runs_each == 1)))
        wrong = sum(other is not None and other.is_like(fault) for other in more) + (self.runs_each == 1)
        return Rate(max(wrong, 1), runs) if wrong < runs else None

    def expect_flakiness(self) -> None:
        """Run everything more often from now on: what looked right before may have been luck."""
        self.runs_each = RUNS_IF_FLAKY
        self._known.clear()

    def errors(self, outputs: Sequence[int], runs: Runs, expected: Runs | None) -> list[TensorError]:
        """The errors of those ends of a subgraph that are out of tolerance."""
        measured = self.reference.errors(self.subgraphs.names(outputs), runs, expected)
        return [error for error in measured if not error.passed]

    def _run(self, nodes: tuple[int, ...], outputs: Sequence[int]) -> SubgraphFault | None:
        self._runs += 1
        self.listener(events.Measured("groups", self._runs, self._budget))
        model = self.subgraphs.model(nodes, outputs)
        try:
            runs = self.suspect.run(model, self.subgraphs.recorded.fed.path)
        except errors.EngineFailure as error:
            return SubgraphFault(failure=failure_of(error))
        except CANNOT_RUN:
            return None
        return self._judged(nodes, model, outputs, runs)

    def _judged(
        self, nodes: tuple[int, ...], model: ModelInput, outputs: Sequence[int], runs: Runs
    ) -> SubgraphFault | None:
        """How the ends of a subgraph are wrong; None if they are right, or wrong by rounding only.

        By recorded values first, then by what the reference gives for this very subgraph, then beside plain float32.
        """
        expected = self.reference.of(model)
        wrong = self.errors(outputs, runs, expected)
        if wrong and expected is None:
            wrong = self.errors(outputs, runs, self.reference.of(model, always=True))
        if not wrong:
            return None
        judged = self._rounding.judge(model, [error.tensor for error in wrong], runs)
        if judged is None:
            return SubgraphFault(worst(wrong))
        if judged.noise.passed:
            self.rounded[nodes] = judged.noise
            return None
        return SubgraphFault(worst(wrong), noise=judged.noise, is_of_model=judged.is_of_model)
