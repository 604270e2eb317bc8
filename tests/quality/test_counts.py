"""What a reduction costs, in checks: pinned, since it does not depend on the machine.

The original three times, the model of one Identity node, a result of several nodes eight times and the result as
written are checks too; so are three of a result of one node. The budgets: one culprit among N nodes
ceil(log2 N) + 13, two far apart
2 * ceil(log2 N) + 17, three of 10,000 at most 60.
"""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import pytest

import biopsy
from benchmarks import models
from support.predicates import has

BUDGETS: dict[str, Callable[[int], int]] = {
    "start": lambda nodes: math.ceil(math.log2(nodes)) + 13,
    "middle": lambda nodes: math.ceil(math.log2(nodes)) + 13,
    "end": lambda nodes: math.ceil(math.log2(nodes)) + 13,
    "on a branch": lambda nodes: math.ceil(math.log2(nodes)) + 13,
    "two far apart": lambda nodes: 2 * math.ceil(math.log2(nodes)) + 17,
    "three": lambda nodes: 60,
}


@cache
def built(kind: str, nodes: int) -> onnx.ModelProto:
    return models.KINDS[kind](nodes)


def counted(kind: str, nodes: int, pattern: str, folder: Path) -> int:
    """The checks that a reduction takes; it must end at exactly the nodes that are needed, within the budget."""
    original = built(kind, nodes)
    wanted = models.PATTERNS[pattern](models.names(original))
    found = biopsy.reduce(original, has(*wanted), folder / "r.onnx", takes="model")
    assert models.names(onnx.load(folder / "r.onnx")) == wanted
    assert found.checks <= BUDGETS[pattern](nodes)
    return found.checks


EXPECTED = {
    "chain": {"start": 17, "middle": 18, "end": 19, "two far apart": 36, "three": 50},
    "inception": {"start": 17, "middle": 18, "end": 19, "on a branch": 19, "two far apart": 36, "three": 50},
    "transformer": {"start": 17, "middle": 19, "end": 19, "on a branch": 19, "two far apart": 36, "three": 50},
    "control flow": {"start": 17, "middle": 18, "end": 22, "on a branch": 18, "two far apart": 36, "three": 50},
}
"""Checks for models of 1,000 nodes. Fewer are welcome: change the number. More need a reason."""

CASES = [(kind, pattern) for kind, counts in EXPECTED.items() for pattern in counts]


@pytest.mark.parametrize(("kind", "pattern"), CASES)
def test_a_reduction_of_a_thousand_nodes_takes_as_many_checks_as_ever(kind: str, pattern: str, tmp_path: Path) -> None:
    assert counted(kind, 1_000, pattern, tmp_path) == EXPECTED[kind][pattern]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", models.PATTERNS)
def test_ten_thousand_nodes_are_within_the_budget(pattern: str, tmp_path: Path) -> None:
    counted("transformer", 10_000, pattern, tmp_path)
