"""All that is said against a model, in one report: by our rules, by onnx, by an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.linting.report import ENGINE_SOURCES, INFERENCE, LOADER, LintEntry, Report, node_names

if TYPE_CHECKING:
    import onnx

    from biopsy.model.index import ModelIndex
    from biopsy.tensors.results import Feed


def lint(
    path: Path,
    folder: Path,
    engine: str,
    samples: Callable[[ModelIndex], Sequence[Feed]],
    timeout: float | None = None,
    others: Callable[[ModelIndex], Iterable[Sequence[Feed]]] = lambda _: (),
    memory: int | None = None,
) -> Report:
    """The report on the model in a file.

    ``folder`` is where its external data stands, ``engine`` a spec, such as ``onnxrt``; ``samples`` gives the inputs to
    run it with, and ``others`` gives further ones if the first were made up: what fails with one of them and runs with
    another is a warning. ``timeout`` is in seconds, for each question; ``memory``: bytes that the engine
    may take, None for what ``Worker`` gives it. What cannot be read as a model is an exception
    of the report. Raises UsageError if there is no such file, EngineMissing, and what ``samples`` raises.
    """
    from biopsy.linting import rules
    from biopsy.model import external, index, load
    from biopsy.model.sources import noted_source

    report = Report()
    load.require_file(path)
    try:
        data = load.read_bytes(path)
        model = load.parse(data, path)
        external.require_safe_locations(data, folder, path)
        indexed = index.index_file(path, folder)
    except errors.ModelError as error:
        report.add([_loader(error.message)])
        return report
    report.names = node_names((node.name, node.op_type) for node in model.graph.node)
    report.add(rules.entries(model))
    if not model.graph.node:
        report.add([LintEntry(level="warning", source=LOADER, message="ONNX model has no nodes")])
        return report
    _ask_onnx(report, model, path, folder, timeout)
    _ask_engine(report, indexed, engine, samples, others, timeout=timeout, memory=memory)
    named = {node for entry in report.entries for node in entry.nodes}
    sources = {node: noted_source(indexed, node) for node in sorted(named)}
    report.sources = {node: source for node, source in sources.items() if source is not None}
    return report


def _loader(message: str) -> LintEntry:
    return LintEntry(level="exception", source=LOADER, message=message)


def _ask_onnx(report: Report, model: onnx.ModelProto, path: Path, folder: Path, timeout: float | None) -> None:
    from biopsy.linting import specification
    from biopsy.model import external

    beside = folder.resolve() == path.parent.resolve()
    whole = beside or next(external.external_tensors(model), None) is None
    report.add(specification.entries(path, whole=whole, timeout=timeout))


def _ask_engine(
    report: Report,
    index: ModelIndex,
    engine: str,
    samples: Callable[[ModelIndex], Sequence[Feed]],
    others: Callable[[ModelIndex], Iterable[Sequence[Feed]]],
    timeout: float | None,
    memory: int | None,
) -> None:
    from biopsy.engines.worker import Worker
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.linting.node_runs import examine
    from biopsy.model.known_names import listed

    name = engine.partition(":")[0]
    source = ENGINE_SOURCES.get(name, name)
    untyped = [index.names[tensor] for tensor in index.fed_inputs() if index.value_type(tensor) is None]
    if untyped:
        message = f"no node was run: the model does not tell the type of its inputs {listed(untyped)}"
        report.add([LintEntry(level="warning", source=source, message=message)])
        return
    with temporary_folder("biopsy-lint-") as scratch, Worker(engine, scratch, timeout, memory=memory) as worker:
        worker.version()
        try:
            found = examine(index, samples(index), worker, scratch, source)
            for other in others(index) if found.failed_on_values else ():
                found.allow_for(examine(index, other, worker, scratch, source))
                if not found.failed_on_values:
                    break
        except errors.ModelError as error:
            report.add([_loader(error.message)])
            return
    report.ran = found.ran
    report.add(found.entries)
    if found.unasked:
        message = "could not be run: it depends on what fails, or on values that cannot be fed"
        nodes = tuple(sorted(found.unasked))
        report.add([LintEntry(level="info", source=source, message=message, nodes=nodes)])
    report.entries = [_as_the_engine_sees_it(entry, found.ran) for entry in report.entries]


def _as_the_engine_sees_it(entry: LintEntry, ran: set[int]) -> LintEntry:
    """What shape inference alone objects to is a warning if the engine runs it."""
    if entry.source == INFERENCE and entry.nodes and ran.issuperset(entry.nodes):
        return replace(entry, level="warning")
    return entry
