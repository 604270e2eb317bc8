"""The layers that a report names come first: the worst with their neighbours, then twice as many, until it fails."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from biopsy import events
from biopsy.model.index import index_bytes
from biopsy.recording.reference_run import Recording
from biopsy.recording.types import CutTypes
from biopsy.reduction.passes.common import PassContext
from biopsy.reduction.passes.nodes import ranked
from biopsy.reduction.problem import Candidate, Problem, Proposal
from biopsy.search.drive import drive
from support.models import chain


def proposals(ranking: Sequence[Sequence[int]], target: Sequence[int] = range(100), right: int = 99) -> list[list[int]]:
    """What is proposed of a chain of 100 nodes while nothing reproduces; ``right``: the proposal that does."""
    index = index_bytes(chain(100).SerializeToString())
    recording = Recording(index, list, Path(), events.ignore)
    problem = Problem(index, CutTypes(index, recording), recording)
    found: list[list[int]] = []

    def answer(round_: Iterable[Proposal]) -> Candidate | None:
        (proposal,) = round_
        found.append(list(proposal.candidate.nodes))
        return proposal.candidate if len(found) == right + 1 else None

    drive(ranked(PassContext(problem, ranking=ranking), Candidate(tuple(target))), answer)
    return found


def test_the_worst_with_its_neighbours_then_twice_as_many_each_time() -> None:
    ranking = [(50,), (10,), (20, 21), (30,), (80,)]
    assert proposals(ranking) == [
        [49, 50, 51],
        [9, 10, 11, 49, 50, 51],
        [9, 10, 11, 19, 20, 21, 22, 29, 30, 31, 49, 50, 51],
        [9, 10, 11, 19, 20, 21, 22, 29, 30, 31, 49, 50, 51, 79, 80, 81],
    ]


def test_the_first_that_reproduces_is_the_last_proposal() -> None:
    assert len(proposals([(number,) for number in range(64)], right=2)) == 3


def test_a_ranking_of_n_entries_costs_at_most_log_n_checks() -> None:
    assert len(proposals([(number,) for number in range(64)])) == 7


def test_removed_nodes_do_not_count() -> None:
    assert proposals([(50,), (10,)], range(20)) == [[9, 10, 11]]


def test_without_a_ranking_nothing_is_proposed() -> None:
    assert proposals([]) == []
