"""Small model files that ask for all the time or memory there is, by what they declare or repeat: name -> bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from biopsy.model.wire import string_field
from support.hostile_models import HUGE, doubling, doubling_in_bodies, nested_if, plain

INT, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
LONG = 1 << 33


def typed(name: str, dims: Sequence[int | str] | None, elem: int = FLOAT) -> onnx.ValueInfoProto:
    """A tensor of a type."""
    return helper.make_tensor_value_info(name, elem, dims)


def made(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:
    """A serialized model."""
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions).SerializeToString()


def node(operator: str, reads: str, writes: str, **attributes: object) -> onnx.NodeProto:
    """A node, called as what it computes."""
    return helper.make_node(operator, reads.split(), writes.split(), name=writes.split()[0], **attributes)


def weight(name: str, values: object, dtype: type = np.int64) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def declared(elem: int, dims: Sequence[int], operators: Sequence[str]) -> bytes:
    """A chain of operators on a tensor of huge declared sizes, and one number in the end."""
    nodes, name = [], "x"
    for number, operator in enumerate(operators):
        reads = f"{name} {name}" if operator in {"Add", "Mul", "Sub", "Concat"} else name
        more = {"Cast": {"to": elem}, "Concat": {"axis": 0}}.get(operator, {})
        nodes.append(node(operator, reads, f"t{number}", **more))
        name = f"t{number}"
    nodes.append(node("ReduceMax", name, "y", keepdims=0))
    return made(nodes, [typed("x", dims, elem)], [typed("y", [], elem)])


def doubling_concat(levels: int, elem: int = INT, *, constant: bool = False, rank: int = 1) -> bytes:
    """Concats, each of the last one with itself."""
    nodes = [node("Concat", f"t{n} t{n}", f"t{n + 1}", axis=0) for n in range(levels)]
    nodes.append(node("ReduceMax", f"t{levels}", "m", keepdims=0))
    nodes.append(node("Add", "m x", "y"))
    dtype = np.int64 if elem == INT else np.float32
    first = [weight("t0", np.ones([1] * rank), dtype)] if constant else []
    inputs = [typed("x", [], elem), *([] if constant else [typed("t0", [1] * rank, elem)])]
    return made(nodes, inputs, [typed("y", [], elem)], first)


def doubling_concat_in(kind: str, levels: int) -> bytes:
    """The same inside the branches of an If, or in functions that call each other."""
    if kind == "If":
        nodes = [
            node("Concat", f"{'x' if n == 0 else f't{n}'} {'x' if n == 0 else f't{n}'}", f"t{n + 1}", axis=0)
            for n in range(levels)
        ]
        nodes.append(node("ReduceMax", f"t{levels}", "m", keepdims=0))
        body = helper.make_graph(nodes, "b", [], [typed("m", [], INT)])
        whole = node("If", "c", "y", then_branch=body, else_branch=body)
        return made([whole], [typed("c", [], BOOL), typed("x", [1], INT)], [typed("y", [], INT)])
    opset = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = []
    for n in range(levels):
        inner = [node("Concat", "a a", "d", axis=0)]
        inner.append(
            helper.make_node(f"F{n + 1}", ["d"], ["b"], domain="local")
            if n < levels - 1
            else node("ReduceMax", "d", "b", keepdims=0)
        )
        functions.append(helper.make_function("local", f"F{n}", ["a"], ["b"], inner, opset))
    return made(
        [helper.make_node("F0", ["x"], ["y"], domain="local")],
        [typed("x", [1], INT)],
        [typed("y", [], INT)],
        functions=functions,
    )


def doubling_loop(levels: int) -> bytes:
    """A Loop whose state is joined with itself."""
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Concat", "s s", "t", axis=0)],
        "b",
        [typed("i", [], INT), typed("go", [], BOOL), typed("s", ["n"], INT)],
        [typed("on", [], BOOL), typed("t", ["m"], INT)],
    )
    loop = helper.make_node("Loop", ["trips", "c", "x"], ["l"], body=body)
    return made(
        [loop, node("ReduceMax", "l", "y", keepdims=0)],
        [typed("x", [1], INT)],
        [typed("y", [], INT)],
        [weight("trips", levels), weight("c", True, np.bool_)],
    )


def computed(*nodes: onnx.NodeProto, weights: Sequence[onnx.TensorProto], elem: int = FLOAT) -> bytes:
    """Constants that are computed, the last one called ``k``; its values are followed on."""
    cast = node("Cast", "k", "j", to=INT)
    rest = [cast, node("Add", "j j", "l"), node("ReduceMax", "l", "m", keepdims=0), node("Add", "m x", "y")]
    return made([*nodes, *rest], [typed("x", [], INT)], [typed("y", [], INT)], weights)


def propagated(operator: str) -> bytes:
    """A size that only the propagation of values tells."""
    nodes = [node("Shape", "z", "t"), node("Mul", "s t", "u")]
    if operator == "Reshape":
        nodes += [node("Reshape", "z u", "k")]
    elif operator == "Expand":
        nodes += [node("Expand", "o u", "k")]
    else:
        nodes += [node("ConstantOfShape", "u", "k")]
    rest = [node("Cast", "k", "j", to=INT), node("Add", "j j", "l"), node("ReduceMax", "l", "y", keepdims=0)]
    weights = [weight("s", [1 << 32]), weight("o", [1.0], np.float32)]
    return made([*nodes, *rest], [typed("z", [2])], [typed("y", [], INT)], weights)


def chain(length: int, operator: str, *, constant: bool, size: int = 8) -> bytes:
    """So many nodes in a row, that could all be computed beforehand if they are ``constant``."""
    nodes = [node(operator, f"t{n} one" if operator in {"Add", "Mul"} else f"t{n}", f"t{n + 1}") for n in range(length)]
    nodes.append(node("Add", f"t{length} x", "y"))
    first = weight("t0", np.zeros(size), np.float32)
    inputs = [typed("x", [size])] if constant else [typed("x", [size]), typed("t0", [size])]
    weights = [weight("one", [1.0], np.float32), *([first] if constant else [])]
    return made(nodes, inputs, [typed("y", [size])], weights)


def cycle(length: int) -> bytes:
    """Nodes that wait for each other in a ring."""
    nodes = [node("Relu", f"t{n}", f"t{(n + 1) % length}") for n in range(length)]
    return made([*nodes, node("Add", "t0 x", "y")], [typed("x", [2])], [typed("y", [2])])


def many_inputs(number: int, operator: str, dims: Sequence[int]) -> bytes:
    """One node that reads one tensor so many times."""
    more = {"axis": 0} if operator == "Concat" else {}
    one = helper.make_node(operator, ["x"] * number, ["t"], **more)
    return made([one, node("ReduceMax", "t", "y", keepdims=0)], [typed("x", dims)], [typed("y", [])])


def many_outputs(number: int) -> bytes:
    """A Split into so many parts."""
    names = [f"s{n}" for n in range(number)]
    one = helper.make_node("Split", ["x"], names, axis=0, num_outputs=number)
    return made([one, node("Relu", "s0", "y")], [typed("x", [number])], [typed("y", [1])])


def model_inputs(number: int) -> bytes:
    """A model that takes so many tensors."""
    names = [f"x{n}" for n in range(number)]
    return made([helper.make_node("Sum", names, ["y"])], [typed(name, [2]) for name in names], [typed("y", [2])])


def einsum(equation: str, operands: int, size: int, *, constant: bool) -> bytes:
    """An Einsum whose result, or whose way to it, is huge."""
    rank = len(equation.split(",")[0].split("->")[0])
    names = [f"w{n}" for n in range(operands)]
    weights = [weight(name, np.ones([size] * rank), np.float32) for name in names] if constant else []
    inputs = [] if constant else [typed(name, [size] * rank) for name in names]
    one = helper.make_node("Einsum", names, ["t"], equation=equation)
    return made(
        [one, node("ReduceMax", "t", "m", keepdims=0), node("Add", "m x", "y")],
        [typed("x", []), *inputs],
        [typed("y", [])],
        weights,
    )


def bodies(number: int, depth: int) -> bytes:
    """So many Ifs side by side, each ``depth`` deep."""
    one = onnx.ModelProto.FromString(nested_if(depth))
    first = one.graph.node[0]
    nodes = []
    for place in range(number):
        copy = onnx.NodeProto.FromString(first.SerializeToString())
        copy.output[0] = f"r{place}"
        nodes.append(copy)
    del one.graph.node[:]
    one.graph.node.extend(nodes)
    one.graph.output[0].name = "r0"
    return one.SerializeToString()


def rank(dims: int) -> bytes:
    """Unsqueezes that double a rank by way of its own shape."""
    nodes = [node("Shape", "x", "s0")]
    for n in range(dims):
        nodes += [node("Concat", f"s{n} s{n}", f"s{n + 1}", axis=0), node("Expand", f"x s{n + 1}", f"e{n + 1}")]
    nodes.append(node("ReduceMax", f"e{dims}", "y", keepdims=0))
    return made(nodes, [typed("x", [1, 1])], [typed("y", [])])


def grouped(depth: int, inside: int) -> bytes:
    """Groups of protobuf, which nobody has written for twenty years, in the model or in its graph."""
    groups = b"\xa3\x06" * depth + b"\xa4\x06" * depth
    whole = plain().SerializeToString()
    return whole + (string_field(7, groups) if inside else groups)


_ONE = [weight("o", [1.0], np.float32)]

FILLING: dict[str, Callable[[], bytes]] = {
    "124 bytes": lambda: declared(FLOAT, [LONG], ["Cast", "Add", "Neg"]),
    "a long input of integers": lambda: declared(INT, [LONG], ["Cast", "Add", "Mul", "Sub"]),
    "a long input that is sliced and sized": lambda: made(
        [node("Size", "x", "s"), node("Gather", "x s", "t"), node("Add", "t s", "y")],
        [typed("x", [LONG], INT)],
        [typed("y", [], INT)],
    ),
    "a long input that gets a dimension": lambda: made(
        [node("Unsqueeze", "x a", "t"), node("Squeeze", "t a", "u"), node("ReduceMax", "u", "y", keepdims=0)],
        [typed("x", [LONG], INT)],
        [typed("y", [], INT)],
        [weight("a", [0])],
    ),
    "a long input that is joined with itself": lambda: declared(INT, [LONG], ["Concat", "Concat", "Cast"]),
    "an input of 2^62": lambda: declared(INT, [HUGE], ["Cast", "Add"]),
    "a square input of 2^31": lambda: declared(FLOAT, [1 << 31, 1 << 31], ["Cast", "Add", "Neg"]),
    "4,000 Casts of 4,000 elements": lambda: declared(INT, [4000], ["Cast"] * 4000),
    "a long shape": lambda: made(
        [node("Reshape", "z x", "r"), node("ReduceMax", "r", "y", keepdims=0)],
        [typed("z", [2, 2]), typed("x", [LONG], INT)],
        [typed("y", [])],
    ),
    "a long shape of a constant": lambda: made(
        [node("ConstantOfShape", "x", "r"), node("ReduceMax", "r", "y", keepdims=0)],
        [typed("x", [LONG], INT)],
        [typed("y", [])],
    ),
    "31 doubling Concats": lambda: doubling_concat(31),
    "31 doubling Concats of a constant": lambda: doubling_concat(31, constant=True),
    "31 doubling Concats of floats": lambda: doubling_concat(31, FLOAT, constant=True),
    "31 doubling Concats of two dimensions": lambda: doubling_concat(31, FLOAT, constant=True, rank=2),
    "62 doubling Concats": lambda: doubling_concat(62),
    "31 doubling Concats in an If": lambda: doubling_concat_in("If", 31),
    "31 doubling Concats in functions": lambda: doubling_concat_in("functions", 31),
    "31 doubling Concats in a Loop": lambda: doubling_loop(31),
    "30 functions that double": lambda: doubling(30),
    "20 functions that double": lambda: doubling(20),
    "30 functions that double in bodies": lambda: doubling_in_bodies(30),
    "a rank that doubles": lambda: rank(31),
    "10^5 inputs of one node": lambda: many_inputs(100_000, "Sum", [2]),
    "10^5 inputs of a Concat": lambda: many_inputs(100_000, "Concat", [4096]),
    "10^5 outputs of one node": lambda: many_outputs(100_000),
    "10^5 inputs of the model": lambda: model_inputs(100_000),
    "20,000 Adds of constants": lambda: chain(20_000, "Add", constant=True),
    "20,000 Relus of constants": lambda: chain(20_000, "Relu", constant=True),
    "20,000 Relus of large constants": lambda: chain(20_000, "Relu", constant=True, size=8000),
    "20,000 nodes": lambda: chain(20_000, "Relu", constant=False),
    "a ring of two nodes": lambda: cycle(2),
    "a ring of 20,000 nodes": lambda: cycle(20_000),
    "30 nested Ifs": lambda: nested_if(30),
    "1,000 Ifs of ten": lambda: bodies(1_000, 10),
    "20,000 groups": lambda: grouped(20_000, 0),
    "20,000 groups in the graph": lambda: grouped(20_000, 1),
    "an Einsum of an outer product": lambda: einsum("a,b,c,d->abcd", 4, 1000, constant=True),
    "an Einsum of inputs": lambda: einsum("ab,cd,ef,gh->abcdefgh", 4, 1000, constant=False),
    "an Expand of a constant": lambda: computed(node("Expand", "o s", "k"), weights=[weight("s", [1 << 33]), *_ONE]),
    "an Expand that propagation finds": lambda: propagated("Expand"),
    "a ConstantOfShape": lambda: computed(node("ConstantOfShape", "s", "k"), weights=[weight("s", [1 << 33])]),
    "a ConstantOfShape that propagation finds": lambda: propagated("ConstantOfShape"),
    "a Range": lambda: computed(
        node("Range", "a b c", "k"), weights=[weight("a", 0), weight("b", 1 << 33), weight("c", 1)]
    ),
}
"""None of them may hold a command for a minute, or take two gigabytes."""
