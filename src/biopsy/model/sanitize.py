"""Changes that make a model easier to cut: fixed input shapes, nothing unused, sorted nodes (``folding``: constants).

Each function changes the model it is given in place, and nothing that it is not asked to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model import infer, topology, value_info, walk
from biopsy.model.calls import MOST_NODES_OF_ENGINES, unbounded
from biopsy.model.known_names import no_such_input
from biopsy.model.outputs import ALL, mark_outputs
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.text import printable

if TYPE_CHECKING:
    import onnx

Run = Callable[[bytes], Mapping[str, TensorType]]
"""Runs a serialized model once, with any inputs; returns the types of its outputs by name."""


@dataclass(frozen=True)
class Frozen:
    """What ``freeze_inputs`` fixed: sizes of symbolic dimensions; ``conflicts`` are symbols given two sizes."""

    sizes: Mapping[str, int]
    conflicts: tuple[str, ...]


def freeze_inputs(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Frozen:
    """Give inputs other shapes; a symbolic dimension that gets a size has it wherever the symbol stands.

    A symbol that is given two sizes is only fixed where it was asked for. If a dimension that had a size gets another
    one, declared shapes behind it are wrong: they are forgotten, element types stay (see ``refresh_shapes``).

    Raises UsageError for a name that is no input, or is no tensor.
    """
    inputs = {info.name: info for info in model.graph.input}
    found: dict[str, set[int]] = {}
    resized = ranked_anew = False
    for name, shape in shapes.items():
        declared = _declared(inputs, name)
        for old, new in zip(declared.shape or (), shape, strict=False):
            if isinstance(old, str) and isinstance(new, int):
                found.setdefault(old, set()).add(new)
        resized |= _contradicts(declared.shape, shape)
        ranked_anew |= declared.shape is None or len(declared.shape) != len(shape)
        inputs[name].ParseFromString(value_info.value_info(name, TensorType(declared.elem, shape)))
    conflicts = tuple(sorted(symbol for symbol, sizes in found.items() if len(sizes) > 1))
    sizes = {symbol: next(iter(values)) for symbol, values in found.items() if len(values) == 1}
    for info in every_info(model):
        _substitute(info.type, sizes)
    if resized:
        _forget_shapes(model, keep_ranks=not ranked_anew)
    return Frozen(sizes, conflicts)


def _declared(inputs: Mapping[str, onnx.ValueInfoProto], name: str) -> TensorType:
    if name not in inputs:
        raise no_such_input("--override-input-shapes", name, inputs)
    declared = value_info.tensor_type(inputs[name].SerializeToString())
    if declared is None:
        raise errors.UsageError(f"the input {name!r} is no tensor: it has no shape to set")
    return declared


def _contradicts(old: Shape | None, new: Shape) -> bool:
    if old is None:
        return False
    pairs = zip(old, new, strict=False)
    return len(old) != len(new) or any(isinstance(before, int) and before != after for before, after in pairs)


def every_info(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """What all graphs say of their inputs, outputs and tensors in between."""
    for graph in walk.graphs(model):
        yield from (*graph.input, *graph.output, *graph.value_info)


def _substitute(kind: onnx.TypeProto, sizes: Mapping[str, int]) -> None:
    which = kind.WhichOneof("value")
    if which in {"tensor_type", "sparse_tensor_type"}:
        for dim in getattr(kind, which).shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    elif which in {"sequence_type", "optional_type"}:
        _substitute(getattr(kind, which).elem_type, sizes)


def _forget_shapes(model: onnx.ModelProto, *, keep_ranks: bool) -> None:
    """Drop the shapes of everything but the main graph's own inputs. With ``keep_ranks``, its outputs only lose sizes:
    onnx's checker refuses one without any shape.
    """
    for place, graph in enumerate(walk.graphs(model)):
        ends = () if keep_ranks and not place else graph.output
        for info in (*(graph.input if place else ()), *ends, *graph.value_info):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    if keep_ranks:
        for info in model.graph.output:
            for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
                dim.Clear()


def refresh_shapes(model: onnx.ModelProto) -> None:
    """Infer types and shapes and write them into the model; weights are neither needed nor copied.

    A size that is inferred replaces a symbol that was declared; what inference cannot tell stays as declared. Never
    raises.
    """
    _write_infos(model, infer.infer_value_infos(infer.without_weights(model).SerializeToString()))


def _write_infos(model: onnx.ModelProto, found: Mapping[str, bytes]) -> None:
    """Set the types of inputs, outputs and what nodes compute; an entry for each tensor in between, in their order."""
    graph = model.graph
    for info in (*graph.input, *graph.output):
        if info.name in found:
            info.type.CopyFrom(type(info).FromString(found[info.name]).type)
    ends = {info.name for info in (*graph.input, *graph.output)}
    listed = {info.name: info for info in graph.value_info}
    for name in (name for node in graph.node for name in node.output):
        if name in listed and name in found:
            listed[name].type.CopyFrom(type(listed[name]).FromString(found[name]).type)
        elif name in found and name not in ends:
            graph.value_info.add().ParseFromString(found[name])


def infer_by_running(model: onnx.ModelProto, run: Run) -> None:
    """Write the types and shapes that one run of the model shows into it; dynamic dimensions become sizes.

    ``run`` gets the serialized model with every tensor marked as an output. Raises what ``run`` raises.
    """
    types = run(mark_outputs(model.SerializeToString(), ALL))
    _write_infos(model, {name: value_info.value_info(name, kind) for name, kind in types.items()})


def clean_up(model: onnx.ModelProto, *, functions: bool = True) -> None:
    """Remove nodes whose results nobody uses, then initializers, types and (with ``functions``) functions left over.

    Inputs and outputs stay, and so do initializers that are the default of an input. A model with training graphs is
    left alone: they may use anything.
    """
    if model.training_info:
        return
    for graph in walk.graphs(model):
        _keep_needed_nodes(graph.node, {output.name for output in graph.output} | _annotations(graph))
    for function in model.functions:
        _keep_needed_nodes(function.node, set(function.output))
    for graph in walk.graphs(model):
        _keep_used_tensors(graph)
    if functions and model.functions:
        used = walk.called(model)
        keep(model.functions, lambda function: walk.function_key(function) in used)


def _annotations(graph: onnx.GraphProto) -> set[str]:
    return {entry.value for note in graph.quantization_annotation for entry in note.quant_parameter_tensor_names}


def _keep_needed_nodes(nodes: MutableSequence[onnx.NodeProto], wanted: set[str]) -> None:
    listed = list(nodes)
    producer = {name: place for place, node in enumerate(listed) for name in node.output if name}
    waiting = [producer[name] for name in wanted if name in producer]
    needed: set[int] = set()
    while waiting:
        place = waiting.pop()
        if place not in needed:
            needed.add(place)
            for body in walk.bodies(listed[place]):
                _keep_needed_nodes(body.node, {output.name for output in body.output})
            waiting += [producer[name] for name in walk.reads(listed[place]) if name in producer]
    if len(needed) < len(listed):
        _keep_places(nodes, needed)


def _keep_places(items: MutableSequence[Any], places: set[int]) -> None:
    for place in reversed(range(len(items))):
        if place not in places:
            del items[place]


def keep(items: MutableSequence[Any], wanted: Callable[[Any], bool]) -> None:
    """Drop the items that are not wanted."""
    _keep_places(items, {place for place, item in enumerate(items) if wanted(item)})


def _keep_used_tensors(graph: onnx.GraphProto) -> None:
    ends = {info.name for info in (*graph.input, *graph.output)}
    read = set().union(*(walk.reads(node) for node in graph.node)) | _annotations(graph) | ends
    written = {name for node in graph.node for name in node.output}
    keep(graph.initializer, lambda weight: weight.name in read)
    keep(graph.sparse_initializer, lambda weight: weight.values.name in read)
    keep(graph.value_info, lambda info: info.name in read or info.name in written)
    keep(graph.quantization_annotation, lambda note: note.tensor_name in read or note.tensor_name in written)


def sort_nodes(model: onnx.ModelProto) -> None:
    """Bring nodes into an order in which each stands behind what it reads, in bodies and functions too.

    Nodes that may stand in any order keep the one they have. Raises ModelError, naming a node, if there is a cycle.
    """
    for nodes in _lists_of_nodes(model):
        topology.rearrange(nodes, _require_order(nodes))


def _lists_of_nodes(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Those of every graph and function."""
    yield from (graph.node for graph in walk.graphs(model))
    yield from (function.node for function in model.functions)


