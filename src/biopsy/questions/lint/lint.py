"""One report on a model: findings of our rules, of onnx, and of an engine that runs it down to single nodes.

The engine runs the whole model; if that fails, the nodes, and those that fail by bisection down to single ones. Each
part is fed with the values that the nodes before it have computed. Nodes behind one that fails have no values to run
with; they are only built, as far as types are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.capability import Parts
from biopsy.engines.worker import Worker
from biopsy.model import external, index, load
from biopsy.model.index import ModelIndex
from biopsy.model.known_names import listed
from biopsy.model.nodes import neighbourhood_order
from biopsy.model.parts import value_info
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.sources import noted_source
from biopsy.processes.cleanup import temporary_folder
from biopsy.questions.lint import rules, specification
from biopsy.questions.lint.rules import (
    ENGINE_SOURCES,
    INFERENCE,
    LOADER,
    Level,
    LintEntry,
    Report,
    node_names,
    plain_message,
)
from biopsy.recording.dependence import unknown_operators, without_dependents
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed
from biopsy.text import first_of


def lint(
    path: Path,
    folder: Path,
    engine: str,
    samples: Callable[[ModelIndex], Iterable[Sequence[Feed]]],
    timeout: float | None = None,
    memory: int | None = None,
) -> Report:
    """The report on the model in a file.

    ``folder`` is that of its external data, ``engine`` a spec such as ``onnxrt``. ``samples`` yields inputs to run it
    with, and then others if the first were random: a node that fails with some and runs with others is a warning.
    ``timeout`` is in seconds, for each run; ``memory`` is the limit of the engine in bytes, None: that of ``Worker``. A
    file that is not a model is an exception in the report. Raises UsageError if there is no such file, EngineMissing,
    and what ``samples`` raises.
    """
    report = Report()
    load.require_file(path)
    try:
        data = load.read_bytes(path)
        model = load.parse(data, path)
        external.require_safe_locations(data, folder, path)
        indexed = index.index_file(path, folder)
    except errors.ModelError as error:
        report.add([LintEntry(level="exception", source=LOADER, message=error.message)])
        return report
    report.names = node_names((node.name, node.op_type) for node in model.graph.node)
    report.add(rules.entries(model))
    if not model.graph.node:
        report.add([LintEntry(level="warning", source=LOADER, message="ONNX model has no nodes")])
        return report
    is_complete = folder.resolve() == path.parent.resolve() or next(external.external_tensors(model), None) is None
    report.add(specification.entries(path, is_complete=is_complete, timeout=timeout))
    name = engine.partition(":")[0]
    source = ENGINE_SOURCES.get(name, name)
    untyped = [indexed.names[tensor] for tensor in indexed.fed_inputs() if indexed.value_type(tensor) is None]
    if untyped:
        message = f"no node was run: the model does not say the type of its inputs {listed(untyped)}"
        report.add([LintEntry(level="warning", source=source, message=message)])
    else:
        with temporary_folder("biopsy-lint-") as scratch, Worker(engine, scratch, timeout, memory=memory) as worker:
            _run_in_engine(report, indexed, worker, scratch, samples, source)
    named = {node for entry in report.entries for node in entry.nodes}
    sources = {node: noted_source(indexed, node) for node in sorted(named)}
    report.sources = {node: source for node, source in sources.items() if source is not None}
    return report


def breaches(path: Path, folder: Path, counts: Callable[[LintEntry], bool], *, timeout: float) -> list[str]:
    """How a model breaks the ONNX standard, one breach a line, without asking an engine; empty if it does not.

    Only exceptions for which ``counts`` is true are breaches. Raises ModelError if the file cannot be read.
    """
    model, is_complete = load.parse(load.read_bytes(path), path), folder.resolve() == path.parent.resolve()
    names = node_names((node.name, node.op_type) for node in model.graph.node)
    found: dict[tuple[int, ...], str] = {}  # our rules come first, and onnx says the same of these nodes again
    entries = (*rules.entries(model), *specification.entries(path, is_complete=is_complete, timeout=timeout))
    for entry in entries:
        if entry.level == "exception" and counts(entry) and _NO_SHAPE not in entry.message:
            place = [first_of(list(dict.fromkeys(names[node] for node in entry.nodes)), 2)] if entry.nodes else []
            found.setdefault(entry.nodes, ": ".join([*place, plain_message(entry.message).rstrip(".")]))
    return [text for nodes, text in found.items() if nodes or len(found) == 1]


_NO_SHAPE = "Field 'shape' of 'type' is required but missing"
"""An objection of onnx's checker to outputs whose shape is not declared: engines infer it."""


