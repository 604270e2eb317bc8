"""What a pass is, over nodes or over the model itself, its line in the table of passes, and what it may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from biopsy.reduction.candidate import Candidate, NodeSearch
from biopsy.reduction.problem import Problem
from biopsy.search.drive import Search

if TYPE_CHECKING:
    import onnx


class NotFoundOutError(Exception):
    """What a pass wants to know would cost checks, and nobody has asked for it yet."""


class PassContext:
    """The problem, and what can be known of it besides its geometry.

    ``may_change_values`` and ``suspects`` may cost checks, so they are found out once, when a pass wants to know.
    ``ranking``: sets of nodes that a report names, the worst first.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        may_change_values: Callable[[], bool] = lambda: False,
        suspects: Callable[[], Sequence[int]] = tuple,
        ranking: Sequence[Sequence[int]] = (),
        missed: Callable[[Candidate], frozenset[int]] = lambda target: frozenset(),
    ) -> None:
        self.problem = problem
        self.ranking = ranking
        self._may_change_values = may_change_values
        self._suspects = suspects
        self._missed = lru_cache(maxsize=1)(missed)

    def for_guesses(self) -> PassContext:
        """The same for a pass that may begin later: nothing is found out for it. Raises NotFoundOutError then."""
        known = vars(self)

        def found_out(name: str) -> bool | Sequence[int]:
            if name not in known:
                raise NotFoundOutError(name)
            return known[name]  # type: ignore[no-any-return]

        made = PassContext(self.problem, ranking=self.ranking, missed=cache(self._missed.__wrapped__))
        made._may_change_values = lambda: bool(found_out("may_change_values"))
        made._suspects = lambda: tuple(found_out("suspects"))  # type: ignore[arg-type]
        return made

    @cached_property
    def may_change_values(self) -> bool:
        """Whether candidates may compute other values than the original did: see ``values.py``."""
        return self._may_change_values()

    @property
    def are_values_free(self) -> bool | None:
        """The same, as far as a pass has wanted to know it; None if none has."""
        return vars(self).get("may_change_values")

    @cached_property
    def suspects(self) -> Sequence[int]:
        """Nodes that are suspected, the most suspicious first: see ``job.suspected``."""
        return self._suspects()

    def missed(self, target: Candidate) -> frozenset[int]:
        """Nodes of a target, each of which alone was missing in a candidate that did not reproduce.

        What was known when a pass first asked about the target: a pass that is begun anew must propose the same.
        """
        return self._missed(target)

    def may_freeze_recorded(self, tensors: Iterable[int]) -> bool:
        """Whether constants with the recorded values of these tensors cannot fail by themselves.

        Where the check compares with golden values of its own, behind a wrong node every recorded value is as wrong as
        the original: a candidate that has it as a constant would fail without the node. Values that the user gave are
        those of the check; giving some says nothing of the others.
        """
        return all(map(self.problem.is_vouched, tensors)) or self.may_change_values


# The contract of a pass, and its line in the table of passes.

Pass: TypeAlias = Callable[[PassContext, Candidate], NodeSearch]
"""One way to propose smaller candidates.

A pass is a generator over rounds. The driver checks the proposals of a round, in their order or several at once, and
sends back the first in the round's order that reproduces, which is the target from then on, or None. What a pass may
rely on, and what it owes:

- It is deterministic: the same context, target and answers give the same rounds. The result never depends on how many
  proposals are checked at once.
- It never repeats itself to a fixed point; the schedule does that.
- The answer need not be what was proposed: the driver may have added nodes that cannot be cut away, or proposals may
  have been answered from memory. A pass goes on from the candidate that it is sent.
- It may propose anything; what is no smaller than the target, or known already, costs nothing.
- Every proposal says in a few words what it tries.
"""


def by_halves(nodes: int) -> int:
    """Checks that finding one node among ``nodes`` by halves takes, from both ends."""
    return 2 * max(1, (nodes - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class NamedPass:
    """A pass in the table of passes: its name on the command line, what it does in one line, and what it usually costs.

    ``usual`` gives checks for a number of nodes: what a person who waits is told. ``halves``: each of its questions is
    as likely to be answered one way as the other, whatever the answers before were. ``leaves_out``: it asks about the
    target without some nodes, so that the target without others, asked beside it, tells what it will be answered.
    ``can_be_foreseen``: it may be begun on a guess, since it has nothing recorded.
    """

    name: str
    summary: str
    search: Pass
    usual: Callable[[int], int] = by_halves
    halves: bool = False
    leaves_out: bool = False
    can_be_foreseen: bool = False


# The contract of a pass over the model itself: what runs once the nodes are few.
#
# By then the model is small, so these passes work on the protobuf object and propose whole models.


@dataclass(frozen=True)
class Change:
    """A simpler model, with words for the progress line, such as "without the unused input 'mask'"."""

    model: onnx.ModelProto
    description: str


ChangeSearch: TypeAlias = Search[Change, "onnx.ModelProto", None]

ModelPass: TypeAlias = "Callable[[onnx.ModelProto], ChangeSearch]"
"""One way to propose simpler models.

Like a pass over nodes, it is a generator over rounds of proposals that do not depend on each other, in the order of
preference; it is sent the model of the first that reproduces, or None, and goes on from there. It owes the same, and:

- It never changes the model that it is given, nor one that it was sent: it copies.
- Each proposal is simpler by the measure of the pass (fewer inputs, fewer attributes, fewer bytes of weights, ...), so
  that running it again and again ends. A model that does not differ from the current one is not checked.
- Everything may be missing from a model: names, types, even what the standard demands.
"""


Option: TypeAlias = Literal["simplify", "anonymize"]
"""An option of the command line that asks for more than a smaller model."""


@dataclass(frozen=True, kw_only=True)
class NamedModelPass:
    """A pass in the table: its name on the command line, what it does in one line, and when it may run.

    ``keeps_values``: every tensor that both models compute has the same values in both. ``changes_inputs`` and
    ``changes_outputs``: it may do so, and does not run where the user keeps them. ``only_with`` names the options of
    which one must ask for it; none for a pass that always runs. ``remarks`` tells, of the final model, what the pass
    could not do.
    """

    name: str
    summary: str
    search: ModelPass
    keeps_values: bool = False
    changes_inputs: bool = False
    changes_outputs: bool = False
    only_with: tuple[Option, ...] = ()
    remarks: Callable[[onnx.ModelProto], Sequence[str]] = lambda model: ()
