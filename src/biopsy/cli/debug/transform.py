"""``biopsy debug transform``: finds what a tool breaks in a model: the smallest piece, and the pass that breaks it.

The result shows the piece before and after the tool, side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.cli.advice import Advice, resume_line, say_advice
from biopsy.cli.arguments import checks, comparing, types
from biopsy.cli.arguments.declared import option, switch
from biopsy.cli.arguments.engines import EngineOptions, PackageOptions, TensorrtOptions
from biopsy.cli.arguments.groups import ModelOption, OutputOption, RunLimits, SavedInputOptions, WeightsFolderOption
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.debug.reduction_report import ReductionReport
from biopsy.cli.progress import say_places
from biopsy.cli.report import ReportOption
from biopsy.cli.run.execution import save, settled
from biopsy.comparison.tolerance import MetricLimits
from biopsy.engines.registry import PLAIN
from biopsy.engines.runner import wider_sample
from biopsy.findings.answers import AGREE, transformation_verdict
from biopsy.findings.model import model_tree
from biopsy.findings.report import SearchHistory, versions_tree
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.load import require_file
from biopsy.processes.watch import Limits
from biopsy.processes.writing import require_writable
from biopsy.questions.transformations.question import (
    CONTROL,
    INTERRUPTION,
    STAGE,
    CommandQuestion,
    PassFindings,
    SameEngine,
    ToolPackages,
    TransformationFindings,
    TransformationQuestion,
    after_file,
    parse_tool,
    tool_python,
)
from biopsy.questions.transformations.tools import TOOLS
from biopsy.reduction.result import inputs_file
from biopsy.tensors.results import Feed
from biopsy.text import count, is_refused, line_of, printable, series, some_of

REST_OPTIONS = checks.REST_OPTIONS

EPILOG = """\
examples:
  biopsy debug transform model.onnx --by onnxslim -o piece.onnx
  biopsy debug transform model.onnx --by onnxruntime:level=extended
  biopsy debug transform model.onnx --by onnxslim --package onnxslim==0.1.50 --openvino --load-inputs inputs.npz
  biopsy debug transform model.onnx --by fp16 --report fp16.html
  Any tool that reads one file and writes another; no shell sees the line:
    biopsy debug transform model.onnx --by 'mytool {} -o {out}' --control 'mytool --no-passes {} -o {out}'
  Any check; {} is the transformed model, {original} the model itself:
    biopsy debug transform model.onnx --by onnxsim --check ./check.sh {}

exit status: 0 what breaks the model was found; 1 only loading and saving it breaks it already: no pass is to blame;
2 wrong usage; 3 the transformed model is right, or the model fails before it is transformed; 4 nothing can be said (the
tool cannot be run or installed, the model gives other values in each run); 5 interrupted, with the best result saved"""


class TransformOptions(
    ModelOption,
    OutputOption,
    ReportOption,
    checks.BudgetOptions,
    checks.EventsOption,
    PackageOptions,
    EngineOptions,
    SavedInputOptions,
    comparing.JudgeOptions,
    checks.CheckOption,
    checks.CheckTimeOptions,
    checks.CheckMemoryOption,
    RunLimits,
    WeightsFolderOption,
):
    """All options of ``debug transform``."""

    by: str = option(
        "--by",
        required=True,
        metavar="TOOL",
        meaning=f"what transforms it: {', '.join(TOOLS)}, with settings as in onnxruntime:level=extended; or a command "
        "with {} for the model and {out} for the file to write",
    )
    passes: Sequence[str] | None = option(
        "--passes",
        nargs="+",
        metavar="NAME",
        meaning="only these passes may run (default: those that run by themselves); in a command, {passes} stands for "
        "them, with commas",
    )
    control: str | None = option(
        "--control",
        metavar="COMMAND",
        meaning="the command that only loads and saves the model, where TOOL is a command (default: onnx does that)",
    )
    tool_timeout: float = option(
        "--tool-timeout",
        type=types.duration,
        default=600.0,
        meaning="end a transformation that takes longer (default: 10m)",
    )
    tool_memory: int | None = option(
        "--tool-memory", type=types.byte_size, meaning="end one that uses more (default: no limit)"
    )
    no_reduce: bool = switch("--no-reduce", meaning="do not make the model smaller")

    @property
    def piece(self) -> Path:
        """The file of the piece."""
        return self.output or Path(f"{self.model.stem}_piece.onnx")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug transform``."""
    tool = ("by", "passes", "control", "tool_timeout", "tool_memory")
    release = "the release of the tool (if it is not installed here, it is taken from the package index unasked)"
    judged = "what is out of tolerance; if given, it decides alone, and rounding is not considered"
    TransformOptions.add(
        parser,
        without=("jobs", "run_memory", *TensorrtOptions.declared),
        titles={
            **dict.fromkeys(tool, "the tool"),
            **dict.fromkeys(PackageOptions.declared, release),
            **dict.fromkeys(comparing.ToleranceOptions.declared, judged),
            "engines": "the engine that runs both models (default: onnxrt, with its own optimizer off)",
        },
        model=", as it is before",
        packages="the release to take",
        output="the smallest piece whose transformation is wrong (default: MODEL_piece.onnx); beside PIECE.onnx, "
        "PIECE.after.onnx is what becomes of it, and PIECE.onnx.inputs.safetensors what it is fed",
        max_checks="end the reduction after N checks, with what it has",
        max_time="end the reduction after this time, with what it has",
        check="instead of an engine: the command that tells whether a transformed model fails; takes the rest of the "
        "line. In it, {} stands for the transformed model and {original} for the model itself, which must pass too if "
        "{original} is not there",
        check_timeout="none",
    )
    TensorrtOptions.add(parser)


