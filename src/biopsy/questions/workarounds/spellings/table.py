"""All spellings, those that hold at given nodes of a model, and the nodes written in another spelling where that is
valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import onnx_native, parts, walk
from biopsy.model.tensor_type import TensorType
from biopsy.questions.workarounds.patch import Patch, PatchKind
from biopsy.questions.workarounds.spellings import (
    activations,
    arithmetic,
    definitions,
    layouts,
    normalization,
    products,
    reductions,
)
from biopsy.questions.workarounds.spellings.definitions import calls_as_nodes
from biopsy.questions.workarounds.spellings.site import Scope, Site, Spelling, Unmatched, scope_at, scope_of
from biopsy.reduction.passes.editing import copied, described, keep_only

if TYPE_CHECKING:
    import onnx

FAMILIES: dict[str, tuple[Spelling, ...]] = {
    "Normalization": normalization.SPELLINGS,
    "Softmax": normalization.SOFTMAX_SPELLINGS,
    "Reductions and the pools that are reductions": reductions.SPELLINGS,
    "Activations": activations.SPELLINGS,
    "Clip, Max and Min": arithmetic.CLAMPING_SPELLINGS,
    "Products of matrices": products.SPELLINGS,
    "Convolutions and pools": products.CONVOLUTIONS_SPELLINGS,
    "Arithmetic, comparisons and choices": arithmetic.SPELLINGS,
    "Operators that only move elements": layouts.SPELLINGS,
    "Operators of com.microsoft": definitions.CONTRIBUTED_SPELLINGS,
    "Operators that the standard defines by others": definitions.SPELLINGS,
}
"""Every spelling, by the title of its family."""

SPELLINGS: tuple[Spelling, ...] = tuple(chain.from_iterable(FAMILIES.values()))


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """The other spellings of nodes of the main graph, given by their places, and of what stands in their bodies.

    Exact ones first, then in the order of the table. A call of a local function has its nodes for another spelling.
    """
    found = [*respellings(model, nodes, SPELLINGS), *calls_as_nodes(model, nodes)]
    return sorted(found, key=lambda patch: not patch.exact)


# A node of a model written in another spelling.

_OF_A_DAMAGED_MODEL = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a draft may run into where attributes have other types than they should, axes are out of range, and so on."""

Path: TypeAlias = "tuple[tuple[str, str], ...]"
"""Bodies, outer ones first, each by an output of its node and the attribute that holds it."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a node stands: the bodies around it, as ``scope.scope_at`` takes them, and its first output."""

    path: Path
    output: str


def respellings(
    model: onnx.ModelProto, nodes: Sequence[int], table: Sequence[Spelling], kind: PatchKind = "spelling"
) -> Iterator[Patch]:
    """What of a table holds at some nodes of the main graph and at the nodes in their bodies, node by node.

    Calls of model-local functions and nodes in these are passed over.
    """
    local = {walk.function_key(function) for function in model.functions}
    main = scope_of(model)
    for number in nodes:
        for scope, place, path in _sites(main, number, ()):
            node = scope.graph.node[place]
            output = next((name for name in node.output if name), "")
            if not output or walk.operator(node) in local:
                continue
            for spelling in table:
                if _holds(spelling, scope, place):
                    yield _patch(spelling, kind, node, number, Place(path=path, output=output))


def _holds(spelling: Spelling, scope: Scope, place: int) -> bool:
    node = scope.graph.node[place]
    if not spelling.may_stand_at(walk.operator(node)[0], node.op_type):
        return False
    site = Site(scope, place)
    found = drafted(spelling, site)
    site.forget()
    return found is not None and is_valid(site, found)


def _sites(scope: Scope, place: int, path: Path) -> Iterator[tuple[Scope, int, Path]]:
    yield scope, place, path
    output = next((name for name in scope.graph.node[place].output if name), "")
    for attribute, body in scope.bodies_of(place):
        for inner in range(len(body.graph.node)):
            yield from _sites(body, inner, (*path, (output, attribute)))


def _patch(spelling: Spelling, kind: PatchKind, node: onnx.NodeProto, number: int, place: Place) -> Patch:
    name = f"{described(node)} (writes {place.output!r})"
    return Patch(
        kind=kind,
        name=spelling.name,
        text=f"{name} written as {spelling.writes}" if kind == "spelling" else f"{name}: {spelling.writes}",
        cost=spelling.cost,
        exact=spelling.exact,
        nodes=(number,),
        change=lambda model: respelled(model, [(place, spelling)]),
        holds=spelling.limits,
    )


