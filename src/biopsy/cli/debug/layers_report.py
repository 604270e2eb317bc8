"""What ``debug layers`` shows: a line for each step, then a table of layers, and what to type next."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import events
from biopsy.checks.words import as_word, output_word
from biopsy.cli.advice import CUT_INPUTS, Advice, recording_options, say_advice
from biopsy.cli.arguments.comparing import JudgeOptions
from biopsy.cli.arguments.groups import InputOptions
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.progress import Progress, shows, time_left
from biopsy.model.index import ModelIndex
from biopsy.text import ListOption, count, first_of, is_refused, line_of, printable, size_text

if TYPE_CHECKING:
    from biopsy.questions.layers.findings import (
        LayerFinding,
        LayerFindings,
        LayerGroup,
        LayerOrigins,
        NonFiniteOrigin,
        Suspect,
        TensorError,
    )

_STAGES = {
    "record": "recording",
    "isolated": "isolated layers",
    "repeated": "layers once more",
    "whole": "whole model",
    "marks": "which marks hide it",
    "windows": "neighbours",
    "groups": "subgraphs",
}
_MOST_LABELS = 12
_MOST_PLACES = 3


class LayersReport(Progress):
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

    @shows(events.ModelRead)
    def _show_model(self, event: events.ModelRead) -> None:
        inputs, outputs = count(event.inputs, "input"), count(event.outputs, "output")
        what = f"{count(event.nodes, 'node')} · opset {event.opset} · {inputs}, {outputs}"
        self.line("model", f"{event.name} · {what} · {size_text(event.weight_bytes)} of weights")

    @shows(events.Recorded)
    def _show_recorded(self, event: events.Recorded) -> None:
        what = f"{count(event.tensors, 'tensor')} of {count(event.samples, 'sample')}, {size_text(event.bytes)}"
        if event.of is not None:
            samples = f" of {count(event.samples, 'sample')}" if event.samples > 1 else ""
            what = f"golden values of {event.tensors} of {count(event.of, 'tensor')}{samples}, {size_text(event.bytes)}"
        self.line("recorded", f"{event.engine} · {what} · {event.seconds:.2f} s")

    @shows(events.Measured)
    def _show_measured(self, event: events.Measured) -> None:
        if event.stage != self._stage:
            self._stage, self._started = event.stage, time.monotonic()
        spent = time.monotonic() - self._started
        left = time_left(spent / max(event.done, 1) * (event.total - event.done)) if spent > 1 else ""
        text = f"{event.done} of {event.total}{f' · {left}' if left else ''}"
        self._live.update(_STAGES.get(event.stage, event.stage), text, event.done / max(event.total, 1))


def _line(console: Console, head: str, text: str) -> None:
    """A line that begins with a word in its column."""
    console.note(f"{head:<{COLUMN}} {text}")


def say_result(console: Console, findings: LayerFindings, args: argparse.Namespace) -> None:
    """All that is to be known about the findings, the verdict first."""
    for remark in findings.remarks:
        console.warn(printable(remark))
    _say_runs(console, findings, args.suspect)
    if findings.unmeasured:
        labels = {layer.node.number: printable(layer.node.label) for layer in findings.layers}
        named = first_of([labels[number] for number in findings.unmeasured if number in labels], 4)
        _line(console, "unmeasured", f"no golden value comes after {named}")
    _say_table(console, findings, args.top)
    for layer in findings.layers:
        if layer.is_suspect and layer.piece is not None:  # run as one, since nobody has values of what lies between
            labels_of_piece = [printable(label) for label in layer.piece.labels]
            as_one = f"{count(len(labels_of_piece), 'layer')}, of which only the last has a recorded value"
            _line(console, "as one", as_one)
            _say_layers(console, labels_of_piece, layer, layer.introduced, layer.piece.origins)
            if layer.is_of_model:
                _say_below(console, _OF_MODEL)
    for group in findings.groups:
        _say_group(console, group)
    for effect in findings.marking_effects:
        names = ", ".join(_quoted(name) for name in effect.tensors[:4])
        names += f" and {len(effect.tensors) - 4} more" if len(effect.tensors) > 4 else ""
        output = _quoted(effect.output)
        what = {
            "gone": f"with {names} marked as an output, the failure of {output} is gone: the engine fuses across it",
            "appears": f"{output} is right, and wrong when tensors are marked ({names})",
            "differs": f"{output} has other values when tensors are marked ({names})",
        }[effect.change]
        console.say(f"{'observing':<{COLUMN}} {what}")
    _say_non_finite_origins(console, findings)
    _say_verdict(console, findings)
    say_advice(console, advice_of(findings, args))


def _say_runs(console: Console, findings: LayerFindings, suspect: str) -> None:
    """What the whole model gave, with inner tensors marked and without, and its layers in isolation."""
    wrong = [output for output in findings.outputs if not output.passed]
    if findings.failure is not None:
        _line(console, "whole", f"{suspect} {findings.failure.text}")
    else:
        what = f"{count(len(findings.outputs), 'output')} within the tolerances"
        if wrong:
            others = len(wrong) - 1
            what = f"output {_quoted(wrong[0].tensor)} is wrong: {_error_text(wrong[0])}"
            what += f", as {'is 1 other' if others == 1 else f'are {others} others'}" if others else ""
        _line(console, "whole", f"{suspect} · {what}")
        measured = [layer.propagated for layer in findings.layers if layer.propagated is not None]
        if measured:
            beyond = sum(not error.passed for error in measured)
            text = f"{beyond} of {count(len(measured), 'layer')} out of tolerance in the whole model"
            _line(console, "marked", text)
    isolated = [layer for layer in findings.layers if layer.introduced is not None]
    introducing = sum(layer.verdict == "introduces" for layer in isolated)
    text = f"{introducing} of {count(len(isolated), 'layer')} out of tolerance in isolation"
    bridged = sum(bool(layer.within) for layer in findings.layers)
    if bridged:
        text += f" · {bridged} without a recorded value, each measured as one piece with the next that has one"
    failing = [layer.failure for layer in findings.layers if layer.failure is not None]
    if failing:
        text += f" · {len(failing)} cannot be run in isolation ({failing[0].kind})"
    _line(console, "isolated", text)


_HEAD = ("layer", "introduces", "x allowed", "in model", "worst element")


def _say_table(console: Console, findings: LayerFindings, most: int) -> None:
    """The layers that make errors, worst first; numbers to the right, aligned."""
    by_number = {layer.node.number: layer for layer in findings.layers if layer.piece is None}
    single = [suspect for suspect in findings.suspects if len(suspect.nodes) == 1 and suspect.nodes[0] in by_number]
    if not single:
        return
    rows = [_row(suspect, by_number[suspect.nodes[0]]) for suspect in single[:most]]
    widths = [max(len(row[column]) for row in (_HEAD, *rows)) for column in range(len(_HEAD) - 1)]
    console.note("")
    for row in (_HEAD, *rows):
        cells = [f"{row[0]:<{widths[0]}}", *(f"{row[place]:>{widths[place]}}" for place in (1, 2, 3)), row[4]]
        console.say("  ".join(cells).rstrip())
    for suspect in single[:_MOST_PLACES]:
        for place in suspect.origins.places:
            console.say(f"{'introduced':<{COLUMN}} by {suspect.labels[0]}, {place}")
    if any(by_number[suspect.nodes[0]].is_of_model for suspect in single[:most]):
        console.say(f"{'model':<{COLUMN}} {_OF_MODEL}")
    if len(single) > most:
        console.say(f"and {len(single) - most} more (--top N, --report, --csv)")
    console.note("")


def _row(suspect: Suspect, layer: LayerFinding) -> tuple[str, str, str, str, str]:
    from biopsy.comparison.noise import DEFAULT_RATIO

    label = printable(layer.node.label)
    whole = _number(layer.propagated.absolute) if layer.propagated is not None else "-"
    more = f" · flaky: {layer.flaky.text}" if layer.flaky is not None else ""
    if layer.is_of_model:
        more += " · as the model says"
    elif layer.rounding_ratio is not None and layer.rounding_ratio <= DEFAULT_RATIO:
        more += f" · no more than rounding: {_number(layer.rounding_ratio)} times the error of plain float32"
    if suspect.failure is not None:
        return label, "fails", "-", whole, f"{printable(suspect.failure.text)}{more}"
    error = suspect.error
    assert error is not None
    worst = f"{_quoted(error.tensor)} {_worst_text(error)}{more}"
    return label, _number(error.absolute), _number(error.tolerance_ratio), whole, worst


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


_OF_MODEL = (
    "the engine gives what the model says there, and the golden values are of something else: look at who made it"
)


def _say_below(console: Console, *texts: str) -> None:
    for text in texts:
        console.say(f"{'':<{COLUMN}} {text}")


def _say_layers(
    console: Console,
    labels: Sequence[str],
    found: LayerFinding | LayerGroup,
    error: TensorError | None,
    origins: LayerOrigins,
) -> None:
    """Layers that were run as one piece, how that is wrong, what they are and the lines of code they come from."""
    _say_below(console, first_of(labels, _MOST_LABELS, " -> "))
    if found.failure is not None:
        _say_below(console, printable(found.failure.text))
    elif error is not None:
        _say_below(console, f"{_quoted(error.tensor)}: {_error_text(error)}")
    _say_below(console, *filter(None, (origins.name, *origins.places[:_MOST_PLACES])))
    if len(origins.places) > _MOST_PLACES:
        _say_below(console, f"and {len(origins.places) - _MOST_PLACES} more places")


def _say_group(console: Console, group: LayerGroup) -> None:
    from biopsy.comparison.noise import explained_by

    cause = "they fail" if group.failure is not None else "they are wrong"
    _line(console, "together", f"{count(len(group.nodes), 'layer')}, right one by one: {cause} when run as one piece")
    _say_layers(console, group.labels, group, group.error, group.origins)
    if group.is_of_model:
        _say_below(console, _OF_MODEL)
    elif group.rounding_ratio is not None:
        narrower = explained_by(group.rounding_ratio)
        times = f"{_number(group.rounding_ratio)} times the error of plain float32"
        _say_below(console, f"not rounding: {times}" + (f", as if rounded to {narrower}" if narrower else ""))
    if group.flaky is not None:
        _say_below(console, f"flaky: it is so {group.flaky.text}")
    if group.hides:
        _say_below(console, "marking the tensors between them as outputs removes the error: fusion causes it")


def _say_non_finite_origins(console: Console, findings: LayerFindings) -> None:
    """The first origin of NaN or infinity of each engine; one line for both where it is the same layer."""
    first: dict[str, NonFiniteOrigin] = {}
    for origin in findings.non_finite_origins:
        first.setdefault(origin.engine, origin)
    by_layer: dict[int, list[NonFiniteOrigin]] = {}
    for origin in first.values():
        by_layer.setdefault(origin.number, []).append(origin)
    for origins in by_layer.values():
        origin = origins[-1]
        counts = ((origin.nan, "NaN"), (origin.inf, "inf"))
        what = " and ".join(f"{number} {kind}" for number, kind in counts if number)
        who = "both engines" if len(origins) > 1 else origin.engine
        where = f"{origin.label} in {who}: {what} in {_quoted(origin.tensor)}"
        console.say(f"{'NaN/inf':<{COLUMN}} begins at {where}, its inputs are finite")


def _say_verdict(console: Console, findings: LayerFindings) -> None:
    if findings.first_wrong is not None:
        layer, error = findings.first_wrong
        where = f"{_quoted(error.tensor)} of {layer.label}"
        console.say(f"{'first':<{COLUMN}} {where} is the first tensor out of tolerance")
        if layer.source is not None and layer.number not in {n for one in findings.suspects for n in one.nodes}:
            _say_below(console, layer.source.with_code)
    if findings.is_masked:
        console.say(f"{'masked':<{COLUMN}} the outputs are right all the same: what follows hides the error")
    incomplete = "" if findings.complete else " (interrupted: not all was measured)"
    labels = [suspect.name for suspect in findings.suspects[:3]]
    if labels:
        more = f" and {len(findings.suspects) - 3} more" if len(findings.suspects) > 3 else ""
        verdict = f"FAILED | {'; '.join(labels)}{more}{incomplete}"
    elif findings.nothing_wrong and not findings.complete:
        verdict = "INTERRUPTED | no tensor that was measured until then is out of tolerance"
    elif findings.nothing_wrong and findings.unmeasured:
        unmeasured = count(len(findings.unmeasured), "layer")
        verdict = f"UNKNOWN | no golden value judges {unmeasured}; the others are right"
    elif findings.nothing_wrong and findings.misfits:
        unfit = count(len(findings.misfits), "golden value")
        verdict = f"UNKNOWN | {unfit} not of the type or shape that the model computes; all else is right"
    elif findings.passed:
        verdict = "PASSED | no tensor is out of tolerance"
    else:
        verdict = f"FAILED | tensors are out of tolerance, and no isolated layer makes them so{incomplete}"
    console.say(verdict)


# What to type after ``debug layers``: the reduction, and the worst layer or group cut out and fed what it was fed.
#
# The lines carry what the failure was seen with: inputs, seeds, shapes, limits. Each can be pasted as it is.

SAVED_INPUTS = "layers_inputs.npz"
"""Where a line has inputs saved that the next one loads."""


def advice_of(findings: LayerFindings, args: argparse.Namespace) -> list[Advice]:
    """What to type next; of lines that read what another one writes, none after one that nobody can type."""
    advice = []
    for words in next_lines(findings, args):
        advice.append(Advice(line_of(words)))
        if is_refused(advice[-1].line):
            break
    return advice


def next_lines(findings: LayerFindings, args: argparse.Namespace) -> list[list[str | ListOption]]:
    """The words of each line, in the order in which to type them; no lines if there is no suspect."""
    if not findings.suspects:
        return []
    making = list(InputOptions.of(args).making())
    inputs = [as_word(path) for path in args.load_inputs or ([args.save_inputs] if args.save_inputs else ())]
    saving: list[list[str | ListOption]] = []
    if making and not inputs:
        inputs = [SAVED_INPUTS]
        saving = [[*_run(args), _reference(args), *making, "--save-inputs", SAVED_INPUTS]]
    # With inputs, each candidate of the reduction is fed what its place in the model saw with them.
    recorded = ["--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS] if inputs else []
    if args.load_outputs is not None:
        recorded = recording_options(args.reference_engine, inputs)
    is_ordered = args.report is not None and args.report.suffix != ".html"
    reduction: list[str | ListOption] = [
        *("biopsy", "debug", "reduce", as_word(args.model), "-o", output_word("reduced.onnx", args.model)),
        *_weights(args),
        *recorded,
        *(["--order-by", as_word(args.report)] if is_ordered else []),
        *(["--mark-intermediate"] if findings.is_masked else []),
        *("--check", "biopsy", "run", "{}", *(["--load-inputs", CUT_INPUTS] if inputs else [])),
        *_compare(args),
    ]
    return [*saving, reduction, *_piece(findings.suspects[0], args, inputs)]


def _weights(args: argparse.Namespace) -> list[str]:
    return ["--external-data-dir", as_word(args.external_data_dir)] if args.external_data_dir is not None else []


def _run(args: argparse.Namespace) -> list[str]:
    return ["biopsy", "run", as_word(args.model), *_weights(args)]


def _reference(args: argparse.Namespace) -> ListOption:
    return ListOption("--engine", [args.reference_engine])


def _compare(args: argparse.Namespace) -> list[str | ListOption]:
    trusted = [_reference(args)] if args.load_outputs is None else ["--load-outputs", as_word(args.load_outputs)]
    return [*trusted, ListOption("--engine", [args.suspect]), *JudgeOptions.of(args).as_typed()]


def _piece(worst: Suspect, args: argparse.Namespace, inputs: Sequence[str]) -> Iterator[list[str | ListOption]]:
    """The worst layer or group as a model, what it was fed, and both engines on it."""
    piece = output_word("suspect.onnx", args.model)
    yield [
        *("biopsy", "surgeon", "extract", as_word(args.model), "-o", piece),
        *_weights(args),
        *([ListOption("--inputs", [f"{name}:auto:auto" for name in worst.inputs])] if worst.inputs else []),
        ListOption("--outputs", [f"{name}:auto" for name in worst.outputs]),
    ]
    if not worst.inputs:
        yield ["biopsy", "run", piece, *_compare(args)]
        return
    loaded = ["--load-inputs", *inputs] if inputs else []
    if args.load_outputs is not None:
        files = dict.fromkeys((*inputs, as_word(args.load_outputs)))
        yield ["biopsy", "data", "to-input", *files, "-o", "suspect_inputs.npz"]
        yield ["biopsy", "run", piece, "--load-inputs", "suspect_inputs.npz", *_compare(args)]
        return
    yield [
        *_run(args),
        _reference(args),
        *loaded,
        ListOption("--onnx-outputs", worst.inputs),
        *("--save-inputs", "fed.npz", "--save-outputs", "inner.npz"),
    ]
    yield ["biopsy", "data", "to-input", "fed.npz", "inner.npz", "-o", "suspect_inputs.npz"]
    yield ["biopsy", "run", piece, "--load-inputs", "suspect_inputs.npz", *_compare(args)]
