"""All that is said against a model, in one report: by our rules, by onnx, and by an engine that is asked down to
single nodes.
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


def lint(
    path: Path,
    folder: Path,
    engine: str,
    samples: Callable[[ModelIndex], Iterable[Sequence[Feed]]],
    timeout: float | None = None,
    memory: int | None = None,
) -> Report:
    """The report on the model in a file.

    ``folder`` is where its external data stands, ``engine`` a spec, such as ``onnxrt``; ``samples`` gives the inputs to
    run it with, and then further ones if the first were made up: what fails with one of them and runs with another is a
    warning. ``timeout`` is in seconds, for each question; ``memory``: bytes that the engine
    may take, None for what ``Worker`` gives it. What cannot be read as a model is an exception
    of the report. Raises UsageError if there is no such file, EngineMissing, and what ``samples`` raises.
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
    beside = folder.resolve() == path.parent.resolve()
    whole = beside or next(external.external_tensors(model), None) is None
    report.add(specification.entries(path, whole=whole, timeout=timeout))
    name = engine.partition(":")[0]
    source = ENGINE_SOURCES.get(name, name)
    untyped = [indexed.names[tensor] for tensor in indexed.fed_inputs() if indexed.value_type(tensor) is None]
    if untyped:
        message = f"no node was run: the model does not tell the type of its inputs {listed(untyped)}"
        report.add([LintEntry(level="warning", source=source, message=message)])
    else:
        with temporary_folder("biopsy-lint-") as scratch, Worker(engine, scratch, timeout, memory=memory) as worker:
            _ask_engine(report, indexed, worker, scratch, samples, source)
    named = {node for entry in report.entries for node in entry.nodes}
    sources = {node: noted_source(indexed, node) for node in sorted(named)}
    report.sources = {node: source for node, source in sources.items() if source is not None}
    return report


def _ask_engine(
    report: Report,
    index: ModelIndex,
    worker: Worker,
    scratch: Path,
    samples: Callable[[ModelIndex], Iterable[Sequence[Feed]]],
    source: str,
) -> None:
    """Run the nodes with some inputs after the other, until none fails because of them."""
    worker.version()
    runs: NodeRuns | None = None
    try:
        for feeds in samples(index):
            again = NodeRuns(index, feeds, worker, scratch, source)
            again.examine()
            if runs is not None:
                runs.allow_for(again)
            runs = runs or again
            if not runs.failed_on_values:
                break
    except errors.ModelError as error:
        report.add([LintEntry(level="exception", source=LOADER, message=error.message)])
        return
    assert runs is not None
    report.ran = runs.ran
    report.add(runs.entries)
    if runs.unasked:
        message = "could not be run: it depends on what fails, or on values that cannot be fed"
        nodes = tuple(sorted(runs.unasked))
        report.add([LintEntry(level="info", source=source, message=message, nodes=nodes)])
    report.entries = [  # what shape inference alone objects to is a warning if the engine runs it
        replace(entry, level="warning")
        if entry.source == INFERENCE and entry.nodes and runs.ran.issuperset(entry.nodes)
        else entry
        for entry in report.entries
    ]


# Which nodes an engine refuses or fails at: the whole model is run, then what fails by halves, down to single nodes.
#
# Each part is fed with the values that the nodes before it have given. What depends on a node that fails has no
# values to run with; it is still built, as far as types are known.

_MOST_BUILT = 500
"""Nodes without values that are built alone."""

_FAILURES = (errors.EngineFailure, errors.TooMuchMemory)


