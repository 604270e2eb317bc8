"""What a pass may ask: the problem, and what the check or a report says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache

from biopsy.reduction.candidate import Candidate
from biopsy.reduction.problem import Problem


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
        """Nodes that are suspected, the most suspicious first: see ``fault_localization.py``."""
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
