"""Nodes of model-local functions in place of the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.model.calls import unbounded
from biopsy.model.node import FunctionKey
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.reduction.passes.nested_search import nodes_again
from biopsy.search.subset import minimize_subset

if TYPE_CHECKING:
    import onnx

_MOST_NODES = 10_000  # more than that are not simpler than a call


def inline(model: onnx.ModelProto) -> ChangeSearch:
    """Inline every function that is called, then what is left by halves: a failure without functions is simpler.

    Their nodes are then searched: what is cut between them is fed.
    """
    functions = called_functions(model)

    def propose(kept: Sequence[tuple[str, str]]) -> Change:
        gone = [function for function in functions if function not in kept]
        return Change(inlined(model, gone), f"the nodes of {', '.join(name for _, name in gone)} in place of calls")

    kept = yield from minimize_subset(functions, propose)
    if len(kept) < len(functions):
        yield from nodes_again(propose(kept).model, keep_values=True)


def called_functions(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(domain, name) of the local functions that are called and can be inlined, in the order of the model."""
    stay = _that_stay(model)
    able = [function for function in model.functions if walk.function_key(function) in walk.called(model) - stay]
    return list(dict.fromkeys((function.domain, function.name) for function in able))


def not_inlined(model: onnx.ModelProto) -> Sequence[str]:
    """Which calls stay because nobody could write out what they stand for."""
    called, reasons = walk.called(model), dict[str, list[str]]()
    for key, why in unbounded(model.functions, _MOST_NODES).items():
        if key in called:
            reasons.setdefault(why, []).append(key[1])
    return [f"inline     not done for {', '.join(sorted(names))}: {why}" for why, names in reasons.items()]


def _that_stay(model: onnx.ModelProto) -> set[FunctionKey]:
    """Functions that are too large to be inlined, and what they call: inlined in them it would make them larger."""
    endless = unbounded(model.functions, _MOST_NODES)
    if not endless:
        return set()
    roots = [function for function in model.functions if walk.function_key(function) in endless]
    alone = type(model)(functions=model.functions)
    for function in roots:
        alone.graph.node.extend(function.node)
    return {*endless, *walk.called(alone)}


def inlined(model: onnx.ModelProto, functions: Iterable[tuple[str, str]]) -> onnx.ModelProto:
    """A copy with the calls of some functions replaced by their nodes; the same model where onnx cannot do it."""
    from onnx import inliner

    try:
        return inliner.inline_selected_functions(copied(model), list(functions), exclude=False)
    except Exception:  # onnx raises whatever it stumbles over; a call that cannot be inlined is no error
        return copied(model)
