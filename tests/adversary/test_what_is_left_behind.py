"""What lies behind a change must follow it: dead nodes, shapes that are no more, models that inference refutes."""

import random
from pathlib import Path

import onnx
import pytest
from onnx import helper

import biopsy
from biopsy import Rules
from biopsy.model import walk
from support.bodied import bodied
from support.models import BOOL, FLOAT, info, model


def _dead(made: onnx.ModelProto, wanted: set[str]) -> list[str]:
    """Nodes of which nothing is read, and that hold nothing that the check wants."""
    found = []
    for graph in (made.graph, *walk.graphs_within(made.graph.node)):
        read = {output.name for output in graph.output}.union(*map(walk.reads, graph.node))
        for node in graph.node:
            holds = {node.name, *(inner.name for body in walk.graphs_within([node]) for inner in body.node)}
            found += [node.name] if read.isdisjoint(node.output) and wanted.isdisjoint(holds) else []
    return found


def _names(made: onnx.ModelProto) -> set[str]:
    return {node.name for graph in (made.graph, *walk.graphs_within(made.graph.node)) for node in graph.node}


@pytest.mark.parametrize("seed", range(10))
def test_every_model_that_is_checked_is_one_that_the_checker_accepts_and_nothing_dead_is_left(
    seed: int, tmp_path: Path
) -> None:
    original = bodied(seed, batches=[2, 4])
    onnx.checker.check_model(original, full_check=True)
    wanted = set(random.Random(seed).sample(sorted(_names(original)), 2))
    refused = []

    def fails(candidate: onnx.ModelProto) -> bool:
        try:
            onnx.checker.check_model(candidate, full_check=True)
        except Exception as error:
            refused.append(str(error))
        return wanted <= _names(candidate)

    biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", values="free", rules=Rules(match="any"))
    result = onnx.load(tmp_path / "r.onnx")
    assert refused == []
    assert wanted <= _names(result)
    assert _dead(result, wanted) == []


def test_what_only_a_body_read_goes_with_the_nodes_of_the_body(tmp_path: Path) -> None:
    """``outer`` is read by ``inner`` alone, in a branch that has to stay."""
    branches = {
        name: helper.make_graph(
            [
                helper.make_node("Add", ["outer", "x"], [f"{name}_sum"], name=f"{name}_inner"),
                helper.make_node("Neg", [f"{name}_sum"], [f"{name}_out"], name=f"{name}_culprit"),
            ],
            name,
            [],
            [info(f"{name}_out")],
        )
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["before"], name="before"),
        helper.make_node("Abs", ["before"], ["outer"], name="outer"),
        helper.make_node("If", ["c"], ["y"], name="if", **branches),
    ]
    original = model(nodes, [info("x"), info("c", (), BOOL)], [info("y")])

    def fails(candidate: onnx.ModelProto) -> bool:
        return {"if", "then_branch_culprit", "else_branch_culprit"} <= _names(candidate)

    only = ["bodies"]
    biopsy.reduce(
        original,
        fails,
        tmp_path / "r.onnx",
        takes="model",
        values="free",
        mode="minimal",
        only_pass=tuple(only),
    )
    result = onnx.load(tmp_path / "r.onnx")
    assert [node.name for node in result.graph.node] == ["if"]
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("batch", [5, "N"])
def test_a_hoisted_scan_leaves_no_shape_of_all_its_steps(batch: int | str, tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Neg", ["e"], ["o"], name="culprit")], "step", [info("e", (3,))], [info("o", (3,))]
    )
    nodes = [
        helper.make_node("Scan", ["x"], ["s"], name="scan", body=body, num_scan_inputs=1),
        helper.make_node("Concat", ["s", "z"], ["c"], name="concat", axis=0),
        helper.make_node("Mystery", ["c"], ["m"], name="mystery", domain="my"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    twice = 10 if batch == 5 else "M"
    declared = [info("s", (batch, 3)), info("c", (twice, 3)), info("m", (twice, 3), FLOAT)]
    original = model(
        nodes, [info("x", (batch, 3)), info("z", (batch, 3))], [info("y", (twice, 3))], value_info=declared,
        domains=["my"],
    )  # fmt: skip

    def fails(candidate: onnx.ModelProto) -> bool:
        return {"culprit", "concat", "mystery", "relu"} <= _names(candidate)

    biopsy.reduce(original, fails, tmp_path / "r.onnx", takes="model", values="free")
    result = onnx.load(tmp_path / "r.onnx")
    assert "scan" not in _names(result)
    onnx.shape_inference.infer_shapes(result, strict_mode=True, check_type=True, data_prop=True)
    told = {entry.name: [dim.dim_value or dim.dim_param for dim in entry.type.tensor_type.shape.dim]
            for entry in (*result.graph.value_info, *result.graph.output)}  # fmt: skip
    behind = [told[name] for name in ("s", "c", "m", "y") if name in told]
    assert all(shape[0] not in {batch, twice} for shape in behind if shape), told
