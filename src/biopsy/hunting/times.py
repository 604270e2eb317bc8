"""How long a model takes in one engine compared with another, as ``biopsy run --slower`` measures it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command import run_biopsy
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import SLOWER
from biopsy.diagnosis.question import write_inputs
from biopsy.diagnosis.steps.failing import read_tree
from biopsy.engines.latency import Latency
from biopsy.hunting.models import FoundModel, operators_of_few, samples_of
from biopsy.hunting.records import INPUTS, MatrixCell, ModelResult
from biopsy.hunting.sweep import HuntQuestion, samples_name
from biopsy.model.index import index_bytes
from biopsy.model.load import read_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.records import record_of
from biopsy.text import first_line, printable, shortened

_LONGEST_TEXT = 300


def words_of_times(model: str, trusted: str, suspect: str, limit: float, inputs: Path | None) -> Iterator[str]:
    """The words of ``biopsy run`` that time a model, or ``{}``, in two engines."""
    yield from ("run", model, "--engine", trusted, "--engine", suspect, "--slower", f"{limit:g}")
    if inputs is not None:
        yield from ("--load-inputs", as_word(inputs))


def timed(question: HuntQuestion, model: FoundModel, result: ModelResult, suspect: str) -> ModelResult:
    """The result of a model, with a cell of how long ``suspect`` takes compared with the first engine as the last one.

    The inputs are those of the sweep; they are kept if it is slower. Nothing else should run meanwhile.
    """
    trusted, limit = question.engines[0], question.slower
    assert limit is not None
    cell = MatrixCell(engine=suspect, kind="untimed", stage="compare", trusted=trusted)
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
        words = words_of_times(as_word(model.path), trusted, suspect, limit, file)
        _, printed = run_biopsy(*words, "--report", str(report), seconds=question.seconds)
        tree = read_tree(report)
    run, verdict = tree.get("run") or {}, tree.get("verdict") or {}
    text = verdict.get("text") or f"it was not timed to the end: {last_line(printed)}"
    cell = replace(cell, text=shortened(text, _LONGEST_TEXT))
    if run.get("costs") and len(run["reasons"]) <= 1:
        latency = record_of(Latency, run["costs"][0]["measured"])
        side = latency.side_of(limit)
        if side == "slower":  # and that is the only reason
            text = f"takes {latency.text}, {latency.after:.3g} ms instead of {latency.before:.3g} ms"
            message, operators = f"at least {limit:g} times as long", operators_of_few(index)
            cell = replace(cell, kind="slower", failure=SLOWER, message=message, text=text, operators=operators)
        elif side == "not slower" and not run["reasons"]:
            cell = MatrixCell(engine=suspect, kind="right")
    is_slower = cell.kind == SLOWER
    if file is not None and not (is_kept or is_slower):
        file.unlink()
    named = file.name if file is not None and (result.file or is_slower) else ""
    return replace(result, cells=(*result.cells[:-1], cell), file=named)


def last_line(printed: str) -> str:
    """The line with the error among what a command printed, else the last one."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return printable(next((line for line in lines if "error: " in line), lines[-1]))
