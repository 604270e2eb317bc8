"""Models whose nodes wait for each other are not valid ONNX, but an engine may crash on them: they are reduced too."""

import signal
from collections.abc import Iterator
from typing import NoReturn

import onnx
import pytest

from support.tangled import TANGLED, WAITING


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What has not come to an end after 30 seconds fails."""

    def too_late(number: int, frame: object) -> NoReturn:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


OPTIONS: tuple[dict[str, object], ...] = (
    {}, {"no_reduce_outputs": True}, {"mode": "linear"}, {"no_reduce_inputs": True},
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=[] if number % 2 == index else pytest.mark.slow)
        for number, name in enumerate(TANGLED)
        for index, options in enumerate(OPTIONS)
    ],
)
def test_a_reduction_ends_whatever_the_order_of_the_nodes(reducer, name: str, options: dict[str, object]) -> None:
    reducer(TANGLED[name], lambda candidate: any(node.name == "a" for node in candidate.graph.node), **options)
    assert "a" in {node.name for node in reducer.result.graph.node}


def waits(model: onnx.ModelProto) -> bool:
    """Whether a node of the main graph needs what it computes, on whatever way."""
    from biopsy.model import walk

    needs: dict[str, set[str]] = {out: set(walk.reads(node)) for node in model.graph.node for out in node.output}
    for _ in needs:
        needs = {out: names.union(*(needs.get(name, ()) for name in names)) for out, names in needs.items()}
    return any(out in names for out, names in needs.items())


@pytest.mark.parametrize("name", sorted(set(WAITING) - {"a cycle within a body"}))
def test_a_failure_that_the_cycle_makes_keeps_a_cycle(reducer, name: str) -> None:
    reducer(WAITING[name], waits)
    assert waits(reducer.result)
    assert len(reducer.result.graph.node) == (1 if name != "two bodies" else 2)
