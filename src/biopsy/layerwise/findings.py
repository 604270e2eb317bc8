"""What an examination finds: errors per tensor and per layer, groups that fail together, origins of NaN, suspects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from biopsy import errors
from biopsy.comparison.metrics import Element
from biopsy.text import first_line

Verdict: TypeAlias = Literal["introduces", "fails", "propagates", "right", "unknown"]
"""What a layer does: it is wrong alone; cannot be run by the suspect; hands on what came in; is right; nobody knows."""


@dataclass(frozen=True)
class TensorError:
    """How far a tensor is from its recorded value, in the input sample where it is farthest (from 0 on).

    ``absolute`` and ``relative`` are the greatest errors of any element, inf where only one side is finite or nothing
    can be subtracted. ``times`` is the greatest error by what is allowed there, |error| / (atol + rtol * |expected|).
    ``passed`` is the verdict by all that was asked, ``reason`` says why not.
    """

    tensor: str
    sample: int
    passed: bool
    reason: str | None
    absolute: float
    relative: float
    times: float
    worst: Element | None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse."""
        return (not self.passed, self.times, self.absolute)


@dataclass(frozen=True)
class Failure:
    """How an engine failed: in which stage, its own name of the error, and its message."""

    stage: errors.Stage
    kind: str
    message: str

    @property
    def text(self) -> str:
        """In one line."""
        return f"cannot {self.stage}: {self.kind}: {first_line(self.message)}"


@dataclass(frozen=True)
class Rate:
    """In how many of some runs of the same something was wrong: in some, but not in all."""

    wrong: int
    runs: int

    @property
    def text(self) -> str:
        """In words."""
        return f"in {self.wrong} of {self.runs} runs"


@dataclass(frozen=True)
class Layer:
    """One node of the model's graph; a node with bodies or a call of a function is one layer.

    ``inputs`` are the tensors that it reads, captures of bodies too, but for weights.
    ``introduced`` is the error of its worst output when the suspect runs the node alone, fed with recorded values;
    ``propagated`` that in the whole model. None: not measured, and ``note`` says why. ``failure``: the suspect cannot
    run it alone. ``flaky``: it is wrong, or fails, now and then; both errors are then those of the worst run.
    ``times_rounding``: the introduced error by that of plain float32 on the same values; None where that was not asked.
    """

    number: int
    name: str
    op_type: str
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    introduced: TensorError | None = None
    propagated: TensorError | None = None
    failure: Failure | None = None
    accused: bool = True
    """Whether a failure counts against the layer: not where the whole model runs, and the node only alone does not."""
    note: str = ""
    flaky: Rate | None = None
    times_rounding: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What the layer does."""
        if self.failure is not None and self.accused:
            return "fails"
        if self.introduced is not None and not self.introduced.passed:
            return "introduces"
        if self.propagated is not None and not self.propagated.passed:
            return "propagates" if self.introduced is not None else "unknown"
        return "right" if self.introduced is not None or self.propagated is not None else "unknown"

    @property
    def is_suspect(self) -> bool:
        """Whether it makes errors, or fails, by itself."""
        return self.verdict in ("introduces", "fails")


@dataclass(frozen=True)
class Group:
    """Layers that are right one by one and wrong together: what an engine has fused, or rounding that adds up.

    ``hides``: whether the failure goes away when the tensors inside the group are marked as outputs, as it does if the
    engine fuses across them. None where there is nothing to mark. ``times_rounding``: its error by that of plain
    float32 on the same values; None where that cannot be told. ``flaky``: it is wrong now and then.
    """

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: TensorError | None
    failure: Failure | None
    hides: bool | None
    times_rounding: float | None = None
    flaky: Rate | None = None


@dataclass(frozen=True)
class Observed:
    """That marking tensors as outputs changed what the suspect gives for ``output``.

    "gone": it is wrong, and right when ``tensors`` are marked; "appears" the other way round; "differs": wrong both
    times in other ways, or right both times and far apart.
    """

    change: Literal["gone", "appears", "differs"]
    output: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """A layer whose inputs are finite and whose output is not: where NaN or infinities begin in a run of ``engine``."""

    engine: str
    number: int
    label: str
    tensor: str
    nan: int
    inf: int


@dataclass(frozen=True)
class Suspect:
    """What to look at: a layer, or a group of them; what goes in and comes out; and how wrong it is."""

    nodes: tuple[int, ...]
    labels: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: TensorError | None
    failure: Failure | None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Greater for what is worse: failures first, then by the error in units of what is allowed."""
        return (
            self.failure is not None,
            self.error.times if self.error else 0.0,
            self.error.absolute if self.error else 0,
        )


@dataclass(frozen=True)
class Findings:
    """All that an examination found. ``outputs`` are the errors of the model's own outputs, nothing marked.

    ``layers`` are in the order of the graph. ``failure``: the suspect cannot run the whole model. ``complete`` is False
    where the examination was interrupted.
    """

    layers: Sequence[Layer]
    outputs: Sequence[TensorError] = ()
    failure: Failure | None = None
    groups: Sequence[Group] = ()
    observed: Sequence[Observed] = ()
    origins: Sequence[Origin] = ()
    remarks: Sequence[str] = ()
    complete: bool = field(default=True)

    @cached_property
    def first_wrong(self) -> tuple[Layer, TensorError] | None:
        """The first tensor out of tolerance in the order of the graph, in the whole model if that was measured."""
        for layer in self.layers:
            error = layer.propagated or layer.introduced
            if error is not None and not error.passed:
                return layer, error
        return None

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Layers and groups that make errors, the worst first."""
        found = [
            Suspect((layer.number,), (layer.label,), layer.inputs, layer.outputs, layer.introduced, layer.failure)
            for layer in self.layers
            if layer.is_suspect
        ]
        found += [
            Suspect(group.nodes, group.labels, group.inputs, group.outputs, group.error, group.failure)
            for group in self.groups
        ]
        return sorted(found, key=lambda one: one.rank, reverse=True)

    @property
    def is_masked(self) -> bool:
        """Whether layers are wrong although all outputs of the model are right."""
        return bool(self.suspects) and self.failure is None and all(output.passed for output in self.outputs)

    @property
    def passed(self) -> bool:
        """Whether all was measured, and nothing at all is out of tolerance."""
        return self.complete and self.nothing_wrong

    @property
    def nothing_wrong(self) -> bool:
        """Whether nothing of what was measured is out of tolerance."""
        return (
            self.failure is None
            and not self.suspects
            and self.first_wrong is None
            and all(output.passed for output in self.outputs)
        )
