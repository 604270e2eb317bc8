"""``onnxscript.optimizer``: constant folding, and rewriting rules by the names that they have in its modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from biopsy.blame.transformations.tool import Omission, Tool, TransformOrder, left_out, write_model

_FOLDING = "constant_folding"
_INLINING = "inlining"


class OnnxScript(Tool):
    """``onnxscript.optimizer.optimize``."""

    summary = "onnxscript.optimizer"
    package = "onnxscript"
    module = "onnxscript.optimizer"

    def passes(self, source: str) -> list[str]:
        """Folding and inlining, then the rules."""
        del source
        return [_FOLDING, _INLINING, *dict.fromkeys(_names_of_rules())]

    def transform(self, order: TransformOrder) -> None:
        """Optimize; in the control, the model goes through the tool's own form of a graph and back."""
        onnx, ir = import_module("onnx"), import_module("onnxscript").ir
        if order.passes == ():
            model = ir.serde.serialize_model(ir.serde.deserialize_model(onnx.load(order.source)))
            write_model(model, order.target)
            return
        off = set(left_out(self.passes(order.source), order))
        _use_rules([rule for rule, name in zip(_rules(), _names_of_rules(), strict=True) if name not in off])
        model = ir.serde.deserialize_model(onnx.load(order.source))
        folding = {"should_fold": lambda node: False} if _FOLDING in off else {}
        import_module(self.module).optimize_ir(model, inline=_INLINING not in off, **folding)
        write_model(ir.serde.serialize_model(model), order.target)

    def omission(self, passes: Sequence[str]) -> Omission:
        """It has no option for rules: they are taken out of the list that it reads."""
        rules = [name for name in passes if name not in {_FOLDING, _INLINING}]
        arguments = ["should_fold=lambda node: False"] * (_FOLDING in passes) + ["inline=False"] * (_INLINING in passes)
        call = f"onnxscript.optimizer.optimize_ir({', '.join(['model', *arguments])})"
        if not rules:
            return Omission(python=call)
        kept = f"[rule for rule in rewriter._DEFAULT_REWRITE_RULES if rule.name not in {rules}]"
        return Omission(python=f"rewriter._DEFAULT_REWRITE_RULES = {kept}; {call}")


def _rules() -> list[Any]:
    return list(import_module("onnxscript.rewriter")._DEFAULT_REWRITE_RULES)


def _names_of_rules() -> list[str]:
    """The name of each rule: its own, else that of the variable that holds it."""
    known: dict[int, str] = {}
    for module in [name for name in sys.modules if name.startswith("onnxscript.rewriter.")]:
        for name, value in vars(sys.modules[module]).items():
            if hasattr(value, "try_rewrite"):
                known.setdefault(id(value), name)
    return [_own_name(rule) or known.get(id(rule), f"rule_{number}") for number, rule in enumerate(_rules())]


def _own_name(rule: Any) -> str:
    name = getattr(rule, "name", None)
    return name if isinstance(name, str) else ""


def _use_rules(rules: list[Any]) -> None:
    """Have the optimizer rewrite by these rules alone, in this process."""
    vars(import_module("onnxscript.rewriter"))["_DEFAULT_REWRITE_RULES"] = tuple(rules)