@TransformOptions.reading
def derived_files(options: TransformOptions) -> types.Derived:
    """The piece, unless an option names it, and the files beside it."""
    return {
        "the piece": (None if options.output else options.piece, types.WRITTEN),
        "the transformed piece": (after_file(options.piece), types.WRITTEN),
        "the inputs of the piece": (inputs_file(options.piece), types.WRITTEN),
    }


@TransformOptions.reading
def execute(options: TransformOptions, console: Console) -> int:
    """Find what breaks; returns 0, or 1 if saving alone breaks it; raises what ends with another status."""
    from biopsy.questions.transformations.find import find_transformation

    require_file(options.model)
    if options.check and options.names_engine:
        raise errors.UsageError("--check and an engine exclude each other: the check runs what it wants")
    if options.control and "{out}" not in options.by:
        raise errors.UsageError("--control is for a tool that is a command: known tools have their own way")
    for path in filter(None, (options.piece, options.save_inputs)):
        require_writable(path)
    tool = parse_tool(options.by)
    report = options.report_file(console)
    index = index_file(options.model, options.external_data_dir)
    if index.has_external_data and options.external_data_dir not in {None, options.model.parent}:
        raise errors.UsageError(
            f"a tool looks for the weights of {options.model} beside it, not in {options.external_data_dir}",
            next_steps=["put a link to the model beside its weights"],
        )
    packages = ToolPackages(
        packages=tuple(package.text for package in options.pinned()),
        beside=tuple(options.beside),
        python=options.python,
    )
    with (
        TransformProgress(console, options.events) as progress,
        report.also_of_errors(),
        checking.ended_politely(),
        tool_python(tool, packages, progress) as python,
    ):
        question = TransformationQuestion(
            index=index,
            tool=tool,
            python=python,
            decides=_decides(options, index, console),
            passes=None if options.passes is None else tuple(options.passes),
            control=None if options.control is None else parse_tool(options.control),
            output=options.piece,
            reduces=not options.no_reduce,
            budget=options.budget(),
            limits=Limits(seconds=options.tool_timeout, memory=options.tool_memory),
        )
        progress.show_plan(question)
        findings = find_transformation(question, progress)
        status = 1 if findings.fault == "control" else errors.Interrupted.status if findings.stopped else 0
        report.write(status, lambda: sections(options, findings, index, progress.history))
        progress.ended(status, findings.piece.nodes)
        _say_result(console, options, findings)
    if findings.stopped == INTERRUPTION:
        kept = findings.piece.path
        raise errors.Interrupted(
            "the search for the passes was interrupted; what is known is shown above",
            kept=None if kept is None else f"{kept}, which the tool breaks",
            resume=resume_line(options.words, checks.REST_OPTIONS) if kept is None or options.check else None,
        )
    return status


def _decides(options: TransformOptions, index: ModelIndex, console: Console) -> SameEngine | CommandQuestion:
    """What decides whether a transformed model is wrong: the check, or a comparison of both models in one engine."""
    if options.check:
        return CommandQuestion(words=tuple(options.check), timeout=options.check_timeout, memory=options.check_memory)
    specs = [spec.text for spec in options.specs()] if options.names_engine else [PLAIN[0]]
    if len(specs) > 1:
        raise errors.UsageError(f"too many engines: {', '.join(specs)}; the same one runs both models")
    tolerances, stats, limits = options.limits()
    given = (options.atol, options.rtol, options.check_error_stat)

    def feeds() -> Sequence[Feed]:
        samples, _ = settled(index.fed_types(), options.inputs(), console)
        save(options.save_inputs, samples)
        return samples

    return SameEngine(
        feeds=feeds,
        wider=lambda: wider_sample(index, index.fed_types(), options.inputs()),
        engine=specs[0],
        tolerances=tolerances,
        stats=stats,
        limits=limits,
        tolerances_decide=any(value is not None for value in given) or limits != MetricLimits(),
        timeout=options.run_timeout,
    )


_MOST_LINES = 60


