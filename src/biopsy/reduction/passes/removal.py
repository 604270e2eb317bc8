"""What can be left out: outputs and inputs of the model, and the attributes and optional inputs that operators can
do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from biopsy.model import walk
from biopsy.reduction.passes.contract import Change, ChangeSearch
from biopsy.reduction.passes.editing import (
    Place,
    copied,
    drop_what_died,
    every_node,
    graph_at,
    is_consistent,
    keep_only,
    opsets_of,
    read_in,
    schema_of,
    tell_types_anew,
)
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx


def outputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop outputs by halves, down to one.

    An output that is all that its node is there for stays: to drop it would be to cut the node, which has been tried.
    """
    read = {name for node in model.graph.node for name in walk.reads(node)}
    alone = set()
    for node in model.graph.node:
        used = [name for name in node.output if name]
        if len(used) == 1 and used[0] not in read:
            alone.add(used[0])
    others = [info.name for info in model.graph.output if info.name not in alone]

    def propose(kept: Sequence[str]) -> Change:
        gone = set(others).difference(kept)
        made = copied(model)
        keep_only(made.graph.output, lambda info: info.name not in gone)
        drop_what_died(made, model)
        return Change(made, f"{len(made.graph.output)} of {len(model.graph.output)} outputs")

    yield from minimize_subset(others, propose, at_least_one=len(others) == len(model.graph.output))


def inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Drop the inputs that nothing reads, all at once, then by halves; an initializer of that name goes too."""
    read = read_in(model.graph)
    unused = [info.name for info in model.graph.input if info.name not in read]

    def propose(kept: Sequence[str]) -> Change:
        gone = set(unused).difference(kept)
        made = copied(model)
        keep_only(made.graph.input, lambda info: info.name not in gone)
        keep_only(made.graph.initializer, lambda weight: weight.name not in gone)
        keep_only(made.graph.sparse_initializer, lambda weight: weight.values.name not in gone)
        return Change(made, f"without {len(gone)} of {len(model.graph.input)} inputs")

    yield from minimize_subset(unused, propose)


def attributes(model: onnx.ModelProto) -> ChangeSearch:
    """Remove every attribute that has a default or may be missing, all at once, then by halves.

    That is what the schema does not require, or does not know; bodies stay.
    """
    opsets = opsets_of(model)
    removable: list[tuple[Place, int, str]] = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        for attribute in node.attribute if schema is not None else ():
            known = schema.attributes.get(attribute.name) if schema is not None else None
            has_body = attribute.HasField("g") or attribute.graphs
            if not has_body and (known is None or not known.required):
                removable.append((place, number, attribute.name))

    def without(model: onnx.ModelProto, gone: Sequence[tuple[Place, int, str]]) -> onnx.ModelProto:
        made = copied(model)
        for place, number, name in gone:
            node = graph_at(made, place).node[number]
            keep_only(node.attribute, lambda entry: entry.name != name)  # noqa: B023 -- at once
        tell_types_anew(made)
        return made

    yield from propose_removals(model, removable, without, "attributes")


def optional_inputs(model: onnx.ModelProto) -> ChangeSearch:
    """Leave out every optional input at once, then by halves; trailing ones vanish, others become ''."""
    from onnx import defs

    opsets = opsets_of(model)
    optional: list[tuple[Place, int, int]] = []
    for place, number, node in every_node(model):
        schema = schema_of(node, opsets)
        if schema is None or any(True for _ in walk.bodies(node)):
            continue  # to leave out a Loop's trip count or condition changes more than an input
        for position, name in enumerate(node.input):
            kind = schema.inputs[position].option if position < len(schema.inputs) else None
            if name and kind == defs.OpSchema.FormalParameterOption.Optional:
                optional.append((place, number, position))

    def without(model: onnx.ModelProto, gone: Sequence[tuple[Place, int, int]]) -> onnx.ModelProto:
        made = copied(model)
        for place, number, position in gone:
            graph_at(made, place).node[number].input[position] = ""
        for place, number, _ in gone:
            inputs = graph_at(made, place).node[number].input
            while inputs and not inputs[-1]:
                del inputs[-1]
        drop_what_died(made, model)
        tell_types_anew(made)
        return made

    yield from propose_removals(model, optional, without, "optional inputs of nodes")


# The search that passes share which leave parts of nodes out: all that can go at once, then by halves.

Item = TypeVar("Item")


def propose_removals(
    model: onnx.ModelProto,
    items: Sequence[Item],
    without: Callable[[onnx.ModelProto, Sequence[Item]], onnx.ModelProto],
    what: str,
) -> ChangeSearch:
    """Propose ``without(model, some of items)``; what shape inference refutes by itself is never proposed.

    A model that inference refutes as it is tells nothing, and then nothing is held back.
    """
    able = list(items)
    if is_consistent(model):
        able = [item for item in able if is_consistent(without(model, [item]))]

    def propose(kept: Sequence[Item]) -> Change:
        gone = [item for item in able if item not in kept]
        return Change(without(model, gone), f"without {len(gone)} of {len(able)} {what}")

    yield from minimize_subset(able, propose)