class NodeRuns:
    """What an engine makes of the nodes, run with the inputs ``samples``; ``scratch`` is a folder for transient files.

    ``ran`` are nodes that ran, ``unasked`` those that could not be asked about. ``failed_on_values`` are nodes that may
    have failed because of the values, or their shapes, that they were given.
    """

    def __init__(self, index: ModelIndex, samples: Sequence[Feed], worker: Worker, scratch: Path, source: str) -> None:
        self.entries: list[LintEntry] = []
        self.ran: set[int] = set()
        self.unasked: set[int] = set()
        self.failed_on_values: set[int] = set()
        self._index = index
        self._samples: list[dict[str, Array]] = [dict(sample) for sample in samples]
        self._worker = worker
        self._feeds = scratch / "feeds.safetensors"
        self._source = source
        self._failed: set[int] = set()

    def allow_for(self, other: NodeRuns) -> None:
        """Take in what became of the nodes with other values: what failed on values alone is a warning then."""
        excused = self.failed_on_values & other.ran
        fails = "it fails with some made-up inputs, and runs with others"
        self.entries = [
            replace(entry, level="warning", message=f"{fails}: {entry.message}")
            if excused.issuperset(entry.nodes or {-1})
            else entry
            for entry in self.entries
        ]
        self.entries += [entry for entry in other.entries if entry.nodes and self.unasked.issuperset(entry.nodes)]
        asked = self.unasked - other.unasked
        self.failed_on_values = (self.failed_on_values - excused) | (other.failed_on_values & asked)
        self.ran |= excused | (asked & other.ran)
        self.unasked -= asked

    def examine(self) -> None:
        """Run every node that can be run.

        Raises what ``Worker.run`` raises, but for EngineFailure, which is the answer, and for TooMuchMemory, a warning.
        """
        index = self._index
        try:
            self._run_model(bytes(index.buffer[:]), index.fed_inputs())
        except errors.TooMuchMemory as failure:
            self._blame((), failure, "no node was run: ")
        except errors.EngineFailure as failure:
            self._run_parts()
            self._build_the_rest()
            if not self.entries:
                self._blame((), failure, "no node fails alone, but the model does: ")
        else:
            self.ran.update(node.number for node in index.nodes)

    def _run_parts(self) -> None:
        """Run the nodes in order, what fails by halves."""
        index = self._index
        unknown = unknown_operators(index)
        for number in sorted(unknown):
            node = index.nodes[number]
            message = f"{node.domain}::{node.op_type} is no operator of ONNX, and the model does not define it"
            self.entries.append(LintEntry(level="warning", source=self._source, message=message, nodes=(number,)))
        self._failed = set(unknown)
        self._run(neighbourhood_order(index, without_dependents(index, unknown)))
        self.unasked = {node.number for node in index.nodes} - self.ran - self._failed

    def _build_the_rest(self) -> None:
        """Build, one by one, what cannot be run since something before it fails."""
        waiting = sorted(self.unasked)[:_MOST_BUILT]
        parts = Parts(self._index) if waiting else None
        for number in waiting:
            assert parts is not None
            with contextlib.suppress(errors.UsageError):  # nothing tells the type of what it reads
                try:
                    self._worker.build(ModelInput(parts.bytes_of([number]), self._index.folder))
                except _FAILURES as failure:
                    self._blame((number,), failure)
                    self.unasked.discard(number)

    def _blame(self, nodes: Iterable[int], failure: errors.BiopsyError, before: str = "") -> None:
        """An exception of the engine, with a few words before it; a warning if it was only ended at its limit."""
        level: Level = "warning" if isinstance(failure, errors.TooMuchMemory) else "exception"
        message = f"{before}{plain_message(failure.message)}"
        self.entries.append(LintEntry(level=level, source=self._source, message=message, nodes=tuple(nodes)))

    def _run(self, nodes: Sequence[int]) -> None:
        """Run some nodes, in the order in which they depend on each other."""
        index, values = self._index, ValuesInMemory(self._samples)
        able = set(without_dependents(index, self._failed))
        computed = {tensor for number in nodes for tensor in index.node_writes[number]}

        def is_there(tensor: int) -> bool:
            return tensor in computed or tensor in index.weights or index.names[tensor] in values

        left = [number for number in nodes if number in able and all(map(is_there, index.node_reads[number]))]
        if not left:
            return
        try:
            self._run_part(left)
        except _FAILURES as failure:
            if len(left) == 1 or isinstance(failure, errors.TooMuchMemory):  # as long to look for as to fill it
                self._failed.update(left)
                is_of_values = isinstance(failure, errors.EngineFailure) and failure.stage == "run"
                # Shapes that the model does not declare come from what it was run with.
                kinds = [index.tensor_type(tensor) for tensor in index.node_reads[left[0]]]
                if is_of_values or not all(kind is not None and kind.is_static for kind in kinds):
                    self.failed_on_values.add(left[0])
                self._blame(left, failure)
                return
            middle = len(left) // 2
            self._run(left[:middle])
            self._run(left[middle:])
        except errors.CannotCompare:  # what it reads is there, but cannot be fed
            return
        else:
            self.ran.update(left)

    def _run_part(self, nodes: Sequence[int]) -> None:
        index, values = self._index, ValuesInMemory(self._samples)
        subset = Subset(index, tuple(sorted(nodes)))
        ends = [  # what is read behind the part
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
        """What the engine gives for a model of which these tensors are fed, for every sample."""
        names = [self._index.names[tensor] for tensor in inputs]
        feeds = [{name: sample[name] for name in names if name in sample} for sample in self._samples]
        write_feeds(self._feeds, feeds)
        return self._worker.run(ModelInput(data, self._index.folder), self._feeds)
