"""The table of spellings, and patches that write nodes of a model in another spelling."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx import helper

from biopsy.model import onnx_native, parts, walk
from biopsy.model.tensor_type import TensorType
from biopsy.questions.workarounds.question import Patch, PatchKind
from biopsy.questions.workarounds.spellings import definitions, elementwise, layers, tensors
from biopsy.questions.workarounds.spellings.site import (
    OUTSIDE,
    Draft,
    Names,
    NodePattern,
    Scope,
    Site,
    Unmatched,
    scope_at,
    scope_of,
)
from biopsy.reduction.passes.common import copied, described, rename
from biopsy.text import series

_FILE = Path(__file__).parent / "spellings.toml"

_DRAFTS = elementwise.DRAFTS | layers.DRAFTS | tensors.DRAFTS | definitions.DRAFTS

_ALL_VALUES = re.compile(r"all values(;|$)")


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """An entry of the table, whose form is explained at the top of the file.

    ``operators`` are those of the node that is replaced. ``matches``, ``writes`` and ``cost`` are descriptions.
    ``exact``: the results are the same bit for bit, also for NaN, infinities, negative zero and integers that wrap;
    otherwise ``holds`` says for which values they are equal except for rounding. ``pattern`` is None if the ``draft``
    looks at the node itself.
    """

    name: str
    operators: tuple[str, ...]
    matches: str
    writes: str
    draft: Draft
    cost: str
    exact: bool
    holds: str
    least_opset: int
    domain: str
    pattern: NodePattern | None

    @property
    def limits(self) -> str:
        """The values for which it holds; empty if it holds for all, except for rounding."""
        return "" if self.exact or _ALL_VALUES.match(self.holds) else self.holds


def _spelling(entry: Mapping[str, Any]) -> Spelling:
    name, domain, text = entry["name"], entry.get("domain", ""), entry.get("text")
    pattern = NodePattern(entry["node"], domain) if "node" in entry else None
    operators = tuple(entry.get("operators", ())) if pattern is None else pattern.operators

    def write_text(at: Site, **names: Any) -> str:
        further = _DRAFTS[name](at, **names) if name in _DRAFTS else True
        at.require(bool(further))
        return at.write(entry["text"], **names, **(further if isinstance(further, dict) else {}))

    return Spelling(
        name=name,
        operators=operators,
        matches=entry.get("matches") or f"{domain} {series(operators, 'or')}".strip(),
        writes=entry.get("writes", text),
        draft=_DRAFTS[name] if text is None else write_text,
        cost=entry.get("cost", "nothing"),
        exact=entry.get("exact", "holds" not in entry),
        holds=entry.get("holds", ""),
        least_opset=entry.get("since", 7),
        domain=domain,
        pattern=pattern,
    )


_BARRIERS = "Barriers"

_TABLE = {
    title: tuple(map(_spelling, entries)) for title, entries in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}

BARRIERS = _TABLE[_BARRIERS]
"""Nodes that change no value but keep optimizers from fusing the nodes around them, cheap ones first.

A plain Identity does not: ONNX Runtime and OpenVINO remove it before they look for fusions. Which of these survive is
measured in the engines (tests/questions/workarounds/test_barriers.py): ONNX Runtime 1.32 keeps all of them, and removes
the pair of casts after its fusions; OpenVINO 2026.4 keeps the Max and the Where on its CPU. TensorRT was not measured.
"""

FAMILIES = {title: family for title, family in _TABLE.items() if title != _BARRIERS}
"""All other spellings, by the titles of their families."""

SPELLINGS: tuple[Spelling, ...] = tuple(chain.from_iterable(FAMILIES.values()))


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """Patches that write nodes of the main graph, or nodes in their bodies, in another spelling.

    Exact ones come first, then they follow the table. A call of a local function is replaced by the function's nodes.
    """
    patches = [*respellings(model, nodes, SPELLINGS), *definitions.calls_as_nodes(model, nodes)]
    return sorted(patches, key=lambda patch: not patch.exact)


def barriers(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """Patches that put a barrier after the first output of nodes of the main graph, or in their bodies; cheap first."""
    order = [spelling.name for spelling in BARRIERS]
    return sorted(respellings(model, nodes, BARRIERS, "barrier"), key=lambda patch: order.index(patch.name))


_ERRORS_OF_DAMAGED_MODELS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a draft may raise if attributes have wrong types, axes are out of range, and so on."""

BodyPath: TypeAlias = "tuple[tuple[str, str], ...]"
"""Bodies inside each other, outer ones first, each by an output of its node and the name of its attribute."""


def respellings(
    model: onnx.ModelProto, nodes: Sequence[int], table: Sequence[Spelling], kind: PatchKind = "spelling"
) -> Iterator[Patch]:
    """The patches of a table for nodes of the main graph and in their bodies, node by node.

    Calls of local functions are skipped.
    """
    local = {walk.function_key(function) for function in model.functions}
    main = scope_of(model)
    for number, (scope, place, path) in ((at, site) for at in nodes for site in _sites(main, at, ())):
        node = scope.graph.node[place]
        output = next((name for name in node.output if name), "")
        if not output or walk.operator(node) in local:
            continue
        name = f"{described(node)} (writes {output!r})"
        for spelling in table:
            site = Site(scope, place)
            results = drafted(spelling, site)
            site.free_names()
            if results is None or not is_valid(site, results):
                continue
            yield Patch(
                kind=kind,
                name=spelling.name,
                text=f"{name} written as {spelling.writes}" if kind == "spelling" else f"{name}: {spelling.writes}",
                cost=spelling.cost,
                exact=spelling.exact,
                nodes=(number,),
                change=partial(respelled, path=path, output=output, spelling=spelling),
                holds=spelling.limits,
            )


