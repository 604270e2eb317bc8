"""A generator of valid models from a seed: what real exports hold, in up to two dozen nodes.

Open dimensions, captures of bodies, functions, operators that nobody knows, sequences, optional inputs and outputs,
casts through every type, shapes computed from shapes and from values, and declared types that are there or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

NUMBERS = (T.FLOAT16, T.DOUBLE, T.BFLOAT16, T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32, T.INT64, T.UINT64)
ROWS, COLUMNS = 2, 3
"""What the open dimension is fed with, and the width of every matrix."""

_UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Softplus", "Identity", "Floor")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")


@dataclass(frozen=True)
class Tensor:
    """A tensor that later nodes may read. ``kind`` is what it holds; ``elem`` an ONNX element type."""

    name: str
    kind: str  # "matrix" [rows, 3], "ids" int64 [rows, 3], "shape" int64 [2], "scalar", "flag", "dynamic", "sequence"
    elem: int = T.FLOAT


class Draft:
    """A model in the making."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.rows: int | str = random.choice([ROWS, "N", "N"])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.functions: dict[str, onnx.FunctionProto] = {}
        self.opaque: set[str] = set()
        self.inputs = [_info(f"x{number}", T.FLOAT, [self.rows, COLUMNS]) for number in range(random.randint(1, 2))]
        self.tensors = [Tensor(info.name, "matrix") for info in self.inputs]
        self._numbers = itertools.count()

    def new(self, prefix: str = "t") -> str:
        """A name that nothing has yet."""
        return f"{prefix}{next(self._numbers)}"

    def pick(self, kind: str = "matrix") -> Tensor | None:
        """A tensor of a kind, one of the newest most of the time; None if there is none."""
        known = [tensor for tensor in self.tensors if tensor.kind == kind]
        if not known:
            return None
        return self.random.choice(known[-4:] if self.random.random() < 0.7 else known)

    def matrix(self) -> str:
        """The name of a float matrix; there is always one."""
        return self.random.choice([t.name for t in self.tensors if t.kind == "matrix"][-5:])

    def weight(self, values: object, dtype: str = "float32") -> str:
        """The name of a new initializer."""
        name = self.new("w")
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def constant(self, *numbers: int) -> str:
        """A small int64 list, as an initializer or as a Constant node."""
        if self.random.random() < 0.5:
            return self.weight(numbers, "int64")
        name = self.new("c")
        value = numpy_helper.from_array(np.asarray(numbers, "int64"))
        self.nodes.append(helper.make_node("Constant", [], [name], name=self.new("n"), value=value))
        return name

    def node(self, op_type: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, **attributes: object) -> str:
        """Append a node; returns the name of its first output."""
        names = [self.new() for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        name = self.new("n") if self.random.random() < 0.9 else ""
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, **attributes))
        return names[0]

    def keep(self, name: str, kind: str = "matrix", elem: int = T.FLOAT) -> None:
        """Let later nodes read a tensor."""
        self.tensors.append(Tensor(name, kind, elem))


