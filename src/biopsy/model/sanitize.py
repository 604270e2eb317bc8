"""Changes a model: fixes input shapes, bounds sizes, removes unused parts, sorts nodes, inserts a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from biopsy import errors
from biopsy.model import infer, parts, walk
from biopsy.model.extract import ALL, mark_outputs
from biopsy.model.known_names import listed, no_such_input
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.model.walk import MOST_NODES_OF_ENGINES, unbounded
from biopsy.slow_imports import onnx
from biopsy.text import did_you_mean, printable

Run = Callable[[bytes], Mapping[str, TensorType]]
"""Runs a serialized model once with made-up inputs; returns the types of its outputs by name."""


def freeze_inputs(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """Give inputs other shapes; a symbol that gets a size is replaced by it everywhere.

    If a dimension with a size gets another one, declared shapes of other tensors may be wrong: they are removed, and
    element types stay (see ``refresh_shapes``). Returns the symbols that get several sizes; these are only replaced in
    the given inputs.

    Raises UsageError for a name that is not an input, or is not a tensor.
    """
    inputs = {info.name: info for info in model.graph.input}
    sizes_of: dict[str, set[int]] = {}
    is_resized = has_new_rank = False
    for name, shape in shapes.items():
        if name not in inputs:
            raise no_such_input("--override-input-shapes", name, inputs)
        declared = parts.tensor_type(inputs[name].SerializeToString())
        if declared is None:
            raise errors.UsageError(f"the input {name!r} is not a tensor: it has no shape to set")
        for old, new in zip(declared.shape or (), shape, strict=False):
            if isinstance(old, str) and isinstance(new, int):
                sizes_of.setdefault(old, set()).add(new)
            is_resized |= isinstance(old, int) and old != new
        has_rank = declared.shape is not None and len(declared.shape) == len(shape)
        is_resized |= declared.shape is not None and not has_rank
        has_new_rank |= not has_rank
        inputs[name].ParseFromString(parts.value_info(name, TensorType(declared.elem, shape)))
    sizes = {symbol: next(iter(values)) for symbol, values in sizes_of.items() if len(values) == 1}
    for info in every_info(model):
        _set_symbols(info.type, sizes)
    if is_resized:
        _forget_shapes(model, keep_ranks=not has_new_rank)
    return tuple(sorted(sizes_of.keys() - sizes.keys()))


def every_info(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """Every ValueInfoProto of the model's graphs: inputs, outputs and tensors in between."""
    for graph in walk.graphs(model):
        yield from (*graph.input, *graph.output, *graph.value_info)


def _set_symbols(kind: onnx.TypeProto, sizes: Mapping[str, int]) -> None:
    """Replace symbolic dimensions of a type by their sizes."""
    which = kind.WhichOneof("value")
    if which in {"tensor_type", "sparse_tensor_type"}:
        for dim in getattr(kind, which).shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    elif which in {"sequence_type", "optional_type"}:
        _set_symbols(getattr(kind, which).elem_type, sizes)


def _forget_shapes(model: onnx.ModelProto, *, keep_ranks: bool) -> None:
    """Remove all shapes but those of the main graph's inputs; with ``keep_ranks``, its outputs only lose their sizes.

    onnx's checker refuses an output without a shape.
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

    An inferred size replaces a declared symbol; what cannot be inferred stays as declared. Never raises.
    """
    _write_infos(model, infer.infer_value_infos(infer.without_weights(model).SerializeToString()))


def _write_infos(model: onnx.ModelProto, infos: Mapping[str, bytes]) -> None:
    """Set the types of inputs, outputs and computed tensors; add those missing from value_info in the nodes' order."""
    graph = model.graph
    ends = [*graph.input, *graph.output]
    computed = {name for node in graph.node for name in node.output}
    for info in (*ends, *(info for info in graph.value_info if info.name in computed)):
        if info.name in infos:
            info.type.CopyFrom(type(info).FromString(infos[info.name]).type)
    known = {info.name for info in (*ends, *graph.value_info)}
    for name in dict.fromkeys(name for node in graph.node for name in node.output):
        if name in infos and name not in known:
            graph.value_info.add().ParseFromString(infos[name])


def infer_by_running(model: onnx.ModelProto, run: Run) -> None:
    """Write the types and shapes from one run of the model into it; dynamic dimensions become sizes.

    ``run`` gets the serialized model with every tensor marked as an output. Raises what ``run`` raises.
    """
    types = run(mark_outputs(model.SerializeToString(), ALL))
    _write_infos(model, {name: parts.value_info(name, kind) for name, kind in types.items()})


