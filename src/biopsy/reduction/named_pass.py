"""The contract of a pass, and its line in the table of passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from biopsy.reduction.candidate import Candidate, NodeSearch
from biopsy.reduction.pass_context import PassContext

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
