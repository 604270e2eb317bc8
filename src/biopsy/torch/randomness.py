"""Which values of a program depend on random numbers: another run, or an engine, gives others, and nobody is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from biopsy.torch.installed import imported

_SWITCHES = frozenset({"train", "training"})
_CHANCES = frozenset({"dropout_p", "dropout"})


def random_nodes(nodes: Iterable[Any]) -> dict[Any, str]:
    """The FX nodes, in their order, that draw random numbers or use some; the operator that drew them first."""
    found: dict[Any, str] = {}
    for node in nodes:
        drawn = next((found[source] for source in node.all_input_nodes if source in found), None)
        if drawn is None and _draws(node):
            drawn = str(node.target)
        if drawn is not None:
            found[node] = drawn
    return found


def _draws(node: Any) -> bool:
    """Whether an operator draws random numbers: dropout that is switched off does not."""
    torch = imported()
    if node.op == "get_attr":
        inner = getattr(node.graph.owning_module, node.target, None)
        return isinstance(inner, torch.fx.GraphModule) and any(map(_draws, inner.graph.nodes))
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for name, value in _arguments(node):
        if (name in _SWITCHES and value is False) or (name in _CHANCES and value == 0):
            return False
    return True


def _arguments(node: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by name, those that are not given with their defaults."""
    for place, argument in enumerate(node.target._schema.arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        yield argument.name, given
