"""What every pass leaves of models full of bodies: nothing dead, nothing stale, nothing that the checker refuses."""

import random

import onnx
import pytest

from biopsy.model import walk
from biopsy.reduction.passes.common import NamedModelPass, is_consistent, read_in, unrefuted
from biopsy.reduction.schedule import MODEL_PASSES
from support.bodied import bodied

SEEDS = range(24)


def dead_nodes(model: onnx.ModelProto) -> list[str]:
    return [
        node.name
        for graph in (model.graph, *walk.graphs_within(model.graph.node))
        for node in graph.node
        if read_in(graph).isdisjoint(node.output)
    ]


def is_accepted(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:
        return False
    return is_consistent(model)


def driven(named: NamedModelPass, model: onnx.ModelProto, draw: random.Random, chance: float) -> onnx.ModelProto:
    """Run a pass as the driver does, the check answering by chance; each model that is checked must be acceptable."""
    search, answer = named.search(model), None
    while True:
        try:
            changes = search.send(answer)
        except StopIteration:
            return model
        answer = None
        for change in unrefuted(model, changes):
            if change.model != model:
                assert is_accepted(change.model), change.description
            if draw.random() < chance:
                answer = model = change.model
                break


@pytest.mark.slow
@pytest.mark.parametrize("named", MODEL_PASSES, ids=lambda named: named.name)
def test_it_leaves_nothing_dead_nothing_stale_and_a_model_that_the_checker_accepts(named: NamedModelPass) -> None:
    for seed in SEEDS:
        original = bodied(seed)
        assert is_accepted(original)
        assert dead_nodes(original) == []
        for chance in (0.3, 0.7, 1.0):
            left = driven(named, original, random.Random(seed), chance)
            assert dead_nodes(left) == [] or (named.name == "bodies" and chance < 1), (seed, chance)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed % 3 > 0)) for seed in SEEDS])
def test_all_passes_one_after_the_other_leave_nothing_dead(seed: int) -> None:
    made = bodied(seed)
    for chance in (0.5, 1.0):
        for named in MODEL_PASSES:
            made = driven(named, made, random.Random(seed), chance)
    assert dead_nodes(made) == []
    assert is_accepted(made)
