"""A candidate built the plain way, with protobuf objects: what the wire index is held against."""

from collections.abc import Iterator

import onnx
from onnx import GraphProto, ModelProto, NodeProto


def candidate(model: ModelProto, kept: set[int]) -> ModelProto:
    """The model with only the nodes ``kept``; every cut an input, its type taken from value_info where there is one."""
    graph = model.graph
    nodes = [node for number, node in enumerate(graph.node) if number in kept]
    if len(nodes) == len(graph.node):
        return model
    written = {name for node in nodes for name in node.output if name}
    read = [name for node in nodes for name in reads(node)]
    weights = {weight.name for weight in graph.initializer} | {
        weight.values.name for weight in graph.sparse_initializer
    }
    order = first_appearances(graph)
    original_inputs = [info.name for info in graph.input]
    inputs = [name for name in original_inputs if name in read]
    inputs += sorted(
        {name for name in read if name not in written and name not in weights and name not in original_inputs},
        key=order.__getitem__,
    )
    outputs = [info.name for info in graph.output if info.name in written]
    outputs += sorted(ends(graph, nodes, written, set(read), order) - set(outputs), key=order.__getitem__)

    made = ModelProto()
    made.CopyFrom(model)
    del made.training_info[:]
    del made.functions[:]
    made.functions.extend(function for function in model.functions if key_of(function) in called(model, nodes))
    made.graph.ClearField("node")
    made.graph.node.extend(nodes)
    shown = set(inputs) | set(outputs)
    listed = {info.name for info in graph.value_info}
    refill(made.graph.input, [info_of(graph, name) for name in inputs])
    refill(made.graph.output, [info_of(graph, name) for name in outputs])
    inner = sorted((name for name in listed if name in written and name not in shown), key=order.__getitem__)
    refill(made.graph.value_info, [info_of(graph, name) for name in inner])
    needed = set(read) | shown
    for annotation in graph.quantization_annotation:
        if annotation.tensor_name in needed | written:
            needed |= {entry.value for entry in annotation.quant_parameter_tensor_names}
    refill(made.graph.initializer, [weight for weight in graph.initializer if weight.name in needed])
    refill(made.graph.sparse_initializer, [w for w in graph.sparse_initializer if w.values.name in needed])
    present = needed | written
    refill(
        made.graph.quantization_annotation,
        [annotation for annotation in graph.quantization_annotation if annotation.tensor_name in present],
    )
    return made


def refill(field, entries) -> None:
    entries = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
    del field[:]
    field.extend(entries)


def key_of(function) -> tuple[str, str, str]:
    return (function.domain.replace("ai.onnx", ""), function.name, function.overload)


def called(model: ModelProto, nodes: list[NodeProto]) -> set[tuple[str, str, str]]:
    functions = {key_of(function): function for function in model.functions}
    waiting = list(nodes)
    found = set()
    while waiting:
        node = waiting.pop()
        waiting += [inner for body in bodies(node) for inner in body.node]
        key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type, node.overload)
        if key in functions and key not in found:
            found.add(key)
            waiting += list(functions[key].node)
    return found


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def reads(node: NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for body in bodies(node):
        names += outer_names(body)
    return list(dict.fromkeys(names))


def outer_names(graph: GraphProto) -> list[str]:
    own = {info.name for info in graph.input} | {weight.name for weight in graph.initializer}
    own |= {weight.values.name for weight in graph.sparse_initializer} | {""}
    own |= {name for node in graph.node for name in node.output}
    names = [name for node in graph.node for name in reads(node)] + [info.name for info in graph.output]
    return [name for name in dict.fromkeys(names) if name not in own]


def first_appearances(graph: GraphProto) -> dict[str, int]:
    names = [info.name for info in graph.input] + [info.name for info in graph.output]
    names += [info.name for info in graph.value_info]
    for node in graph.node:
        names += [*node.input, *(name for name in reads(node)), *node.output]
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def ends(
    graph: GraphProto, nodes: list[NodeProto], written: set[str], read: set[str], order: dict[str, int]
) -> set[str]:
    used = {name for node in graph.node for name in reads(node)}
    given = {info.name for info in graph.output} & written
    found = {name for name in written - read - given if name in used}
    for node in nodes:
        own = [name for name in node.output if name]
        for name in sorted(own, key=order.__getitem__):
            if name in read or name in given or name in found:
                continue
            if not any(other in found or other in given or other in read for other in own):
                found.add(name)
    return found


def info_of(graph: GraphProto, name: str) -> onnx.ValueInfoProto:
    for field in (graph.input, graph.output, graph.value_info):
        for info in field:
            if info.name == name and info.HasField("type"):
                return info
    return onnx.ValueInfoProto(name=name)
