"""What ``debug precision`` says at its end: lists that can be pasted are whole, and the counts read well."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Literal

import pytest

from biopsy.cli.console import Console
from biopsy.cli.debug.precision_search import say_result
from biopsy.questions.precision.plan import Layer
from biopsy.questions.precision.search import PrecisionResult


def result_with(high: int) -> PrecisionResult:
    layers = tuple(Layer(i, f"n{i}", "Sin", i, (), f"t{i}", 1, 1) for i in range(high))
    return PrecisionResult(
        model="m.onnx",
        low="fp16",
        precision="float32",
        form="emulate",
        mode="minimal",
        direction="forward",
        cost="count",
        layers=500,
        high=layers,
        one_minimal=True,
        outcomes={"passed": 3},
        seconds=1.0,
    )


def shown(result: PrecisionResult) -> str:
    out = io.StringIO()
    say_result(Console(out), result, None, None)
    return out.getvalue()


@pytest.mark.parametrize("high", [1, 24])
def test_a_list_to_paste_has_every_name(high: int) -> None:
    assert f"\nnodes_to_exclude = {[f'n{i}' for i in range(high)]!r}\n" in shown(result_with(high))


@pytest.mark.parametrize("high", [25, 416])
def test_a_list_too_long_to_paste_is_counted_and_the_option_that_writes_it_is_named(high: int) -> None:
    text = shown(result_with(high))
    assert f"\n{high} names for nodes_to_exclude, node_block_list: add --list FILE\n" in text
    assert "nodes_to_exclude =" not in text


def test_where_no_layer_can_be_low_it_is_said_in_a_few_words() -> None:
    assert shown(replace(result_with(6), layers=6)).startswith("\nall 6 layers need float32\n  Sin 'n0'\n")


def test_nodes_that_are_no_layers_are_counted_and_named() -> None:
    text = shown(replace(result_with(2), passive={"Reshape": 1, "Relu": 2}))
    assert "\n3 nodes have no precision of their own: 2 Relu, Reshape\n" in text
    assert "\n1 node has no precision of its own: Shape\n" in shown(replace(result_with(2), passive={"Shape": 1}))
    many = {f"Op{number}": 1 for number in range(12)}
    assert "Op7, 4 operators more\n" in shown(replace(result_with(2), passive=many))


@pytest.mark.parametrize("form", ["emulate", "native"])
def test_the_form_of_the_candidates_is_said(form: Literal["emulate", "native"]) -> None:
    assert f"form   fp16, {'emulated' if form == 'emulate' else 'native'} (--{form})" in shown(
        replace(result_with(2), form=form)
    )
