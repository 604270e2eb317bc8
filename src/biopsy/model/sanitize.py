"""Changes that make a model easier to cut: fixed input shapes, folded constants, nothing unused, sorted nodes.

Each function changes the model it is given in place, and nothing that it is not asked to change.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model import external, infer, storage, topology, value_info, walk
from biopsy.model.calls import MOST_NODES_OF_ENGINES, unbounded
from biopsy.model.known_names import no_such_input
from biopsy.model.outputs import ALL, mark_outputs
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.text import printable

if TYPE_CHECKING:
    import onnx

Run = Callable[[bytes], Mapping[str, TensorType]]
"""Runs a serialized model once, with any inputs; returns the types of its outputs by name."""

_MOST_PASSES = 10  # folding stops by itself; a model that never settles must not hang it

_HIDDEN = "biopsy.hidden."
_REWRITTEN = frozenset({"Dropout", "SequenceConstruct", "SequenceAt", "ConcatFromSequence", "SplitToSequence"})
"""Operators that onnxscript's folding does not fold but replaces by others; sequences below opset 13 wrongly so."""

_OF_SHAPES = frozenset({"Shape", "Size"})
"""Operators whose results depend on shapes alone."""


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
    for info in _infos(model):
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


def _infos(model: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
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


@dataclass(frozen=True, kw_only=True)
class Folding:
    """How constants are folded.

    ``passes``: at most so many; ``shapes``: operations on shapes too; ``infers``: shapes are inferred in each pass;
    ``threshold``: bytes of a tensor that is still computed, None for the limits of ``fold_constants``;
    ``ignores_weights``: those in files may be missing, and nothing is computed from them then.
    """

    passes: int = _MOST_PASSES
    shapes: bool = True
    infers: bool = True
    threshold: int | None = None
    ignores_weights: bool = False

    def may_be_computed(self, node: Any) -> bool | None:
        """For the optimizer: False for a node that stays, True for one that is computed, None for its own rules."""
        if any(_is_missing(value) for value in node.inputs) or _may_be_computed(node) is False:
            return False
        if self.threshold is None:
            return None
        sizes = [_bytes_of(output) for output in node.outputs]
        if any(size is None or size > self.threshold for size in sizes):
            return False
        return None if node.op_type in _KEPT else True


_KEPT = frozenset({"ConstantOfShape", "QuantizeLinear", "DequantizeLinear"})
"""What the optimizer leaves as it is by its own rules."""


def _is_missing(value: Any) -> bool:
    """Whether this is a weight in a file that is not there."""
    path = getattr(value.const_value, "path", None) if value is not None else None
    return path is not None and not Path(path).is_file()


def _bytes_of(value: Any) -> int | None:
    """Bytes of a tensor of known type and shape; None if they are not known."""
    if value.shape is None or value.dtype is None or not all(isinstance(dim, int) for dim in value.shape):
        return None
    return storage.raw_size(int(value.dtype), list(value.shape))


def fold_constants(model: onnx.ModelProto, folder: Path, how: Folding = Folding()) -> None:
    """Compute whatever does not depend on the inputs, shape operations on known shapes included; drop what is left.

    By onnxscript's optimizer, folding only: no function is inlined, no pattern rewritten. Results of over 262,144
    elements and weights of over 8,192 stay as they are, as do ConstantOfShape and (De)QuantizeLinear. What would have
    more than 16,777,216 elements, or an unknown number of them, is not even computed. With a threshold, it alone and
    the last rule decide. External data in ``folder`` is read only where a small weight is folded. A node that cannot be
    computed stays, and the others are folded all the same.

    Raises BiopsyError if onnxscript is not installed, ModelError if it cannot read the model or its external data.
    """
    optimizer, ir = _load_onnxscript()
    if not how.ignores_weights:
        for tensor in external.external_tensors(model):
            external.span_of(tensor, folder)
    for function in model.functions:  # the optimizer would look for their data in the current folder
        external.load_into(function, folder)
    _require_each_computed_once(model)
    lost = _lost_by_folding(model)
    names = _names_of_nodes(model)
    computed = {name for node in walk.nodes(model) for name in node.output}
    listed = {info.name: info.SerializeToString() for infos in _listings(model) for info in infos}
    try:
        _hide(model, _REWRITTEN if how.shapes else _REWRITTEN | _OF_SHAPES)
        represented = ir.from_proto(model)
        ir.external_data.set_base_dir(represented.graph, folder)
        with _quiet("onnxscript", "onnx_ir"):
            for _ in range(how.passes):
                if not optimizer.fold_constants(represented, **_settings(how)).modified:
                    break
            folded = ir.to_proto(represented)
    except Exception as error:  # whatever a folded operator or the conversion raises
        first = _first_cause(error)
        raise errors.ModelError(f"constants cannot be folded: {type(first).__name__}: {first}") from error
    finally:
        _show_again(model)
    folded.ClearField("opset_import")
    folded.graph.ClearField("input")
    folded.graph.ClearField("output")
    model.CopyFrom(folded)
    model.MergeFrom(lost)
    _show_again(model)
    _restore_names(model, names)
    _drop_folding_notes(model)
    weights = {weight.name for weight in walk.weights(model)} & computed  # those have their type themselves
    _restore_listings(model, {name: info for name, info in listed.items() if name not in weights})
    clean_up(model, functions=False)


def _settings(how: Folding) -> dict[str, Any]:
    limits = {} if how.threshold is None else {"output_size_limit": _MOST_COMPUTED}
    return {"onnx_shape_inference": how.infers, "should_fold": how.may_be_computed, **limits}


_MOST_COMPUTED = 1 << 24
"""Elements of a constant that is computed at all. Over 262,144 it is not kept, but that is seen afterwards only."""

_GROWING = frozenset({
    "AffineGrid", "BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "ConvTranspose", "DFT", "Einsum",
    "Expand", "EyeLike", "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot", "Pad", "Range",
    "Resize", "STFT", "Tile", "Upsample",
})  # fmt: skip
"""Operators whose results may be of any size, whatever is given to them."""


def _may_be_computed(node: Any) -> bool | None:
    """False for a node whose results would fill the memory, or may; None, which means the optimizer's own rules, else.

    ``node`` is one of onnx_ir's, its types inferred.
    """
    for output in node.outputs:
        known = output.shape is not None and all(isinstance(dim, int) for dim in output.shape)
        if known and storage.elements(output.shape) > _MOST_COMPUTED:
            return False
        if not known and node.op_type in _GROWING:
            return False
    return None


def _hide(model: onnx.ModelProto, operators: frozenset[str]) -> None:
    """Take operators that the optimizer is not to touch out of its sight, into a domain that it does not know."""
    model.opset_import.add(domain=_HIDDEN, version=1)
    for node in walk.nodes(model):
        if node.op_type in operators and node.domain in {"", "ai.onnx"}:
            node.domain = f"{_HIDDEN}{node.domain}"


def _show_again(model: onnx.ModelProto) -> None:
    for node in walk.nodes(model):
        if node.domain == _HIDDEN:
            node.ClearField("domain")
        elif node.domain.startswith(_HIDDEN):
            node.domain = node.domain.removeprefix(_HIDDEN)
    _keep(model.opset_import, lambda opset: opset.domain != _HIDDEN)


def _require_each_computed_once(model: onnx.ModelProto) -> None:
    computed: set[str] = set()
    for node in model.graph.node:
        for name in filter(None, node.output):
            if name in computed:
                raise errors.ModelError(f"constants cannot be folded: tensor {name!r} is defined twice")
            computed.add(name)


def _first_cause(error: BaseException) -> BaseException:
    """What the conversion met; what it raises says only in which part of the model."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _lost_by_folding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The parts that folding loses, orders anew or gives half a type, as a model that holds nothing else."""
    if any(graph.sparse_initializer for place, graph in enumerate(walk.graphs(model)) if place):
        raise errors.ModelError("constants cannot be folded: a subgraph holds a sparse initializer")
    lost = type(model)()
    lost.opset_import.extend(model.opset_import)
    lost.training_info.extend(model.training_info)
    lost.graph.input.extend(model.graph.input)
    lost.graph.output.extend(model.graph.output)
    lost.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return lost


def _load_onnxscript() -> tuple[Any, Any]:
    try:
        import onnx_ir
        from onnxscript import optimizer
    except ImportError as error:
        raise errors.BiopsyError(
            "folding constants needs the package onnxscript, which is not installed",
            next_steps=['pip install "biopsy[surgeon]"'],
        ) from error
    return optimizer, onnx_ir


class _quiet:  # noqa: N801  (a context manager, named as it reads)
    """Let named loggers say nothing below errors: what cannot be folded simply stays."""

    def __init__(self, *names: str) -> None:
        self._loggers = [logging.getLogger(name) for name in names]
        self._levels = [logger.level for logger in self._loggers]

    def __enter__(self) -> None:
        for logger in self._loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *exc: object) -> None:
        for logger, level in zip(self._loggers, self._levels, strict=True):
            logger.setLevel(level)


