"""Everything that a search over precisions was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from biopsy.mixed_precision.cost import Cost
from biopsy.mixed_precision.result import PrecisionTarget
from biopsy.mixed_precision.search import Direction, Mode
from biopsy.session.options import SearchOptions


@dataclass(frozen=True, kw_only=True)
class PrecisionJob:
    """What to search and how; see the options of ``biopsy debug precision``."""

    target: PrecisionTarget = field(default_factory=PrecisionTarget)
    mode: Mode = "minimal"
    direction: Direction = "forward"
    cost: Cost = "count"
    search: SearchOptions = field(default_factory=SearchOptions)
