"""Searches over layers: what they end at, and how many checks that takes. No model is needed for that."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.questions.precision.plan import Layer
from biopsy.questions.precision.search import LayerSearch, PrecisionProposal, by_cost, minimal, search_of
from biopsy.search.drive import drive, first_that, foresee_any

Passes = Callable[[set[int]], bool]


def ended(search: LayerSearch, passes: Passes) -> tuple[list[bool], tuple[int, ...] | None]:
    """The answers that a search was given, and the last proposal that passed."""
    answers: list[bool] = []
    best = None

    def holds(proposal: PrecisionProposal) -> bool:
        nonlocal best
        answers.append(passes(set(proposal.high)))
        if answers[-1]:
            best = proposal.high
        return answers[-1]

    drive(search, first_that(holds))
    return answers, best


def layers(count: int) -> list[Layer]:
    return [Layer(n, f"n{n}", "Mul", n, (), f"t{n}", 1, 1) for n in range(count)]


def needs(*wanted: int) -> Passes:
    return lambda high: set(wanted) <= high


@given(
    st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=6)))
)
def test_minimal_ends_at_exactly_the_needed_layers(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    answers, best = ended(minimal(range(count)), needs(*wanted))
    assert (set(best) if best is not None else set(range(count))) == wanted
    assert len(answers) <= 2 * len(wanted) * (count.bit_length() + 1) + 3 * len(wanted) + 2


@given(st.integers(2, 40), st.data())
def test_of_whatever_minimal_ends_at_no_layer_can_go(count: int, data: st.DataObject) -> None:
    """Also where raising one layer more makes the check fail again."""
    told: dict[frozenset[int], bool] = {frozenset(): False, frozenset(range(count)): True}

    def passes(high: set[int]) -> bool:
        return told.setdefault(frozenset(high), data.draw(st.booleans()))

    _, best = ended(minimal(range(count)), passes)
    found = frozenset(best) if best is not None else frozenset(range(count))
    assert told[found]
    assert not any(told.get(found - {number}, True) for number in found)


@given(st.integers(2, 500), st.data())
def test_bisect_finds_the_shortest_beginning_in_log_n(count: int, data: st.DataObject) -> None:
    last = data.draw(st.integers(0, count - 1))
    answers, best = ended(search_of(layers(count), "bisect", "forward", "count"), needs(last))
    assert (len(best) if best is not None else count) == last + 1
    assert len(answers) <= (count - 1).bit_length()


def test_linear_raises_one_more_each_time_from_the_end_that_is_asked_for() -> None:
    answers, best = ended(search_of(layers(4), "linear", "reverse", "count"), needs(2))
    assert best == (2, 3)
    assert answers == [False, True]


@pytest.mark.parametrize(("cost", "kept"), [("flops", 1), ("bytes", 2), ("count", 0)])
def test_of_two_layers_that_will_do_the_cheaper_one_is_kept(cost: str, kept: int) -> None:
    priced = [
        Layer(n, f"n{n}", "Mul", n, (), f"t{n}", flops, size)
        for n, (flops, size) in enumerate([(9, 9), (1, 5), (5, 1)])
    ]
    _, best = ended(minimal(by_cost(priced, cost)), bool)
    assert best == (kept,)


@given(st.integers(2, 60), st.sets(st.integers(0, 59), min_size=1, max_size=4), st.integers(0, 30))
def test_what_will_be_asked_for_is_foreseen_whatever_the_answers_are(count: int, wanted: set[int], steps: int) -> None:
    passes = needs(*(number % count for number in wanted))
    proposals: list[PrecisionProposal] = []
    answers: list[PrecisionProposal | None] = []

    def holds(proposal: PrecisionProposal) -> bool:
        proposals.append(proposal)
        passed = passes(set(proposal.high))
        answers.append(proposal if passed else None)
        return passed

    drive(minimal(range(count)), first_that(holds))
    told = answers[:steps]
    seen = list(foresee_any(lambda: minimal(range(count)), told))
    if len(told) < len(answers):
        assert seen[0] == proposals[len(told)]
    if len(told) + 1 < len(answers):
        assert proposals[len(told) + 1] in seen[:3]
