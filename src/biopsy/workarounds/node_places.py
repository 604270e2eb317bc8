"""Which nodes of a model are meant: by those of a piece of it, by names, and those beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from biopsy import errors
from biopsy.model.index import ModelIndex, Node
from biopsy.similar_names import did_you_mean


def nodes_named(index: ModelIndex, words: Sequence[str]) -> tuple[int, ...]:
    """The places of nodes of these names, or that compute tensors of these names; patterns are allowed.

    Raises DoesNotFit for a word that means nothing in the model.
    """
    found: set[int] = set()
    for word in words:
        meant = [node.number for node in index.nodes if any(_means(word, name) for name in _names(index, node))]
        if not meant:
            known = [name for node in index.nodes for name in _names(index, node)]
            raise errors.DoesNotFit(
                f"the model has no node {word!r}, and none that computes a tensor of this name",
                next_steps=[*did_you_mean(word, known), "biopsy inspect model MODEL --show layers    names its nodes"],
            )
        found.update(meant)
    return tuple(sorted(found))


def _means(word: str, name: str) -> bool:
    return word == name or fnmatchcase(name, word)


def _names(index: ModelIndex, node: Node) -> Iterator[str]:
    if node.name:
        yield node.name
    yield from (index.names[tensor] for tensor in node.writes)


def nodes_of_piece(index: ModelIndex, piece: ModelIndex) -> tuple[int, ...]:
    """The places of those nodes of a model that a piece of it has too: same operator, and same outputs or same name.

    Raises DoesNotFit if there is none, since the piece is of another model then, or its names were changed.
    """
    by_output = {index.names[tensor]: node for node in index.nodes for tensor in node.writes}
    by_name: dict[str, list[Node]] = {}
    for node in index.nodes:
        by_name.setdefault(node.name, []).append(node)
    found: set[int] = set()
    for node in piece.nodes:
        computed = [by_output.get(piece.names[tensor]) for tensor in node.writes]
        named = by_name.get(node.name, []) if node.name else []
        alike = [one for one in (*computed, *(named if len(named) == 1 else ())) if one is not None]
        found.update(one.number for one in alike if (one.op_type, one.domain) == (node.op_type, node.domain))
    if not found:
        raise errors.DoesNotFit(
            f"no node of {piece.path or 'the piece'} is in the model, neither by its outputs nor by its name",
            next_steps=["--nodes NAME ...    the nodes that fail, by their names in the model"],
        )
    return tuple(sorted(found))


def neighbours(index: ModelIndex, nodes: Sequence[int]) -> tuple[int, ...]:
    """Nodes that write what these read, or read what these write, and are none of these."""
    known = set(nodes)
    found: set[int] = set()
    for node in nodes:
        found.update(index.producer[tensor] for tensor in index.nodes[node].reads if tensor in index.producer)
        for tensor in index.nodes[node].writes:
            found.update(index.consumers.get(tensor, ()))
    return tuple(sorted(found - known))