def _run_in_engine(
    report: Report,
    index: ModelIndex,
    worker: Worker,
    scratch: Path,
    samples: Callable[[ModelIndex], Iterable[Sequence[Feed]]],
    source: str,
) -> None:
    """Run the nodes with one set of inputs after the other, until no node fails because of its values."""
    worker.version()
    runs: NodeRuns | None = None
    try:
        for feeds in samples(index):
            next_runs = NodeRuns(index, feeds, worker, scratch, source)
            next_runs.examine()
            if runs is not None:
                runs.merge(next_runs)
            runs = runs or next_runs
            if not runs.failed_on_values:
                break
    except errors.ModelError as error:
        report.add([LintEntry(level="exception", source=LOADER, message=error.message)])
        return
    assert runs is not None
    report.ran = runs.ran
    report.add(runs.entries)
    if runs.untried:
        message = "could not be run: it depends on a node that fails, or on values that cannot be fed"
        nodes = tuple(sorted(runs.untried))
        report.add([LintEntry(level="info", source=source, message=message, nodes=nodes)])
    report.entries = [  # an objection of shape inference is only a warning if the engine runs the node
        replace(entry, level="warning")
        if entry.source == INFERENCE and entry.nodes and runs.ran.issuperset(entry.nodes)
        else entry
        for entry in report.entries
    ]


_MOST_BUILT = 500
"""Nodes without values that are built one by one."""

_FAILURES = (errors.EngineFailure, errors.TooMuchMemory)