def endless(model: onnx.ModelProto) -> list[str]:
    """What no engine could come to an end with: nodes that wait for each other, functions that call themselves."""
    found = []
    for nodes in _lists_of_nodes(model):
        try:
            _require_order(nodes)
        except errors.ModelError as error:
            found.append(error.message)
    too_large = unbounded(model.functions, MOST_NODES_OF_ENGINES)
    found += [f"of the function '{domain}::{name}', {why}" for (domain, name, _), why in too_large.items()]
    return found


def _require_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of nodes in topological order. Raises ModelError, naming a node, if there is a cycle."""
    order = topology.sorted_places(nodes)
    if len(order) < len(nodes):
        raise _cycle(nodes, set(range(len(nodes))) - set(order))
    return order


def _cycle(nodes: Sequence[onnx.NodeProto], stuck: set[int]) -> errors.ModelError:
    """Follow the stuck nodes backwards until one comes again: that one is on the cycle."""
    producer = {name: place for place in sorted(stuck) for name in nodes[place].output if name}
    place = min(stuck)
    seen: set[int] = set()
    while place not in seen:
        seen.add(place)
        place = min(producer[name] for name in walk.reads(nodes[place]) if name in producer)
    node = nodes[place]
    label = printable(node.op_type) + (f" {node.name!r}" if node.name else f" that computes {list(node.output)}")
    return errors.ModelError(f"the nodes cannot be sorted: {label} depends on its own result")


def count_operators(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator the model has, those in bodies and functions included."""
    return Counter(node.op_type for node in walk.nodes(model))


def changes(before: Counter[str], after: Counter[str]) -> Iterable[str]:
    """What became more or less, the greatest change first: ``-3 Shape``, ``+1 Identity``."""
    difference = {name: after[name] - before[name] for name in sorted({*before, *after})}
    ordered = sorted(difference.items(), key=lambda entry: -abs(entry[1]))
    return [f"{number:+d} {name}" for name, number in ordered if number]
