"""Model files that somebody made in order to hang, exhaust or crash whoever opens them: name -> their bytes.

Written by hand where the ``onnx`` package would refuse to, field by field (onnx.proto3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from biopsy.model.wire import head, string_field, varint, varint_field
from support.models import info, model

MODEL_GRAPH, MODEL_OPSET, MODEL_FUNCTION = 7, 8, 25
GRAPH_NODE, GRAPH_NAME, GRAPH_WEIGHT, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE = 1, 2, 5, 11, 12, 15

HUGE = 1 << 62


# The parts


def plain() -> onnx.ModelProto:
    """A model that is fine: a Relu."""
    return model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")])


def with_graph(*parts: bytes) -> bytes:
    """A serialized model with these fields in its graph, and nothing else there."""
    return varint_field(1, 10) + string_field(MODEL_OPSET, varint_field(2, 20)) + string_field(7, b"".join(parts))


def relu(source: bytes = b"x", target: bytes = b"y") -> bytes:
    """A node as a field of the graph."""
    return string_field(GRAPH_NODE, string_field(1, source) + string_field(2, target) + string_field(4, b"Relu"))


def declared(field: int, name: bytes, dims: Iterable[int], elem: int = 1) -> bytes:
    """An input or output of a shape, as a field of the graph."""
    sizes = list(dims)
    different = dict.fromkeys(sizes)
    known = {dim: string_field(1, varint_field(1, dim)) for dim in different}
    shape = known[sizes[0]] * len(sizes) if len(different) == 1 else b"".join(known[dim] for dim in sizes)
    kind = string_field(1, varint_field(1, elem) + string_field(2, shape))
    return string_field(field, string_field(1, name) + string_field(2, kind))


def tensor(name: bytes, dims: Iterable[int], *more: bytes, elem: int = 1) -> bytes:
    """A serialized TensorProto."""
    sizes = list(dims)
    different = dict.fromkeys(sizes)
    known = {dim: varint_field(1, dim) for dim in different}
    shape = known[sizes[0]] * len(sizes) if len(different) == 1 else b"".join(known[dim] for dim in sizes)
    return b"".join([shape, varint_field(2, elem), string_field(8, name), *more])


def adding(weight_: bytes, *, elem: int = 1, field: int = GRAPH_WEIGHT) -> bytes:
    """A model that adds a weight, a serialized tensor called ``w``, to its input."""
    node = string_field(1, b"x") + string_field(1, b"w") + string_field(2, b"y") + string_field(4, b"Add")
    ends = declared(GRAPH_INPUT, b"x", [2], elem), declared(GRAPH_OUTPUT, b"y", [2], elem)
    return with_graph(
        string_field(GRAPH_NODE, node), string_field(GRAPH_NAME, b"g"), string_field(field, weight_), *ends
    )


def nested(depth: int, field: int = 6) -> bytes:
    """A node with a body that holds a node with a body, and so on. Made from the inside, nothing is copied."""
    behind = string_field(GRAPH_NAME, b"b") + declared(GRAPH_OUTPUT, b"r", [2])
    kind = varint_field(20, 5 if field == 6 else 10)
    before, length = [], len(relu(b"x", b"r") + behind)
    for _ in range(depth):
        attribute_head = string_field(1, b"then_branch") + head(field, length)
        size = len(attribute_head) + length + len(kind)
        node_head = string_field(1, b"c") + string_field(2, b"r") + string_field(4, b"If") + head(5, size)
        size += len(node_head)
        before.append(head(GRAPH_NODE, size) + node_head + attribute_head)
        length = len(before[-1]) - len(node_head) - len(attribute_head) + size + len(behind)
    ends = declared(GRAPH_INPUT, b"x", [2]) + declared(GRAPH_INPUT, b"c", [], 9)
    return with_graph(*reversed(before), relu(b"x", b"r"), behind, (kind + behind) * depth, ends)


def nested_if(depth: int) -> bytes:
    """Ifs inside both branches of Ifs would be 2^depth nodes: here each has one branch with a body, and one plain."""
    inner = helper.make_node("Relu", ["x"], ["r"])
    for _ in range(depth):
        then = helper.make_graph([inner], "then", [], [info("r")])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "else", [], [info("r")])
        inner = helper.make_node("If", ["c"], ["r"], then_branch=then, else_branch=other)
    made = model([inner], [info("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])], [info("r")])
    return made.SerializeToString()


def deep_type(depth: int) -> bytes:
    """An input that is a sequence of sequences of sequences."""
    kind = string_field(1, varint_field(1, 1))
    for _ in range(depth):
        kind = string_field(4, string_field(1, kind))
    return with_graph(relu(), string_field(GRAPH_INPUT, string_field(1, b"x") + string_field(2, kind)))


def calling(functions: Iterable[tuple[str, list[str]]], first: str) -> bytes:
    """A model that calls the function ``first``; each function calls others one after the other."""
    local = helper.make_opsetid("local", 1)
    made = []
    for name, calls in functions:
        names = ["x", *(f"t{number}" for number in range(len(calls) - 1)), "y"]
        nodes = [
            helper.make_node(call, [names[at]], [names[at + 1]], domain="" if call == "Relu" else "local")
            for at, call in enumerate(calls)
        ]
        made.append(helper.make_function("local", name, ["x"], ["y"], nodes, [helper.make_opsetid("", 20), local]))
    found = model([helper.make_node(first, ["x"], ["y"], domain="local")], [info("x")], [info("y")])
    found.opset_import.append(local)
    found.functions.extend(made)
    return found.SerializeToString()


def doubling(levels: int) -> bytes:
    """Functions that stand for 2^levels nodes."""
    functions = [(f"F{level}", [f"F{level + 1}"] * 2 if level < levels else ["Relu"]) for level in range(levels + 1)]
    return calling(functions, "F0")


def doubling_in_bodies(levels: int) -> bytes:
    """Functions that stand for 2^levels nodes, called in the branches of an If."""
    made = onnx.ModelProto.FromString(doubling(levels))
    for level, function in enumerate(made.functions[:-1]):
        call = helper.make_node(f"F{level + 1}", ["x"], ["r"], domain="local")
        branches = {
            name: helper.make_graph([call], name, [], [helper.make_value_info("r", onnx.TypeProto())])
            for name in ("then_branch", "else_branch")
        }
        del function.node[:]
        function.node.extend(
            [
                helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
                helper.make_node("If", ["c"], ["y"], **branches),
            ]
        )
    return made.SerializeToString()


def folding(nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> bytes:
    """A model that adds a constant to its input that could be computed beforehand: ``k``, and is huge."""
    add = helper.make_node("Add", ["x", "k"], ["y"])
    return model([*nodes, add], [info("x")], [info("y", ["a", "b"])], list(weights)).SerializeToString()


def weight(name: str, values: object) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(values), name)


def shape_of(*dims: int) -> onnx.TensorProto:
    """An initializer ``s`` that is a shape."""
    return weight("s", np.array(dims, np.int64))


def attribute(name: str, **values: object) -> bytes:
    """A model with one Conv whose attribute is of another type than it says."""
    made = model(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [info("x", [1, 1, 4, 4])],
        [info("y", [1, 1, 2, 2])],
        [weight("w", np.ones((1, 1, 3, 3), np.float32))],
    )
    given = made.graph.node[0].attribute.add(name=name)
    for key, value in values.items():
        if isinstance(value, list):
            getattr(given, key).extend(value)
        else:
            setattr(given, key, value)
    return made.SerializeToString()


def sparse(indices: list[int], dims: list[int], values: int = 1) -> bytes:
    """A model with a sparse initializer."""
    held = tensor(b"w", [values], string_field(4, bytes(4 * values)))
    places = tensor(b"", [len(indices)], string_field(7, b"".join(map(varint, indices))), elem=7)
    return adding(
        string_field(1, held) + string_field(2, places) + b"".join(varint_field(3, dim) for dim in dims), field=15
    )


def external(**entries: str) -> bytes:
    """A model whose weight stands in another file."""
    parts = [
        string_field(13, string_field(1, key.encode()) + string_field(2, text.encode()))
        for key, text in entries.items()
    ]
    return adding(tensor(b"w", [2], *parts, varint_field(14, 1)))


def _node(*parts: bytes) -> bytes:
    ends = declared(GRAPH_INPUT, b"x", [2]), declared(GRAPH_OUTPUT, b"y", [2])
    return with_graph(string_field(GRAPH_NODE, b"".join(parts)), string_field(GRAPH_NAME, b"g"), *ends)


def _merged() -> bytes:
    first = relu(b"x", b"m") + string_field(GRAPH_NAME, b"one") + declared(GRAPH_INPUT, b"x", [2])
    second = relu(b"m", b"y") + string_field(GRAPH_NAME, b"two") + declared(GRAPH_OUTPUT, b"y", [2])
    return with_graph(first) + string_field(7, second)


def _long_names() -> bytes:
    name = b"n" * (1 << 20)
    return with_graph(
        relu(name, name + b"2"), declared(GRAPH_INPUT, name, [2]), declared(GRAPH_OUTPUT, name + b"2", [2])
    )


def _cycle() -> bytes:
    ends = declared(GRAPH_INPUT, b"x", [2]), declared(GRAPH_OUTPUT, b"y", [2])
    return with_graph(relu(b"y", b"z"), relu(b"z", b"y"), string_field(2, b"g"), *ends)


_STRAY = b"\xff\xfe\x80"

READABLE: dict[str, Callable[[], bytes]] = {
    "a graph that stands there twice": _merged,
    "unknown fields": lambda: plain().SerializeToString() + string_field(999, b"x" * 100) + varint_field(1000, HUGE),
    "a field that stands there twice": lambda: varint_field(1, 3) + plain().SerializeToString(),
    "30 nested Ifs": lambda: nested_if(30),
}
"""Odd, and fine."""

HOSTILE: dict[str, Callable[[], bytes]] = {
    "no byte": lambda: b"",
    "random bytes": lambda: np.random.default_rng(1).bytes(4096),
    "zeros": lambda: bytes(4096),
    "text": lambda: b"import onnx\n" * 100,
    "groups": lambda: plain().SerializeToString() + b"\xa3\x06" * 20_000 + b"\xa4\x06" * 20_000,
    "a varint of 11 bytes": lambda: b"\x08" + b"\xff" * 11 + b"\x01",
    "a length of 2^63": lambda: b"\x3a" + varint(1 << 63),
    "a length of 2^31": lambda: b"\x3a" + varint(1 << 31) + b"x",
    "a graph that is a number": lambda: varint_field(7, 5),
    "a function that is a number": lambda: plain().SerializeToString() + varint_field(25, 5),
    "an opset that is a number": lambda: varint_field(8, 5) + plain().SerializeToString(),
    "an opset without a version": lambda: plain().SerializeToString() + string_field(8, b""),
    "an opset of 2^63": lambda: plain().SerializeToString() + string_field(8, varint_field(2, (1 << 63) - 1)),
    "an IR version that is text": lambda: plain().SerializeToString() + string_field(1, b""),
    "an IR version below zero": lambda: plain().SerializeToString() + varint_field(1, -1),
    "a node that is a number": lambda: with_graph(varint_field(1, 3)),
    "a weight that is a number": lambda: with_graph(relu(), varint_field(5, 3)),
    "an input that is a number": lambda: with_graph(relu(), varint_field(11, 3)),
    "a graph without anything": with_graph,
    "a graph without outputs": lambda: with_graph(relu(), declared(GRAPH_INPUT, b"x", [2])),
    "an input without a type": lambda: with_graph(
        relu(), string_field(GRAPH_INPUT, string_field(1, b"x")), declared(GRAPH_OUTPUT, b"y", [2])
    ),
    "names that are not text": lambda: with_graph(
        relu(_STRAY, b"y" + _STRAY),
        string_field(GRAPH_NAME, _STRAY),
        declared(GRAPH_INPUT, _STRAY, [2]),
        declared(GRAPH_OUTPUT, b"y" + _STRAY, [2]),
    ),
    "an operator that is not text": lambda: _node(
        string_field(1, b"x"), string_field(2, b"y"), string_field(4, _STRAY)
    ),
    "a domain that is not text": lambda: _node(
        string_field(1, b"x"), string_field(2, b"y"), string_field(4, b"Relu"), string_field(7, _STRAY)
    ),
    "an attribute that is not text": lambda: _node(
        string_field(1, b"x"),
        string_field(2, b"y"),
        string_field(4, b"Relu"),
        string_field(5, string_field(1, _STRAY) + string_field(4, _STRAY) + varint_field(20, 3)),
    ),
    "names of a megabyte": _long_names,
    "a cycle": _cycle,
    "a node that reads itself": lambda: with_graph(relu(b"y", b"y"), declared(GRAPH_OUTPUT, b"y", [2])),
    "two nodes that compute one tensor": lambda: with_graph(
        relu(), relu(), declared(GRAPH_INPUT, b"x", [2]), declared(GRAPH_OUTPUT, b"y", [2])
    ),
    "two inputs of one name": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [2]), declared(GRAPH_INPUT, b"x", [3]), declared(GRAPH_OUTPUT, b"y", [2])
    ),
    "a node of 10^5 inputs": lambda: _node(
        string_field(1, b"x") * 100_000, string_field(2, b"y"), string_field(4, b"Sum")
    ),
    "200 nested graphs": lambda: nested(200),
    "10,000 nested graphs": lambda: nested(10_000),
    "10,000 nested lists of graphs": lambda: nested(10_000, field=11),
    "a type nested 90 deep": lambda: deep_type(90),
    "a type nested 5,000 deep": lambda: deep_type(5_000),
    "an unknown element type": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [2], 99), declared(GRAPH_OUTPUT, b"y", [2], 99)
    ),
    "an element type of 2^62": lambda: adding(tensor(b"w", [2], elem=HUGE)),
    "an input of rank 10^6": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [1] * 1_000_000), declared(GRAPH_OUTPUT, b"y", [1])
    ),
    "a weight of rank 10^6": lambda: adding(tensor(b"w", [1] * 1_000_000, string_field(9, bytes(4)))),
    "a weight of rank 10^6 with huge sizes": lambda: adding(tensor(b"w", [HUGE] * 100_000)),
    "an input of 2^62": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [HUGE]), declared(GRAPH_OUTPUT, b"y", [HUGE])
    ),
    "an input of 2^40": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [1 << 40]), declared(GRAPH_OUTPUT, b"y", [1 << 40])
    ),
    "strings of 2^40": lambda: with_graph(
        string_field(1, string_field(1, b"x") + string_field(2, b"y") + string_field(4, b"Identity")),
        declared(GRAPH_INPUT, b"x", [1 << 40], 8),
        declared(GRAPH_OUTPUT, b"y", [1 << 40], 8),
    ),
    "an input of which the size overflows": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [1 << 32, 1 << 32]), declared(GRAPH_OUTPUT, b"y", [1 << 32, 1 << 32])
    ),
    "an input of 0 times 2^62": lambda: with_graph(
        relu(), declared(GRAPH_INPUT, b"x", [0, HUGE, HUGE]), declared(GRAPH_OUTPUT, b"y", [0, HUGE, HUGE])
    ),
    "a weight of 2^62": lambda: adding(tensor(b"w", [HUGE], string_field(9, bytes(8)))),
    "a weight of which the size overflows": lambda: adding(tensor(b"w", [1 << 32, 1 << 32], string_field(9, bytes(8)))),
    "a weight of a negative size": lambda: adding(tensor(b"w", [-2], string_field(9, bytes(8)))),
    "a weight of two negative sizes": lambda: adding(tensor(b"w", [-1, -2], string_field(9, bytes(8)))),
    "a weight that is too short": lambda: adding(tensor(b"w", [2], string_field(9, bytes(3)))),
    "a weight that is too long": lambda: adding(tensor(b"w", [2], string_field(9, bytes(99)))),
    "a weight without values": lambda: adding(tensor(b"w", [2])),
    "a weight of packed numbers cut short": lambda: adding(
        tensor(b"w", [2], string_field(7, b"\x80" * 3), elem=7), elem=7
    ),
    "a weight of a number of 11 bytes": lambda: adding(
        tensor(b"w", [2], string_field(7, b"\x80" * 11 + b"\x01"), elem=7), elem=7
    ),
    "a size of 11 bytes": lambda: adding(
        varint_field(2, 1) + string_field(1, b"\x80" * 11 + b"\x01") + string_field(8, b"w")
    ),
    "a size that is cut short": lambda: adding(varint_field(2, 1) + string_field(8, b"w") + string_field(1, b"\x80")),
    "a weight in a field of another type": lambda: adding(tensor(b"w", [2], string_field(10, bytes(16)))),
    "floats that are not floats": lambda: adding(tensor(b"w", [2], string_field(4, bytes(7)))),
    "2^31 strings of which none is there": lambda: adding(tensor(b"w", [1 << 31], elem=8), elem=8),
    "strings that are not text": lambda: adding(tensor(b"w", [2], string_field(6, _STRAY) * 2, elem=8), elem=8),
    "a segment of a tensor": lambda: adding(
        tensor(b"w", [2], string_field(3, varint_field(1, 9)), string_field(9, bytes(8)))
    ),
    "a sparse index outside": lambda: sparse([HUGE], [4]),
    "a sparse index below zero": lambda: sparse([-5], [4]),
    "a sparse tensor of 2^62": lambda: sparse([1], [HUGE]),
    "a sparse tensor of 2^40": lambda: sparse([1], [1 << 40]),
    "a sparse tensor of negative size": lambda: sparse([1], [-4]),
    "a sparse tensor with too few indices": lambda: sparse([1], [4], values=3),
    "a sparse tensor without values": lambda: adding(varint_field(3, 2), field=15),
    "an attribute of another type than it says": lambda: attribute("kernel_shape", type=2, floats=[1.0]),
    "an attribute of no type": lambda: attribute("pads", ints=[1]),
    "an attribute of an unknown type": lambda: attribute("pads", type=2).replace(b"\xa0\x01\x02", b"\xa0\x01\x63"),
    "a kernel of 2^62": lambda: attribute("kernel_shape", type=7, ints=[HUGE, HUGE]),
    "pads of 2^40": lambda: attribute("pads", type=7, ints=[1 << 40] * 4),
    "an If without branches": lambda: model(
        [helper.make_node("If", ["c"], ["y"])],
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [info("y")],
    ).SerializeToString(),
    "an If whose branch is a number": lambda: model(
        [helper.make_node("If", ["c"], ["y"], then_branch=1, else_branch=2)],
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [info("y")],
    ).SerializeToString(),
    "30 functions that double": lambda: doubling(30),
    "30 functions that double in bodies": lambda: doubling_in_bodies(30),
    "a function that calls itself": lambda: calling([("F", ["F"])], "F"),
    "a function that calls itself twice": lambda: calling([("F", ["F", "F"])], "F"),
    "functions in a ring": lambda: calling([("A", ["B", "Relu"]), ("B", ["C"]), ("C", ["A", "A"])], "A"),
    "3,000 functions in a row": lambda: calling(
        [(f"F{n}", [f"F{n + 1}"] if n < 3_000 else ["Relu"]) for n in range(3_001)], "F0"
    ),
    "two functions of one name": lambda: calling([("F", ["Relu"]), ("F", ["F"])], "F"),
    "an offset of 4,000 digits": lambda: external(location="w.bin", offset="9" * 4000, length="8"),
    "an offset of 5,000 digits": lambda: external(location="w.bin", offset="9" * 5000),
    "a length of 2^62 in a file": lambda: external(location="w.bin", offset="0", length=str(HUGE)),
    "an offset of 2^63": lambda: external(location="w.bin", offset=str(1 << 63), length="8"),
    "a location without a name": lambda: external(location=""),
    "a location with a zero": lambda: external(location="w\0.bin"),
    "a location of a megabyte": lambda: external(location="w" * (1 << 20)),
    "a location of 100,000 folders": lambda: external(location="w/" * 100_000),
    "the folder as a location": lambda: external(location="."),
    "a pipe as a location": lambda: external(location="pipe"),
    "a pipe as a location of nothing": lambda: adding(
        tensor(
            b"w", [0], string_field(13, string_field(1, b"location") + string_field(2, b"pipe")), varint_field(14, 1)
        )
    ),
}
"""Each of them is refused, or harmless; nobody waits for it."""

FOLDING: dict[str, Callable[[], bytes]] = {
    "ConstantOfShape": lambda: folding([helper.make_node("ConstantOfShape", ["s"], ["k"])], shape_of(1 << 40)),
    "Expand": lambda: folding(
        [helper.make_node("Expand", ["o", "s"], ["k"])], shape_of(1 << 20, 1 << 20), weight("o", np.ones(1, np.float32))
    ),
    "Tile": lambda: folding(
        [helper.make_node("Tile", ["o", "s"], ["k"])], shape_of(1 << 40), weight("o", np.ones(1, np.float32))
    ),
    "Range": lambda: folding(
        [helper.make_node("Range", ["a", "b", "c"], ["k"])],
        weight("a", np.float32(0)),
        weight("b", np.float32(1e12)),
        weight("c", np.float32(1)),
    ),
    "Pad": lambda: folding(
        [helper.make_node("Pad", ["o", "s"], ["k"])], shape_of(0, 1 << 40), weight("o", np.ones(1, np.float32))
    ),
    "Resize": lambda: folding(
        [helper.make_node("Resize", ["o", "", "", "s"], ["k"])],
        shape_of(1 << 20, 1 << 20),
        weight("o", np.ones((1, 1), np.float32)),
    ),
    "OneHot": lambda: folding(
        [helper.make_node("OneHot", ["o", "s", "v"], ["k"])],
        shape_of(1 << 40),
        weight("o", np.ones(1, np.int64)),
        weight("v", np.array([0, 1], np.float32)),
    ),
    "Einsum": lambda: folding(
        [helper.make_node("Einsum", ["o", "o", "o"], ["k"], equation="a,b,c->abc")],
        weight("o", np.ones(8000, np.float32)),
    ),
    "a product": lambda: folding(
        [helper.make_node("Mul", ["o", "p"], ["k"])],
        weight("o", np.ones((8000, 1, 1), np.float32)),
        weight("p", np.ones((1, 90, 90), np.float32)),
    ),
    "a shape computed": lambda: folding(
        [
            helper.make_node("ReduceProd", ["s"], ["r"], keepdims=1),
            helper.make_node("Expand", ["o", "r"], ["k"]),
        ],
        shape_of(1 << 20, 1 << 20),
        weight("o", np.ones(1, np.float32)),
    ),
    "a window": lambda: folding([helper.make_node("HannWindow", ["s"], ["k"])], weight("s", np.int64(1 << 40))),
}
"""Constants that cannot be computed beforehand: they would fill any memory."""
