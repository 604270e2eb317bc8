"""What a pass proposes, and the contract of a pass."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from biopsy.reduction.problem import Problem


@dataclass(frozen=True)
class Candidate:
    """A smaller model, as decisions about the original.

    ``nodes`` are the numbers of the nodes it keeps, ascending. Nodes that are gone are cut: what they computed becomes
    an input or a constant. ``bypassed`` are those whose readers read one of the node's own inputs instead, as
    (node, tensor) in the order of the nodes. ``sample`` is the input sample whose values constants have that are not
    the same in all of them. ``turned`` are cuts in the other form than the policy gives them: fed instead of frozen, or
    frozen instead of fed.
    """

    nodes: tuple[int, ...]
    bypassed: tuple[tuple[int, int], ...] = ()
    sample: int = 0
    turned: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Nodes left: what a reduction makes small."""
        return len(self.nodes)

    def without(self, gone: Iterable[int]) -> Candidate:
        """The candidate without some nodes: what they computed is cut."""
        left_out = frozenset(gone)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in left_out))


@dataclass(frozen=True)
class Proposal:
    """A candidate with words for the progress line, such as "nodes 1-250 of 500"."""

    candidate: Candidate
    doing: str


Round: TypeAlias = Iterable[Proposal]
"""Proposals that do not depend on each other's outcome, in the order of preference; may be made lazily."""

Search: TypeAlias = Generator[Round, Candidate | None, None]

Pass: TypeAlias = Callable[["Problem", Candidate], Search]
"""One way to propose smaller candidates.

A pass is a generator over rounds. The driver checks the proposals of a round, in their order or several at once, and
sends back the first in the round's order that reproduces, which is the target from then on, or None. What a pass may
rely on, and what it owes:

- It is deterministic: the same problem, target and answers give the same rounds. The result never depends on how many
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


@dataclass(frozen=True)
class NamedPass:
    """A pass in the table of passes: its name on the command line, what it does in one line, and what it usually costs.

    ``usual`` gives checks for a number of nodes: what a person who waits is told.
    """

    name: str
    summary: str
    search: Pass
    usual: Callable[[int], int] = by_halves