def _names_of_nodes(model: onnx.ModelProto) -> dict[tuple[str, ...], str]:
    return {tuple(node.output): node.name for node in walk.nodes(model)}


def _restore_names(model: onnx.ModelProto, names: Mapping[tuple[str, ...], str]) -> None:
    """The optimizer names nameless nodes; they get back what they had."""
    for node in walk.nodes(model):
        name = names.get(tuple(node.output), node.name)
        if name:
            node.name = name
        else:
            node.ClearField("name")


def _drop_folding_notes(model: onnx.ModelProto) -> None:
    """The optimizer's remarks on what it folded are no part of the user's model."""
    holders: list[Any] = [*walk.nodes(model), *walk.weights(model), *_infos(model)]
    for holder in holders:
        kept = [entry for entry in holder.metadata_props if not entry.key.startswith("pkg.onnxscript.")]
        if len(kept) < len(holder.metadata_props):
            del holder.metadata_props[:]
            holder.metadata_props.extend(kept)


def _listings(model: onnx.ModelProto) -> Iterator[MutableSequence[onnx.ValueInfoProto]]:
    """Every value_info list: of graphs, and of functions."""
    for graph in walk.graphs(model):
        yield graph.value_info
    for function in model.functions:
        yield function.value_info


def _restore_listings(model: onnx.ModelProto, listed: Mapping[str, bytes]) -> None:
    """The optimizer lists whatever it inferred, whole or in part; what the model listed stays, as it was."""
    for infos in _listings(model):
        _keep(infos, lambda info: info.name in listed)
        for info in infos:
            info.ParseFromString(listed[info.name])


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
        _keep(model.functions, lambda function: walk.function_key(function) in used)


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


def _keep(items: MutableSequence[Any], wanted: Callable[[Any], bool]) -> None:
    _keep_places(items, {place for place, item in enumerate(items) if wanted(item)})


def _keep_used_tensors(graph: onnx.GraphProto) -> None:
    ends = {info.name for info in (*graph.input, *graph.output)}
    read = set().union(*(walk.reads(node) for node in graph.node)) | _annotations(graph) | ends
    written = {name for node in graph.node for name in node.output}
    _keep(graph.initializer, lambda weight: weight.name in read)
    _keep(graph.sparse_initializer, lambda weight: weight.values.name in read)
    _keep(graph.value_info, lambda info: info.name in read or info.name in written)
    _keep(graph.quantization_annotation, lambda note: note.tensor_name in read or note.tensor_name in written)


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
