"""What is asked of a transformation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy.blame.transformations.spec import ToolSpec
from biopsy.comparison.tolerance import MetricLimits, Stats, Tolerances
from biopsy.engines.yardsticks import PLAIN
from biopsy.isolation.watch import Limits
from biopsy.model.index import ModelIndex
from biopsy.session.budget import Budget
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True)
class SameEngine:
    """The comparison that decides: the model and what became of it, in the same engine, with the same inputs.

    ``feeds`` gives the samples. ``wider`` gives one more, of numbers that made-up samples do not reach, which is asked
    before a model counts as right; None if there is none. ``tolerances`` that a person gave decide alone (``is_told``);
    otherwise what rounding explains is no failure: that of the types of the model, or of those that the tool converts
    to.
    """

    feeds: Callable[[], Sequence[Feed]]
    wider: Callable[[], Feed | None] = lambda: None
    engine: str = PLAIN[0]
    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)
    is_told: bool = False
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommandQuestion:
    """A command that decides: in its ``words``, ``{}`` is the transformed model and ``{original}`` the model itself.

    Where ``{original}`` does not stand in them, the model itself must pass. ``timeout`` in seconds, ``memory`` in
    bytes.
    """

    words: tuple[str, ...]
    timeout: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class TransformationQuestion:
    """Whether a tool breaks a model, and by what.

    ``python`` is the interpreter that has the tool. ``passes`` may run; None for those that run by themselves.
    ``control`` is the command that only loads and saves, where the tool is a command. ``output`` is where the piece
    goes; nothing is written without it. ``reduces``: whether the smallest piece is sought, ``finds_passes``: whether
    the passes that do it are.
    """

    index: ModelIndex
    tool: ToolSpec
    python: Path
    decides: SameEngine | CommandQuestion
    passes: tuple[str, ...] | None = None
    control: ToolSpec | None = None
    output: Path | None = None
    reduces: bool = True
    finds_passes: bool = True
    budget: Budget = field(default_factory=Budget)
    limits: Limits = field(default_factory=lambda: Limits(seconds=600.0))
