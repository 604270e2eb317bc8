"""What every pass owes, on models of onnx's own tests: it ends, is deterministic, and survives whatever it meets."""

import random
import warnings
from functools import cache

import onnx
import pytest

from biopsy.reduction.passes.common import NamedModelPass
from biopsy.reduction.schedule import MODEL_PASSES
from support.models import chain, info, weight
from support.passes import run_pass

_WITH_BODIES = ("if", "loop", "scan", "sequence", "optional", "expanded")


@cache
def models() -> list[onnx.ModelProto]:
    """Models of onnx with bodies, sequences and functions, and some of all others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if case.model is not None]
    special = [case.model for case in cases if any(f"_{word}" in case.name for word in _WITH_BODIES[:3])]
    return special[:40] + [case.model for case in cases[::40]]


def odd_models() -> list[onnx.ModelProto]:
    nameless = chain(3)
    for node in nameless.graph.node:
        del node.output[:]
        node.input[0] = ""
    twice = chain(3)
    twice.graph.node.extend(chain(3).graph.node)
    twice.graph.initializer.extend([weight("t1", 1.0), weight("t1", 2.0)])
    empty_control_flow = chain(3)
    for node, operator in zip(empty_control_flow.graph.node, ("If", "Loop", "Scan"), strict=True):
        node.op_type = operator
    untyped = chain(2)
    untyped.graph.input[0].ClearField("type")
    untyped.graph.output.append(info("nowhere", None))
    return [onnx.ModelProto(), nameless, twice, empty_control_flow, untyped]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some models", "all"])
@pytest.mark.parametrize("named", MODEL_PASSES, ids=lambda named: named.name)
def test_it_survives_and_repeats_the_same_rounds(named: NamedModelPass, step: int) -> None:
    for number, made in enumerate([*models()[::step], *odd_models()]):
        runs = []
        for chance in (0.0, 1.0, 0.5, 0.5):
            draw = random.Random(number)
            runs.append(run_pass(named.search, made, lambda _, draw=draw, chance=chance: draw.random() < chance))
        assert runs[2] == runs[3]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some models", "all"])
@pytest.mark.parametrize("named", MODEL_PASSES, ids=lambda named: named.name)
def test_repeating_it_ends(named: NamedModelPass, step: int) -> None:
    for made in [*models()[::step], *odd_models()]:
        for _ in range(20):
            before, made = made, run_pass(named.search, made).model  # noqa: PLW2901 -- the next model is made from it
            if made == before:
                break
        else:
            pytest.fail(f"{named.name} goes on and on with {made.graph.name}")
