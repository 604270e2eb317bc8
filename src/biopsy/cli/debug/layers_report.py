"""What ``debug layers`` shows: a line for each thing learnt, then a table of layers, and what to do next."""

from __future__ import annotations

import argparse
import math
import time
from functools import singledispatchmethod
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.cli.debug.layers_next import next_lines
from biopsy.cli.progress import COLUMN, Report, time_left
from biopsy.model.weight_formatting import count, size_text
from biopsy.shell_words import is_refused, line_of
from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.layerwise.findings import Findings, Group, Layer, Observed, Origin, Suspect, TensorError
    from biopsy.model.index import ModelIndex

_STAGES = {
    "record": "recording",
    "alone": "layers alone",
    "again": "layers once more",
    "whole": "whole model",
    "marks": "which marks hide it",
    "windows": "neighbours",
    "groups": "pieces",
}
_MOST_LABELS = 12


class LayersReport(Report):
    """Listens to an examination."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log)
        self._stage = ""

    def model(self, index: ModelIndex, path: Path) -> None:
        """Say what was understood."""
        self(
            events.ModelRead(
                name=str(path),
                nodes=len(index.nodes),
                opset=index.opset,
                inputs=len(index.fed_inputs()),
                outputs=len(index.outputs),
                weight_bytes=index.weight_bytes,
            )
        )

    @singledispatchmethod
    def show(self, event: events.Event) -> None:
        """Show what is worth a line, by the type of the event."""
        super().show(event)

    @show.register
    def _model_read(self, event: events.ModelRead) -> None:
        inputs, outputs = count(event.inputs, "input"), count(event.outputs, "output")
        what = f"{count(event.nodes, 'node')} · opset {event.opset} · {inputs}, {outputs}"
        self.line("model", f"{event.name} · {what} · {size_text(event.weight_bytes)} of weights")

    @show.register
    def _recorded(self, event: events.Recorded) -> None:
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}, {size_text(event.bytes)}"
        self.line("recorded", f"{event.engine} · {what} · {event.seconds:.2f} s")

    @show.register
    def _measured(self, event: events.Measured) -> None:
        if event.stage != self._stage:
            self._stage, self._started = event.stage, time.monotonic()
        spent = time.monotonic() - self._started
        left = time_left(spent / max(event.done, 1) * (event.total - event.done)) if spent > 1 else ""
        text = f"{event.done} of {event.total}{f' · {left}' if left else ''}"
        self._live.update(_STAGES.get(event.stage, event.stage), text, event.done / max(event.total, 1))


def line(console: Console, head: str, text: str) -> None:
    """A line that begins with a word in its column."""
    console.note(f"{head:<{COLUMN}} {text}")


def say_result(console: Console, found: Findings, args: argparse.Namespace) -> None:
    """All that is to be known about the findings, the verdict first."""
    for remark in found.remarks:
        console.warn(printable(remark))
    _say_whole(console, found, args.suspect)
    _say_alone(console, found)
    _say_table(console, found, args.top)
    for group in found.groups:
        _say_group(console, group)
    for observed in found.observed:
        _say_observed(console, observed)
    _say_origins(console, found)
    _say_verdict(console, found)
    _say_next(console, found, args)


def _say_whole(console: Console, found: Findings, suspect: str) -> None:
    if found.failure is not None:
        line(console, "whole", f"{suspect} {found.failure.text}")
        return
    wrong = [output for output in found.outputs if not output.passed]
    if wrong:
        what = f"output {_quoted(wrong[0].tensor)} is wrong: {_error_text(wrong[0])}"
        what += f", as {'is 1 other' if len(wrong) == 2 else f'are {len(wrong) - 1} others'}" if len(wrong) > 1 else ""
    else:
        what = f"{count(len(found.outputs), 'output')} within the tolerances"
    line(console, "whole", f"{suspect} · {what}")
    measured = [layer.propagated for layer in found.layers if layer.propagated is not None]
    if measured:
        beyond = sum(not error.passed for error in measured)
        line(console, "marked", f"{beyond} of {count(len(measured), 'layer')} out of tolerance in the whole model")


def _say_alone(console: Console, found: Findings) -> None:
    run = [layer for layer in found.layers if layer.introduced is not None]
    wrong = sum(layer.verdict == "introduces" for layer in run)
    text = f"{wrong} of {count(len(run), 'layer')} out of tolerance alone"
    failing = [layer for layer in found.layers if layer.failure is not None]
    if failing:
        cause = failing[0].failure
        text += f" · {len(failing)} cannot be run alone ({cause.kind if cause else ''})"
    line(console, "alone", text)


# The table


_HEAD = ("layer", "introduces", "x allowed", "in whole", "worst element")


def _say_table(console: Console, found: Findings, most: int) -> None:
    """The layers that make errors, worst first; numbers to the right, aligned."""
    by_number = {layer.number: layer for layer in found.layers}
    single = [one for one in found.suspects if len(one.nodes) == 1 and one.nodes[0] in by_number]
    if not single:
        return
    rows = [_row(one, by_number[one.nodes[0]]) for one in single[:most]]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD) - 1)]
    console.note("")
    for row in (_HEAD, *rows):
        cells = [f"{row[0]:<{widths[0]}}", *(f"{row[place]:>{widths[place]}}" for place in (1, 2, 3)), row[4]]
        console.say("  ".join(cells).rstrip())
    if len(single) > most:
        console.say(f"and {len(single) - most} more (--top N, --report, --csv)")
    console.note("")


def _row(one: Suspect, layer: Layer) -> tuple[str, str, str, str, str]:
    from biopsy.comparison.noise import DEFAULT_RATIO

    whole = _number(layer.propagated.absolute) if layer.propagated is not None else "-"
    more = f" · flaky: {layer.flaky.text}" if layer.flaky is not None else ""
    if layer.times_rounding is not None and layer.times_rounding <= DEFAULT_RATIO:
        more += f" · no more than rounding: {_number(layer.times_rounding)} times the error of plain float32"
    if one.failure is not None:
        return printable(layer.label), "fails", "-", whole, f"{printable(one.failure.text)}{more}"
    assert one.error is not None
    return (
        printable(layer.label),
        _number(one.error.absolute),
        _number(one.error.times),
        whole,
        f"{_quoted(one.error.tensor)} {_worst_text(one.error)}{more}",
    )


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"


def _quoted(name: str) -> str:
    return f"'{printable(name)}'"


def _worst_text(error: TensorError) -> str:
    from biopsy.comparison.describe import index, number

    if error.worst is None:
        return error.reason or ""
    sample = f" of sample {error.sample}" if error.sample else ""
    return f"{index(error.worst.index)}{sample}: {number(error.worst.actual)}, expected {number(error.worst.expected)}"


def _error_text(error: TensorError) -> str:
    if error.worst is None:
        return error.reason or ""
    return f"|difference| up to {_number(error.absolute)} at {_worst_text(error)}"


# What else was found


def _say_group(console: Console, group: Group) -> None:
    from biopsy.comparison.noise import explained_by

    cause = "they fail" if group.failure is not None else "they are wrong"
    line(console, "together", f"{count(len(group.nodes), 'layer')}, right one by one: {cause} when run as one piece")
    labels = group.labels[:_MOST_LABELS]
    more = f" and {len(group.labels) - _MOST_LABELS} more" if len(group.labels) > _MOST_LABELS else ""
    console.say(f"{'':<{COLUMN}} {' -> '.join(labels)}{more}")
    if group.failure is not None:
        console.say(f"{'':<{COLUMN}} {group.failure.text}")
    elif group.error is not None:
        console.say(f"{'':<{COLUMN}} {_quoted(group.error.tensor)}: {_error_text(group.error)}")
    if group.times_rounding is not None:
        narrower = explained_by(group.times_rounding)
        times = f"{_number(group.times_rounding)} times the error of plain float32"
        console.say(f"{'':<{COLUMN}} not rounding: {times}" + (f", as if rounded to {narrower}" if narrower else ""))
    if group.flaky is not None:
        console.say(f"{'':<{COLUMN}} flaky: it is so {group.flaky.text}")
    if group.hides:
        console.say(
            f"{'':<{COLUMN}} with the tensors between them marked as outputs it is gone: it comes from fusing them"
        )


def _say_observed(console: Console, observed: Observed) -> None:
    names = ", ".join(_quoted(name) for name in observed.tensors[:4])
    more = f" and {len(observed.tensors) - 4} more" if len(observed.tensors) > 4 else ""
    what = {
        "gone": f"with {names}{more} marked as an output, the failure of {_quoted(observed.output)} is gone: the "
        "engine fuses across it",
        "appears": f"{_quoted(observed.output)} is right, and wrong when tensors are marked ({names}{more})",
        "differs": f"{_quoted(observed.output)} has other values when tensors are marked ({names}{more})",
    }[observed.change]
    console.say(f"{'observing':<{COLUMN}} {what}")


def _say_origins(console: Console, found: Findings) -> None:
    """The first origin of NaN or infinity of each engine; one line for both where it is the same layer."""
    first: dict[str, Origin] = {}
    for origin in found.origins:
        first.setdefault(origin.engine, origin)
    by_layer: dict[int, list[Origin]] = {}
    for origin in first.values():
        by_layer.setdefault(origin.number, []).append(origin)
    for same in by_layer.values():
        one = same[-1]
        counts = ((one.nan, "NaN"), (one.inf, "inf"))
        what = " and ".join(f"{number} {kind}" for number, kind in counts if number)
        who = "both engines" if len(same) > 1 else one.engine
        where = f"{one.label} in {who}: {what} in {_quoted(one.tensor)}"
        console.say(f"{'NaN/inf':<{COLUMN}} begins at {where}, its inputs are finite")


def _say_verdict(console: Console, found: Findings) -> None:
    first = found.first_wrong
    if first is not None:
        layer, error = first
        console.say(
            f"{'first':<{COLUMN}} {_quoted(error.tensor)} of {layer.label} is the first tensor out of tolerance"
        )
    if found.is_masked:
        console.say(f"{'masked':<{COLUMN}} the outputs are right all the same: what follows hides the error")
    labels = [_named(one) for one in found.suspects[:3]]
    more = f" and {len(found.suspects) - 3} more" if len(found.suspects) > 3 else ""
    incomplete = "" if found.complete else " (interrupted: not all was measured)"
    if labels:
        console.say(f"FAILED | {'; '.join(labels)}{more}{incomplete}")
    elif found.nothing_wrong and not found.complete:
        console.say("INTERRUPTED | no tensor that was measured until then is out of tolerance")
    elif found.passed:
        console.say("PASSED | no tensor is out of tolerance")
    else:
        console.say(f"FAILED | tensors are out of tolerance, and no layer alone makes them so{incomplete}")


def _named(one: Suspect) -> str:
    """A layer by its name, a group by its ends."""
    if len(one.labels) < 3:
        return " -> ".join(one.labels)
    return f"{one.labels[0]} -> ... -> {one.labels[-1]} ({len(one.labels)} layers)"


def _say_next(console: Console, found: Findings, args: argparse.Namespace) -> None:
    """What to type now: the reduction, and the worst layer or group cut out."""
    lines = [line_of(words) for words in next_lines(found, args)]
    if lines:
        console.note("")
    for head, text in zip(["Next", *[""] * len(lines)], lines, strict=False):
        console.note(f"{head:<8} {text}")
        if is_refused(text):
            return  # what follows reads what this one would have written
