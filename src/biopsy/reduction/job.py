"""Everything that a reduction was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from biopsy.checks.command_line import NO_WORDS, CommandLine
from biopsy.engines.yardsticks import PLAIN
from biopsy.model.tensor_type import Shape
from biopsy.recording.random_samples import Draws
from biopsy.reduction.problem import Cut
from biopsy.reduction.result import Target
from biopsy.reduction.schedule import Mode, Passes
from biopsy.reduction.values import Values
from biopsy.session.options import SearchOptions
from biopsy.tensors.results import Feed


@dataclass(frozen=True, kw_only=True)
class Border:
    """What happens at the border of a candidate: to a cut tensor, to the inputs and outputs of the original.

    ``cut`` makes a cut tensor an input that is fed (``input``), freezes it with its recorded value (``constant``), or
    does what fits the tensor (``auto``). ``keep_inputs`` and ``keep_outputs`` keep those of the original.
    ``mark_intermediate`` makes every tensor of a candidate an output, because the failure is masked otherwise; None
    does so once the original is found to hide one, for a check that has golden values of inner tensors.
    """

    cut: Cut = "auto"
    keep_inputs: bool = False
    keep_outputs: bool = False
    mark_intermediate: bool | None = False


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """Where types and values of cut tensors come from.

    ``samples`` gives inputs to record values with; None makes random ones, as ``draws`` says. ``engines`` are those to
    record with, the first that can; ``memory``: bytes that one may take, None for what ``Worker`` gives it. Types are
    inferred if ``infer_types``, and taken from a run of the model first if ``types_by_running``.
    """

    samples: Callable[[], Sequence[Feed]] | None = None
    draws: Draws = field(default_factory=Draws)
    engines: Sequence[str] = PLAIN
    memory: int | None = None
    infer_types: bool = True
    types_by_running: bool = False


@dataclass(frozen=True, kw_only=True)
class ReductionJob:
    """What to reduce, how, and what to leave where; see the options of ``biopsy debug reduce``.

    ``input_shapes`` freeze dynamic inputs. ``passes`` says which passes run, ``ranking`` which nodes are suspected,
    the worst first. ``feeds_recorded``: the check is our own ``run``, and is to load recorded values of what a
    candidate is fed. ``command`` are the check's words, as far as it has any, which may tell of it what
    ``values.may_change_values`` and ``vouching.compares_with_golden`` ask.
    ``allow_vacuous_check`` goes on if the check fails on anything.
    """

    target: Target
    mode: Mode = "minimal"
    search: SearchOptions = field(default_factory=SearchOptions)
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    border: Border = field(default_factory=Border)
    input_shapes: Mapping[str, Shape] = field(default_factory=dict)
    values: Values = "auto"
    command: CommandLine = NO_WORDS
    passes: Passes = field(default_factory=Passes)
    ranking: Sequence[Sequence[int]] = ()
    allow_vacuous_check: bool = False
    feeds_recorded: bool = False
