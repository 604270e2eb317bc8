"""A report whose every text tries to leave its place: markup, quotes, marks of direction, and 100 kB."""

from __future__ import annotations

from typing import Any

from support import reports
from support.hostile_names import HOSTILE

FORGED = "forged"
"""The variable that a script of the report would set."""

MARKUP = (
    f"</script><script>window.{FORGED}=1</script><!--<script></style></title></svg></textarea>"
    f'<img src=x onerror=window.{FORGED}=1>"\' onmouseover=window.{FORGED}=1 x="&lt;{{{{ 7*7 }}}}{{% raw %}}'
    f"]]>javascript:window.{FORGED}=1"
)
HUGE = 100_000
_NAMED = ("tensors", "attributes", "packages", "opsets", "outcomes")
"""Objects whose keys are names."""


def hostile_text(text: str, size: int = HUGE) -> str:
    """A text of that size that begins as another one does, so that texts that were equal stay equal."""
    whole = f"{text}{MARKUP}{HOSTILE}\ud800"
    return whole + "W" * max(0, size - len(whole))


def hostile_report(size: int = HUGE) -> reports.Tree:
    """The rich report, with what is told of a module of PyTorch, all texts of which are hostile."""
    whole = {**reports.rich(), "torch": reports.from_pytorch()["torch"]}
    tree = _hostile(whole, size, named=False)
    return {**tree, "biopsy_report": 2}


def _hostile(value: Any, size: int, *, named: bool) -> Any:
    if isinstance(value, dict):
        return {
            hostile_text(key, size) if named else key: _hostile(each, size, named=key in _NAMED)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_hostile(each, size, named=False) for each in value]
    return hostile_text(value, size) if isinstance(value, str) else value
