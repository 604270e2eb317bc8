"""What must hold of a result, judged with protobuf, onnx's checker, its inference and its reference evaluator alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Values = Mapping[str, npt.NDArray[Any]]
Predicate = Callable[[onnx.ModelProto], bool]
KNOWN_DOMAINS = ("", "local")


@dataclass(frozen=True)
class Breach:
    """A rule that a result does not keep."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def is_valid(model: onnx.ModelProto, *, full: bool) -> bool:
    """Whether onnx's checker accepts a model, with strict shape inference if ``full``."""
    try:
        onnx.checker.check_model(model, full_check=full)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def reads(node: onnx.NodeProto) -> list[str]:
    """The names that a node reads, those that its bodies capture among them."""
    return [*(name for name in node.input if name), *captures(node)]


def captures(node: onnx.NodeProto) -> list[str]:
    """The names that the bodies of a node take from outside."""
    found: list[str] = []
    for attribute in node.attribute:
        for body in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
            own = {info.name for info in body.input} | {weight.name for weight in body.initializer}
            own.update(name for inner in body.node for name in inner.output)
            inside = [name for inner in body.node for name in reads(inner)]
            found += [name for name in [*inside, *(info.name for info in body.output)] if name not in own]
    return found


def values_of(model: onnx.ModelProto, feeds: Values) -> dict[str, Any]:
    """Every value that onnx's evaluator can compute from feeds: what unknown operators hide is missing."""
    known = {info.name for info in model.graph.input} | {weight.name for weight in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.domain in KNOWN_DOMAINS and all(name in known for name in reads(node)):
            nodes.append(node)
            known.update(name for name in node.output if name)
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    del marked.graph.node[:], marked.graph.output[:], marked.graph.value_info[:]
    marked.graph.node.extend(nodes)
    names = [name for node in nodes for name in node.output if name]
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    if not names:
        return dict(feeds)
    results = ReferenceEvaluator(marked).run(None, dict(feeds))
    return {**feeds, **dict(zip(names, results, strict=True))}


# The three ways for a node to go


def smaller_by_one(result: onnx.ModelProto, values: Mapping[str, Any], *, bypass: bool) -> Iterator[onnx.ModelProto]:
    """Every model with one node less: cut and fed, cut and frozen, and, if ``bypass``, its readers rewired."""
    types = types_of(result)
    for number in range(len(result.graph.node)):
        if len(result.graph.node) > 1:
            yield from _cut(result, number, values, types)
        if bypass:
            yield from _bypassed(result, number, types)


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types that a model declares or that inference tells."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    infos = [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]
    found = {info.name: info.type for info in infos if info.HasField("type")}
    for weight in model.graph.initializer:
        found.setdefault(weight.name, helper.make_tensor_type_proto(weight.data_type, list(weight.dims)))
    return found


def _cut(
    result: onnx.ModelProto,
    number: int,
    values: Mapping[str, Any],
    types: Mapping[str, onnx.TypeProto],
) -> Iterator[onnx.ModelProto]:
    rest = [node for place, node in enumerate(result.graph.node) if place != number]
    read = {name for node in rest for name in reads(node)}
    needed = [name for name in result.graph.node[number].output if name in read]
    if all((name in types and _has_rank(types[name])) or _is_plain(values.get(name)) for name in needed):
        yield _without(result, rest, [_info(name, types.get(name), values.get(name)) for name in needed], [])
    if needed and all(_is_plain(values.get(name)) for name in needed):
        yield _without(result, rest, [], [numpy_helper.from_array(values[name], name) for name in needed])


def _is_plain(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.dtype.name in np.sctypeDict


def _has_rank(kind: onnx.TypeProto) -> bool:
    return not kind.HasField("tensor_type") or kind.tensor_type.HasField("shape")


def _info(name: str, kind: onnx.TypeProto | None, value: object) -> onnx.ValueInfoProto:
    if kind is not None and _has_rank(kind):
        return onnx.ValueInfoProto(name=name, type=kind)
    assert isinstance(value, np.ndarray)
    elem = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, elem, list(value.shape))


def _without(
    result: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """The result with other nodes, its ends made anew: every tensor that nobody reads is an output."""
    made = onnx.ModelProto()
    made.CopyFrom(result)
    types = types_of(result)
    read = {name for node in nodes for name in reads(node)}
    written = [name for node in nodes for name in node.output if name]
    graph = made.graph
    del graph.node[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    declared = {info.name for info in result.graph.output}
    ends = [name for name in written if name not in read or name in declared]
    graph.output.extend(onnx.ValueInfoProto(name=name, type=types.get(name)) for name in ends)
    old_inputs = [info for info in result.graph.input if info.name in read]
    old_weights = [weight for weight in result.graph.initializer if weight.name in read]
    del graph.input[:], graph.initializer[:]
    graph.input.extend([*old_inputs, *inputs])
    graph.initializer.extend([*old_weights, *weights])
    graph.value_info.extend(info for info in result.graph.value_info if info.name in written and info.name not in ends)
    return made


def _bypassed(result: onnx.ModelProto, number: int, types: Mapping[str, onnx.TypeProto]) -> Iterator[onnx.ModelProto]:
    """Where one output is read, as an input only, and an input of the node has its very type and shape."""
    node = result.graph.node[number]
    rest = [other for place, other in enumerate(result.graph.node) if place != number]
    read = [name for name in node.output if any(name in reads(other) for other in rest)]
    if len(read) != 1 or any(read[0] in captures(other) for other in rest):
        return
    for through in dict.fromkeys(reads(node)):
        if _same_known_type(types.get(through), types.get(read[0])):
            rewired = []
            for other in rest:
                copy = onnx.NodeProto()
                copy.CopyFrom(other)
                for place, name in enumerate(copy.input):
                    if name == read[0]:
                        copy.input[place] = through
                rewired.append(copy)
            yield _without(result, rewired, [], [])


def _same_known_type(one: onnx.TypeProto | None, other: onnx.TypeProto | None) -> bool:
    if one is None or other is None or not one.HasField("tensor_type"):
        return False
    shape = one.tensor_type.shape.dim
    known = one.tensor_type.HasField("shape") and all(dim.WhichOneof("value") for dim in shape)
    return known and one == other


# The verdict


def breaches(
    original: onnx.ModelProto, result: onnx.ModelProto, fails: Predicate, feeds: Values, *, values_kept: bool
) -> list[Breach]:
    """The rules that a result does not keep; none if it is right.

    ``values_kept``: the reduction had to leave every value as it was, and no bypass was allowed.
    """
    found = []
    if not fails(result):
        found.append(Breach("fails", "the result does not fail"))
    full = is_valid(original, full=True)
    if not is_valid(result, full=full):
        found.append(Breach("valid", f"the checker refuses the result (full_check={full})"))
        return found
    values = values_of(original, feeds)
    if values_kept:  # else a body may have been hoisted, and shapes behind it may be others
        found += _lost_declarations(original, result)
        found += _other_values(result, values)
    for smaller in smaller_by_one(result, values, bypass=not values_kept):
        if is_valid(smaller, full=full) and fails(smaller):
            kept = [node.op_type for node in smaller.graph.node]
            found.append(Breach("1-minimal", f"{[node.op_type for node in result.graph.node]} could be {kept}"))
            break
    return found


def _lost_declarations(original: onnx.ModelProto, result: onnx.ModelProto) -> Iterator[Breach]:
    """A type that the original declares, and that a result with the same tensor declares as less."""
    infos = [*original.graph.input, *original.graph.output, *original.graph.value_info]
    declared = {info.name: info.type for info in infos}
    for info in [*result.graph.input, *result.graph.output]:
        known = declared.get(info.name)
        if known is None or not known.tensor_type.HasField("shape"):
            continue
        if not info.type.tensor_type.HasField("shape"):
            yield Breach("declared", f"{info.name} has lost its shape")
            continue
        dims = zip(known.tensor_type.shape.dim, info.type.tensor_type.shape.dim, strict=False)
        if any(one.WhichOneof("value") == "dim_param" and not other.WhichOneof("value") for one, other in dims):
            yield Breach("declared", f"{info.name} has lost the name of a dimension")


def _other_values(result: onnx.ModelProto, values: Mapping[str, Any]) -> Iterator[Breach]:
    inputs = [info.name for info in result.graph.input]
    if any(name not in values for name in inputs):
        return  # an unknown operator stands before the result
    for name, value in values_of(result, {name: values[name] for name in inputs}).items():
        if isinstance(value, np.ndarray) and name in values and not same_value(value, values[name]):
            yield Breach("values", f"{name} is another one than in the original")


def same_value(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two arrays are equal, NaN being equal to NaN."""
    if one.dtype.kind in "OUST":
        return one.shape == other.shape and bool((one == other).all())
    return one.shape == other.shape and np.array_equal(one.astype(np.float64), other.astype(np.float64), equal_nan=True)
