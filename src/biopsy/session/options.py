"""What a person says of any search with a check, whatever it searches for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from biopsy.checks.judge import Rules
from biopsy.session.budget import Budget
from biopsy.session.flakiness import Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.pool import Parallelism
from biopsy.session.resume import Resume


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a check is asked, where candidates stand, what a search may cost, and what it goes on from.

    ``candidate`` is the path that every candidate is written to. ``keep_other`` is a folder for one model of each
    other failure that is met; None to keep none.
    """

    rules: Rules = field(default_factory=Rules)
    candidate: Path = Path("polygraphy_debug.onnx")
    files: IterationFiles = field(default_factory=IterationFiles)
    parallelism: Parallelism = field(default_factory=Parallelism)
    budget: Budget = field(default_factory=Budget)
    repeating: Repeating = field(default_factory=Repeating)
    resume: Resume = field(default_factory=Resume)
    keep_other: Path | None = None
