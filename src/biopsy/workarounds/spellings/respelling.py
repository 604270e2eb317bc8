"""A node of a model written in another spelling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.passes.editing import copied, described, keep_only
from biopsy.reduction.passes.schemas import opsets_of
from biopsy.workarounds.patch import Patch
from biopsy.workarounds.scope import Scope, scope_at, scope_of
from biopsy.workarounds.spellings.site import Site, Unmatched
from biopsy.workarounds.spellings.spelling import Spelling

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a node stands: the bodies around it, as ``scope.scope_at`` takes them, and its first output."""

    path: tuple[tuple[str, str], ...]
    output: str


def respellings(
    model: onnx.ModelProto, nodes: Sequence[int], by_operator: Mapping[tuple[str, str], Sequence[Spelling]]
) -> Iterator[Patch]:
    """The other spellings of some nodes of the main graph and of the nodes in their bodies, node by node.

    Those in the bodies of model-local functions are not looked at: their types are those of each call.
    """
    local = {(function.domain, function.name) for function in model.functions}
    main = scope_of(model)
    for number in nodes:
        for scope, place, path in _sites(main, number, ()):
            node = scope.graph.node[place]
            domain = walk.operator(node)[0]
            output = next((name for name in node.output if name), "")
            if not output or (domain, node.op_type) in local:
                continue
            for spelling in by_operator.get((domain, node.op_type), ()):
                site = Site(scope, place)
                if drafted(spelling, site) is not None:
                    site.forget()
                    yield _patch(spelling, node, number, Place(path=path, output=output))


def _sites(scope: Scope, place: int, path: tuple[tuple[str, str], ...]) -> Iterator[tuple[Scope, int, tuple[tuple[str, str], ...]]]:
    yield scope, place, path
    node = scope.graph.node[place]
    output = next((name for name in node.output if name), "")
    for attribute, body in scope.bodies_of(place):
        for inner in range(len(body.graph.node)):
            yield from _sites(body, inner, (*path, (output, attribute)))


def _patch(spelling: Spelling, node: onnx.NodeProto, number: int, place: Place) -> Patch:
    return Patch(
        kind="spelling",
        name=spelling.name,
        text=f"{described(node)} (writes {place.output!r}): {spelling.matches} written as {spelling.writes}",
        cost=spelling.cost,
        exact=spelling.exact,
        nodes=(number,),
        change=lambda model: respelled(model, [(place, spelling)]),
    )


def drafted(spelling: Spelling, site: Site) -> list[str] | None:
    """Write a spelling at a site; the tensors that stand for the outputs of the node, None where it does not hold."""
    if site.opset < spelling.least_opset:
        return None
    try:
        found = spelling.draft(site)
    except Unmatched:
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
        if (walk.operator(site.node)[0], site.node.op_type) not in {(spelling.domain, each) for each in spelling.operators}:
            return None
        results = drafted(spelling, site)
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
