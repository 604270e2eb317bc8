"""Random models full of bodies: If, Loop and Scan, inside each other too, which read tensors from around them."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from biopsy.model import walk
from biopsy.reduction.passes.common import drop_dead_nodes
from support.models import BOOL, FLOAT, INT64, info


class _Graph:
    """A graph in the making: tensors of two shapes, rows (N, 3) and vectors (3,), by name."""

    def __init__(self, draw: random.Random, batch: int | str, numbers: Iterator[int], outer: "_Graph | None" = None):
        self.draw, self.batch, self.numbers = draw, batch, numbers
        self.nodes: list[onnx.NodeProto] = []
        self.rows: list[str] = list(outer.rows) if outer else []
        self.vectors: list[str] = list(outer.vectors) if outer else []

        self.stacks: list[str] = []

    def name(self, prefix: str = "t") -> str:
        return f"{prefix}{next(self.numbers)}"

    def node(self, operator: str, inputs: list[str], count: int = 1, **attributes: object) -> list[str]:
        outputs = [self.name() for _ in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=self.name("n"), **attributes))
        return outputs

    def grow(self, nodes: int, depth: int) -> None:
        while len(self.nodes) < nodes:
            kinds = [self._unary, self._binary, self._reduced]
            self.draw.choice(kinds + [self._if, self._loop, self._scan] * (depth > 0))(depth - 1)

    def types(self, but: list[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
        """Types of the rows and vectors that the nodes of this graph compute."""
        left_out, rows = {entry.name for entry in but}, set(self.rows)
        shapes = {name: (self.batch, 3) if name in rows else (3,) for name in (*self.rows, *self.vectors)}
        shapes |= dict.fromkeys(self.stacks, (2, 3))
        written = [name for node in self.nodes for name in node.output if name in shapes.keys() - left_out]
        return [info(name, shapes[name]) for name in written]

    def _unary(self, depth: int) -> None:
        pool = self.draw.choice([self.rows, self.vectors])
        pool += self.node(self.draw.choice(["Relu", "Neg", "Abs"]), [self.draw.choice(pool)])

    def _binary(self, depth: int) -> None:
        self.rows += self.node("Add", [self.draw.choice(self.rows), self.draw.choice(self.rows + self.vectors)])

    def _reduced(self, depth: int) -> None:
        self.vectors += self.node("ReduceSum", [self.draw.choice(self.rows), "axes"], keepdims=0)

    def _body(self, name: str, depth: int, inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
        """A body that gives out what kinds of tensors ``outputs`` say."""
        body = _Graph(self.draw, self.batch, self.numbers, self)
        for entry in inputs:
            if entry.type.tensor_type.elem_type == FLOAT:
                (body.rows if len(entry.type.tensor_type.shape.dim) == 2 else body.vectors).append(entry.name)
        body.grow(self.draw.randint(2, 4), depth)
        infos = []
        for kind in outputs:
            if kind == "go on":
                (name_out,) = body.node("Identity", [inputs[1].name])
                infos.append(info(name_out, (), BOOL))
                continue
            pool, shape = (body.rows, (self.batch, 3)) if kind == "rows" else (body.vectors, (3,))
            (name_out,) = body.node("Relu", [self.draw.choice(pool[-3:])])
            infos.append(info(name_out, shape))
        return helper.make_graph(body.nodes, name, inputs, infos, value_info=body.types(but=infos))

    def _if(self, depth: int) -> None:
        (total,) = self.node("ReduceMax", [self.draw.choice(self.rows)], keepdims=0)
        (taken,) = self.node("Cast", [total], to=BOOL)
        kinds = self.draw.choices(["rows", "vector"], k=self.draw.randint(1, 2))
        branches = {name: self._body(self.name(name), depth, [], kinds) for name in ("then_branch", "else_branch")}
        self._keep(kinds, self.node("If", [taken], len(kinds), **branches))

    def _loop(self, depth: int) -> None:
        kinds = self.draw.choices(["rows", "vector"], k=self.draw.randint(1, 2))
        shapes = [(self.batch, 3) if kind == "rows" else (3,) for kind in kinds]
        inputs = [info(self.name("i"), (), INT64), info(self.name("c"), (), BOOL)]
        inputs += [info(self.name("v"), shape) for shape in shapes]
        initial = [self.draw.choice(self.rows if kind == "rows" else self.vectors) for kind in kinds]
        body = self._body(self.name("body"), depth, inputs, ["go on", *kinds, "vector"])
        *carried, stacked = self.node("Loop", ["trips", "", *initial], len(kinds) + 1, body=body)
        self._keep(kinds, carried)
        self.stacks.append(stacked)
        self.vectors += self.node("ReduceSum", [stacked, "axes"], keepdims=0)

    def _scan(self, depth: int) -> None:
        inputs = [info(self.name("s"), (3,)), info(self.name("e"), (3,))]
        body = self._body(self.name("body"), depth, inputs, ["vector", "vector"])
        start = [self.draw.choice(self.vectors), self.draw.choice(self.rows)]
        state, scanned = self.node("Scan", start, 2, body=body, num_scan_inputs=1)
        self.vectors.append(state)
        self.rows.append(scanned)
        self.rows.append(self.node("Add", [scanned, self.draw.choice(self.rows)])[0])

    def _keep(self, kinds: list[str], names: list[str]) -> None:
        for kind, name in zip(kinds, names, strict=True):
            (self.rows if kind == "rows" else self.vectors).append(name)


def bodied(seed: int, batches: Sequence[int | str] = (2, 4, "N")) -> onnx.ModelProto:
    """A valid model, types of its tensors declared, what nothing reads given out."""
    draw = random.Random(seed)
    batch = draw.choice(batches)
    graph = _Graph(draw, batch, iter(range(10_000)))
    graph.rows, graph.vectors = ["x", "z"], ["v"]
    graph.grow(draw.randint(4, 10), 2)
    for body in reversed(list(walk.graphs_within(graph.nodes))):
        drop_dead_nodes(body)
    read = {name for node in graph.nodes for name in node.input}
    captured = "".join(str(node) for node in graph.nodes)
    ends = [name for node in graph.nodes for name in node.output if name not in read]
    ends = [name for name in ends if captured.count(f'"{name}"') == 1]
    weights = [
        numpy_helper.from_array(np.array([0], np.int64), "axes"),
        numpy_helper.from_array(np.array(2, np.int64), "trips"),
    ]
    inputs = [info("x", (batch, 3)), info("z", (batch, 3)), info("v", (3,))]
    types = {entry.name: entry for entry in graph.types(but=[])}
    outputs = [types.pop(name) for name in ends]
    made = helper.make_model(
        helper.make_graph(graph.nodes, "g", inputs, outputs, weights, value_info=list(types.values())),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
