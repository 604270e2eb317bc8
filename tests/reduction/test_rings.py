"""What candidates cannot do without is found in steps that grow with their nodes, not with nodes times rings."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from biopsy import events
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.recording.reference_run import Recording, ValuesInMemory
from biopsy.recording.types import CutTypes
from biopsy.reduction.passes.common import PassContext
from biopsy.reduction.passes.nodes import forms
from biopsy.reduction.problem import Border, Candidate, Problem
from biopsy.tensors.results import Feed
from support.models import INT64, info, model


class CountingTypes(CutTypes):
    """Counts how often anybody asks whether a type is told."""

    asked = 0

    def is_sufficient(self, tensor: int) -> bool:
        self.asked += 1
        return super().is_sufficient(tensor)


class CountingProblem(Problem):
    """Counts how often a candidate is closed, and how often one is made."""

    closings = 0
    made = 0

    def closed(self, candidate: Candidate) -> Candidate | None:
        self.closings += 1
        return super().closed(candidate)

    def _normalised(self, kept: set[int], candidate: Candidate) -> Candidate:
        self.made += 1
        return super()._normalised(kept, candidate)


class RingByRing(Problem):
    """Looks at the whole candidate anew for every ring: slow, and the definition of what is taken in."""

    def _completed(self, candidate: Candidate) -> Candidate:
        index, consumers = self.index, self.index.consumers
        while True:
            subset = self.subset(candidate)
            kept = set(candidate.nodes)
            waiting = list(kept)
            while waiting:
                for tensor in subset.reads_of(waiting.pop()):
                    source = index.producer.get(tensor)
                    if source is not None and source not in kept and not self._can_cut(tensor):
                        kept.add(source)
                        waiting.append(source)
            kept |= self._bypassed_for_bodies(kept, candidate)
            if len(kept) == candidate.size and not self._border.keep_outputs:
                ends = (end for end in subset.sinks if end in consumers and not self.types.is_sufficient(end))
                kept |= {consumers[end][0] for end in ends}
            if len(kept) == candidate.size:
                return candidate
            candidate = self._normalised(kept, candidate)


def problem_of(
    index: ModelIndex, kind: type[Problem] = CountingProblem, samples: Sequence[Feed] = (), **options: bool
) -> Problem:
    recording = Recording(index, lambda: samples, Path(), events.ignore)
    return kind(index, CountingTypes(index, ValuesInMemory()), recording, Border(**options))


def body(reads: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Neg", [reads], ["out"])], "body", [], [info("out")])


@st.composite
def graphs(draw: st.DrawFn) -> ModelIndex:
    """A random DAG of up to 14 custom nodes of which few tensors are declared; some have a body that captures one."""
    tensors, nodes, ends = ["x"], [], []
    for number in range(draw(st.integers(2, 14))):
        inputs = draw(st.lists(st.sampled_from(tensors[-5:]), min_size=1, max_size=3))
        outputs = [f"t{number}", *([f"u{number}"] if draw(st.integers(0, 3)) == 0 else [])]
        captured = {"then": body(draw(st.sampled_from(tensors)))} if draw(st.integers(0, 5)) == 0 else {}
        nodes.append(helper.make_node("Odd", inputs, outputs, name=f"n{number}", domain="my", **captured))
        tensors += outputs
    read = {name for node in nodes for name in node.input}
    ends = [name for name in tensors[1:] if name not in read or draw(st.integers(0, 9)) == 0]
    declared = [name for name in tensors[1:] if name not in ends and draw(st.integers(0, 2)) == 0]
    made = model(nodes, [info("x")], [info(name) for name in ends], value_info=map(info, declared), domains=["my"])
    for entry in made.graph.output:
        if draw(st.integers(0, 5)) == 0:
            entry.ClearField("type")
    return index_bytes(made.SerializeToString())


@pytest.mark.slow
@given(index=graphs(), data=st.data())
@settings(max_examples=600, deadline=None)
def test_all_rings_at_once_give_the_same_candidate_as_ring_by_ring(index: ModelIndex, data: st.DataObject) -> None:
    numbers = range(len(index.nodes))
    nodes = data.draw(st.sets(st.sampled_from(numbers), min_size=1))
    around = data.draw(st.sets(st.sampled_from(numbers), max_size=4)) - nodes
    bypassed = [(node, data.draw(st.sampled_from(index.node_reads[node]))) for node in sorted(around)]
    turned = data.draw(st.sets(st.sampled_from(sorted(index.producer)), max_size=2))
    candidate = Candidate(tuple(sorted(nodes)), tuple(bypassed), 0, tuple(sorted(turned)))
    options = data.draw(st.sampled_from([{}, {}, {"keep_inputs": True}, {"keep_outputs": True}]))
    values = [{name: np.zeros((2, 2), np.float32) for name in index.names}] if data.draw(st.booleans()) else []
    quick, slow = (problem_of(index, kind, values, **options) for kind in (CountingProblem, RingByRing))
    assert quick.closed(candidate) == slow.closed(candidate)


def untyped(length: int) -> ModelIndex:
    nodes = [helper.make_node("Odd", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}", domain="my") for i in range(length)]
    return index_bytes(model(nodes, [info("t0")], [info(f"t{length}")], domains=["my"]).SerializeToString())


def test_closing_half_of_an_untyped_chain_looks_at_each_node_a_few_times() -> None:
    for length in (100, 1000):
        problem = problem_of(untyped(length))
        closed = problem.closed(Candidate(tuple(range(length // 2))))
        assert closed == problem.original
        assert problem.made <= 3
        assert problem.types.asked <= 6 * length


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_leaving_nodes_out_compares_each_with_few_others() -> None:
    nodes = tuple(map(Counted, range(2000)))
    rest = Candidate(nodes).without([Counted(number) for number in range(0, 2000, 2)])
    assert rest.size == 1000
    assert Counted.compared <= 2000


def test_forms_closes_only_candidates_that_it_may_propose() -> None:
    """Nearly every node was tried in another form, so that few may be tried with every cut fed."""
    nodes = [helper.make_node("Neg", [f"i{at}"], [f"i{at + 1}"], name=f"n{at}") for at in range(40)]
    inner = [info(f"i{at}", elem=INT64) for at in range(1, 40)]
    made = model(nodes, [info("i0", elem=INT64)], [info("i40", elem=INT64)], value_info=inner)
    index = index_bytes(made.SerializeToString())
    values = {f"i{at}": np.full((2, 2), (-1) ** at, np.int64) for at in range(41)}
    problem = problem_of(index, samples=[values])
    rounds = list(forms(PassContext(problem), Candidate(tuple(range(2, 40)))))
    in_both_forms = [proposals for proposals in rounds if len(proposals) == 2]
    every_cut_fed = rounds[len(in_both_forms) :]
    assert 1 <= len(every_cut_fed) <= 2
    assert problem.closings <= 4 * len(in_both_forms) + 4 * len(every_cut_fed)
