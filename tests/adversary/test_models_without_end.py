"""Functions that call themselves or each other, and bodies inside bodies: whatever is asked, it ends in time."""

import ast
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import events
from biopsy.model.walk import unbounded
from biopsy.model.wire import string_field
from support.models import BOOL, info, model, save
from support.predicates import has, names

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]


def _function(name: str, *calls: str) -> onnx.FunctionProto:
    nodes = [helper.make_node(call, [f"m{i}"], [f"m{i + 1}"], domain="my") for i, call in enumerate(calls)]
    end = helper.make_node("Relu", [f"m{len(calls)}"], ["b"])
    return helper.make_function("my", name, ["m0"], ["b"], [*nodes, end], OPSETS)


FUNCTIONS = {
    "calls itself": [_function("F0", "F0")],
    "call each other": [_function("F0", "F1"), _function("F1", "F2", "F0"), _function("F2")],
    "stand for 2^40 nodes": [*(_function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(40)), _function("F40")],
}


def _calling(functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="abs"),
        helper.make_node("F0", ["a"], ["f"], name="call", domain="my"),
        helper.make_node("Neg", ["f"], ["y"], name="neg"),
    ]
    return model(nodes, [info("x")], [info("y")], functions=functions, domains=["my"], value_info=[info("f")])


def _nested(depth: int) -> bytes:
    """A model with an If inside an If inside ..., written by hand: protobuf itself gives up at a depth of 33."""
    field = string_field
    relu = field(1, b"x") + field(2, b"r") + field(3, b"relu") + field(4, b"Relu")
    out = field(12, info("r").SerializeToString())
    graph = field(1, relu) + field(2, b"g") + out
    for level in range(depth):
        branches = b"".join(
            field(5, field(1, name) + field(6, body) + b"\xa0\x01\x05")
            for name, body in ((b"then_branch", graph), (b"else_branch", field(1, relu) + field(2, b"e") + out))
        )
        node = field(1, b"c") + field(2, b"r") + field(3, b"if%d" % level) + field(4, b"If") + branches
        graph = field(1, node) + field(2, b"g") + out
    inputs = field(11, info("x").SerializeToString()) + field(11, info("c", (), BOOL).SerializeToString())
    return b"\x08\x09" + field(8, OPSETS[0].SerializeToString()) + field(7, graph + inputs)


def _typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "biopsy", *words]
    return subprocess.run(command, cwd=folder, timeout=60, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_reduction_with_functions_that_nobody_could_write_out_ends_and_says_so(name: str, tmp_path: Path) -> None:
    told: list[object] = []
    original = _calling(FUNCTIONS[name])
    biopsy.reduce(original, has("call"), tmp_path / "r.onnx", takes="model", values="free", listener=told.append)
    assert names(onnx.load(tmp_path / "r.onnx")) == ["call"]
    remarks = [event.text for event in told if isinstance(event, events.Remark)]
    (remark,) = [text for text in remarks if text.startswith("inline     not done for F0")]
    assert remark.endswith(("it calls itself", "it stands for more than 10000 nodes"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_commands_end_too(name: str, tmp_path: Path) -> None:
    save(_calling(FUNCTIONS[name]), tmp_path / "m.onnx")
    lines = [
        ["inspect", "model", "m.onnx", "--mode=full"],
        ["surgeon", "sanitize", "m.onnx", "-o", "s.onnx"],
        ["surgeon", "extract", "m.onnx", "-o", "e.onnx", "--outputs", "f:auto:auto"],
    ]
    code = f"from biopsy.cli.app import main; print([main(words) for words in {lines!r}])"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr
    assert "itself failed" not in ran.stderr
    statuses = ast.literal_eval(ran.stdout.splitlines()[-1])
    assert len(statuses) == 3
    assert set(statuses) <= {0, 2, 4}, ran.stderr


@pytest.mark.parametrize("depth", [pytest.param(20, marks=pytest.mark.slow), 30, 50])
@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "model", "m.onnx", "--mode=full"],
        ["surgeon", "sanitize", "m.onnx", "-o", "s.onnx"],
        ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--check", sys.executable, "-c", "raise SystemExit(1)", "{}"],
    ],
    ids=lambda words: words[1],
)
def test_bodies_inside_bodies_end_with_an_answer_or_one_clear_line(
    depth: int, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "m.onnx").write_bytes(_nested(depth))
    ran = _typed(tmp_path, *words)
    assert "Traceback" not in ran.stderr
    assert ran.returncode in {0, 2, 4}, ran.stderr


def test_only_functions_that_are_endless_or_too_large_are_left_as_they_are() -> None:
    assert set(unbounded(FUNCTIONS["call each other"])) == {("my", "F0", ""), ("my", "F1", "")}
    assert ("my", "F40", "") not in unbounded(FUNCTIONS["stand for 2^40 nodes"])
    assert unbounded([_function("F0", "F1", "F1"), _function("F1")]) == {}