def clean_up(model: onnx.ModelProto, *, functions: bool = True) -> None:
    """Remove unused nodes, then unused initializers, types and, with ``functions``, functions.

    Inputs and outputs stay, and so do initializers that are defaults of inputs. A model with training graphs is not
    changed: they may use anything.
    """
    if model.training_info:
        return
    for graph in walk.graphs(model):
        _keep_needed_nodes(graph.node, {output.name for output in graph.output} | _annotations(graph))
    for function in model.functions:
        _keep_needed_nodes(function.node, set(function.output))
    for graph in walk.graphs(model):
        ends = {info.name for info in (*graph.input, *graph.output)}
        read = set().union(*(walk.reads(node) for node in graph.node)) | _annotations(graph) | ends
        known = read.union(*(node.output for node in graph.node))
        walk.keep(graph.initializer, lambda weight: weight.name in read)  # noqa: B023 -- at once
        walk.keep(graph.sparse_initializer, lambda weight: weight.values.name in read)  # noqa: B023
        walk.keep(graph.value_info, lambda info: info.name in known)  # noqa: B023
        walk.keep(graph.quantization_annotation, lambda note: note.tensor_name in known)  # noqa: B023
    if functions and model.functions:
        used = walk.called(model)
        walk.keep(model.functions, lambda function: walk.function_key(function) in used)


def _annotations(graph: onnx.GraphProto) -> set[str]:
    return {entry.value for note in graph.quantization_annotation for entry in note.quant_parameter_tensor_names}


def _keep_needed_nodes(nodes: MutableSequence[onnx.NodeProto], wanted: set[str]) -> None:
    listed = list(nodes)
    producer = {name: place for place, node in enumerate(listed) for name in node.output if name}

    def computing(names: Iterable[str]) -> Iterator[int]:
        return (producer[name] for name in names if name in producer)

    def read_by(place: int) -> Iterator[int]:
        for body in walk.bodies(listed[place]):
            _keep_needed_nodes(body.node, {output.name for output in body.output})
        return computing(walk.reads(listed[place]))

    needed = walk.reached(computing(wanted), read_by)
    for place in reversed(range(len(listed))):
        if place not in needed:
            del nodes[place]


def sort_nodes(model: onnx.ModelProto) -> None:
    """Put all nodes into topological order, in bodies and functions too, changing as little as possible.

    Raises ModelError, naming a node, if there is a cycle.
    """
    for nodes in _lists_of_nodes(model):
        walk.rearrange(nodes, _require_order(nodes))


