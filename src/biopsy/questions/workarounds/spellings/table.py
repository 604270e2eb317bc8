"""All spellings, those that hold at given nodes of a model, and the nodes written in another spelling where that is
valid.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model import onnx_native, parts, walk
from biopsy.model.tensor_type import TensorType
from biopsy.questions.workarounds.question import Patch, PatchKind
from biopsy.questions.workarounds.spellings import definitions, elementwise, layers, tensors
from biopsy.questions.workarounds.spellings.site import (
    Draft,
    Names,
    NodePattern,
    Scope,
    Site,
    Unmatched,
    scope_at,
    scope_of,
)
from biopsy.reduction.passes.common import copied, described
from biopsy.text import series

if TYPE_CHECKING:
    import onnx

_FILE = Path(__file__).parent / "spellings.toml"

_DRAFTS = elementwise.DRAFTS | layers.DRAFTS | tensors.DRAFTS | definitions.DRAFTS

_EVERY = re.compile(r"all values(;|$)")


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """An entry of the table.

    ``operators`` are those of the node at which it is found, the last one where it reads several. ``matches`` and
    ``writes`` say what becomes what. It is found in models whose version of ONNX's own operators is ``least_opset`` or
    later. ``cost`` is said in words. ``exact``: bit for bit the same, also for NaN, infinities, negative zero and
    integers that wrap; otherwise ``holds`` says for which values the two are equal but for rounding. ``pattern`` is
    what is looked for; None where the ``draft`` looks at the node alone.
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
        """For which values only it holds; empty for all, whatever their rounding."""
        return "" if self.exact or _EVERY.match(self.holds) else self.holds


def _spelling(entry: Mapping[str, Any]) -> Spelling:
    """An entry of the file, whose form is told at its top."""
    name, domain, text = entry["name"], entry.get("domain", ""), entry.get("text")
    pattern = NodePattern(entry["node"], domain) if "node" in entry else None
    operators = tuple(entry.get("operators", ())) if pattern is None else pattern.operators

    def draft(at: Site, **names: Any) -> str:
        at.require(name not in elementwise.CONDITIONS or elementwise.CONDITIONS[name](at, **names))
        return at.write(entry["text"], **names)

    return Spelling(
        name=name,
        operators=operators,
        matches=entry.get("matches") or f"{domain} {series(operators, 'or')}".strip(),
        writes=entry.get("writes", text),
        draft=_DRAFTS[name] if text is None else draft,
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
"""Nodes that change no value and that optimizers do not see through, cheap ones first: they cannot fuse what is around.

A plain Identity is no such node: ONNX Runtime and OpenVINO remove it before they look for fusions. Which of these
survive is measured on the engines themselves (tests/questions/workarounds/test_barriers.py): ONNX Runtime 1.32 keeps
all of them, and takes the pair of casts away after its fusions; OpenVINO 2026.4 keeps the Max and the Where on its CPU.
Whether TensorRT keeps them can only be seen on a GPU.
"""

FAMILIES = {title: family for title, family in _TABLE.items() if title != _BARRIERS}
"""Every other spelling, by the title of its family."""

SPELLINGS: tuple[Spelling, ...] = tuple(chain.from_iterable(FAMILIES.values()))


def spellings(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """The other spellings of nodes of the main graph, given by their places, and of what stands in their bodies.

    Exact ones first, then in the order of the table. A call of a local function has its nodes for another spelling.
    """
    patches = [*respellings(model, nodes, SPELLINGS), *definitions.calls_as_nodes(model, nodes)]
    return sorted(patches, key=lambda patch: not patch.exact)


def barriers(model: onnx.ModelProto, nodes: Sequence[int]) -> list[Patch]:
    """One patch for each barrier after the first output of these nodes of the main graph and of those in their bodies.

    Cheap ones first.
    """
    order = [each.name for each in BARRIERS]
    return sorted(respellings(model, nodes, BARRIERS, "barrier"), key=lambda patch: order.index(patch.name))


# A node of a model written in another spelling.

_OF_A_DAMAGED_MODEL = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a draft may run into where attributes have other types than they should, axes are out of range, and so on."""

BodyPath: TypeAlias = "tuple[tuple[str, str], ...]"
"""Bodies, outer ones first, each by an output of its node and the attribute that holds it."""


def respellings(
    model: onnx.ModelProto, nodes: Sequence[int], table: Sequence[Spelling], kind: PatchKind = "spelling"
) -> Iterator[Patch]:
    """What of a table holds at some nodes of the main graph and at the nodes in their bodies, node by node.

    Calls of model-local functions and nodes in these are passed over.
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
            site.forget()
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
    """Write a spelling at a site; the tensors that stand for the outputs of the node, None where it does not hold."""
    operator = walk.operator(site.node)
    fits = not spelling.operators or (operator[0] == spelling.domain and operator[1] in spelling.operators)
    if not fits or site.opset < spelling.least_opset:
        return None
    try:
        found: list[tuple[Names, set[int]]] = (
            [({}, set())] if spelling.pattern is None else [*spelling.pattern.matches(site)]
        )
    except (Unmatched, *_OF_A_DAMAGED_MODEL):
        return None
    for names, places in found:
        try:
            draft = spelling.draft(site, **names)
        except (Unmatched, *_OF_A_DAMAGED_MODEL):
            site.begin_anew()
            continue
        site.absorbed |= places
        results = [draft] if isinstance(draft, str) else list(draft)
        return None if any(site.node.output[len(results) :]) or not results else results
    return None


def respelled(model: onnx.ModelProto, path: BodyPath, output: str, spelling: Spelling) -> onnx.ModelProto | None:
    """A copy of a model with the node that gives ``output`` in another spelling; None if it is not as it was.

    ``path`` are the bodies around it, as ``scope_at`` takes them.
    """
    made = copied(model)
    scope = scope_at(made, path)
    number = scope.producers.get(output) if scope is not None else None
    if scope is None or number is None:
        return None
    site = Site(scope, number)
    results = drafted(spelling, site)
    if results is None:
        return None
    _replace(site, results)
    return made


def _replace(site: Site, results: Sequence[str]) -> None:
    """Put what was written in the place of a node; what it had absorbed goes where nothing else reads it."""
    from onnx import helper

    graph, names, readers = site.scope.graph, dict[str, str](), site.scope.readers
    own = {name for node in site.written for name in node.output}
    for wanted, result in zip(site.node.output, results, strict=False):
        if wanted and result in own and result not in names:
            names[result] = wanted
        elif wanted:
            site.written.append(helper.make_node("Identity", [result], [wanted]))
    for node in site.written:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
    read = {name for node in site.written for name in node.input}
    gone, before = set(site.absorbed), set[int]()
    while gone != before:
        before = set(gone)
        for place in before - {site.place}:
            if any(readers.get(name, set()) - before or name in read for name in graph.node[place].output):
                gone.remove(place)
    lost = {name for place in gone for name in graph.node[place].output} - set(site.node.output)
    nodes = [
        type(node).FromString(node.SerializeToString())
        for place, old in enumerate(graph.node)
        for node in (site.written if place == site.place else [] if place in gone else [old])
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    walk.keep(graph.value_info, lambda info: info.name not in lost)


# Whether the nodes of a spelling are valid where they are to stand: their types, and the shapes of what they give.


def is_valid(site: Site, results: Sequence[str]) -> bool:
    """Whether onnx accepts what was written, and infers no other types for the results than the node gives.

    Where the types of tensors around the node are not known, what was written is believed.
    """
    from onnx import helper

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
    return all(_agree(scope.type_of(wanted), kinds.get(result)) for wanted, result in pairs if wanted)


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
