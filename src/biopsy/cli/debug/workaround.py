"""``biopsy debug workaround``: finds the smallest change that makes a model right in the engine that must be used."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.cli.advice import Advice, of_diagnosis, say_advice
from biopsy.cli.arguments import checks, groups, types
from biopsy.cli.arguments.comparing import JudgeOptions, ToleranceOptions
from biopsy.cli.arguments.declared import option
from biopsy.cli.arguments.engines import default_engine
from biopsy.cli.arguments.groups import (
    InputOptions,
    ModelOption,
    OutputOption,
    WeightsFileOption,
    WeightsFileOptions,
    WeightsFolderOption,
)
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking
from biopsy.cli.progress import CheckProgress
from biopsy.cli.report import ReportOption
from biopsy.cli.run.execution import settled
from biopsy.cli.run.files import golden_values
from biopsy.cli.run.options import RunOptions
from biopsy.engines.registry import PLAIN, create, parse_spec
from biopsy.findings.answers import workarounds_tree, workarounds_verdict
from biopsy.findings.bundle.engine_script import calls_of
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.sources import noted_source, places_of
from biopsy.processes.writing import require_writable
from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate
from biopsy.questions.layers.question import Judge
from biopsy.questions.workarounds.question import (
    KINDS,
    PatchedFile,
    VerifiedChange,
    WhatIsRight,
    WorkaroundQuestion,
    Workarounds,
    comparison_template,
    golden_of,
)
from biopsy.text import count, first_of, is_refused, series

REST_OPTIONS = checks.REST_OPTIONS

DEFAULT_TIME = "10m"

EPILOG = f"""\
examples:
  The engine that must be used, against ONNX Runtime without its optimizer:
    biopsy debug workaround model.onnx --engine openvino -o fixed.onnx
  A check; the last engine of this name in it is the one that must be used:
    biopsy debug workaround model.onnx --engine onnxrt -o fixed.onnx \\
        --check biopsy run {{}} --engine onnxrt:optimization=none --engine onnxrt --load-inputs inputs.npz
  Where to look is known from a reduction; any check, in which {{engine}} is the engine with its settings:
    biopsy debug workaround model.onnx --engine onnxrt --piece reduced.onnx -o fixed.onnx \\
        --load-inputs inputs.npz --check ./check.sh {{}} {{engine}}

exit status: 0 a workaround was found and verified; 1 nothing that was tried is one; 2 wrong usage; 3 the model does not
fail; 4 nothing was concluded or could be tried, or it is unknown what is right; 5 interrupted, or a limit was reached
before anything was found