def _lists_of_nodes(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """The list of nodes of each graph and function."""
    yield from (graph.node for graph in walk.graphs(model))
    yield from (function.node for function in model.functions)


def endless(model: onnx.ModelProto) -> list[str]:
    """Messages about parts that no engine could finish: nodes on a cycle, and functions that are too large."""
    messages = []
    for nodes in _lists_of_nodes(model):
        try:
            _require_order(nodes)
        except errors.ModelError as error:
            messages.append(error.message)
    too_large = unbounded(model.functions, MOST_NODES_OF_ENGINES)
    messages += [f"of the function '{domain}::{name}', {why}" for (domain, name, _), why in too_large.items()]
    return messages


def _require_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of nodes in topological order. Raises ModelError, naming a node, if there is a cycle."""
    order = walk.sorted_places(nodes)
    if len(order) == len(nodes):
        return order
    stuck = set(range(len(nodes))) - set(order)
    producer = {name: place for place in sorted(stuck) for name in nodes[place].output if name}
    place = min(stuck)
    seen: set[int] = set()
    while place not in seen:  # go back until a node comes again: it is on the cycle
        seen.add(place)
        place = min(producer[name] for name in walk.reads(nodes[place]) if name in producer)
    node = nodes[place]
    label = printable(node.op_type) + (f" {node.name!r}" if node.name else f" that computes {list(node.output)}")
    raise errors.ModelError(f"the nodes cannot be sorted: {label} depends on its own result")


def count_operators(model: onnx.ModelProto) -> Counter[str]:
    """The number of nodes of each operator, including those in bodies and functions."""
    return Counter(node.op_type for node in walk.nodes(model))


def changes(before: Counter[str], after: Counter[str]) -> Iterable[str]:
    """The changed numbers of operators, the greatest change first: ``-3 Shape``, ``+1 Identity``."""
    difference = {name: after[name] - before[name] for name in sorted({*before, *after})}
    ordered = sorted(difference.items(), key=lambda entry: -abs(entry[1]))
    return [f"{number:+d} {name}" for name, number in ordered if number]


_INT64 = 7
_NUMBERS = frozenset({1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13})
"""Element types that Min takes and that hold whole numbers."""


def set_upper_bounds(model: onnx.ModelProto, bounds: Mapping[str, int]) -> dict[str, int]:
    """Bound tensors by a Min after the node that computes each. Returns the bounds that were set, by name.

    ``bounds`` are given by name; "" stands for all other tensors of ``unbounded_shapes``.

    Raises UsageError for a name that no node of the model computes, or whose type Min does not take.
    """
    computed = {name for node in model.graph.node for name in node.output if name}
    for name in bounds:
        if name and name not in computed:
            steps = [*did_you_mean(name, computed), f"what nodes compute here: {listed(sorted(computed))}"]
            raise errors.UsageError(
                f"--set-unbounded-dds-upper-bound: no node computes a tensor {name!r}", next_steps=steps
            )
    unnamed = dict.fromkeys(unbounded_shapes(model), bounds[""]) if "" in bounds else {}
    chosen = unnamed | {name: bound for name, bound in bounds.items() if name}
    types = infer.infer_types(model) if chosen else {}
    taken = walk.named(model.graph)
    for name, bound in chosen.items():
        kind = types.get(name, TensorType(_INT64, None))
        if kind.elem not in _NUMBERS:
            raise errors.UsageError(f"--set-unbounded-dds-upper-bound: tensor {name!r} holds no numbers")
        free = walk.free_name(f"{name}_copy", taken)
        shape = [1] if kind.shape else []
        limit = onnx.helper.make_tensor(walk.free_name(f"{name}_upper_bound", taken), kind.elem, shape, [bound])
        nodes = model.graph.node
        place = next(place for place, node in enumerate(nodes) if name in node.output)
        rename(nodes[place].output, name, free)
        model.graph.initializer.append(limit)
        nodes.insert(place + 1, onnx.helper.make_node("Min", [free, limit.name], [name]))
        if kind.shape is not None:
            model.graph.value_info.add().ParseFromString(parts.value_info(free, kind))
    return chosen


_SIZED_BY = {"Range": 1, "Pad": 1, "Resize": 3, "Tile": 1, "Expand": 1}
"""Operators whose output has a size given by the value of an input -> the place of that input."""


def unbounded_shapes(model: onnx.ModelProto) -> list[str]:
    """Names of tensors of the main graph whose values are sizes without a bound, in topological order.

    TensorRT demands a Min for these. A size is bounded if its dimension is a number or a symbol of an input or of an
    earlier tensor, if it is a constant, or if a Min computes it. Fold constants and infer shapes before.
    """
    light = infer.without_weights(model)
    nodes = light.graph.node
    walk.sort_nodes(nodes)
    infos = infer.infer_value_infos(light.SerializeToString())
    known = {dim for value in model.graph.input for dim in _symbols(infos, value.name) or ()}
    constants = {weight.name for weight in model.graph.initializer} | {
        name for node in nodes if node.op_type == "Constant" for name in node.output
    }
    writers = {name: node.op_type for node in nodes for name in node.output}
    unbounded_sizes: dict[str, None] = {}
    for node in nodes:
        is_new = False
        for output in filter(None, node.output):
            symbols = _symbols(infos, output)
            is_new = is_new or symbols is None or not known.issuperset(symbols)
            known.update(symbols or ())
        place = _SIZED_BY.get(node.op_type)
        if not is_new or place is None or walk.operator(node)[0] or place >= len(node.input):
            continue
        sizes = node.input[place]
        if sizes not in constants and writers.get(sizes, "Min") != "Min":
            unbounded_sizes[sizes] = None
    return list(unbounded_sizes)


def _symbols(infos: dict[str, bytes], name: str) -> set[str] | None:
    """The symbols in a tensor's shape; None if the shape or one of its dimensions is unknown."""
    kind = parts.tensor_type(infos[name]) if name in infos else None
    if kind is None or kind.shape is None or None in kind.shape:
        return None
    return {dim for dim in kind.shape if isinstance(dim, str)}


AttributeValue: TypeAlias = "int | float | str | list[int] | list[float] | list[str]"


@dataclass(frozen=True, kw_only=True)
class NewNode:
    """The node to insert; "" in ``inputs`` leaves out an optional input."""

    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


def insert(model: onnx.ModelProto, new: NewNode, *, infers: bool = True) -> None:
    """Insert a node into the main graph in place of the nodes between its inputs and outputs, which are then unused.

    A tensor that is both an input and an output of the node is split: the node reads it, and its other readers read the
    node's result. If it is an output of the model, the result gets its name. Types of tensors that depend on the node
    are removed. With ``infers``, outputs of the model get inferred types; otherwise, and if inference finds none, they
    keep their element types.

    Raises UsageError for a name that is not a tensor of the main graph, an output that is an input of the model or a
    weight and not split, a name that another node or output of the node has, and a node that would depend on its own
    result.
    """
    graph = model.graph
    fixed = {info.name for info in graph.input} | {weight.name for weight in graph.initializer}
    fixed |= {weight.values.name for weight in graph.sparse_initializer}
    _require_possible(graph, new, fixed)
    taken = walk.named(graph)
    sources = {name: name for name in new.inputs}
    results: list[str] = []
    for name in new.outputs:
        if not name:
            results.append(name)
        elif name in sources:
            sources[name], result = _split(graph, name, taken, fixed)
            results.append(result)
        elif name in fixed:
            raise errors.UsageError(f"--outputs: {name!r} is an input or a weight of the model: no node computes it")
        else:
            for node in graph.node:  # its other outputs stay
                if name in node.output:
                    rename(node.output, name, walk.free_name(f"{name}_replaced", taken))
            results.append(name)
    inputs = [sources[name] for name in new.inputs]
    node = onnx.helper.make_node(new.operator, inputs, results, name=new.name or None)
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in new.attributes.items())
    graph.node.append(node)
    ends = _forget_types_behind(graph, results)
    clean_up(model)
    try:
        sort_nodes(model)
    except errors.ModelError as error:
        raise errors.UsageError(f"the node cannot stand there: {error.message}") from error
    if infers:
        infer.type_outputs(model, ends)


