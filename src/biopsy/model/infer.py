"""Infers types and shapes of tensors by onnx, also for other input shapes, and asks onnx whether a model is valid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from biopsy import errors
from biopsy.model import onnx_native, parts, walk
from biopsy.model.external import VALUE_FIELDS
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import no_such_input
from biopsy.model.load import parse
from biopsy.model.slice import without_weights as slice_without_weights
from biopsy.model.stripping import is_stripped
from biopsy.model.tensor_type import FLOATS, Dim, Shape, TensorType, elements
from biopsy.slow_imports import onnx

_MOST_ELEMENTS = 1024
"""A larger tensor is not a shape, axes or scales, so inference does not need its values."""


def infer_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The known types of tensors in the model's graph: declared, stored or inferred.

    Sequences, optionals, maps, tensors of unknown element type and tensors inside subgraphs are left out. Never raises:
    what cannot be inferred is missing.
    """
    infos = infer_value_infos(without_weights(model).SerializeToString())
    kinds = {name: parts.tensor_type(info) for name, info in infos.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None and kind.elem}


def inferred_outputs(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The types of a model's outputs that inference alone gives, whatever is declared for them and for inner tensors.

    Never raises: what cannot be inferred is missing.
    """
    bare = without_weights(model)
    del bare.graph.value_info[:]
    for info in bare.graph.output:
        info.ClearField("type")
    types = infer_types(bare)
    return {info.name: types[info.name] for info in bare.graph.output if info.name in types}


def has_floats(data: bytes) -> bool:
    """Whether a serialized model may compute with floating-point numbers: unless the types of all tensors are known
    to be others.
    """
    model = parse(data, None)
    kinds = infer_types(model)
    names = {*kinds, *(name for node in walk.nodes(model) for name in (*node.input, *node.output) if name)}
    return any(name not in kinds or kinds[name].elem in FLOATS for name in names)


def infer_value_infos(model_bytes_without_weights: bytes, *, backward: bool = False) -> dict[str, bytes]:
    """A serialized ValueInfoProto for every tensor of the graph whose type, of any kind, is declared or inferred.

    ``model_bytes_without_weights`` is a serialized ModelProto, best without large weights (``without_weights``).
    With ``backward``, the nodes that read a tensor are asked too. Never raises: if inference fails, the declared types
    are returned.
    """
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(model_bytes_without_weights)
    except DecodeError:
        return {}
    model = onnx_native.inferred(model).model
    graph = (_inferred_backward(model) if backward else model).graph
    known = {
        weight.name: onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
        for weight in graph.initializer
    }
    for infos in (graph.value_info, graph.output, graph.input):
        known.update((info.name, info) for info in infos if info.type.WhichOneof("value"))
    return {name: info.SerializeToString() for name, info in known.items() if name}


_MOST_ROUNDS = 8
"""What is found backward may tell more forward, and that more backward, as between custom operators in a row."""

_HIGHEST_RANK = 8


def _inferred_backward(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that onnx has inferred, with the types that only the readers of a tensor tell.

    Nothing is guessed: an element type or a rank is known if all others contradict an operator or another type.
    """
    for _ in range(_MOST_ROUNDS):
        known = _Types.of(model)
        if all(known.has_rank(name) for node in model.graph.node for name in node.output if name):
            break
        found = onnx_native.made_in_fork(model, known.found_backward)
        if found is None:
            break
        model = onnx_native.inferred(found).model
    return model


@dataclass(frozen=True, kw_only=True)
class _Types:
    """The known types of a model's tensors by name, and the nodes whose operators onnx defines."""

    model: onnx.ModelProto
    types: dict[str, onnx.TypeProto]
    nodes: list[tuple[onnx.NodeProto, onnx.defs.OpSchema]]
    values: dict[str, onnx.TensorProto]
    """Those of small weights, which may be shapes or axes."""
    answers: dict[object, onnx.TypeProto | None] = field(default_factory=dict)
    """What was found for the input of a node before, by all that decides it."""

    @classmethod
    def of(cls, model: onnx.ModelProto) -> _Types:
        graph = model.graph
        types = {w.name: onnx.helper.make_tensor_type_proto(w.data_type, list(w.dims)) for w in graph.initializer}
        infos = (*graph.value_info, *graph.output, *graph.input)
        types.update((info.name, info.type) for info in infos if info.type.WhichOneof("value"))
        versions = {entry.domain.removeprefix("ai.onnx") or "": entry.version for entry in model.opset_import}
        local = {walk.function_key(function)[:2] for function in model.functions}
        nodes = []
        for node in graph.node:
            domain, name, _ = walk.operator(node)
            version = versions.get(domain.removeprefix("ai.onnx"))
            schema = None if version is None or (domain, name) in local else walk.schema_of(name, version, domain)
            if schema is not None:
                nodes.append((node, schema))
        values = {weight.name: weight for weight in graph.initializer if _is_small(weight)}
        return cls(model=model, types=types, nodes=nodes, values=values)

    def has_rank(self, name: str) -> bool:
        """Whether a type is complete, apart from sizes."""
        kind = self.types.get(name)
        if kind is None or not kind.HasField("tensor_type"):
            return kind is not None
        return kind.tensor_type.elem_type > 0 and kind.tensor_type.HasField("shape")

    def found_backward(self) -> onnx.ModelProto | None:
        """The model with all types that one way back through it finds; None if it finds nothing."""
        found: dict[str, onnx.TypeProto] = {}
        for name, text in self._single_types().items():
            if name not in self.types:
                elem = onnx.TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper())
                found[name] = self.types[name] = onnx.helper.make_tensor_type_proto(elem, None)
        for node, schema in reversed(self.nodes):
            unknown = {name for name in node.input if name and not self.has_rank(name)}
            name = next(iter(unknown), "")
            # With two of unknown rank, each may have several.
            if len(unknown) == 1 and name in self.types and not any(walk.bodies(node)):
                ranked = self._ranked(node, schema, name)
                if ranked is not None:
                    found[name] = self.types[name] = ranked
        if not found:
            return None
        made = type(self.model)()
        made.CopyFrom(self.model)
        for info in (*made.graph.value_info, *made.graph.output, *made.graph.input):
            if info.name in found:
                info.type.CopyFrom(found.pop(info.name))
        made.graph.value_info.extend(onnx.helper.make_value_info(name, kind) for name, kind in found.items())
        return made

    def _single_types(self) -> dict[str, str]:
        """The tensors for which all nodes together allow a single type, such as ``tensor(float)``.

        The tensors of a type variable of a node have the same type.
        """
        leaders: dict[object, object] = {}
        allowed: dict[object, frozenset[str]] = {}

        def leader(item: object) -> object:
            while (above := leaders.setdefault(item, item)) != item:
                leaders[item] = leaders[above]
                item = leaders[item]
            return item

        def restrict(item: object, types: Iterable[str]) -> None:
            allowed[leader(item)] = allowed.get(leader(item), frozenset(types)) & frozenset(types)

        for name, kind in self.types.items():
            elem = kind.tensor_type.elem_type if kind.HasField("tensor_type") else 0
            restrict(name, [f"tensor({onnx.TensorProto.DataType.Name(elem).lower()})"] if elem else [])
        for number, (node, schema) in enumerate(self.nodes):
            variables = {constraint.type_param_str for constraint in schema.type_constraints}
            for name, formal in (*_uses(node.input, schema.inputs), *_uses(node.output, schema.outputs)):
                restrict(name, formal.types)
                one, other = leader(name), leader((number, formal.type_str))
                if formal.type_str in variables and formal.is_homogeneous and one != other:
                    restrict(one, allowed.get(other, allowed[one]))
                    leaders[other] = one
        tensors = [name for node in self.model.graph.node for name in (*node.input, *node.output) if name in leaders]
        single = {name: next(iter(types)) for name in tensors if len(types := allowed[leader(name)]) == 1}
        return {name: text for name, text in single.items() if text.startswith("tensor(")}

    def _ranked(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema, name: str) -> onnx.TypeProto | None:
        """The type of a node's input with its rank, and with the sizes that its outputs tell; None if several fit."""
        elem = self.types[name].tensor_type.elem_type
        numbers = {each: f"t{number}" for number, each in enumerate(dict.fromkeys((*node.input, *node.output))) if each}
        like = type(node)(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        like.input.extend(numbers.get(each, "") for each in node.input)
        like.output.extend(numbers.get(each, "") for each in node.output)
        around = {new: self.types[old] for old, new in numbers.items() if old != name and old in self.types}
        values = {new: self.values[old] for old, new in numbers.items() if old in self.values}
        parts = (like, *around.values(), *values.values())
        key = numbers[name], elem, tuple(around), tuple(part.SerializeToString() for part in parts)
        if key not in self.answers:
            fitting = []
            for rank in range(_HIGHEST_RANK + 1):
                sizes: list[str | int | None] = [f"{_SIZE}{place}" for place in range(rank)]
                given = around | {numbers[name]: onnx.helper.make_tensor_type_proto(elem, sizes)}
                outputs = onnx_native.outputs_of(schema, like, given, values, self.model.opset_import)
                told = None if outputs is None else _sizes_told(outputs, around)
                if told is not None:
                    fitting.append(onnx.helper.make_tensor_type_proto(elem, [told.get(str(size)) for size in sizes]))
                if len(fitting) > 1:
                    break
            self.answers[key] = fitting[0] if len(fitting) == 1 else None
        return self.answers[key]


def _uses(
    names: Iterable[str], formals: Sequence[onnx.defs.OpSchema.FormalParameter]
) -> Iterator[tuple[str, onnx.defs.OpSchema.FormalParameter]]:
    """The tensors that a node reads or writes, each with its parameter; the last parameter may stand for several."""
    return ((name, formals[min(place, len(formals) - 1)]) for place, name in enumerate(names) if name and formals)


_SIZE = "biopsy.size."


def _sizes_told(
    outputs: Mapping[str, onnx.TypeProto], known: Mapping[str, onnx.TypeProto]
) -> dict[str, str | int] | None:
    """What each named size in the types of a node's outputs must be by their known types; None if they contradict."""
    told: dict[str, str | int] = {}
    for name, kind in outputs.items():
        if name not in known or not (kind.tensor_type.HasField("shape") and known[name].tensor_type.HasField("shape")):
            continue
        one, other = kind.tensor_type.shape.dim, known[name].tensor_type.shape.dim
        if len(one) != len(other):
            return None
        for new, old in zip(one, other, strict=True):
            size = old.dim_value if old.HasField("dim_value") else old.dim_param
            if new.HasField("dim_value") and old.HasField("dim_value") and new.dim_value != old.dim_value:
                return None
            if new.dim_param.startswith(_SIZE) and size and told.setdefault(new.dim_param, size) != size:
                return None
    return told


def type_untyped_outputs(model: onnx.ModelProto) -> None:
    """Give untyped outputs of the model, which ONNX does not allow, the inferred types. Never raises."""
    untyped = {info.name for info in model.graph.output if not info.type.WhichOneof("value")}
    if untyped:
        type_outputs(model, untyped)


def type_outputs(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Give outputs of the model the types inferred from its nodes; without one, an output stays. Never raises."""
    untyped = without_weights(model)
    for info in untyped.graph.output:
        if info.name in names:
            info.ClearField("type")
    infos = infer_value_infos(untyped.SerializeToString())
    for info in model.graph.output:
        if info.name in names and info.name in infos:
            info.type.CopyFrom(type(info).FromString(infos[info.name]).type)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model for inference only: each large or external initializer becomes an input of the same type.

    So does each sparse one: to onnx's inference, it would be of a type that no operator takes.
    Large tensors inside subgraphs and attributes keep type and shape and lose their values. Large weights are never
    copied.
    """
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.producer_name)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(onnx_native.bounded_functions(model))
    graph = light.graph
    graph.name = model.graph.name or "graph"
    for node in model.graph.node:
        graph.node.append(node)
        _empty_node(graph.node[-1])
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    inputs = {info.name for info in graph.input}
    graph.input.extend(
        onnx.helper.make_tensor_value_info(weight.values.name, weight.values.data_type, list(weight.dims))
        for weight in model.graph.sparse_initializer
        if weight.values.name not in inputs
    )
    for weight in model.graph.initializer:
        if _is_small(weight):
            graph.initializer.append(weight)
        elif weight.name not in inputs:
            graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    return light


def _is_small(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == 0 and elements(tensor.dims) <= _MOST_ELEMENTS


def _empty_node(node: onnx.NodeProto) -> None:
    """Remove the values of large tensors, marking them as external: to ONNX, their values are then elsewhere."""
    inner = [weight for body in walk.graphs_within([node]) for weight in body.initializer]
    attributes = (attribute for each in walk.nodes_within([node]) for attribute in each.attribute)
    for tensor in (*inner, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
        if not _is_small(tensor):
            for field in VALUE_FIELDS:
                tensor.ClearField(field)
            tensor.data_location = 1  # type: ignore[assignment]


_HEAD = "[ShapeInferenceError] Inference error(s): "
_UNKNOWN = "biopsy.unknown"
"""The domain to which operators are moved that onnx does not know."""


def judged_form(model: onnx.ModelProto, filled: Collection[str] = ()) -> onnx.ModelProto:
    """A copy of a model for ``checker_objection`` and ``inference_objection``.

    What onnx cannot know must be no objection, so large weights and those named in ``filled``, which get their values
    later, become inputs, and unknown operators get another domain.
    """
    light = without_weights(model)
    valueless = {*filled, *(weight.name for weight in model.graph.initializer if is_stripped(weight))}
    kept = [weight for weight in light.graph.initializer if weight.name not in valueless]
    if len(kept) < len(light.graph.initializer):
        fed = {info.name for info in light.graph.input}
        light.graph.input.extend(
            onnx.helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims))
            for weight in light.graph.initializer
            if weight.name in valueless - fed
        )
        del light.graph.initializer[:]
        light.graph.initializer.extend(kept)
    unknown = [node for node in walk.nodes(light) if is_unknown(node)]
    for node in unknown:
        node.domain = _UNKNOWN
    if unknown:
        light.opset_import.add(domain=_UNKNOWN, version=1)
        for function in light.functions:
            function.opset_import.add(domain=_UNKNOWN, version=1)
    return light


def checker_objection(light: onnx.ModelProto) -> str | None:
    """Why onnx.checker refuses a model, in one line; None if it accepts it."""
    shaped = type(light).FromString(light.SerializeToString())
    for graph in walk.graphs(shaped):
        for info in (*graph.input, *graph.output):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.shape.SetInParent()  # the checker demands a shape, engines do not
    return _in_one_line(onnx_native.checker_objection(shaped))


def inference_objection(light: onnx.ModelProto) -> str | None:
    """Which types or shapes are contradictory, in one line; None if strict shape inference accepts the model."""
    return _in_one_line(onnx_native.inferred(light, strict=True).objection)


def _in_one_line(objection: str | None) -> str | None:
    return None if objection is None else " ".join(objection.split()).removeprefix(_HEAD)[:500]


def is_unknown(node: onnx.NodeProto) -> bool:
    """Whether a node's operator is in ONNX's domain but unknown to onnx."""
    return node.domain in {"", "ai.onnx"} and not onnx.defs.has(node.op_type)


def has_unknown(light: onnx.ModelProto) -> bool:
    """Whether onnx does not know all operators of a model; its shape inference then objects to nothing."""
    local = {walk.function_key(function)[:2] for function in light.functions}
    operators = ((node.domain, node.op_type) for node in walk.nodes(light))
    return any((domain, op_type) not in local and not onnx.defs.has(op_type, domain) for domain, op_type in operators)


def override_input_shapes(
    index: ModelIndex, shapes: Mapping[str, Shape], option: str = "--model-input-shapes"
) -> frozenset[int]:
    """Give graph inputs other shapes, and update the declared shapes of the tensors computed from them.

    A symbol that gets a size in an input gets it in all these tensors. An inferred size replaces a declared one. A
    declared size that cannot be inferred stays, unless an input contradicts one of its own declared sizes: then it is
    left open.

    Returns the tensors whose sizes were all declared and are now open, if all inputs are static: only a run can find
    them. Raises DoesNotFit, naming ``option``, for a name that is not an input, and for shapes with which strict shape
    inference refuses a model that it accepted before.
    """
    if not shapes:
        return frozenset()
    before = _objection(index)
    sizes: dict[str, Dim] = {}
    contradicted = False
    for name, shape in shapes.items():
        tensor = index.ids.get(name)
        if tensor is None or tensor not in index.inputs:
            raise no_such_input(option, name, [index.names[known] for known in index.fed_inputs()])
        declared = index.tensor_type(tensor)
        if declared is None:
            raise errors.DoesNotFit(f"{option}: the input {name!r} is not a tensor: it has no shape to set")
        index.infos[tensor] = parts.value_info(name, TensorType(declared.elem, shape))
        contradicted |= _bind(declared.shape, shape, sizes)
    stale = _shaped_by(index, [index.ids[name] for name in shapes])
    inferred = infer_value_infos(slice_without_weights(undeclared(index, stale)))
    opened = set()
    for tensor, kind in stale.items():
        info = inferred.get(index.names[tensor])
        new = parts.tensor_type(info) if info is not None else None
        shape = _merged(kind.shape or (), None if new is None else new.shape, sizes, doubtful=contradicted)
        if shape != kind.shape:
            updated = TensorType(kind.elem, shape)
            index.infos[tensor] = parts.value_info(index.names[tensor], updated)
            if kind.is_static and not updated.is_static:
                opened.add(tensor)
    objection = _objection(index) if before is None else None
    if objection is not None:
        raise errors.DoesNotFit(
            f"{option}: the model cannot have these shapes: {objection}",
            next_steps=[f"give {option} sizes that the operators can work with"],
        )
    fed = (index.tensor_type(tensor) for tensor in index.fed_inputs())
    return frozenset(opened) if all(kind is not None and kind.is_static for kind in fed) else frozenset()


def _objection(index: ModelIndex) -> str | None:
    """The objection of strict shape inference to a model; None if it accepts it."""
    return inference_objection(judged_form(parse(slice_without_weights(index), index.path)))


def undeclared(index: ModelIndex, tensors: Iterable[int]) -> ModelIndex:
    """The same model without the declared shapes of some tensors; their element types stay."""
    infos = dict(index.infos)
    for tensor in tensors:
        kind = parts.tensor_type(infos[tensor])
        if kind is not None:
            infos[tensor] = parts.value_info(index.names[tensor], TensorType(kind.elem, None))
    return replace(index, infos=infos)


def _bind(declared: Shape | None, given: Shape, sizes: dict[str, Dim]) -> bool:
    """Add the size of each symbol to ``sizes``, None for several; True if a declared size or rank is contradicted."""
    if declared is None or len(declared) != len(given):
        return declared is not None
    for old, new in zip(declared, given, strict=True):
        if isinstance(old, str):
            sizes[old] = new if sizes.get(old, new) == new else None
    return any(isinstance(old, int) and old != new for old, new in zip(declared, given, strict=True))


def _shaped_by(index: ModelIndex, inputs: Iterable[int]) -> dict[int, TensorType]:
    """The tensors that depend on these inputs and have a declared shape, with their types."""

    def readers(tensors: Iterable[int]) -> Iterator[int]:
        return (node for tensor in tensors for node in index.consumers.get(tensor, ()))

    nodes = walk.reached(readers(inputs), lambda node: readers(index.node_writes[node]))
    behind = [tensor for tensor in sorted(index.infos) if index.producer.get(tensor) in nodes]
    kinds = {tensor: parts.tensor_type(index.infos[tensor]) for tensor in behind}
    return {tensor: kind for tensor, kind in kinds.items() if kind is not None and kind.shape is not None}


def _merged(declared: Shape, inferred: Shape | None, sizes: Mapping[str, Dim], *, doubtful: bool) -> Shape:
    """A declared and an inferred shape in one; if ``doubtful``, a declared size counts only if it was inferred."""
    known = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in declared]
    if inferred is not None and len(inferred) != len(known):
        return inferred
    return tuple(
        new if isinstance(new, int) or old is None or (doubtful and isinstance(old, int)) else old
        for old, new in zip(known, inferred or (None,) * len(known), strict=True)
    )