class NodeRuns:
    """Runs the nodes in an engine with the inputs ``samples``; ``scratch`` is a folder for transient files.

    ``ran`` are nodes that ran, ``untried`` those that could not be run or built. ``failed_on_values`` are nodes that
    may have failed because of the values or shapes of their inputs.
    """

    def __init__(self, index: ModelIndex, samples: Sequence[Feed], worker: Worker, scratch: Path, source: str) -> None:
        self.entries: list[LintEntry] = []
        self.ran: set[int] = set()
        self.untried: set[int] = set()
        self.failed_on_values: set[int] = set()
        self._index = index
        self._samples: list[dict[str, Array]] = [dict(sample) for sample in samples]
        self._worker = worker
        self._feeds = scratch / "feeds.safetensors"
        self._source = source
        self._failed: set[int] = set()

    def merge(self, other: NodeRuns) -> None:
        """Merge runs with other values: a node that failed on its values and now runs is only a warning."""
        excused = self.failed_on_values & other.ran
        reason = "it fails with some made-up inputs, and runs with others"
        self.entries = [
            replace(entry, level="warning", message=f"{reason}: {entry.message}")
            if excused.issuperset(entry.nodes or {-1})
            else entry
            for entry in self.entries
        ]
        self.entries += [entry for entry in other.entries if entry.nodes and self.untried.issuperset(entry.nodes)]
        newly_tried = self.untried - other.untried
        self.failed_on_values = (self.failed_on_values - excused) | (other.failed_on_values & newly_tried)
        self.ran |= excused | (newly_tried & other.ran)
        self.untried -= newly_tried

    def examine(self) -> None:
        """Run every node that can be run.

        Raises what ``Worker.run`` raises, except EngineFailure and TooMuchMemory, which become entries.
        """
        index = self._index
        try:
            self._run_model(bytes(index.buffer[:]), index.fed_inputs())
        except errors.TooMuchMemory as failure:
            self._add_failure((), failure, "no node was run: ")
        except errors.EngineFailure as failure:
            unknown = unknown_operators(index)
            for number in sorted(unknown):
                node = index.nodes[number]
                message = f"{node.domain}::{node.op_type} is not an operator of ONNX, and the model does not define it"
                self.entries.append(LintEntry(level="warning", source=self._source, message=message, nodes=(number,)))
            self._failed = set(unknown)
            self._run(neighbourhood_order(index, without_dependents(index, unknown)))  # bisects what fails
            self.untried = {node.number for node in index.nodes} - self.ran - self._failed
            self._build_untried()
            if not self.entries:
                self._add_failure((), failure, "no node fails alone, but the model does: ")
        else:
            self.ran.update(node.number for node in index.nodes)

    def _build_untried(self) -> None:
        """Build, one by one, the nodes that cannot be run because a node before them fails."""
        untried = sorted(self.untried)[:_MOST_BUILT]
        parts = Parts(self._index) if untried else None
        for number in untried:
            assert parts is not None
            with contextlib.suppress(errors.UsageError):  # the types of its inputs are unknown
                try:
                    self._worker.build(ModelInput(parts.bytes_of([number]), self._index.folder))
                except _FAILURES as failure:
                    self._add_failure((number,), failure)
                    self.untried.discard(number)

    def _add_failure(self, nodes: Iterable[int], failure: errors.BiopsyError, prefix: str = "") -> None:
        """Add an entry for a failure of the engine; a warning if it only reached its memory limit."""
        level: Level = "warning" if isinstance(failure, errors.TooMuchMemory) else "exception"
        message = f"{prefix}{plain_message(failure.message)}"
        self.entries.append(LintEntry(level=level, source=self._source, message=message, nodes=tuple(nodes)))

    def _run(self, nodes: Sequence[int]) -> None:
        """Run those of some nodes that have values, given in topological order."""
        index, values = self._index, ValuesInMemory(self._samples)
        able = set(without_dependents(index, self._failed))
        computed = {tensor for number in nodes for tensor in index.node_writes[number]}

        def is_there(tensor: int) -> bool:
            return tensor in computed or tensor in index.weights or index.names[tensor] in values

        part = [number for number in nodes if number in able and all(map(is_there, index.node_reads[number]))]
        if not part:
            return
        try:
            self._run_part(part)
        except _FAILURES as failure:
            # bisecting one that fills the memory would fill it again and again
            if len(part) == 1 or isinstance(failure, errors.TooMuchMemory):
                self._failed.update(part)
                is_of_values = isinstance(failure, errors.EngineFailure) and failure.stage == "run"
                # shapes that the model does not declare come from the inputs
                kinds = [index.tensor_type(tensor) for tensor in index.node_reads[part[0]]]
                if is_of_values or not all(kind is not None and kind.is_static for kind in kinds):
                    self.failed_on_values.add(part[0])
                self._add_failure(part, failure)
                return
            middle = len(part) // 2
            self._run(part[:middle])
            self._run(part[middle:])
        except errors.CannotCompare:  # its inputs are known, but cannot be fed
            return
        else:
            self.ran.update(part)

    def _run_part(self, nodes: Sequence[int]) -> None:
        index, values = self._index, ValuesInMemory(self._samples)
        subset = Subset(index, tuple(sorted(nodes)))
        ends = [  # tensors that nodes outside the part read
            tensor for tensor in sorted(subset.written) if not subset.kept.issuperset(index.consumers.get(tensor, ()))
        ]
        kinds = {tensor: values.tensor_type(index.names[tensor]) for tensor in subset.outside}
        infos = {tensor: value_info(index.names[tensor], kind) for tensor, kind in kinds.items() if kind is not None}
        data = candidate_bytes(
            subset, Boundary(infos=infos, frozen={}, inputs=subset.outside, outputs=ends or list(subset.sinks))
        )
        for sample, outputs in zip(self._samples, self._run_model(data, subset.outside), strict=True):
            sample.update(outputs)

    def _run_model(self, data: bytes, inputs: Iterable[int]) -> list[dict[str, Array]]:
        """The outputs of a model for every sample, fed with these tensors."""
        names = [self._index.names[tensor] for tensor in inputs]
        feeds = [{name: sample[name] for name in names if name in sample} for sample in self._samples]
        write_feeds(self._feeds, feeds)
        return self._worker.run(ModelInput(data, self._index.folder), self._feeds)
