"""Changes that make a model easier to cut: fixed input shapes, bounds for sizes that depend on data, nothing unused,
sorted nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import infer, parts, walk
from biopsy.model.extract import ALL, mark_outputs
from biopsy.model.known_names import listed, no_such_input
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.model.walk import MOST_NODES_OF_ENGINES, unbounded
from biopsy.text import did_you_mean, printable

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
            resized |= isinstance(old, int) and old != new
        has_rank = declared.shape is not None and len(declared.shape) == len(shape)
        resized |= declared.shape is not None and not has_rank
        ranked_anew |= not has_rank
        inputs[name].ParseFromString(parts.value_info(name, TensorType(declared.elem, shape)))
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
    declared = parts.tensor_type(inputs[name].SerializeToString())
    if declared is None:
        raise errors.UsageError(f"the input {name!r} is no tensor: it has no shape to set")
    return declared


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
    _write_infos(model, {name: parts.value_info(name, kind) for name, kind in types.items()})


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
        walk.keep(model.functions, lambda function: walk.function_key(function) in used)


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
    for place in reversed(range(len(listed))):
        if place not in needed:
            del nodes[place]


def _keep_used_tensors(graph: onnx.GraphProto) -> None:
    ends = {info.name for info in (*graph.input, *graph.output)}
    read = set().union(*(walk.reads(node) for node in graph.node)) | _annotations(graph) | ends
    written = {name for node in graph.node for name in node.output}
    walk.keep(graph.initializer, lambda weight: weight.name in read)
    walk.keep(graph.sparse_initializer, lambda weight: weight.values.name in read)
    walk.keep(graph.value_info, lambda info: info.name in read or info.name in written)
    walk.keep(graph.quantization_annotation, lambda note: note.tensor_name in read or note.tensor_name in written)


def sort_nodes(model: onnx.ModelProto) -> None:
    """Bring nodes into an order in which each stands behind what it reads, in bodies and functions too.

    Nodes that may stand in any order keep the one they have. Raises ModelError, naming a node, if there is a cycle.
    """
    for nodes in _lists_of_nodes(model):
        walk.rearrange(nodes, _require_order(nodes))


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
    order = walk.sorted_places(nodes)
    if len(order) == len(nodes):
        return order
    stuck = set(range(len(nodes))) - set(order)
    producer = {name: place for place in sorted(stuck) for name in nodes[place].output if name}
    place = min(stuck)
    seen: set[int] = set()
    while place not in seen:  # backwards, until a node comes again: that one is on the cycle
        seen.add(place)
        place = min(producer[name] for name in walk.reads(nodes[place]) if name in producer)
    node = nodes[place]
    label = printable(node.op_type) + (f" {node.name!r}" if node.name else f" that computes {list(node.output)}")
    raise errors.ModelError(f"the nodes cannot be sorted: {label} depends on its own result")


def count_operators(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator the model has, those in bodies and functions included."""
    return Counter(node.op_type for node in walk.nodes(model))


def changes(before: Counter[str], after: Counter[str]) -> Iterable[str]:
    """What became more or less, the greatest change first: ``-3 Shape``, ``+1 Identity``."""
    difference = {name: after[name] - before[name] for name in sorted({*before, *after})}
    ordered = sorted(difference.items(), key=lambda entry: -abs(entry[1]))
    return [f"{number:+d} {name}" for name, number in ordered if number]


# Upper bounds for sizes that a model computes from values: without one, nobody can tell how large a tensor gets.

_INT64 = 7
_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13})
"""Element types that Min takes, and a whole number can be."""


def set_upper_bounds(model: onnx.ModelProto, bounds: Mapping[str, int]) -> dict[str, int]:
    """Let no such tensor be more than its bound: a Min stands behind what computes it. Returns those that got one.

    ``bounds``: by name, "" for all that ``unbounded_shapes`` finds and that are not named.

    Raises UsageError for a name that no node of the model computes, or whose type Min does not take.
    """
    from onnx import helper

    computed = {name for node in model.graph.node for name in node.output if name}
    for name in bounds:
        if name and name not in computed:
            steps = [*did_you_mean(name, computed), f"what nodes compute here: {listed(sorted(computed))}"]
            raise errors.UsageError(
                f"--set-unbounded-dds-upper-bound: no node computes a tensor {name!r}", next_steps=steps
            )
    every = dict.fromkeys(unbounded_shapes(model), bounds[""]) if "" in bounds else {}
    chosen = every | {name: bound for name, bound in bounds.items() if name}
    types = infer.infer_types(model) if chosen else {}
    taken = walk.named(model.graph)
    for name, bound in chosen.items():
        kind = types.get(name, TensorType(_INT64, None))
        if kind.elem not in _NUMBERS:
            raise errors.UsageError(f"--set-unbounded-dds-upper-bound: tensor {name!r} holds no numbers")
        free = walk.free_name(f"{name}_copy", taken)
        shape = [1] if kind.shape else []
        limit = helper.make_tensor(walk.free_name(f"{name}_upper_bound", taken), kind.elem, shape, [bound])
        _insert(model, name, free, limit)
        if kind.shape is not None:
            model.graph.value_info.add().ParseFromString(parts.value_info(free, kind))
    return chosen


def _insert(model: onnx.ModelProto, name: str, free: str, limit: onnx.TensorProto) -> None:
    from onnx import helper

    nodes = model.graph.node
    place = next(place for place, node in enumerate(nodes) if name in node.output)
    for number, output in enumerate(nodes[place].output):
        if output == name:
            nodes[place].output[number] = free
    model.graph.initializer.append(limit)
    nodes.insert(place + 1, helper.make_node("Min", [free, limit.name], [name]))


# Tensors whose size depends on data and has no bound: what TensorRT asks a person to bound by a Min.
#
# Only models whose constants are folded and whose shapes are inferred tell much.

_SIZED_BY = {"Range": 1, "Pad": 1, "Resize": 3, "Tile": 1, "Expand": 1}
"""Operators whose output is as large as the value of an input says -> the place of that input."""


def unbounded_shapes(model: onnx.ModelProto) -> list[str]:
    """Names of tensors of the main graph whose values set a size without a bound, in topological order.

    A size is bounded if its dimension is a number or has a name that an input or a tensor before has, if it is a
    constant, or if a Min computes it.
    """
    light = infer.without_weights(model)
    nodes = light.graph.node
    walk.sort_nodes(nodes)
    infos = infer.infer_value_infos(light.SerializeToString())
    known = {dim for value in model.graph.input for dim in _names(infos, value.name) or ()}
    constants = {weight.name for weight in model.graph.initializer} | {
        name for node in nodes if node.op_type == "Constant" for name in node.output
    }
    writers = {name: node.op_type for node in nodes for name in node.output}
    found: dict[str, None] = {}
    for node in nodes:
        new = False
        for output in filter(None, node.output):
            names = _names(infos, output)
            new = new or names is None or not known.issuperset(names)
            known.update(names or ())
        place = _SIZED_BY.get(node.op_type)
        if not new or place is None or walk.operator(node)[0] or place >= len(node.input):
            continue
        sizes = node.input[place]
        if sizes not in constants and writers.get(sizes, "Min") != "Min":
            found[sizes] = None
    return list(found)


def _names(infos: dict[str, bytes], name: str) -> set[str] | None:
    """The names of a tensor's open dimensions; None if one has no name, or nobody knows the shape."""
    kind = parts.tensor_type(infos[name]) if name in infos else None
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return {dim for dim in kind.shape if isinstance(dim, str)}