def _info(name: str, elem: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


# What a node, or a few, may be


def _unary(draft: Draft) -> None:
    draft.keep(draft.node(draft.random.choice(_UNARY), [draft.matrix()]))


def _binary(draft: Draft) -> None:
    draft.keep(draft.node(draft.random.choice(_BINARY), [draft.matrix(), draft.matrix()]))


def _with_weight(draft: Draft) -> None:
    values = [draft.random.uniform(0.5, 2) for _ in range(COLUMNS)]
    draft.keep(draft.node(draft.random.choice(["Add", "Mul", "Div"]), [draft.matrix(), draft.weight(values)]))


def _product(draft: Draft) -> None:
    values = [[draft.random.uniform(-1, 1) for _ in range(COLUMNS)] for _ in range(COLUMNS)]
    draft.keep(draft.node("MatMul", [draft.matrix(), draft.weight(values)]))


def _through_a_type(draft: Draft) -> None:
    elem = draft.random.choice(NUMBERS)
    positive = draft.node("Abs", [draft.matrix()])
    cast = draft.node("Cast", [positive], to=elem)
    if elem in (T.INT64, T.INT32) and draft.random.random() < 0.5:
        draft.keep(cast, "ids", elem)
    draft.keep(draft.node("Cast", [cast], to=T.FLOAT))


def _through_shape(draft: Draft) -> None:
    shape = draft.node("Shape", [draft.matrix()])
    draft.keep(shape, "shape", T.INT64)
    if draft.random.random() < 0.5:
        rows = draft.node("Gather", [shape, draft.constant(0)])
        shape = draft.node("Concat", [rows, draft.constant(COLUMNS)], axis=0)
    draft.keep(draft.node("Reshape", [draft.matrix(), shape]))


def _like_a_shape(draft: Draft) -> None:
    """A sum that is cast to an integer and divides: it looks like a shape, and depends on values."""
    mask = draft.node("Greater", [draft.matrix(), draft.weight(0.5)])
    count = draft.node("ReduceSum", [draft.node("Cast", [mask], to=T.INT64)], keepdims=0)
    more = draft.node("Add", [count, draft.weight(1, "int64")])
    draft.keep(more, "scalar", T.INT64)
    draft.keep(draft.node("Div", [draft.matrix(), draft.node("Cast", [more], to=T.FLOAT)]))


def _mean(draft: Draft) -> None:
    x = draft.matrix()
    draft.keep(draft.node("Sub", [x, draft.node("ReduceMean", [x, draft.constant(-1)], keepdims=1)]))


def _where(draft: Draft) -> None:
    condition = draft.node("Less", [draft.matrix(), draft.matrix()])
    draft.keep(draft.node("Where", [condition, draft.matrix(), draft.matrix()]))


def _flag(draft: Draft) -> str:
    total = draft.node("ReduceSum", [draft.matrix()], keepdims=0)
    return draft.node("Greater", [total, draft.weight(0.0)])


def _branch(draft: Draft) -> None:
    """An If whose branches capture tensors of the graph around it."""
    one, other, result = draft.matrix(), draft.matrix(), draft.new("b")
    inner = draft.new("b")
    then = [helper.make_node("Neg", [one], [inner]), helper.make_node("Add", [inner, other], [result])]
    otherwise = [helper.make_node(draft.random.choice(_UNARY), [one], [result])]
    branches = {
        name: helper.make_graph(nodes, name, [], [_info(result, T.FLOAT, [draft.rows, COLUMNS])])
        for name, nodes in (("then_branch", then), ("else_branch", otherwise))
    }
    draft.keep(draft.node("If", [_flag(draft)], **branches))


def _loop(draft: Draft) -> None:
    """Two trips that carry a value and capture another."""
    captured, names = draft.matrix(), [draft.new("b") for _ in range(5)]
    count, going, still, carried, result = names
    nodes = [
        helper.make_node("Identity", [going], [still]),
        helper.make_node("Add", [carried, captured], [result]),
    ]
    inputs = [_info(count, T.INT64, []), _info(going, T.BOOL, []), _info(carried, T.FLOAT, [draft.rows, COLUMNS])]
    outputs = [_info(still, T.BOOL, []), _info(result, T.FLOAT, [draft.rows, COLUMNS])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    draft.keep(draft.node("Loop", [draft.weight(2, "int64"), "", draft.matrix()], body=body))


def _function(draft: Draft) -> None:
    name = draft.random.choice(["Twice", "Shift"])
    opsets = [helper.make_opsetid("", 18)]
    if name not in draft.functions:
        inner = {
            "Twice": [helper.make_node("Add", ["a", "a"], ["s"]), helper.make_node("Relu", ["s"], ["r"])],
            "Shift": [helper.make_node("Softplus", ["a"], ["s"]), helper.make_node("Neg", ["s"], ["r"])],
        }[name]
        draft.functions[name] = helper.make_function("local", name, ["a"], ["r"], inner, opsets)
    draft.keep(draft.node(name, [draft.matrix()], domain="local"))


def _unknown_operator(draft: Draft) -> None:
    """An operator of a domain that no engine knows; its type is declared, or nobody can tell it."""
    made = draft.node(draft.random.choice(["First", "Second", "Third"]), [draft.matrix()], domain="my")
    draft.opaque.add(made)
    draft.keep(made)


def _sequence(draft: Draft) -> None:
    made = draft.node("SequenceConstruct", [draft.matrix(), draft.matrix()])
    if draft.random.random() < 0.5:
        draft.keep(draft.node("SequenceAt", [made, draft.weight(draft.random.randint(0, 1), "int64")]))
    else:
        joined = draft.node("ConcatFromSequence", [made], axis=0)
        draft.keep(draft.node("Add", [draft.node("ReduceMax", [joined], keepdims=1), draft.matrix()]))


def _optional_parts(draft: Draft) -> None:
    """A Clip without its lower limit, a Dropout with or without its mask, halves of a Split."""
    choice = draft.random.randrange(3)
    if choice == 0:
        draft.keep(draft.node("Clip", [draft.matrix(), "", draft.weight(draft.random.uniform(0.5, 2))]))
    elif choice == 1:
        outputs = [draft.new(), draft.new()] if draft.random.random() < 0.5 else [draft.new()]
        draft.keep(draft.node("Dropout", [draft.matrix()], outputs))
    else:
        halves = [draft.new(), draft.new()]
        draft.node("Split", [draft.matrix(), draft.constant(1, 2)], halves, axis=1)
        one, two = halves if draft.random.random() < 0.7 else reversed(halves)
        draft.keep(draft.node("Concat", [two, one], axis=1))


def _as_many_as_values(draft: Draft) -> None:
    """Sizes that depend on values: NonZero and what reads its shape."""
    places = draft.node("NonZero", [draft.node("Relu", [draft.matrix()])])
    found = draft.node("Gather", [draft.node("Shape", [places]), draft.weight(1, "int64")])
    draft.keep(found, "scalar", T.INT64)
    draft.keep(draft.node("Add", [draft.matrix(), draft.node("Cast", [found], to=T.FLOAT)]))


def _integers(draft: Draft) -> None:
    ids = draft.pick("ids")
    if ids is None:
        _through_a_type(draft)
        return
    doubled = draft.node("Add", [ids.name, ids.name])
    draft.keep(doubled, "ids", ids.elem)
    draft.keep(draft.node("Mul", [draft.node("Cast", [doubled], to=T.FLOAT), draft.matrix()]))


def _strings(draft: Draft) -> None:
    text = draft.node("Cast", [draft.matrix()], to=T.STRING)
    draft.keep(draft.node("Cast", [text], to=T.FLOAT))


_PARTS: tuple[tuple[Callable[[Draft], None], int], ...] = (
    (_unary, 6), (_binary, 6), (_with_weight, 4), (_product, 3), (_through_a_type, 3), (_through_shape, 3),
    (_like_a_shape, 2), (_mean, 2), (_where, 2), (_branch, 2), (_loop, 2), (_function, 2), (_unknown_operator, 2),
    (_sequence, 2), (_optional_parts, 3), (_as_many_as_values, 2), (_integers, 2), (_strings, 1),
)  # fmt: skip


def random_model(random: Random, most_nodes: int = 18) -> onnx.ModelProto:
    """A model that the checker accepts; which of its tensors have a declared type is chosen at random too."""
    draft = Draft(random)
    parts, weights = zip(*_PARTS, strict=True)
    wanted = random.randint(3, most_nodes)
    while len(draft.nodes) < wanted:
        random.choices(parts, weights)[0](draft)
    read = {name for node in draft.nodes for name in _reads(node)}
    ends = [t.name for t in draft.tensors if t.kind == "matrix" and t.name not in read and t.name[0] != "x"]
    if random.random() < 0.3:
        ends += [t.name for t in draft.tensors if t.kind == "matrix" and t.name in read and t.name[0] != "x"][-1:]
    outputs = [_info(name, T.FLOAT, [draft.rows, COLUMNS]) for name in ends]
    _drop_dead_nodes(draft, set(ends))
    graph = helper.make_graph(draft.nodes, "random", draft.inputs, outputs, draft.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1), helper.make_opsetid("my", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=list(draft.functions.values()))
    _drop_unused(made)
    _declare(made, draft)
    return made


def _reads(node: onnx.NodeProto) -> list[str]:
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            names += [name for inner in attribute.g.node for name in _reads(inner)]
    return names


def _drop_dead_nodes(draft: Draft, ends: set[str]) -> None:
    needed = set(ends)
    kept = []
    for node in reversed(draft.nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(_reads(node))
    draft.nodes = kept[::-1]


def _drop_unused(model: onnx.ModelProto) -> None:
    read = {name for node in model.graph.node for name in _reads(node)}
    kept = [weight for weight in model.graph.initializer if weight.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    called = {node.op_type for node in model.graph.node if node.domain == "local"}
    functions = [function for function in model.functions if function.name in called]
    del model.functions[:]
    model.functions.extend(functions)


def _declare(model: onnx.ModelProto, draft: Draft) -> None:
    """Write value_info for all tensors, some or none: as exporters do."""
    share = draft.random.choice([0.0, 0.5, 1.0])
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    infos = [info for info in inferred.graph.value_info if draft.random.random() < share]
    known = {info.name for info in infos} | {info.name for info in model.graph.output}
    written = {name for node in model.graph.node for name in node.output}
    unknown = [name for name in sorted((draft.opaque & written) - known) if draft.random.random() < 0.7]
    infos += [_info(name, T.FLOAT, [draft.rows, COLUMNS]) for name in unknown]
    model.graph.value_info.extend(infos)
