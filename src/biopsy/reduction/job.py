"""Everything that a reduction was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.checks.judge import Rules
from biopsy.engines.yardsticks import PLAIN
from biopsy.model.tensor_type import Shape
from biopsy.reduction.problem import Cut
from biopsy.reduction.result import Target
from biopsy.reduction.schedule import Mode, Selection
from biopsy.reduction.values import Values
from biopsy.session.flakiness import Repeating
from biopsy.session.iteration import IterationFiles
from biopsy.session.resume import Resume
from biopsy.session.trials import Budget, Parallelism
from biopsy.tensors.results import Feed

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Job:
    """What to reduce, how, and what to leave where; see the options of ``biopsy debug reduce``.

    ``samples`` gives inputs to record values with; None makes some. ``record_with`` are engines to record with, the
    first that can. ``input_shapes`` freeze dynamic inputs. ``selection`` says which passes run, ``ranking``
    which nodes are suspected, the worst first.
    ``feeds_recorded``: the check is our own ``run``, and is to load recorded values of what a candidate is fed.
    ``compares_recorded`` is what the check's words tell of it: see ``values.may_change_values``. ``keep_other`` is a
    folder for one model of each other failure met. ``allow_vacuous_check`` goes on if the check fails on anything.
    """

    target: Target
    mode: Mode = "minimal"
    rules: Rules = field(default_factory=Rules)
    candidate: Path = Path("polygraphy_debug.onnx")
    files: IterationFiles = field(default_factory=IterationFiles)
    samples: Callable[[], Sequence[Feed]] | None = None
    record_with: Sequence[str] = PLAIN
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    cut: Cut = "auto"
    values: Values = "auto"
    compares_recorded: bool | None = None
    infer_types: bool = True
    types_by_running: bool = False
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool = False
    selection: Selection = field(default_factory=Selection)
    ranking: Sequence[Sequence[int]] = ()
    parallelism: Parallelism = field(default_factory=Parallelism)
    budget: Budget = field(default_factory=Budget)
    repeating: Repeating = field(default_factory=Repeating)
    resume: Resume = field(default_factory=Resume)
    keep_other: Path | None = None
    allow_vacuous_check: bool = False
    feeds_recorded: bool = False