{checks.STATUSES}"""


_TRIED = "what is tried, and where"


class WorkaroundOptions(
    ModelOption,
    OutputOption,
    ReportOption,
    InputOptions,
    JudgeOptions,
    checks.CheckOptions,
    checks.BudgetOptions,
    WeightsFolderOption,
    WeightsFileOptions,
):
    """All options of ``debug workaround``."""

    engine: str | None = option(
        "--engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine that must be used: in a check that is 'biopsy run' the last one written exactly so, else "
        "the last one of this name (default: the last one; without a check, TensorRT if it works here, else ONNX "
        "Runtime)",
    )
    only_kinds: Sequence[str] | None = option(
        "--only",
        title=_TRIED,
        nargs="+",
        choices=KINDS,
        metavar="KIND",
        meaning=f"try only changes of these: {', '.join(KINDS)}",
    )
    skipped_kinds: Sequence[str] = option(
        "--skip", title=_TRIED, nargs="+", choices=KINDS, default=(), metavar="KIND", meaning="try no changes of these"
    )
    piece: Path | None = option(
        "--piece",
        title=_TRIED,
        rivals="where",
        type=types.READ,
        metavar="FILE",
        meaning="a small part of the model that fails, as 'debug reduce' writes it: its nodes are changed, then those "
        "beside them (default: the model is reduced first)",
    )
    nodes: Sequence[str] = option(
        "--nodes",
        title=_TRIED,
        rivals="where",
        nargs="+",
        default=(),
        metavar="NAME",
        meaning="change these nodes, by their names or those of what they compute; patterns allowed",
    )
    reference_engine: str | None = option(
        "--reference-engine",
        metavar="NAME[:key=value,...]",
        meaning="the engine whose outputs are right (default: the first other one of the check; else ONNX Runtime "
        "without its optimizer, else the reference evaluator)",
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug workaround``."""
    right = "what is right (of a check that is 'biopsy run', its own options say it, and how inputs are made)"
    WorkaroundOptions.add(
        parser,
        without=("jobs",),
        defaults={"max_time": types.duration(DEFAULT_TIME)},
        titles=dict.fromkeys(("reference_engine", *ToleranceOptions.declared), right),
        model=" that fails",
        output="write the best patched model, with its weights where they stand if it is in the same folder",
        check="the command that tells whether the model fails; takes the rest of the line. "
        f"In it, {{}}, or the name {checks.DEFAULT_CANDIDATE}, stands for the model, {{engine}} for the engine with "
        "its settings, {settings} for the settings alone. "
        "Without --check, the engine is compared with the one that is right",
        max_checks="stop after N checks, with what was found by then",
        max_time=f"stop after this time (90s, 10m, 2h), with what was found by then (default: {DEFAULT_TIME})",
    )


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights."""
    return WeightsFileOption.of(args).derived_weights(args.output)


@WorkaroundOptions.reading
def execute(options: WorkaroundOptions, console: Console) -> int:
    """Search; returns 0 if there is a workaround, 1 if there is none, 4 if nothing could be tried.

    Raises what ends with another status.
    """
    from biopsy.questions.workarounds.find import find_workarounds

    report = options.report_file(console)
    if options.output is not None:
        require_writable(options.output)
    question = question_of(options, console)
    with WorkaroundProgress(console, options) as progress, report.also_of_errors():
        with checking.ended_politely():
            progress.line("model", f"{options.model} in {question.template.spec.text}")
            workarounds = find_workarounds(question, progress)
        if workarounds.interrupted or (workarounds.stopped and not workarounds.found):
            status = errors.Interrupted.status
        else:
            status = errors.CheckError.status if not workarounds.tried else 0 if workarounds.found else 1
        lines = {}  # the command line of the check with each workaround
        for number, change in enumerate(workarounds.best, 1):
            model = workarounds.output if change.changes_model else options.model
            if model is not None and (not change.changes_model or change is workarounds.patched):
                lines[number] = checking.line_with(question.template, change.engine, change.environment, model)
        report.write(status, lambda: sections(workarounds, question.index, progress, lines))
        _say_result(console, workarounds, question.index, lines)
        progress.ended(status)
    if status == errors.Interrupted.status:
        kept = None if workarounds.output is None else f"{workarounds.output}, with which the model is right"
        raise errors.Interrupted(f"stopped by {workarounds.stopped}; what is known is shown above", kept=kept)
    return status


def question_of(options: WorkaroundOptions, console: Console) -> WorkaroundQuestion:
    """The question. Raises UsageError for arguments that would mislead, and what ``index_file`` raises."""
    own_run = checking.own_run(options.check)
    index = index_file(options.model, options.external_data_dir)
    checking.require_names(options.check, options.model)
    template = _template(options, console)
    create(template.spec)
    references, named = _references(options, own_run, template)
    inputs = options.inputs() if own_run is None else own_run.inputs()
    golden = own_run.load_outputs if own_run is not None else None
    chosen = options.only_kinds or KINDS
    kinds = tuple(kind for kind in KINDS if kind in chosen and kind not in options.skipped_kinds)
    if not kinds:
        raise errors.UsageError("--only and --skip leave nothing to try")
    target = None
    if options.output is not None:
        target = PatchedFile(
            path=options.output,
            external=options.weights_file(options.output),
            threshold=options.external_data_size_threshold,
        )
    return WorkaroundQuestion(
        index=index,
        model=options.model,
        template=template,
        right=WhatIsRight(
            samples=settled(index.fed_types(), inputs, console)[0],
            drawn=inputs,
            golden=golden_of(golden_values(golden) if golden else (), index),
            judge=Judge(*(own_run or options).limits()),
            references=references,
            named=named,
        ),
        rules=options.rules(),
        kinds=kinds,
        piece=options.piece,
        nodes=tuple(options.nodes),
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=options.check_timeout,
        target=target,
        budget=options.budget(),
    )


def _template(options: WorkaroundOptions, console: Console) -> CheckTemplate:
    """The check with ``{engine}`` in the place of the engine that must be used. Raises UsageError."""
    if options.check is None:
        if options.engine is None:
            engine = default_engine(runs=True)
            console.note(f"no engine is named: {engine.text} is used")
        else:
            engine = parse_spec(options.engine)
        inputs = options.as_typed(("load_inputs", *groups.MAKING, "input_symbols", "external_data_dir"))
        limits = options.as_typed(JudgeOptions.declared)
        words = [word for given in (*inputs, *limits) for word in given.words]
        return comparison_template(engine, options.reference_engine, words)
    if not options.check:
        raise errors.UsageError("there is no command after --check", next_steps=["--check ./check.sh {} {engine}"])
    unnamed = "the check does not tell which engine must be used: it is not 'biopsy run', or names it as {engine}"
    return checking.template_of(options.check, options.engine, unnamed)


def _references(
    options: WorkaroundOptions, own_run: RunOptions | None, template: CheckTemplate
) -> tuple[tuple[str, ...], bool]:
    """The engines to trust, and whether the user has named them."""
    if options.reference_engine is not None:
        create(options.reference_engine)
        return (options.reference_engine,), True
    command = parse(options.check or ())
    if own_run is not None and isinstance(command, OwnRun) and not own_run.load_outputs:
        others = [spec.text for spec in checking.engines_of_run(command) if spec != template.spec]
        others = [text for text in others if ENGINE_PLACE not in text]
        if others:
            return (others[0],), True
    return PLAIN, False


_MOST_NODES = 6
_MOST_NAMED = 4
_MOST_LINES = 12
"""Lines of a difference that are shown without -v."""

_CHANGE_WIDTH = 44


class WorkaroundProgress(CheckProgress):
    """Shows a line for each finding of the search, and the output of the first failure."""

    def __init__(self, console: Console, shown: checks.ShownChecks) -> None:
        super().__init__(console, shown, head="check", needs="a change is a workaround")
        self._has_failed = False

    def show(self, event: events.Event) -> None:
        """Show what is right, where changes are tried, and each that helps; with -v all that were tried."""
        match event:
            case events.OriginalFails() if self._has_failed:  # the reduction finds it once more
                pass
            case events.OriginalFails():
                self._has_failed = True
                super().show(event)
            case events.Trusted():
                agrees = f", as {event.confirmed_by} does" if event.confirmed_by else ""
                samples = f"{count(event.samples, 'sample')} of the check, {count(event.fresh, 'fresh one')}"
                self.line("right", f"what {event.engine} gives{agrees} · {samples} · {event.seconds:.1f} s")
            case events.StageStarted():
                self._head = event.stage
            case events.PlacesFound():
                if event.nodes:
                    self.line("piece", first_of(event.nodes, _MOST_NODES))
            case events.ChangeTried():
                slower = "" if event.latency is None else f" · {event.latency:.2f} times as long"
                outcome = f"right{slower}" if event.right else f"no: {' '.join(event.reason.split())}"[:100]
                if event.right or self._console.verbosity > 0:
                    self.line(event.change, f"{event.text:<{_CHANGE_WIDTH}} {outcome}")
            case _:
                super().show(event)


def _say_result(console: Console, workarounds: Workarounds, index: ModelIndex, lines: Mapping[int, str]) -> None:
    """Show what does not help, and the best workarounds, the cheapest first.

    ``lines`` are the command lines of the check with each of them, by their number.
    """
    console.note("")
    refused = [change for change in workarounds.tried if not change.right]
    for kind in dict.fromkeys(change.kind for change in refused):
        texts = [change.text for change in refused if change.kind == kind]
        named = first_of(texts, _MOST_NAMED) if kind in ("setting", "release") else f"{len(texts)} tried"
        console.note(f"{'no help':<{COLUMN}} {kind}: {named}")
    if not workarounds.found:
        tried = len({(change.kind, change.text) for change in workarounds.tried})
        head = "Nothing that was tried makes the model right" if tried else "No change could be tried"
        early = f"; stopped by {workarounds.stopped}" if workarounds.stopped else ""
        console.say(f"{head}: {count(tried, 'change')}, {count(workarounds.checks, 'check')}{early}.")
        return
    samples = f"{count(workarounds.trust.samples, 'sample')} and {count(workarounds.trust.fresh, 'fresh input')}"
    console.say(f"{count(len(workarounds.best), 'workaround')}, right on {samples}, the cheapest first:")
    for number, change in enumerate(workarounds.best, 1):
        console.say(*_change_lines(number, change, index))
        for line in () if change.changes_model else calls_of(parse_spec(change.engine), index):
            console.note(f"{_INDENT}{line}")
    others = [change.kind for change in workarounds.found if not any(change is best for best in workarounds.best)]
    if others:
        kinds = series([f"{others.count(kind)} {kind}" for kind in dict.fromkeys(others)])
        console.note(f"{'also':<{COLUMN}} {kinds}, as above")
    if workarounds.stopped:
        console.note(f"The search was stopped by {workarounds.stopped}: others may exist.")
    patched = workarounds.patched
    if patched is not None and workarounds.output is not None:
        console.note("")
        shown = patched.difference[: None if console.verbosity > 0 else _MOST_LINES]
        console.say(f"{workarounds.output!s:<{COLUMN}} {patched.text}", *(f"  {line}" for line in shown))
        if len(patched.difference) > len(shown):
            console.note(f"  and {count(len(patched.difference) - len(shown), 'more line')} (-v shows them)")
    say_advice(console, _advice(lines, Path(workarounds.model)))


def _advice(lines: Mapping[int, str], model: Path) -> list[Advice]:
    """What to type next: the check with each workaround, and the diagnosis of the model."""
    checked = ((number, line) for number, line in lines.items() if not is_refused(line))
    return [*(Advice(line, f"workaround {number}: the check passes") for number, line in checked), *of_diagnosis(model)]


_INDENT = f"     {'':<{COLUMN}} "


def _change_lines(number: int, change: VerifiedChange, index: ModelIndex) -> Iterator[str]:
    """A workaround: the change, what it costs or how it is set, where it is in the code, and its limits."""
    yield f"  {number}  {change.kind:<{COLUMN}} {change.text}"
    details = [change.latency.text] if change.latency is not None else []
    places: list[str] = []
    if change.changes_model:
        details.append(f"changes {series(list(change.nodes))}")
        numbers = [node.number for node in index.nodes if node.label in set(change.nodes)]
        places = [place.text for place in places_of(noted_source(index, number) for number in numbers)]
    else:
        details += [f"--engine {change.engine}", *(f"{name}={value}" for name, value in change.environment.items())]
    yield f"{_INDENT}{' · '.join(details)}"
    yield from (f"{_INDENT}{place}" for place in places[:_MOST_NAMED])
    yield from (f"{_INDENT}the same function for {limit}" for limit in change.holds)


def sections(
    workarounds: Workarounds, index: ModelIndex, progress: WorkaroundProgress, lines: Mapping[int, str]
) -> Mapping[str, Any]:
    """The sections of the report."""
    engines = [workarounds.trust.reference, *filter(None, [workarounds.trust.confirmed_by]), workarounds.engine]
    return {
        "verdict": workarounds_verdict(workarounds, lines),
        "model": model_tree_of(Path(workarounds.model)),
        "versions": versions_tree(engines),
        "search": progress.history.tree(),
        "next": [vars(each) for each in _advice(lines, Path(workarounds.model))],
        "workaround": workarounds_tree(workarounds, index),
    }