def _sites(scope: Scope, place: int, path: BodyPath) -> Iterator[tuple[Scope, int, BodyPath]]:
    yield scope, place, path
    output = next((name for name in scope.graph.node[place].output if name), "")
    for attribute, body in scope.bodies_of(place):
        for inner in range(len(body.graph.node)):
            yield from _sites(body, inner, (*path, (output, attribute)))


def drafted(spelling: Spelling, site: Site) -> list[str] | None:
    """Write a spelling at a site: the tensors that replace the outputs of the node; None if it does not hold there."""
    operator = walk.operator(site.node)
    fits = not spelling.operators or (operator[0] == spelling.domain and operator[1] in spelling.operators)
    if not fits or site.opset < spelling.least_opset:
        return None
    try:
        matches: list[tuple[Names, set[int]]] = (
            [({}, set())] if spelling.pattern is None else [*spelling.pattern.matches(site)]
        )
    except (Unmatched, *_ERRORS_OF_DAMAGED_MODELS):
        return None
    for names, places in matches:
        try:
            draft = spelling.draft(site, **names)
        except (Unmatched, *_ERRORS_OF_DAMAGED_MODELS):
            site.reset()
            continue
        site.absorbed |= places
        results = [draft] if isinstance(draft, str) else list(draft)
        return None if any(site.node.output[len(results) :]) or not results else results
    return None


def respelled(model: onnx.ModelProto, path: BodyPath, output: str, spelling: Spelling) -> onnx.ModelProto | None:
    """A copy of a model with the node that writes ``output`` in another spelling; None if that does not hold any more.

    ``path`` are the bodies around the node.
    """
    changed = copied(model)
    scope = scope_at(changed, path)
    number = scope.producers.get(output) if scope is not None else None
    if scope is None or number is None:
        return None
    site = Site(scope, number)
    results = drafted(spelling, site)
    if results is None:
        return None
    _replace(site, results)
    return changed


def _replace(site: Site, results: Sequence[str]) -> None:
    """Replace a node by what was written, and remove the nodes that it absorbed if nothing else reads them."""
    graph, names, readers = site.scope.graph, dict[str, str](), site.scope.readers
    if not site.written and len(site.absorbed) == 1 and site.may_give(results[0]):
        output, result = site.node.output[0], results[0]
        old, new = (result, output) if OUTSIDE in readers.get(output, ()) else (output, result)
        del graph.node[site.place]
        rename(graph.node, {old: new})
        walk.keep(graph.value_info, lambda info: info.name != old)
        return
    own = {name for node in site.written for name in node.output}
    for output, result in zip(site.node.output, results, strict=False):
        if output and result in own and result not in names:
            names[result] = output
        elif output:
            site.written.append(helper.make_node("Identity", [result], [output]))
    for node in site.written:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    read = {name for node in site.written for name in node.input}
    removed, before = set(site.absorbed), set[int]()
    while removed != before:
        before = set(removed)
        for place in before - {site.place}:
            if any(readers.get(name, set()) - before or name in read for name in graph.node[place].output):
                removed.remove(place)
    lost = {name for place in removed for name in graph.node[place].output} - set(site.node.output)
    nodes = [
        type(node).FromString(node.SerializeToString())
        for place, old in enumerate(graph.node)
        for node in (site.written if place == site.place else [] if place in removed else [old])
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    walk.keep(graph.value_info, lambda info: info.name not in lost)


def is_valid(site: Site, results: Sequence[str]) -> bool:
    """Whether onnx accepts the written nodes, and infers the types that the outputs of the node have.

    True if the types of tensors around the node are not known.
    """
    scope = site.scope
    own = {name for node in site.written for name in node.output}
    read = dict.fromkeys(name for node in site.written for name in node.input if name and name not in own)
    inputs, weights = [], []
    for name in read:
        kind = scope.type_of(name)
        if kind is None:
            return True
        if name in scope.own_constants:
            weight = scope.own_constants[name]
            weights.append(type(weight).FromString(weight.SerializeToString()))
            weights[-1].name = name
        else:
            inputs.append(helper.make_tensor_value_info(name, kind.elem, kind.shape))
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(results) if name in own]
    opsets = [helper.make_opsetid(domain, version) for domain, version in scope.opsets.items()]
    graph = helper.make_graph(site.written, "alone", inputs, outputs, weights)
    inference = onnx_native.inferred(helper.make_model(graph, opset_imports=opsets), strict=True)
    if inference.objection is not None:
        return False
    kinds = {info.name: parts.tensor_type(info.SerializeToString()) for info in inference.model.graph.output}
    pairs = zip(site.node.output, results, strict=False)
    return all(_agree(scope.type_of(output), kinds.get(result)) for output, result in pairs if output)


def _agree(first: TensorType | None, second: TensorType | None) -> bool:
    """Whether two types may be those of the same tensor, as far as they are known."""
    if first is None or second is None:
        return True
    if first.elem != second.elem:
        return False
    if first.shape is None or second.shape is None:
        return True
    pairs = zip(first.shape, second.shape, strict=False)
    known = ((a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return len(first.shape) == len(second.shape) and all(a == b for a, b in known)
