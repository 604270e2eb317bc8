"""How long a model takes, or how much memory it needs, in one engine compared with another: measured as ``biopsy run
--slower`` and ``--larger`` do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command import run_biopsy
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import LARGER, SLOWER
from biopsy.diagnosis.question import write_inputs
from biopsy.diagnosis.steps.failing import read_tree
from biopsy.engines.latency import Latency
from biopsy.engines.peak_memory import PeakMemory
from biopsy.hunting.models import FoundModel, operators_of_few, samples_of
from biopsy.hunting.records import INPUTS, Kind, MatrixCell, ModelResult
from biopsy.hunting.sweep import HuntQuestion, samples_name
from biopsy.model.index import index_bytes
from biopsy.model.load import read_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.records import record_of
from biopsy.text import first_line, printable, shortened

_LONGEST_TEXT = 300

_MEASURES: Mapping[Kind, type[Latency] | type[PeakMemory]] = {SLOWER: Latency, LARGER: PeakMemory}


def words_of_cost(
    model: str, trusted: str, suspect: str, kind: Kind, limit: float, inputs: Path | None
) -> Iterator[str]:
    """The words of ``biopsy run`` that measure a model, or ``{}``, in two engines."""
    yield from ("run", model, "--engine", trusted, "--engine", suspect, f"--{kind}", f"{limit:g}")
    if inputs is not None:
        yield from ("--load-inputs", as_word(inputs))


def measured(question: HuntQuestion, model: FoundModel, result: ModelResult, suspect: str, kind: Kind) -> ModelResult:
    """The result of a model, with what ``suspect`` needs compared with the first engine as its last cell.

    The inputs are those of the sweep; they are kept if it fails. Nothing else should run meanwhile.
    """
    trusted, limit = question.engines[0], question.limits[kind]
    cell = MatrixCell(engine=suspect, kind="unmeasured", stage="compare", trusted=trusted)
    place, name = question.folder / INPUTS, samples_name(model.path)
    is_kept = bool(result.file) or any(place.glob(f"{name}.*"))
    file = place / result.file if result.file else None
    try:
        index = index_bytes(read_bytes(model.path), model.path.parent)
        feeds = [sample.feed for sample in samples_of(index, model.inputs, question.seed)]
        if file is None and any(feeds):
            file = write_inputs(place / name, feeds)
    except errors.BiopsyError as error:
        cell = replace(cell, text=shortened(first_line(error.message), _LONGEST_TEXT))
        return replace(result, cells=(*result.cells[:-1], cell))
    with temporary_folder("biopsy-hunt-") as folder:
        report = folder / "report.json"
        words = words_of_cost(as_word(model.path), trusted, suspect, kind, limit, file)
        memory = question.memory_of(model.path)
        _, printed = run_biopsy(*words, "--report", str(report), seconds=question.seconds, memory=memory)
        tree = read_tree(report)
    run, verdict = tree.get("run") or {}, tree.get("verdict") or {}
    text = verdict.get("text") or f"it was not measured to the end: {last_line(printed)}"
    cell = replace(cell, text=shortened(text, _LONGEST_TEXT))
    if run.get("costs") and len(run["reasons"]) <= 1:
        cost = record_of(_MEASURES[kind], run["costs"][0]["measured"])
        side = cost.side_of(limit)
        if side == kind:  # and that is the only reason
            text = cost.compared_with(trusted)
            message, operators = f"at least {limit:g} times as much", operators_of_few(index)
            cell = replace(cell, kind=kind, failure=kind, message=message, text=text, operators=operators)
        elif side == f"not {kind}" and not run["reasons"]:
            cell = MatrixCell(engine=suspect, kind="right")
    if file is not None and not (is_kept or cell.is_bug):
        file.unlink()
    named = file.name if file is not None and (result.file or cell.is_bug) else ""
    return replace(result, cells=(*result.cells[:-1], cell), file=named)


def last_line(printed: str) -> str:
    """The line with the error among what a command printed, else the last one."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return printable(next((line for line in lines if "error: " in line), lines[-1]))