def _require_possible(graph: onnx.GraphProto, new: NewNode, given: Collection[str]) -> None:
    """Raise UsageError for an unknown tensor, a repeated output, or the name of another node."""
    known = {*given, *(name for node in graph.node for name in (*node.input, *node.output) if name)}
    for option, names in (("--inputs", new.inputs), ("--outputs", new.outputs)):
        for name in names:
            if name and name not in known:
                steps = [*did_you_mean(name, known), f"its tensors are: {listed(sorted(known))}"]
                raise errors.UsageError(f"{option}: the model has no tensor {name!r} in its graph", next_steps=steps)
    for name in new.outputs:
        if name and new.outputs.count(name) > 1:
            raise errors.UsageError(f"--outputs: a node computes {name!r} only once")
    if new.name and any(node.name == new.name for node in graph.node):
        raise errors.UsageError(f"--name: the model has a node {new.name!r} already: engines refuse a second one")


def _split(graph: onnx.GraphProto, name: str, taken: set[str], fixed: Collection[str]) -> tuple[str, str]:
    """Split a tensor in two: (the one that is computed, the one that its readers read from now on)."""
    is_output = any(info.name == name for info in graph.output)
    other = walk.free_name(f"{name}_polygraphy_surgeon_insert_output", taken)
    if is_output and name not in fixed:
        for node in graph.node:
            rename(node.output, name, other)
        return other, name
    for node in graph.node:
        _rename_reads(node, name, other)
    for info in graph.output:
        info.name = other if info.name == name else info.name
    return name, other


def _rename_reads(node: onnx.NodeProto, old: str, new: str) -> None:
    """Have a node, and its bodies if they capture the tensor, read another tensor."""
    rename(node.input, old, new)
    for body in walk.bodies(node):
        if old not in walk.defined(body):
            for inner in body.node:
                _rename_reads(inner, old, new)
            for info in body.output:
                info.name = new if info.name == old else info.name


def rename(names: MutableSequence[str], old: str, new: str) -> None:
    """Replace a name in a list of tensor names."""
    for place, name in enumerate(names):
        if name == old:
            names[place] = new


def _forget_types_behind(graph: onnx.GraphProto, names: Sequence[str]) -> set[str]:
    """Remove the declared types of ``names`` and of all tensors computed from them.

    Outputs of the model among them keep their element types; their names are returned.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in walk.reads(node):
            readers.setdefault(name, []).append(node)
    behind = walk.reached(
        filter(None, names), lambda name: (output for node in readers.get(name, ()) for output in node.output if output)
    )
    walk.keep(graph.value_info, lambda info: info.name not in behind)
    for info in graph.output:
        if info.name in behind and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return {info.name for info in graph.output if info.name in behind}
