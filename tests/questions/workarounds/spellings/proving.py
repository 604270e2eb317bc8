"""How a spelling is proved: both models in float64 in the reference evaluator, and the new one in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from biopsy.questions.workarounds.question import Patch
from biopsy.questions.workarounds.spellings.table import SPELLINGS, spellings

Array = np.ndarray[Any, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
_NEWEST_OPSET = 23 if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24) else 99
"""What the installed onnxruntime knows, as far as the tests ask for it."""

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)


@dataclass(kw_only=True)
class Case:
    """A model in which a spelling holds: made by drawing; its output is ``y``, or those that are named."""

    draw: Draw
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    elems: dict[str, int] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=lambda: {"y": TensorProto.FLOAT})
    open_dims: bool = False
    plain: bool = False
    """Whether the values are to be finite and moderate."""
    tolerance: float = 1e-9
    """How near both are in float64, relatively; larger where the standard rounds constants to float32."""
    by_engine: bool = False
    """Whether both are computed by onnxruntime: onnx's reference evaluator cannot, or is wrong."""
    evaluator_computes: bool = False
    """Whether the evaluator multiplies and adds where the standard copies, and so loses the sign of -0.0."""
    engine_loses_nan: bool = False
    """Whether NumPy and onnxruntime differ in what they make of NaN, or of 0 * inf: maxima, products of matrices."""
    widened_after: bool = False
    """Whether only the model in float32 is respelled: the other would go down to float32 in its first stage."""
    shapes: dict[str, list[int | None]] = field(default_factory=dict)
    """The shapes of outputs that onnx cannot tell."""

    def input(self, name: str, *shape: int, elem: int = TensorProto.FLOAT) -> str:
        self.inputs[name], self.elems[name] = tuple(shape), elem
        return name

    def weight(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        self.weights[name] = np.asarray(values, dtype)
        return name

    def node(self, operator: str, inputs: Sequence[str], output: str = "y", **attributes: Any) -> str:
        domain = attributes.pop("domain", None)
        made = helper.make_node(operator, inputs, [output], domain=domain)
        made.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items() if v is not None)
        self.nodes.append(made)
        return output

    def axes(self, operator: str, x: str, axes: Sequence[int], output: str = "y", since: int = 18, **given: Any) -> str:
        """A node with axes, where the opset wants them."""
        if self.opset < since:
            return self.node(operator, [x], output, axes=list(axes), **given)
        return self.node(operator, [x, self.weight(f"{output}_axes", axes, np.int64)], output, **given)

    @property
    def model(self) -> onnx.ModelProto:
        dims = {
            name: [f"{name}{axis}" if self.open_dims else size for axis, size in enumerate(shape)]
            for name, shape in self.inputs.items()
        }
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(name, self.elems[name], dims[name]) for name in self.inputs],
            [helper.make_tensor_value_info(name, elem, None) for name, elem in self.outputs.items()],
            [numpy_helper.from_array(values, name) for name, values in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == "com.microsoft" for node in self.nodes):
            opsets.append(helper.make_opsetid("com.microsoft", 1))
        made = helper.make_model(graph, opset_imports=opsets, ir_version=min(10, helper.VERSION_TABLE[-1][1]))
        made = onnx.shape_inference.infer_shapes(made, strict_mode=False, data_prop=True)
        for info in made.graph.output:
            if not info.type.tensor_type.HasField("shape"):  # onnx cannot tell it, and it is that of x
                found = self.shapes.get(info.name, dims.get("x"))
                info.type.CopyFrom(helper.make_tensor_type_proto(self.outputs[info.name], found))
        return made

    def feeds(self) -> dict[str, Array]:
        generator = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1)))
        special = not self.plain and self.draw(st.booleans())
        return {name: _values(generator, shape, self.elems[name], special) for name, shape in self.inputs.items()}


def _values(generator: np.random.Generator, shape: tuple[int, ...], elem: int, special: bool) -> Array:
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    if elem == TensorProto.BOOL:
        return generator.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if special else (max(info.min, -9), 9)
        return generator.integers(low, high, shape, dtype=dtype, endpoint=True)
    found = np.asarray(np.round(generator.normal(size=shape), 3))
    if special and found.size:
        found[tuple(generator.integers(0, size) for size in shape)] = generator.choice(SPECIAL)
    return found.astype(dtype)


def prove(name: str, case: Case) -> None:
    """Hold a spelling to its promise on a model; AssertionError says in what it fails."""
    if case.opset > _NEWEST_OPSET:
        return
    model, feeds = case.model, case.feeds()
    spelling = next(each for each in SPELLINGS if each.name == name)
    patch = found_by(name, model)
    made = patch.applied(model)
    assert made is not None
    assert [info.SerializeToString() for info in made.graph.output] == [
        info.SerializeToString() for info in model.graph.output
    ]
    with np.errstate(all="ignore"):
        valid(made)
        if spelling.domain or case.by_engine:
            expected, found = run(model, feeds), run(made, feeds)
            same(expected, found, rtol=1e-4, atol=1e-5)
            if case.evaluator_computes:
                identical(expected, found)
            return
        if case.evaluator_computes:
            identical(run(model, feeds), run(made, feeds))
            feeds = {each: value + value.dtype.type(0) for each, value in feeds.items()}  # no -0.0
        wide = in_float64(model)
        wider = in_float64(made)
        if not case.widened_after and not declined(
            name, wide
        ):  # constants that it writes are then numbers of float64 too
            wider = found_by(name, wide).applied(wide) or wider
        doubled = {
            each: value.astype(np.float64) if value.dtype == np.float32 else value for each, value in feeds.items()
        }
        expected, found = evaluated(wide, doubled), evaluated(wider, doubled)
        if spelling.exact:
            identical(expected, found)
        else:
            same(expected, found, rtol=case.tolerance, atol=case.tolerance / 1000)
        if case.engine_loses_nan and not all(np.isfinite(each).all() for each in feeds.values()):
            return
        same(expected, run(made, feeds), rtol=1e-3, atol=1e-4)


def found_by(name: str, model: onnx.ModelProto) -> Patch:
    """The last place where a spelling is found. Fails if there is none."""
    found = [each for each in spellings(model, range(len(model.graph.node))) if each.name == name]
    assert found, f"{name} is not found in\n{onnx.printer.to_text(model)}"
    return found[-1]


def declined(name: str, model: onnx.ModelProto) -> bool:
    return not any(each.name == name for each in spellings(model, range(len(model.graph.node))))


def valid(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    names = [node.name for node in model.graph.node if node.name]
    assert len(names) == len(set(names))


def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs by onnxruntime, its optimizer off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def evaluated(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    return ReferenceEvaluator(model).run(None, dict(feeds))


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 for every float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for info in (*made.graph.input, *made.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for weight in made.graph.initializer:
        _widen(weight)
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.name in {"to", "stash_type"} and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif attribute.HasField("t"):
                _widen(attribute.t)
    return made


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), name))


def same(expected: Sequence[Array], found: Sequence[Array], *, rtol: float, atol: float) -> None:
    for one, other in zip(expected, found, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(np.asarray(other, np.float64), np.asarray(one, np.float64), rtol=rtol, atol=atol)


def identical(expected: Sequence[Array], found: Sequence[Array]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_array_equal(other, one)
        if one.dtype.kind == "f":
            numbers = ~np.isnan(one)
            np.testing.assert_array_equal(np.signbit(other)[numbers], np.signbit(one)[numbers])
