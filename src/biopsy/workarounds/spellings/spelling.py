"""What a spelling is: how it is found at a node, and what it writes there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from biopsy.workarounds.spellings.site import Site

Draft: TypeAlias = Callable[[Site], "str | Sequence[str]"]
"""Writes the other spelling of the node at a site, and returns the tensors that stand for its outputs, in order.

Raises ``site.Unmatched`` where the spelling does not hold, or nobody can tell whether it does.
"""

_EVERY = re.compile(r"all values(;|$)")

ONNX = ""
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """An entry of the table.

    ``operators`` are those of the node at which it is found, the last one where it reads several; none for any
    operator. ``matches`` and ``writes`` say what becomes what. It is found in models whose version of ONNX's own
    operators is ``least_opset`` or later. ``cost`` is said in words. ``exact``: bit for bit the same, also for NaN,
    infinities, negative zero and integers that wrap; otherwise ``holds`` says for which values the two are equal but
    for rounding.
    """

    name: str
    operators: tuple[str, ...]
    matches: str
    writes: str
    draft: Draft
    cost: str
    exact: bool
    holds: str = ""
    least_opset: int = 7
    domain: str = ONNX

    @property
    def limits(self) -> str:
        """For which values only it holds; empty for all, whatever their rounding."""
        return "" if self.exact or _EVERY.match(self.holds) else self.holds

    def may_stand_at(self, domain: str, operator: str) -> bool:
        """Whether it is looked for at a node of this operator."""
        return not self.operators or (domain == self.domain and operator in self.operators)
