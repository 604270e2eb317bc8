"""The examination of ``debug layers``: runs it, shows its findings and what to type next, and writes its report and its
bundle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.judge import Rules
from biopsy.checks.words import as_word, output_word
from biopsy.cli.advice import CUT_INPUTS, Advice, recording_options, say_advice
from biopsy.cli.arguments import types
from biopsy.cli.arguments.comparing import JudgeOptions
from biopsy.cli.arguments.groups import MORE_MEMORY
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import bundling, checking
from biopsy.cli.debug.layers_options import LayersOptions
from biopsy.cli.progress import ModelProgress, time_left
from biopsy.cli.report import ReportFile
from biopsy.cli.run.execution import save, settled
from biopsy.comparison.describe import index as index_text
from biopsy.comparison.describe import number
from biopsy.comparison.noise import DEFAULT_RATIO, explained_by
from biopsy.findings.answers import layers_sections
from biopsy.findings.bundle.job import BundleJob
from biopsy.findings.model import model_tree
from biopsy.findings.report import versions_tree
from biopsy.model.extract import Wanted, extract
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.tensor_type import TensorType
from biopsy.model.weights_file import save_with_weights
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import folders_of, write_whole
from biopsy.questions.layers.examination import Examination
from biopsy.questions.layers.findings import (
    LayerFinding,
    LayerFindings,
    LayerGroup,
    LayerOrigins,
    NonFiniteOrigin,
    Suspect,
    TensorError,
    as_csv,
)
from biopsy.questions.layers.question import Judge, Question
from biopsy.session.checked_search import model_read
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed
from biopsy.text import ListOption, count, first_of, is_refused, line_of, printable

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


class LayersReport(ModelProgress):
    """Listens to an examination."""

    _stage = ""

    def show(self, event: events.Event) -> None:
        """Show on the live line how much is measured, and how long the rest takes."""
        if not isinstance(event, events.Measured):
            super().show(event)
            return
        if event.stage != self._stage:
            self._stage, self._started = event.stage, time.monotonic()
        spent = time.monotonic() - self._started
        left = time_left(spent / max(event.done, 1) * (event.total - event.done)) if spent > 1 else ""
        text = f"{event.done} of {event.total}{f' · {left}' if left else ''}"
        self._live.update(_STAGES.get(event.stage, event.stage), text, event.done / max(event.total, 1))


def examined(options: LayersOptions, report: ReportFile) -> int:
    """Examine the model, show and report the findings; returns the exit status."""
    console = report.console
    fed: list[Feed] = []
    question = _question(options, fed, console)
    interrupted = False
    with LayersReport(console, options.events) as progress, report.also_of_errors():
        with (
            folders_of(options.work_dir / "a file") if options.work_dir else nullcontext(),
            temporary_folder("biopsy-", options.work_dir) as scratch,
            checking.ended_politely(),
        ):
            examination = Examination(question, scratch, progress)
            progress(model_read(question.index))
            try:
                findings = examination.run()
            except KeyboardInterrupt:
                findings, interrupted = examination.findings, True
            except errors.TooMuchMemory as error:
                raise errors.TooMuchMemory(error.message, next_steps=[MORE_MEMORY]) from error
        status = 0 if findings.passed else 1
        if not findings.passed and findings.nothing_wrong:  # some layers are right, and the others are unknown
            status = errors.CannotCompare.status
        if interrupted:
            status = errors.Interrupted.status
        sections = partial(_sections, options, findings, examination, question.index)
        report.write(status, sections)
        if options.csv is not None:
            write_whole(options.csv, [as_csv(findings)])
        _say_result(console, findings, options)
        progress.ended(status)
    if interrupted:
        kept = ", ".join(str(path) for path in (options.report, options.csv) if path is not None)
        raise errors.Interrupted("what was measured until then is shown above", kept=kept or None)
    if options.bundle is not None and findings.passed:
        console.warn(f"{options.bundle} is not written: nothing is wrong")
    elif options.bundle is not None:
        _pack(options, question, findings, fed, report.as_bytes(status, sections), console)
    return status


def _question(options: LayersOptions, fed: list[Feed], console: Console) -> Question:
    """The question. It stores the inputs in ``fed`` as soon as it has them."""

    def feeds(kinds: Mapping[str, TensorType | None]) -> Sequence[Feed]:
        """The input samples, which are also saved if the user wants that."""
        fed[:], _ = settled(kinds, options.inputs(), console)
        save(options.save_inputs, fed)
        return fed

    reference, suspect = options.engine_roles
    return Question(
        index=index_file(options.model, options.external_data_dir),
        feeds=feeds,
        suspect=suspect,
        reference=reference,
        judge=Judge(*options.limits()),
        nodes=None if options.nodes is None else types.regex("--nodes", options.nodes),
        limit=options.record_memory,
        timeout=options.run_timeout,
        memory=options.run_memory,
    )


def _pack(
    options: LayersOptions,
    question: Question,
    findings: LayerFindings,
    feeds: Sequence[Feed],
    report: bytes,
    console: Console,
) -> None:
    """Pack the worst layer or group with its inputs, or the whole model with a warning if none alone is at fault.

    Raises CheckError if the packed model does not fail, or if the script of the bundle does not show it.
    """
    from biopsy.findings.page.document import reports_of

    assert options.bundle is not None
    with temporary_folder("biopsy-", options.work_dir) as scratch:
        model, inputs, names = options.model, scratch / "inputs.safetensors", list(question.index.ids)
        if findings.suspects:
            suspect = findings.suspects[0]
            wanted = [Wanted(name) for name in suspect.inputs] or None
            part = extract(question.index, wanted, [Wanted(name) for name in suspect.outputs])
            model, names = scratch / "suspect.onnx", list(suspect.outputs)
            save_with_weights(part, model, question.index.folder, None)
            feeds = _fed(question, suspect, feeds, scratch)
        else:
            console.warn("no layer alone is at fault: the bundle holds the whole model ('debug reduce' makes it small)")
        write_feeds(inputs, feeds)
        reference, suspected = options.engine_roles
        words = ["biopsy", "run", "{}", "--engine", reference, "--engine", suspected]
        for limit in options.as_typed(JudgeOptions.declared):  # without those for tensors that the part lacks
            values = [word for word in limit.values if ":" not in word or word.rpartition(":")[0] in names]
            words += [limit.name, *values] if values else []
        job = BundleJob(
            target=options.bundle,
            original=options.model,
            model=model,
            check=CommandCheck(words, "{}", options.run_timeout),
            rules=Rules(),
            inputs=inputs,
            folder=(options.external_data_dir if model is options.model else None) or model.parent,
            reports=reports_of(report),
        )
        bundling.pack(job, checking.own_run(words), console)


def _fed(question: Question, suspect: Suspect, feeds: Sequence[Feed], scratch: Path) -> list[dict[str, Array]]:
    """The inputs of the suspect, as the reference computes them from the samples."""
    index = question.index
    computed = [name for name in suspect.inputs if index.ids[name] in index.producer]
    inner: list[dict[str, Array]] = [{} for _ in feeds]
    if computed:
        file = scratch / "samples.safetensors"
        write_feeds(file, feeds)
        with question.worker(question.reference, scratch) as reference:
            inner = [dict(sample) for sample in reference.run(question.model, file, computed)]
    fed = [name for name in suspect.inputs if name not in computed]
    return [
        {name: sample[name] for name in fed} | {name: values[name] for name in computed}
        for sample, values in zip(feeds, inner, strict=True)
    ]


def _sections(
    options: LayersOptions, findings: LayerFindings, examination: Examination, index: ModelIndex
) -> Mapping[str, Any]:
    """The sections of the report."""
    return {
        "model": model_tree(index, options.model),
        "versions": versions_tree(options.engine_roles),
        **layers_sections(findings, index, options.model, examination.engines, examination.samples),
        "next": [vars(each) for each in advice_of(findings, options)],
    }


def _headed(head: str, text: str) -> str:
    """A line with a word in the first column."""
    return f"{head:<{COLUMN}} {text}"


def _say_result(console: Console, findings: LayerFindings, options: LayersOptions) -> None:
    """Show the findings, the verdict last, and what to type next."""
    for remark in findings.remarks:
        console.warn(printable(remark))
    console.note(*_run_lines(findings, options.engine_roles[1]))
    if findings.unmeasured:
        labels = {layer.node.number: printable(layer.node.label) for layer in findings.layers}
        named = first_of([labels[layer] for layer in findings.unmeasured if layer in labels], 4)
        console.note(_headed("unmeasured", f"no golden value comes after {named}"))
    table = list(_table_lines(findings, options.top))
    if table:
        console.note("")
        console.say(*table)
        console.note("")
    is_golden = findings.golden is not None
    for layer in findings.layers:
        if layer.is_suspect and layer.piece is not None:  # run as one: the values within it are not recorded
            labels_of_piece = [printable(label) for label in layer.piece.labels]
            as_one = f"{count(len(labels_of_piece), 'layer')}, of which only the last has a recorded value"
            console.note(_headed("as one", as_one))
            lines = _piece_lines(labels_of_piece, layer, layer.introduced, layer.piece.origins, is_golden=is_golden)
            console.say(*lines)
    for group in findings.groups:
        cause = "they fail" if group.failure is not None else "they are wrong"
        right = f"{count(len(group.nodes), 'layer')}, right one by one"
        console.note(_headed("together", f"{right}: {cause} when run as one piece"))
        lines = _piece_lines(group.labels, group, group.error, group.origins, is_golden=is_golden)
        console.say(*lines, *_cause_lines(group))
    for effect in findings.marking_effects:
        names = first_of([_quoted(name) for name in effect.tensors], 4)
        output = _quoted(effect.output)
        what = {
            "gone": f"with {names} marked as an output, the failure of {output} is gone",
            "appears": f"{output} is right, and wrong when tensors are marked ({names})",
            "differs": f"{output} has other values when tensors are marked ({names})",
        }[effect.change]
        console.say(_headed("observing", what))
    console.say(*_non_finite_lines(findings), *_verdict_lines(findings))
    say_advice(console, advice_of(findings, options))


def _run_lines(findings: LayerFindings, suspect: str) -> Iterator[str]:
    """The results of the whole model, without and with marked inner tensors, and of its layers in isolation."""
    wrong = [output for output in findings.outputs if not output.passed]
    if findings.failure is not None:
        yield _headed("whole", f"{suspect} {findings.failure.text}")
    else:
        what = f"{count(len(findings.outputs), 'output')} within the tolerances"
        if wrong:
            others = len(wrong) - 1
            what = f"output {_quoted(wrong[0].tensor)} is wrong: {_error_text(wrong[0])}"
            what += f", as {'is 1 other' if others == 1 else f'are {others} others'}" if others else ""
        yield _headed("whole", f"{suspect} · {what}")
        measured = [layer.propagated for layer in findings.layers if layer.propagated is not None]
        if measured:
            beyond = sum(not error.passed for error in measured)
            text = f"{beyond} of {count(len(measured), 'layer')} out of tolerance in the whole model"
            yield _headed("marked", text)
    isolated = [layer for layer in findings.layers if layer.introduced is not None]
    introducing = sum(layer.verdict == "introduces" for layer in isolated)
    text = f"{introducing} of {count(len(isolated), 'layer')} out of tolerance in isolation"
    bridged = sum(bool(layer.within) for layer in findings.layers)
    if bridged:
        text += f" · {bridged} without a recorded value, each measured as one piece with the next that has one"
    failing = [layer.failure for layer in findings.layers if layer.failure is not None]
    if failing:
        text += f" · {len(failing)} cannot be run in isolation ({failing[0].kind})"
    yield _headed("isolated", text)


_HEAD = ("layer", "introduces", "x allowed", "in model", "worst element")


def _table_lines(findings: LayerFindings, most: int) -> Iterator[str]:
    """A table of the ``most`` worst layers that introduce errors, and where they come from; nothing if none does."""
    by_number = {layer.node.number: layer for layer in findings.layers if layer.piece is None}
    single = [suspect for suspect in findings.suspects if len(suspect.nodes) == 1 and suspect.nodes[0] in by_number]
    if not single:
        return
    rows = [_HEAD, *(_row(suspect, by_number[suspect.nodes[0]]) for suspect in single[:most])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers, worst in rows:
        cells = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=False)]
        yield "  ".join([f"{name:<{widths[0]}}", *cells, worst]).rstrip()
    for suspect in single[:_MOST_PLACES]:
        for place in suspect.origins.places:
            yield _headed("introduced", f"by {suspect.labels[0]}, {place}")
    if any(by_number[suspect.nodes[0]].is_of_model for suspect in single[:most]):
        yield _headed("model", _WRONG_REFERENCE if findings.golden is None else _GOLDEN_VALUES_OF_ANOTHER)
    if len(single) > most:
        yield f"and {len(single) - most} more (--top N, --report, --csv)"


def _row(suspect: Suspect, layer: LayerFinding) -> tuple[str, str, str, str, str]:
    label = printable(layer.node.label)
    whole = _size(layer.propagated)
    more = f" · flaky: {layer.flaky.text}" if layer.flaky is not None else ""
    if layer.is_of_model:
        more += " · as the model says"
    elif layer.flaky is None and layer.rounding_ratio is not None and layer.rounding_ratio <= DEFAULT_RATIO:
        more += f" · no more than rounding: {_number(layer.rounding_ratio)} times the rounding error of a plain run"
    if suspect.failure is not None:
        return label, "fails", "-", whole, f"{printable(suspect.failure.text)}{more}"
    error = suspect.error
    assert error is not None
    worst = printable(error.form) or f"{_quoted(error.tensor)} {_worst_text(error)}"
    ratio = "-" if error.form else _number(error.tolerance_ratio)
    return label, _size(error), ratio, whole, f"{worst}{more}"


def _size(error: TensorError | None) -> str:
    return "-" if error is None or error.form else _number(error.absolute)


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"


def _quoted(name: str) -> str:
    return f"'{printable(name)}'"


def _worst_text(error: TensorError) -> str:
    worst = error.worst
    if worst is None:
        return error.reason or ""
    sample = f" of sample {error.sample}" if error.sample else ""
    return f"{index_text(worst.index)}{sample}: {number(worst.actual)}, expected {number(worst.expected)}"


def _error_text(error: TensorError) -> str:
    if error.worst is None or error.form:
        return error.reason or ""
    return f"|difference| up to {_number(error.absolute)} at {_worst_text(error)}"


_GIVES = "the engine gives what the model says there"
_GOLDEN_VALUES_OF_ANOTHER = f"{_GIVES}, and the golden values are of something else: look at who made it"
_WRONG_REFERENCE = f"{_GIVES}, by float64: the reference is wrong"
"""What is said of layers that are right by float64: with golden values, and with a reference engine."""


def _piece_lines(
    labels: Sequence[str],
    measured: LayerFinding | LayerGroup,
    error: TensorError | None,
    origins: LayerOrigins,
    *,
    is_golden: bool,
) -> Iterator[str]:
    """Layers that were run as one piece: their labels, the error, and the lines of code they come from."""
    yield _headed("", first_of(labels, _MOST_LABELS, " -> "))
    if measured.failure is not None:
        yield _headed("", printable(measured.failure.text))
    elif error is not None:
        yield _headed("", f"{_quoted(error.tensor)}: {_error_text(error)}")
    for text in filter(None, (origins.name, *origins.places[:_MOST_PLACES])):
        yield _headed("", text)
    if len(origins.places) > _MOST_PLACES:
        yield _headed("", f"and {len(origins.places) - _MOST_PLACES} more places")
    if measured.is_of_model:
        yield _headed("", _GOLDEN_VALUES_OF_ANOTHER if is_golden else _WRONG_REFERENCE)


def _cause_lines(group: LayerGroup) -> Iterator[str]:
    """Whether the error of a group is rounding, is flaky, or comes from fusion."""
    if not group.is_of_model and group.rounding_ratio is not None:
        narrower = explained_by(group.rounding_ratio)
        times = f"{_number(group.rounding_ratio)} times the rounding error of a plain run"
        yield _headed("", f"not rounding: {times}" + (f", as if rounded to {narrower}" if narrower else ""))
    if group.flaky is not None:
        yield _headed("", f"flaky: it is so {group.flaky.text}")
    if group.hides:
        yield _headed("", "marking the tensors between them as outputs prevents the error")


def _non_finite_lines(findings: LayerFindings) -> Iterator[str]:
    """Lines for the layers where infinity and NaN begin, for each engine, or for both if it is the same layer."""
    begins = {(origin.engine, origin.nan > 0): origin for origin in reversed(findings.non_finite_origins)}
    by_layer: dict[int, list[NonFiniteOrigin]] = {}
    for origin in findings.non_finite_origins:
        if begins[origin.engine, origin.nan > 0] is origin:
            by_layer.setdefault(origin.number, []).append(origin)
    for _, origins in sorted(by_layer.items()):
        origin = origins[-1]
        counts = ((origin.nan, "NaN"), (origin.inf, "inf"))
        what = " and ".join(f"{times} {kind}" for times, kind in counts if times)
        engines = "both engines" if len(origins) > 1 else origin.engine
        where = f"{origin.label} in {engines}: {what} in {_quoted(origin.tensor)}"
        inputs = "hold infinity, but no NaN" if origin.reads_inf else "are finite"
        yield _headed("NaN/inf", f"begins at {where}, its inputs {inputs}")


def _verdict_lines(findings: LayerFindings) -> Iterator[str]:
    if findings.first_wrong is not None:
        layer, error = findings.first_wrong
        yield _headed("first", f"{_quoted(error.tensor)} of {layer.label} is the first tensor out of tolerance")
        if layer.source is not None and not any(layer.number in suspect.nodes for suspect in findings.suspects):
            yield _headed("", layer.source.with_code)
    if findings.is_masked:
        yield _headed("masked", "the outputs are right all the same: what follows hides the error")
    if findings.wrong_if_marked:
        marked = first_of([suspect.name for suspect in findings.wrong_if_marked], 3)
        yield _headed("marking", f"{marked}: wrong only if a result is an output; the model itself is right there")
    incomplete = "" if findings.complete else " (interrupted: not all was measured)"
    labels = [
        f"{suspect.name} gives {printable(suspect.error.form)}"
        if suspect.error and suspect.error.form
        else suspect.name
        for suspect in findings.suspects
    ]
    if labels:
        who = "the reference is wrong, by float64: " if findings.golden is None and findings.is_of_model else ""
        yield f"FAILED | {who}{first_of(labels, 3, '; ')}{incomplete}"
    elif not findings.nothing_wrong:
        yield f"FAILED | tensors are out of tolerance, and no isolated layer makes them so{incomplete}"
    elif not findings.complete:
        yield "INTERRUPTED | no tensor that was measured until then is out of tolerance"
    elif findings.unmeasured:
        yield f"UNKNOWN | no golden value judges {count(len(findings.unmeasured), 'layer')}; the others are right"
    elif findings.misfits:
        unfit = count(len(findings.misfits), "golden value")
        yield f"UNKNOWN | {unfit} not of the type or shape that the model computes; all else is right"
    else:
        yield "PASSED | no tensor is out of tolerance"


SAVED_INPUTS = "layers_inputs.npz"
"""The file of inputs that one proposed line writes and the next one loads."""

_Words = list[str | ListOption]


def advice_of(findings: LayerFindings, options: LayersOptions) -> list[Advice]:
    """What to type next, up to the first line that cannot be typed: later lines read the files of earlier ones."""
    advice = []
    for words in next_lines(findings, options):
        advice.append(Advice(line_of(words)))
        if is_refused(advice[-1].line):
            break
    return advice


def next_lines(findings: LayerFindings, options: LayersOptions) -> Iterator[_Words]:
    """The words of each line to type, in this order: the reduction, and the worst layer or group as a model of its own.

    No lines if there is no suspect. Inputs, seeds, shapes and limits are those that the failure was found with.
    """
    if not findings.suspects:
        return
    model = as_word(options.model)
    reference, suspect = (ListOption("--engine", [engine]) for engine in options.engine_roles)
    weights = []
    if options.external_data_dir is not None:
        weights = ["--external-data-dir", as_word(options.external_data_dir)]
    run: _Words = ["biopsy", "run", model, *weights]
    golden = None if options.golden is None else as_word(options.golden)
    trusted: _Words = [reference] if golden is None else ["--load-outputs", golden]
    compare = [*trusted, suspect, *options.as_typed(JudgeOptions.declared)]

    making = list(options.making())
    inputs = [as_word(path) for path in options.load_inputs or filter(None, [options.save_inputs])]
    if making and not inputs:
        inputs = [SAVED_INPUTS]
        yield [*run, reference, *making, "--save-inputs", SAVED_INPUTS]
    # With inputs, each candidate of the reduction is fed the values that the whole model has in its place.
    recorded = ["--load-inputs", *inputs, "--iter-inputs", CUT_INPUTS] if inputs else []
    if golden is not None:
        recorded = recording_options(options.engine_roles[0], inputs)
    report = options.report if options.report is not None and options.report.suffix != ".html" else None
    if len(findings.suspects) > len(findings.wrong_if_marked):
        yield [
            *("biopsy", "debug", "reduce", model, "-o", output_word("reduced.onnx", options.model)),
            *weights,
            *recorded,
            *(["--order-by", as_word(report)] if report is not None else []),
            *(["--mark-intermediate"] if findings.has_right_outputs else []),
            *("--check", "biopsy", "run", "{}", *(["--load-inputs", CUT_INPUTS] if inputs else [])),
            *compare,
        ]
    # The worst layer or group as a model, its inputs, and both engines on it.
    worst, piece = findings.suspects[0], output_word("suspect.onnx", options.model)
    yield [
        *("biopsy", "surgeon", "extract", model, "-o", piece),
        *weights,
        *([ListOption("--inputs", [f"{name}:auto:auto" for name in worst.inputs])] if worst.inputs else []),
        ListOption("--outputs", [f"{name}:auto" for name in worst.outputs]),
    ]
    if not worst.inputs:
        yield ["biopsy", "run", piece, *compare]
        return
    files = ["fed.npz", "inner.npz"]
    if golden is not None:
        files = [*dict.fromkeys((*inputs, golden))]
    else:
        loaded = ["--load-inputs", *inputs] if inputs else []
        inner = ListOption("--onnx-outputs", worst.inputs)
        yield [*run, reference, *loaded, inner, "--save-inputs", files[0], "--save-outputs", files[1]]
    yield ["biopsy", "data", "to-input", *files, "-o", "suspect_inputs.npz"]
    yield ["biopsy", "run", piece, "--load-inputs", "suspect_inputs.npz", *compare]