def drafted(spelling: Spelling, site: Site) -> list[str] | None:
    """Write a spelling at a site; the tensors that stand for the outputs of the node, None where it does not hold."""
    if site.opset < spelling.least_opset:
        return None
    try:
        found = spelling.draft(site)
    except (Unmatched, *_OF_A_DAMAGED_MODEL):
        site.forget()
        return None
    results = [found] if isinstance(found, str) else list(found)
    wanted = [name for name in site.node.output[len(results) :] if name]
    return None if wanted or not results else results


def respelled(model: onnx.ModelProto, chosen: Iterable[tuple[Place, Spelling]]) -> onnx.ModelProto | None:
    """A copy of a model with nodes in other spellings; None if one of them is not there, or no more as it was."""
    made = copied(model)
    for place, spelling in chosen:
        scope = scope_at(made, place.path)
        number = scope.producers.get(place.output) if scope is not None else None
        if scope is None or number is None:
            return None
        site = Site(scope, number)
        fits = spelling.may_stand_at(walk.operator(site.node)[0], site.node.op_type)
        results = drafted(spelling, site) if fits else None
        if results is None:
            return None
        _replace(site, results)
    return made


def _replace(site: Site, results: Sequence[str]) -> None:
    """Put what was written in the place of a node; what it had absorbed goes where nothing else reads it."""
    graph, names = site.scope.graph, {}
    own = {name for node in site.written for name in node.output}
    for wanted, found in zip(site.node.output, results, strict=False):
        if wanted and found in own and found not in names:
            names[found] = wanted
        elif wanted:
            _identity(site, found, wanted)
    for node in site.written:
        for field in (node.input, node.output):
            for at, name in enumerate(field):
                field[at] = names.get(name, name)
    gone = _unread(site)
    lost = {name for place in gone for name in graph.node[place].output} - set(site.node.output)
    _set_nodes(graph, site, gone)
    keep_only(graph.value_info, lambda info: info.name not in lost)


def _identity(site: Site, source: str, target: str) -> None:
    from onnx import helper

    site.written.append(helper.make_node("Identity", [source], [target]))


def _unread(site: Site) -> set[int]:
    """The absorbed nodes, without those that something else still reads."""
    gone, scope = set(site.absorbed), site.scope
    written = {name for node in site.written for name in node.input}
    while True:
        kept = {
            place
            for place in gone - {site.place}
            if any(scope.readers.get(name, set()) - gone or name in written for name in scope.graph.node[place].output)
        }
        if not kept:
            return gone
        gone -= kept


def _set_nodes(graph: onnx.GraphProto, site: Site, gone: set[int]) -> None:
    nodes = []
    for place, node in enumerate(graph.node):
        if place == site.place:
            nodes += site.written
        elif place not in gone:
            nodes.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


# Whether the nodes of a spelling are valid where they are to stand: their types, and the shapes of what they give.


def is_valid(site: Site, results: Sequence[str]) -> bool:
    """Whether onnx accepts what was written, and infers no other types for the results than the node gives.

    Where the types of tensors around the node are not known, what was written is believed.
    """
    model = _alone(site, results)
    if model is None:
        return True
    told = onnx_native.inferred(model, strict=True)
    if told.objection is not None:
        return False
    kinds = {info.name: parts.tensor_type(info.SerializeToString()) for info in told.model.graph.output}
    pairs = zip(site.node.output, results, strict=False)
    return all(_agree(site.scope.type_of(wanted), kinds.get(found)) for wanted, found in pairs if wanted)


def _alone(site: Site, results: Sequence[str]) -> onnx.ModelProto | None:
    """A model of what was written; None where the type of something that it reads is not known."""
    from onnx import helper

    own = {name for node in site.written for name in node.output}
    read = dict.fromkeys(name for node in site.written for name in node.input if name and name not in own)
    kinds = {name: site.scope.type_of(name) for name in read}
    inputs = []
    for name, kind in kinds.items():
        if kind is None:
            return None
        value = site.scope.own_constants.get(name)
        if value is None:
            shape = None if kind.shape is None else list(kind.shape)
            inputs.append(helper.make_tensor_value_info(name, kind.elem, shape))
    weights = [_named(site.scope.own_constants[name], name) for name in read if name in site.scope.own_constants]
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(results) if name in own]
    opsets = [helper.make_opsetid(domain, version) for domain, version in site.scope.opsets.items()]
    graph = helper.make_graph(site.written, "alone", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=opsets)


def _named(weight: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = type(weight).FromString(weight.SerializeToString())
    copy.name = name
    return copy


def _agree(one: TensorType | None, other: TensorType | None) -> bool:
    """Whether two types may be those of one tensor, as far as they are known."""
    if one is None or other is None:
        return True
    if one.elem != other.elem:
        return False
    if one.shape is None or other.shape is None:
        return True
    pairs = zip(one.shape, other.shape, strict=False)
    known = ((a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return len(one.shape) == len(other.shape) and all(a == b for a, b in known)
