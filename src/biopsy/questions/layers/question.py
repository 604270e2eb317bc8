"""The question of an examination: which layers, which engines, and how the error of a tensor is measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.comparison import metrics
from biopsy.comparison.compare import JudgedTypes, OutputComparison, compare_output
from biopsy.comparison.mismatch import GRAVEST, form_text
from biopsy.comparison.mismatch_size import one_sided
from biopsy.comparison.tolerance import (
    MetricLimits,
    Stats,
    Tolerances,
    criteria_for,
    names_by_option,
    require_known_outputs,
)
from biopsy.engines.base import ModelInput
from biopsy.engines.registry import PLAIN, create
from biopsy.engines.worker import Worker
from biopsy.model.index import ModelIndex, Node
from biopsy.model.nodes import constant_of_node, is_constant_node
from biopsy.model.sources import group_name, noted_source, places_of
from biopsy.model.tensor_type import TensorType
from biopsy.questions.layers.findings import LayerNode, LayerOrigins, TensorError
from biopsy.tensors.results import Array, Feed, release


def layers_of(index: ModelIndex, pattern: re.Pattern[str] | None = None) -> list[Node]:
    """All nodes but Constants; with a ``pattern``, those whose name, operator or an output matches."""

    def words(node: Node) -> list[str]:
        return [node.label, node.name, node.op_type, *(index.names[tensor] for tensor in node.writes)]

    layers = [node for node in index.nodes if not is_constant_node(index, node.number)]
    return [node for node in layers if pattern is None or any(map(pattern.search, words(node)))]


def layer_node(index: ModelIndex, node: Node) -> LayerNode:
    """The description of a layer in a report."""
    return LayerNode(
        number=node.number,
        name=node.name,
        op_type=node.op_type,
        label=node.label,
        inputs=tuple(
            index.names[tensor]
            for tensor in node.reads
            if tensor not in index.weights and constant_of_node(index, tensor) is None
        ),
        outputs=tuple(index.names[tensor] for tensor in node.writes),
        source=noted_source(index, node.number),
    )


def origins_of(index: ModelIndex, nodes: Iterable[int]) -> LayerOrigins:
    """The common module of some layers, and their source lines."""
    sources = [noted_source(index, node) for node in nodes]
    return LayerOrigins(name=group_name(sources), places=tuple(place.text for place in places_of(sources)))


@dataclass(frozen=True)
class Judge:
    """Tolerances, statistics and limits by the name of a tensor, "" for all others, as in ``biopsy run``."""

    tolerances: Tolerances = field(default_factory=Tolerances)
    stats: Stats = field(default_factory=Stats)
    limits: MetricLimits = field(default_factory=MetricLimits)

    def error(
        self, name: str, actual: Sequence[Array], expected: Sequence[Array], declared: TensorType | None = None
    ) -> TensorError:
        """The worst error of a tensor, of which both sides have one value per sample. Releases mapped memory.

        ``declared``: the type by the model, whose element type ``actual`` must have; None if types are not compared.
        """
        types = JudgedTypes(declared=declared, actual=declared is not None)
        return worst(
            self._in_sample(name, number, left, right, types)
            for number, (left, right) in enumerate(zip(actual, expected, strict=True))
        )

    def _in_sample(self, name: str, sample: int, actual: Array, expected: Array, types: JudgedTypes) -> TensorError:
        criteria = criteria_for(name, self.tolerances, self.stats, self.limits)
        compared = compare_output(name, actual, expected, criteria, "brief", types)
        measured, ratio = compared.measured, math.inf if compared.forms else 0.0
        failing = [limit.worst for limit in compared.judged if not limit.passed]
        if measured is not None:
            offending = measured.offending
            if measured.absolute.maximum > 0 and not compared.passed and not compared.forms:
                tolerance = compared.tolerance
                if offending is None:
                    differences = metrics.errors_between(actual, expected)
                    ratio = float(metrics.shares(differences, tolerance.atol, tolerance.rtol).max(initial=0))
                else:
                    ratio = offending.error
            # The worst element that fails; if none does, the one with the greatest difference.
            by_tolerance = [offending] if compared.tolerances_decide else []
            failing = [*([*by_tolerance, *failing] if not compared.passed else []), measured.worst_absolute]
        kind = "" if compared.passed else _kind(compared, actual, expected)
        release(actual, expected)
        return TensorError(
            tensor=name,
            sample=sample,
            passed=compared.passed,
            reason=compared.reason,
            absolute=math.inf if measured is None else measured.absolute.maximum,
            relative=math.inf if measured is None else measured.relative.maximum,
            tolerance_ratio=ratio,
            worst=None if measured is None else next((element for element in failing if element is not None), None),
            kind=kind,
            form=form_text(compared.forms[0], "the reference") if compared.forms else "",
        )


def _kind(failing: OutputComparison, actual: Array, expected: Array) -> str:
    """The gravest kind of a failing comparison."""
    if failing.forms:
        return failing.forms[0].kind
    if failing.measured is None or not failing.measured.broken:
        return "mismatch"
    return min(one_sided(actual, expected), key=GRAVEST.index, default="mismatch")


def worst(measured: Iterable[TensorError]) -> TensorError:
    """The worst of several errors; of equal ones, the first."""
    return max(measured, key=lambda error: error.rank)


DEFAULT_REFERENCE = PLAIN[0]
DEFAULT_LIMIT = 1_000_000_000
"""Bytes of tensors in memory at a time."""

FeedsFor: TypeAlias = Callable[[Mapping[str, "TensorType | None"]], "Sequence[Feed]"]
"""Returns the input samples for the types of a model's inputs."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which model to examine, which must be in a file, and the specs of the ``suspect`` and the ``reference`` engine.

    ``nodes``: measure only layers whose name, operator or output matches. ``limit``: bytes of tensors in memory at a
    time. ``timeout``: seconds per run. ``memory``: bytes that an engine may use; None for the default of ``Worker``.

    Raises UsageError if the reference gives no inner tensors or if no layer matches ``nodes``, DoesNotFit if a
    tolerance names a tensor that does not exist, EngineMissing.
    """

    index: ModelIndex
    feeds: FeedsFor
    suspect: str
    reference: str = DEFAULT_REFERENCE
    judge: Judge = field(default_factory=Judge)
    nodes: re.Pattern[str] | None = None
    limit: int = DEFAULT_LIMIT
    timeout: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        create(self.suspect)
        if not create(self.reference).capabilities.marks_any_tensor:
            raise errors.UsageError(
                f"{self.reference} gives no inner tensors: it cannot be the reference",
                next_steps=[f"take {DEFAULT_REFERENCE} as the reference"],
            )
        index, judge = self.index, self.judge
        known = [index.names[tensor] for tensor in index.producer]
        require_known_outputs(names_by_option(judge.tolerances, judge.stats, judge.limits), index.ids, known)
        if self.nodes is not None and not layers_of(index, self.nodes):
            raise errors.UsageError(
                f"--nodes {self.nodes.pattern}: no layer has a name, operator or output that matches",
                next_steps=["biopsy inspect model MODEL --show layers    shows them"],
            )

    @property
    def model(self) -> ModelInput:
        """The model file, for an engine."""
        return ModelInput(b"", self.index.folder, self.index.path)

    def worker(self, engine: str, scratch: Path) -> Worker:
        """A worker that runs an engine within the limits."""
        return Worker(engine, scratch, self.timeout, memory=self.memory)