class TransformProgress(ReductionReport):
    """Shows the search, and the reduction within it."""

    def __init__(self, console: Console, log: Path | None) -> None:
        super().__init__(console, log, "none")
        self._description = ""
        self._has_failed = False
        self._checks = 0

    def show_plan(self, question: TransformationQuestion) -> None:
        """Show what is transformed, and what decides whether the result is right."""
        decides = question.decides
        where = f"in {decides.engine}" if isinstance(decides, SameEngine) else "by the check"
        self.line("transform", f"{question.index.path} by {printable(question.tool.text)}, before and after {where}")

    def show(self, event: events.Event) -> None:
        """Show the failure, once, and the check of the control."""
        match event:
            case events.CheckingCandidate() | events.CheckedCandidate():
                super().show(event)
            case events.OriginalFails():
                if not self._has_failed:  # the reduction finds it once more
                    self.line("fails", f"{event.reason} · {event.seconds:.2f} s")
                self._has_failed = True
            case events.Checking():
                self._description = event.description
                self._checks += 1
                self._live.update(event.stage, f"{count(self._checks, 'check')} · {event.description[:70]}")
            case events.Checked():
                self._console.detail(f"  check {event.number}  {self._description}: {event.outcome}: {event.reason}")
                if event.stage == STAGE and self._description == CONTROL:
                    right = "right" if event.outcome == "passed" else "wrong"
                    self.line("control", f"{CONTROL}, with no pass: {right} · {event.seconds:.2f} s")
            case _:
                super().show(event)


def _say_result(console: Console, options: TransformOptions, findings: TransformationFindings) -> None:
    """Show the answer, the piece before and after, how to leave out the pass, and what to do next."""
    from biopsy.questions.transformations.find import side_by_side

    console.note("")
    console.say(printable(findings.sentence))
    if findings.fault == "control":
        console.say("So the format, or the comparison, is what is wrong: no pass was looked at.")
    if findings.where.second_opinion == "right":
        console.warn(AGREE)
    piece = findings.piece
    console.say(f"{len(piece.nodes)} of {count(piece.nodes_before, 'node')}: {some_of(piece.nodes, 12)}")
    say_places(console, piece.sources)
    console.say("")
    title = printable(f"after {findings.tool} {findings.release}".strip())
    after = piece.after or ("it writes no model",)
    lines = side_by_side(piece.before, after, console.columns, ("before", title))
    console.say(*lines[:_MOST_LINES], *([f"... {len(lines) - _MOST_LINES} more lines"] * (len(lines) > _MOST_LINES)))
    console.say("")
    if findings.fault != "control":
        console.say(*_pass_lines(findings.passes, interrupted=findings.stopped == INTERRUPTION))
    for what, path in (("piece", piece.path), ("after", piece.after_path), ("inputs", piece.inputs)):
        if path is not None:
            console.note(f"{what:<8} {path}")
    console.note(f"{count(findings.checks, 'check')} · {findings.seconds:.1f} s")
    say_advice(console, _advice(options, findings))


def _pass_lines(passes: PassFindings, *, interrupted: bool) -> Iterator[str]:
    """Which passes break the model, and without which it is right."""
    if passes.alone:
        yield f"{series(passes.alone)} alone {'does' if len(passes.alone) == 1 else 'do'} it, of {len(passes.all)}."
    if interrupted:
        what = "Without which passes it is right" if passes.alone else "Which of its passes breaks the model"
        yield f"{what} is not known: the search was interrupted."
        return
    if not passes.alone:
        shown = f"Its {count(len(passes.all), 'pass', 'passes')} by name do not show it: it cannot be said which."
        yield shown if passes.all else "The tool gives its passes no names."
        return
    if not passes.without:
        yield "No set of passes was found without which it is right."
        return
    for number, names in enumerate(passes.without):
        unconfirmed = "" if passes.verified or number else " (not confirmed by fresh processes)"
        yield f"It is {'also ' if number else ''}right without {some_of(names, 6)}{unconfirmed}."
    if passes.whole_is_right is False:
        yield f"The whole model is wrong without it too: {passes.whole_failure}."
    elif passes.whole_is_right:
        yield "So is the whole model."
    for what, line in (("leave out", passes.omission.command), ("Python", passes.omission.python)):
        if line:
            yield f"{what:<10} {line}"


def _advice(options: TransformOptions, findings: TransformationFindings) -> list[Advice]:
    """What to type next."""
    if findings.piece.path is None:
        return []
    words = ["biopsy", "debug", "transform", str(findings.piece.path), "--by", options.by, "--no-reduce"]
    words += ["--engine", findings.where.engine] if findings.where.engine and options.engines else []
    words += ["--passes", *options.passes] if options.passes else []
    words += ["--load-inputs", str(findings.piece.inputs)] if findings.piece.inputs else []
    packages = [word for package in options.packages for word in ("--package", package)]
    why = "its passes, from the piece on" if findings.stopped == INTERRUPTION else "the piece, once more"
    lines = [(line_of([*words, *packages]), why)] if not options.check else []
    lines.append(
        (line_of(["biopsy", "inspect", "model", str(findings.piece.path), "--mode=full"]), "the piece in full")
    )
    return [Advice(line, why) for line, why in lines if not is_refused(line)]


def sections(
    options: TransformOptions, findings: TransformationFindings, index: ModelIndex, history: SearchHistory
) -> Mapping[str, Any]:
    """The sections of the report."""
    return {
        "verdict": transformation_verdict(findings),
        "model": model_tree(index, options.model),
        "versions": versions_tree([findings.where.engine] if findings.where.engine else []),
        "search": history.tree(),
        "transformation": findings.as_json(),
        "next": [vars(each) for each in _advice(options, findings)],
    }
