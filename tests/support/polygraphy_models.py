"""Models of the names, tensors and shapes that the commands in Polygraphy's documents and tests speak of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from support.models import FLOAT, INT64, info, model, save, weight

Node = helper.make_node


def _identity() -> onnx.ModelProto:
    return model([Node("Identity", ["x"], ["y"])], [info("x", (1, 1, 2, 2))], [info("y", (1, 1, 2, 2))], opset=8)


def _identity_identity() -> onnx.ModelProto:
    nodes = [
        Node("Identity", ["X"], ["identity_out_0"], name="onnx_graphsurgeon_node_1"),
        Node("Identity", ["identity_out_0"], ["identity_out_2"], name="onnx_graphsurgeon_node_3"),
    ]
    return model(nodes, [info("X", (64, 64))], [info("identity_out_2", (64, 64))], opset=11)


def _dynamic_identity() -> onnx.ModelProto:
    shape = (1, 2, "height", "width")
    return model([Node("Identity", ["X"], ["Y"])], [info("X", shape)], [info("Y", shape)], opset=8)


def _images() -> onnx.ModelProto:
    shape = ("batch", 3, 28, 28)
    return model([Node("Identity", ["X"], ["Y"])], [info("X", shape)], [info("Y", shape)], opset=13)


def _const_foldable() -> onnx.ModelProto:
    nodes = [Node("Add", ["a", "b"], ["c"]), Node("Add", ["c", "d"], ["e"]), Node("Add", ["input", "e"], ["output"])]
    weights = [weight(name, 1, 1, 1, shape=(1, 3)) for name in "abd"]
    return model(nodes, [info("input", (1, 3))], [info("output", (1, 3))], weights, opset=11)


def _reducable() -> onnx.ModelProto:
    nodes = [
        Node("Identity", ["X0"], ["identity_out_0"], name="onnx_graphsurgeon_node_1"),
        Node("Identity", ["Y0"], ["identity_out_2"], name="onnx_graphsurgeon_node_3"),
        Node("Add", ["identity_out_0", "identity_out_2"], ["add_out_4"], name="onnx_graphsurgeon_node_5"),
        Node("Identity", ["add_out_4"], ["identity_out_6"], name="onnx_graphsurgeon_node_7"),
        Node("Identity", ["add_out_4"], ["identity_out_8"], name="onnx_graphsurgeon_node_9"),
    ]
    outputs = [info(name, (1,)) for name in ("identity_out_6", "identity_out_8")]
    return model(nodes, [info("X0", (1,)), info("Y0", (1,))], outputs, opset=11)


def _reducable_with_const() -> onnx.ModelProto:
    nodes = [
        Node("Constant", [], ["constant_out_0"], value=weight("const", *[1] * 16, shape=(4, 4))),
        Node("Identity", ["constant_out_0"], ["identity_out_2"], name="onnx_graphsurgeon_node_3"),
        Node("Identity", ["identity_out_2"], ["identity_out_4"], name="onnx_graphsurgeon_node_5"),
    ]
    return model(nodes, [], [info("identity_out_4", (4, 4))], opset=11)


def _multi_output() -> onnx.ModelProto:
    nodes = [
        Node("Identity", ["input"], ["id0"]),
        Node("Split", ["id0"], ["split_out_0", "split_out_1"], axis=0, split=[2, 2]),
        Node("Identity", ["split_out_0"], ["id1"]),
    ]
    return model(nodes, [info("input", (4, 5))], [info("id1", (2, 5)), info("split_out_1", (2, 5))], opset=11)


def _axpy() -> onnx.ModelProto:
    """Y = x0 + (a * x1 + b), whose size is computed on the way, so that it can be folded."""
    nodes = [
        Node("Mul", ["x1", "a"], ["mul_out"]),
        Node("Add", ["mul_out", "b"], ["add_out"]),
        Node("Shape", ["x0"], ["sizes"]),
        Node("Reshape", ["add_out", "sizes"], ["reshaped"]),
        Node("Add", ["x0", "reshaped"], ["Y"]),
    ]
    shape = (1, 3, 224, 224)
    return model(
        nodes, [info("x0", shape), info("x1", shape)], [info("Y", shape)], [weight("a", 2), weight("b", 3)], opset=11
    )


def _dim_param() -> onnx.ModelProto:
    shape = ("dim0", 16, 128)
    return model([Node("Identity", ["Input:0"], ["Output:0"])], [info("Input:0", shape)], [info("Output:0", shape)])


def _scan() -> onnx.ModelProto:
    pair = (2,)
    body = helper.make_graph(
        [Node("Add", ["sum_in", "next"], ["sum_out"]), Node("Identity", ["sum_out"], ["scan_out"])],
        "body",
        [info("sum_in", pair), info("next", pair)],
        [info("sum_out", pair), info("scan_out", pair)],
    )
    node = Node("Scan", ["initial", "x"], ["y", "z"], num_scan_inputs=1, body=body)
    return model([node], [info("initial", pair), info("x", (3, 2))], [info("y", pair), info("z", (3, 2))], opset=10)


def _tensor_attr() -> onnx.ModelProto:
    node = Node("Constant", [], ["const_out"], value=weight("value", *[1] * 196, shape=(14, 14)))
    return model([node], [], [info("const_out", (14, 14))], opset=11)


def _identity_with_initializer() -> onnx.ModelProto:
    return model([Node("Identity", ["X"], ["Y"])], [], [info("Y", (2, 2))], [weight("X", *[1] * 4, shape=(2, 2))])


def _add_with_dup_inputs() -> onnx.ModelProto:
    node = Node("Add", ["inp", "inp"], ["add_out_0"], name="onnx_graphsurgeon_node_1")
    return model([node], [info("inp", (4, 4))], [info("add_out_0", ())], opset=11)


def _inp_dim_val_not_set() -> onnx.ModelProto:
    return model([Node("Identity", ["X"], ["Y"])], [info("X", (None,) * 3)], [info("Y", (None,) * 3)], opset=13)


def _capability() -> onnx.ModelProto:
    kinds = ["FAKE!", "Identity", "FAKE!", "Identity", "FAKER!"]
    nodes = [Node(kind, [f"t{at}"], [f"t{at + 1}"], name=f"n{at}") for at, kind in enumerate(kinds)]
    return model(nodes, [info("t0")], [info("t5")])


def _local_function() -> onnx.ModelProto:
    body = [Node("Fake_1", ["a"], ["m"], name="nested_node_fake_1"), Node("Identity", ["m"], ["b"])]
    function = helper.make_function("mine", "OuterFunction", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    call = Node("OuterFunction", ["x"], ["y"], domain="mine")
    return model([call], [info("x")], [info("y")], functions=[function], domains=["mine"])


def _pow_scalar() -> onnx.ModelProto:
    return model([Node("Pow", ["x", "y"], ["z"])], [info("x", ()), info("y", ())], [info("z", ())])


def _constant_fold_bloater() -> onnx.ModelProto:
    """One MiB that a Tile makes ten of."""
    values = numpy_helper.from_array(np.ones((1024, 256), np.float32), "values")
    repeats = weight("repeats", 1, 10, dtype="int64")
    return model([Node("Tile", ["values", "repeats"], ["out"])], [], [info("out", (1024, 2560))], [values, repeats])


def _unbounded_dds() -> onnx.ModelProto:
    weights = [
        numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "w0"),
        numpy_helper.from_array(np.ones((4, 1, 1, 1), np.float32), "w1"),
        weight("zero", 0, shape=(), dtype="int64"),
        weight("one", 1, shape=(), dtype="int64"),
        weight("sizes", 1, 1, -1, 1, dtype="int64"),
    ]
    nodes = [
        Node("Conv", ["Input", "w0"], ["conv_out_2"], kernel_shape=[3, 3]),
        Node("ReduceMax", ["conv_out_2"], ["reduce_max_out_4"], keepdims=0),
        Node("Cast", ["reduce_max_out_4"], ["cast_out_6"], to=INT64),
        Node("Range", ["zero", "cast_out_6", "one"], ["range_out_8"]),
        Node("Cast", ["range_out_8"], ["cast_out_10"], to=FLOAT),
        Node("Reshape", ["cast_out_10", "sizes"], ["reshape_out_12"]),
        Node("Conv", ["reshape_out_12", "w1"], ["conv_out_14"], kernel_shape=[1, 1]),
    ]
    outputs = [info("conv_out_14", (1, 4, None, 1))]
    return model(nodes, [info("Input", (1, 3, 10, 10))], outputs, weights, opset=13)


def _add_infinity() -> onnx.ModelProto:
    return model([Node("Add", ["A", "inf"], ["B"])], [info("A", (4,))], [info("B", (4,))], [weight("inf", np.inf)])


def _needs_constraints() -> onnx.ModelProto:
    size = 256
    turned = numpy_helper.from_array(np.rot90(np.identity(size, np.float32)).reshape(1, 1, size, size).copy(), "turned")
    greatest = weight("greatest", float(np.finfo(np.float16).max), shape=(1, 1, 1, 1))
    nodes = [
        Node("MatMul", ["x", "turned"], ["y"], name="MatMul_0"),
        Node("Add", ["y", "greatest"], ["z"], name="Add"),
        Node("Sub", ["z", "greatest"], ["w"], name="Sub"),
        Node("MatMul", ["w", "turned"], ["u"], name="MatMul_1"),
    ]
    shape = (1, 1, size, size)
    return model(nodes, [info("x", shape)], [info("u", shape)], [turned, greatest])


def _matmul() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32), "b")
    return model(
        [Node("MatMul", ["a", "b"], ["c"], name="matmul")], [info("a", (8, 16))], [info("c", (8, 8))], [values]
    )


def _conv() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 16, 4, 4)).astype(np.float32), "b")
    node = Node("Conv", ["a", "b"], ["c"], name="conv", kernel_shape=[4, 4])
    return model([node], [info("a", (1, 16, 8, 8))], [info("c", (1, 4, 5, 5))], [values])


def _instancenorm() -> onnx.ModelProto:
    node = Node("InstanceNormalization", ["x", "scale", "bias"], ["y"])
    weights = [weight("scale", 1, 2), weight("bias", 0, 1)]
    return model([node], [info("x", (1, 2, 4, 4))], [info("y", (1, 2, 4, 4))], weights)


def _and() -> onnx.ModelProto:
    values = [info(name, (3, 4), TensorProto.BOOL) for name in ("x", "y", "and")]
    return model([Node("And", ["x", "y"], ["and"])], values[:2], values[2:])


def _cleanable() -> onnx.ModelProto:
    nodes = [
        Node("Concat", ["e", "f"], ["g"], name="G", axis=0),
        Node("Dropout", ["f"], ["h"], name="H"),
        Node("Identity", ["h"], ["i"], name="I"),
    ]
    return model(nodes, [info("e", (1, 1)), info("f", (1, 1))], [info("i", (1, 1))], opset=11)


def _renamable() -> onnx.ModelProto:
    names = ["", "polygraphy_unnamed_node_0", "polygraphy_unnamed_node_0_0", ""]
    nodes = [
        Node("Identity" if at % 2 == 0 else "Dropout", [f"t{at}"], [f"t{at + 1}"], name=name)
        for at, name in enumerate(names)
    ]
    return model(nodes, [info("t0", (1, 1))], [info("t4", (1, 1))], opset=11)


def _empty() -> onnx.ModelProto:
    return model([], [], [])


def _bad_graph() -> onnx.ModelProto:
    """No name, and three nodes that cannot run: one of them because of what a NonZero finds."""
    nodes = [
        Node("MatMul", ["A", "B"], ["ab"], name="MatMul_0"),
        Node("Add", ["C", "D"], ["cd"], name="Add_0"),
        Node("MatMul", ["E", "F"], ["ef"], name="MatMul_1"),
        Node("Cast", ["ef"], ["whole"], name="cast_to_int64", to=INT64),
        Node("NonZero", ["G"], ["places"], name="NonZero"),
        Node("MatMul", ["whole", "places"], ["out"], name="MatMul_3"),
    ]
    shapes = {"A": (1, 3), "B": (4, 4), "C": (3, 4), "D": (4, 1), "E": (1, 4), "F": (4, 1)}
    inputs = [*(info(name, shape) for name, shape in shapes.items()), info("G", (4, 4), INT64)]
    made = model(nodes, inputs, [info("out", None, INT64), info("cd", None)])
    made.graph.name = ""
    return made


def _duplicate_names() -> onnx.ModelProto:
    nodes = [Node("Identity", ["x"], ["m"], name="identical"), Node("Identity", ["m"], ["y"], name="identical")]
    return model(nodes, [info("x")], [info("y")])


def _no_name() -> onnx.ModelProto:
    made = _identity()
    made.graph.name = ""
    return made


def _custom_op() -> onnx.ModelProto:
    return model([Node("Mine", ["x"], ["y"], domain="mine")], [info("x")], [info("y")], domains=["mine"])


def _conditionally_invalid() -> onnx.ModelProto:
    branches = [
        helper.make_graph([Node("Identity", [name], [f"{name}_out"])], name, [], [info(f"{name}_out", None)])
        for name in "xy"
    ]
    nodes = [
        Node("If", ["cond"], ["chosen"], name="If_Node", then_branch=branches[0], else_branch=branches[1]),
        Node("MatMul", ["chosen", "z"], ["output"], name="MatMul"),
    ]
    weights = [
        weight("x", *[1] * 4, shape=(2, 2)), weight("y", *[1] * 6, shape=(2, 3)), weight("z", *[1] * 4, shape=(2, 2))
    ]  # fmt: skip
    return model(nodes, [info("cond", (1,), TensorProto.BOOL)], [info("output", (None, None))], weights)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "identity": _identity,
    "identity_identity": _identity_identity,
    "dynamic_identity": _dynamic_identity,
    "images": _images,
    "const_foldable": _const_foldable,
    "reducable": _reducable,
    "reducable_with_const": _reducable_with_const,
    "multi_output": _multi_output,
    "axpy": _axpy,
    "dim_param": _dim_param,
    "scan": _scan,
    "tensor_attr": _tensor_attr,
    "identity_with_initializer": _identity_with_initializer,
    "add_with_dup_inputs": _add_with_dup_inputs,
    "inp_dim_val_not_set": _inp_dim_val_not_set,
    "capability": _capability,
    "nested_local_function": _local_function,
    "pow_scalar": _pow_scalar,
    "constant_fold_bloater": _constant_fold_bloater,
    "unbounded_dds": _unbounded_dds,
    "add_infinity": _add_infinity,
    "needs_constraints": _needs_constraints,
    "matmul": _matmul,
    "conv": _conv,
    "instancenorm": _instancenorm,
    "and": _and,
    "cleanable": _cleanable,
    "renamable": _renamable,
    "empty": _empty,
    "bad_graph": _bad_graph,
    "duplicate_names": _duplicate_names,
    "no_name": _no_name,
    "custom_op": _custom_op,
    "conditionally_invalid": _conditionally_invalid,
}
"""Name of the file, without its ending -> what makes the model."""


def write(names: Sequence[str], folder: Path) -> None:
    """Write these models; ``name=other`` writes ``name`` as ``other.onnx``."""
    for entry in names:
        name, _, other = entry.partition("=")
        save(MODELS[name](), folder / f"{other or name}.onnx")


def write_with_weights_elsewhere(folder: Path) -> None:
    """Write ext_weights.onnx, whose weights stand in data/ext_weights.data."""
    made, data = _const_foldable(), b""
    for tensor in made.graph.initializer:
        raw = numpy_helper.to_array(tensor).tobytes()
        tensor.ClearField("float_data")
        tensor.raw_data = raw
        onnx.external_data_helper.set_external_data(tensor, "ext_weights.data", len(data), len(raw))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        data += raw
    save(made, folder / "ext_weights.onnx")
    (folder / "data").mkdir()
    (folder / "data" / "ext_weights.data").write_bytes(data)
