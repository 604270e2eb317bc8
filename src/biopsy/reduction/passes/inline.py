"""Nodes of model-local functions in place of the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from biopsy.model import walk
from biopsy.reduction.change import Change, ChangeSearch
from biopsy.reduction.passes.editing import copied
from biopsy.reduction.passes.fewest import fewest

if TYPE_CHECKING:
    import onnx


def inline(model: onnx.ModelProto) -> ChangeSearch:
    """Inline every function that is called, then what is left by halves: a failure without functions is simpler."""
    functions = called_functions(model)

    def propose(kept: Sequence[tuple[str, str]]) -> Change:
        gone = [function for function in functions if function not in kept]
        return Change(inlined(model, gone), f"the nodes of {', '.join(name for _, name in gone)} in place of calls")

    yield from fewest(functions, propose)


def called_functions(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """(domain, name) of the local functions that are called, in the order of the model."""
    called = walk.called(model)
    return list(
        dict.fromkeys(
            (function.domain, function.name) for function in model.functions if walk.function_key(function) in called
        )
    )


def inlined(model: onnx.ModelProto, functions: Iterable[tuple[str, str]]) -> onnx.ModelProto:
    """A copy with the calls of some functions replaced by their nodes; the same model where onnx cannot do it."""
    from onnx import inliner

    try:
        return inliner.inline_selected_functions(copied(model), list(functions), exclude=False)
    except Exception:  # onnx raises whatever it stumbles over; a call that cannot be inlined is no error
        return copied(model)
