"""``biopsy debug precision``: which layers need a high precision, and the model in which only those have it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import absent_options, checks, groups, types
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.arguments.tensorrt import TensorrtOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.progress import SearchProgress, say_places, shows
from biopsy.cli.report import ReportFile, ReportOption
from biopsy.engines.registry import EngineSpec, find_class, parse_spec
from biopsy.findings.model import map_tree, model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Verdict
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.precision.mixed_models import High, Low, Precisions, mixed_models
from biopsy.questions.precision.search import PrecisionJob, PrecisionResult, precision_tree
from biopsy.recording.reference_run import random_samples
from biopsy.session.checked_search import SearchOptions
from biopsy.session.iteration import IterationFiles
from biopsy.session.pool import Parallelism
from biopsy.session.workspace import set_aside
from biopsy.tensors.results import Feed
from biopsy.text import count, line_of, option_line, size_text

if TYPE_CHECKING:
    from biopsy.cli.run.options import RunOptions
    from biopsy.questions.precision.formats import Form
    from biopsy.questions.precision.plan import Cost
    from biopsy.questions.precision.search import Direction, Mode

REST_OPTIONS = checks.REST_OPTIONS

_NOT_ELSEWHERE = {
    "--artifacts": other_machines.STAYS_THERE,
    "--no-remove-intermediate": other_machines.STAYS_THERE,
}
"""Options that cannot be combined with ``--on``, each with the reason."""

warmed_up = checking.warmed_up

_EPILOG = f"""\
examples:
  First golden values, then the layers for which fp16 is not enough:
    biopsy run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json
    biopsy debug precision model.onnx --fp16 -o mixed.onnx --list keep.txt \\
        --check biopsy run {{}} --onnxrt --load-inputs inputs.json \\
                --load-outputs golden.json --rtol 1e-2 --atol 1e-2
  How many of the last layers must be high, by halving:
    biopsy debug precision model.onnx --fp16 --mode bisect --dir reverse --check ...
  With the checks on the GPUs of a Ray cluster:
    biopsy debug precision model.onnx --fp16 --trt --on ray --resources GPU=1 --check ...

The report, on the terminal and as JSON ("form"), says how candidates got their low precision: emulated by Casts around
float32 arithmetic (--emulate, the default), or native (--native; the default with --trt, except for --fp8).

A candidate passes if its check does. Anything else (a failure, 'cannot say', no answer in time) rules it out.

{checks.STATUSES}"""

_LOW = {
    "fp16": "the low precision is float16 (default)",
    "bf16": "the low precision is bfloat16",
    "fp8": "the low precision is float8",
    "int8": "the low precision is int8 with scales",
}
"""The low precisions, each an option, with its help."""

_FORMS = {
    "emulate": "low layers compute in float32, and pairs of Casts round their inputs, weights and outputs: for engines "
    "without such arithmetic, as on CPUs (default)",
    "native": "low layers have low types, with Casts only where precisions meet: for engines that compute in them",
}
"""How the low precision gets into the candidates, each an option, with its help."""


class MixtureOptions(Options):
    """What is mixed, what is searched, and what is checked of it."""

    names: Path | None = option(
        "--list",
        type=types.WRITTEN,
        metavar="FILE.txt",
        meaning="write the names of the layers that must be high, one per line, as for nodes_to_exclude, "
        "node_block_list",
    )
    low: str | None = None
    form: Form | None = None
    fp8_format: str = option(
        "--fp8-format", choices=("e4m3fn", "e5m2"), default="e4m3fn", meaning="which float8 (default: e4m3fn)"
    )
    precision: High = option(
        "-p",
        "--precision",
        choices=("float32", "float16"),
        default="float32",
        meaning="the high precision (default: float32)",
    )
    engine: str | None = option(
        "--engine", metavar="NAME[:key=value,...]", meaning="the same with any engine that writes such files"
    )
    mode: Mode = option(
        "--mode",
        choices=("minimal", "bisect", "linear"),
        default="minimal",
        meaning="minimal: few layers, anywhere, none of which can be low (default); bisect: how many from one end of "
        "the network, by halving; linear: the same, one layer at a time",
    )
    direction: Direction = option(
        "--dir",
        "--direction",
        choices=("forward", "reverse"),
        default="forward",
        meaning="for bisect and linear: raise the first layers, or the last (default: forward)",
    )
    cost: Cost = option(
        "--cost",
        choices=("flops", "bytes", "count"),
        default="count",
        meaning="the cost to minimize: the most expensive layers are lowered first (default: count)",
    )


class PrecisionOptions(
    groups.ModelOption,
    groups.OutputOption,
    ReportOption,
    MixtureOptions,
    checks.CheckOption,
    checks.RuleOptions,
    checks.CheckTimeOptions,
    checks.CheckMemoryOption,
    checks.ColdOption,
    checks.ShownOutputOptions,
    checks.RepeatOptions,
    checks.BudgetOptions,
    checks.ResumedSearch,
    checks.ArtifactOptions,
    checks.IterationOptions,
    checks.EventsOption,
    groups.WeightsFolderOption,
    groups.WeightsFileOption,
    TensorrtOptions,
):
    """All options of ``debug precision``."""

    @cached_property
    def builder(self) -> str | None:
        """The engine to build with, TensorRT with its settings. Raises UsageError for settings without --trt alone."""
        given = self.options_given()
        if not given:
            return self.engine
        if self.engine != "trt":
            raise errors.UsageError(
                f"{given[0]} is a setting of --trt, which is not given",
                next_steps=["--trt", "with --engine, write settings after the name"],
            )
        return EngineSpec("trt", self.settings()).text

    @cached_property
    def artifact(self) -> Path:
        """Where what the check looks at is written. Raises UsageError for an engine that writes no file."""
        if self.builder is None:
            return self.iter_artifact or Path(checks.DEFAULT_CANDIDATE)
        saves = [kind for kind in find_class(parse_spec(self.builder).name).capabilities.saves if kind != ".onnx"]
        if not saves:
            raise errors.UsageError(
                f"{self.builder} writes no file of what it builds, so it cannot be checked",
                next_steps=[f"let the check build it: --check biopsy run {{}} {option_line('--engine', self.builder)}"],
            )
        return self.iter_artifact or Path(checks.DEFAULT_CANDIDATE).with_suffix(saves[0])

    @property
    def candidate(self) -> Path:
        """Where each candidate is written."""
        return self.artifact if self.builder is None else self.artifact.with_suffix(".onnx")

    @property
    def precisions(self) -> Precisions:
        """Which precisions are mixed."""
        low: Low = "fp8_e5m2" if (self.low, self.fp8_format) == ("fp8", "e5m2") else self.low or "fp16"  # type: ignore[assignment]
        is_native = self.builder is not None and self.builder.startswith("trt") and self.low != "fp8"
        return Precisions(low=low, high=self.precision, form=self.form or ("native" if is_native else "emulate"))

    def journal(self) -> Path | None:
        """Where the journal stands; None without an output to name it after. Raises UsageError if it is needed then."""
        if self.output is not None:
            return checks.journal_of(self.output)
        for spelling in self.given(("fresh", "load_debug_replay", "save_debug_replay")):
            raise errors.UsageError(f"{spelling} needs an output", next_steps=["-o mixed.onnx"])
        return None

    def job(self, parallelism: Parallelism, sections: PrecisionSections) -> PrecisionJob:
        """What is to be searched, and how. Raises UsageError for options that contradict each other."""
        if self.save_external_data is not None and self.output is None:
            raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
        return PrecisionJob(
            output=self.output,
            external=None if self.output is None else self.weights_file(self.output),
            report=self.report,
            names=self.names,
            write_report=sections.write,
            mode=self.mode,
            direction=self.direction,
            cost=self.cost,
            search=SearchOptions(
                rules=self.rules(),
                candidate=self.candidate,
                files=IterationFiles(
                    artifacts=self.sorted_files(), info=self.iter_info, keep_last=self.no_remove_intermediate
                ),
                parallelism=parallelism,
                budget=self.budget(),
                repeating=self.repeating(),
                resume=self.resume(self.journal(), "search"),
            ),
        )


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug precision``."""
    parser.epilog = _EPILOG
    groups.ModelOption.add(parser, model=", in its high precision")
    groups.OutputOption.add(parser, output="write the mixed-precision model, ready to use")
    ReportOption.add(parser)
    MixtureOptions.add(parser, only=["names"])
    group = parser.add_argument_group("precisions")
    lows = group.add_mutually_exclusive_group()
    for name, meaning in _LOW.items():
        lows.add_argument(f"--{name}", action="store_const", dest="low", const=name, help=meaning)
    MixtureOptions.add(group, only=["fp8_format", "precision"])
    forms = group.add_mutually_exclusive_group()
    for name, meaning in _FORMS.items():
        forms.add_argument(f"--{name}", action="store_const", dest="form", const=name, help=meaning)
    group = parser.add_argument_group("check an engine built from the mixed-precision model, instead of the model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--trt",
        action="store_const",
        dest="engine",
        const="trt",
        help="build with TensorRT; {} in the check then stands for the file it writes, and low layers are --native",
    )
    MixtureOptions.add(which, only=["engine"])
    MixtureOptions.add(parser.add_argument_group("the search"), only=["mode", "direction", "cost"])
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(
        group,
        check="the command that tells whether a candidate passes; takes the rest of the line. "
        f"In it, {checks.CANDIDATE}. {checks.ASKED}",
    )
    checks.RuleOptions.add(group, match="has no effect here: a candidate with any failure does not pass")
    checks.CheckTimeOptions.add(group, check_timeout="20 times as long as with every layer high, at least 60")
    checks.CheckMemoryOption.add(group)
    checks.ColdOption.add(group)
    checks.ShownOutputOptions.add(group, hide_fail_output="the check with every layer low")
    checks.RepeatOptions.add(group)
    group = parser.add_argument_group("time limits, and resuming")
    checks.BudgetOptions.add(group)
    checks.ResumeOptions.add(group)
    other_machines.add(parser)
    group = parser.add_argument_group("files of each iteration")
    checks.ArtifactOptions.add(group)
    checks.IterationOptions.add(
        group,
        iter_artifact=f"where each candidate is written (default: {checks.DEFAULT_CANDIDATE}; with --trt: "
        "polygraphy_debug.engine)",
    )
    checks.EventsOption.add(group)
    group = parser.add_argument_group("the model")
    groups.RecordedInputs.add(
        group,
        load_inputs="calibrate --int8 with these inputs (default: those of the check if it is 'biopsy run', else "
        "random ones)",
    )
    groups.ModelTypeOption.add(group)
    groups.WeightsFolderOption.add(group)
    groups.WeightsFileOption.add(group)
    TensorrtOptions.add_tensorrt(
        parser, without=("trt_outputs", "trt_exclude_outputs", *(f"trt_{low}" for low in _LOW))
    )
    absent_options.add(parser, "debug precision")


def derived_files(args: argparse.Namespace) -> types.Derived:
    """The file for weights, the journal, and that of candidates: with an engine, also the model that it builds."""
    options = PrecisionOptions.of(args)
    args.iter_artifact = options.artifact
    journal = None if options.output is None else checks.journal_of(options.output)
    return {
        **options.derived_weights(options.output),
        "the candidate": (options.candidate if options.candidate != options.artifact else None, types.ITERATION),
        "the journal": (journal, types.WRITTEN),
    }


def execute(args: argparse.Namespace, console: Console) -> int:
    """Search; returns 0, or 5 if a limit ended the search; raises what ends with another status."""
    from biopsy.cli.run.names import require_names_of_check

    options = PrecisionOptions.of(args)
    is_built = options.builder is not None
    refused = {"--iter-info": "the check of what --engine builds is told no other file"} if is_built else {}
    with other_machines.machines_of(args, console, {**_NOT_ELSEWHERE, **refused}) as machines, _resumable(options):
        report = options.report_file(console)
        has_one_file = is_built and machines is None  # of what is built; elsewhere each machine has one
        jobs = 1 if has_one_file else checking.jobs_of(args, console, machines)
        with contextlib.closing(_of_what_is_built(options, checking.check_of(args, jobs))) as check:
            index = index_file(options.model, options.external_data_dir)
            own = checking.own_run(options.check)
            require_names_of_check(own, index, options.load_inputs or ())
            if own is not None:
                _warn(options, own, console)
            checking.note_on_check(check, args, console)
            return _search(options, index, check, Parallelism(jobs=jobs, executor=machines), report)


@contextlib.contextmanager
def _resumable(options: PrecisionOptions) -> Iterator[None]:
    """Have an error tell how the search goes on, or begins anew, if it has a journal."""
    try:
        yield
    except errors.Interrupted as stop:
        if stop.kept is None or options.output is None:
            raise
        line = advice.resume_line(options.words, REST_OPTIONS)
        raise errors.Interrupted(stop.message, kept=stop.kept, resume=line) from stop
    except errors.CheckChanged as error:
        if options.output is None:
            raise
        raise advice.begun_anew(error, advice.fresh_line(options.words, REST_OPTIONS, "precision")) from error


def _of_what_is_built(options: PrecisionOptions, check: Check) -> Check:
    """The check of the candidate, or of what an engine builds from it."""
    if options.builder is None:
        return check
    from biopsy.checks.task import EngineFileCheck

    saved = ["--build-only", "--save-engine", as_word(options.artifact)]
    words = ["biopsy", "run", "{}", "--engine", options.builder, *saved]
    builder = CommandCheck(words, "", options.check_timeout, options.check_memory)
    return EngineFileCheck(builder, check, options.artifact, keep=options.no_remove_intermediate)


def _warn(options: PrecisionOptions, own: RunOptions, console: Console) -> None:
    """Say so if the check sees little of what lower precision loses."""
    precisions = options.precisions
    uses_openvino = any(each.startswith("openvino") for each in own.engines or ())
    if precisions.form == "emulate" and precisions.low == "fp16" and uses_openvino:
        console.warn("OpenVINO drops Casts to fp16 and back on a CPU, so little is rounded there: check with --onnxrt")
    if not (own.load_outputs or own.validate or own.compare_with or own.build_only):
        console.warn(
            "this check compares the mixed model with nothing but itself and cannot see what lower precision loses: "
            "save inputs and outputs of the original (biopsy run MODEL --save-inputs --save-outputs), and have the "
            "check load them (--load-inputs --load-outputs)"
        )


def _search(
    options: PrecisionOptions, index: ModelIndex, check: Check, parallelism: Parallelism, report: ReportFile
) -> int:
    """Search, show and report what was found; returns the exit status."""
    from biopsy.questions.precision.task import run_job

    console = report.console
    shown = "all" if options.show_output else "none" if options.hide_fail_output else "ends"
    with PrecisionReport(console, options.events, shown) as progress:
        sections = PrecisionSections(options, index, progress, report)
        built = None if options.builder is None else options.artifact
        with report.also_of_errors(sections.of_error):
            job = options.job(parallelism, sections)
            with checking.ended_politely(), set_aside(built, "search", console.warn) as remark:
                if remark is not None:
                    console.note(remark)
                feeds, precisions = _calibration_feeds(options, index, console), options.precisions
                result = run_job(
                    index, lambda place: mixed_models(index, place, precisions, feeds), check, job, progress
                )
        without = (result.stopped or "").split()[:1]
        line = None if options.output is None else advice.resume_line(options.words, REST_OPTIONS, without)
        say_result(console, result, options.names, line)
        return progress.ended(errors.Interrupted.status if result.stopped else 0)


def _calibration_feeds(options: PrecisionOptions, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that the check loads, else random ones.

    None are needed, and none given, for other precisions.
    """
    if options.low != "int8":
        given = [*options.sources_given(), *options.draws_given()]
        if given:
            console.warn(f"{', '.join(given)} has no effect without --int8: only calibration needs inputs")
        return ()
    from biopsy.engines.runner import casts_told, in_declared_types
    from biopsy.tensors.files import read_feeds

    options.precisions.require_possible()
    own = checking.own_run(options.check)
    feeds = options.given_feeds()
    origin: Sequence[Path | str | None] = options.load_inputs or [options.data_loader_script]
    if feeds is None and own is not None and own.load_inputs:
        origin = own.load_inputs
        feeds = [feed for file in own.load_inputs for feed in read_feeds(file)]
    fed = [index.names[tensor] for tensor in index.fed_inputs()]
    options.require_draws(fed, random=feeds is None, console=console)
    if feeds is None:
        console.warn(
            "int8 is calibrated with RANDOM inputs, between 0 and 1, which may not show what overflows with yours. "
            "Give typical ones with --load-inputs"
        )
        return random_samples(index, options.draws())
    console.note(f"int8 is calibrated with {len(feeds)} inputs of {', '.join(map(str, origin))}")
    typed, changes = in_declared_types(feeds, index.declared_type)
    if changes:
        console.warn(casts_told(changes))
    return typed


# What a search over precisions shows: a line for each thing learnt, one live line on a terminal, and the end.

_MOST_SHOWN = 24
_MOST_OPERATORS = 8
_END = {"high": "all high", "low": "all low"}


class PrecisionReport(SearchProgress):
    """Listens to a search. ``shown`` says whose output is shown: "all" checks', that of "ends" that fail, "none"."""

    passes_by, beyond = "pass", "fewer layers may be enough"

    def left_text(self, left: int) -> tuple[str, int]:
        """How many layers are high, and how many were when the search began."""
        return f"{count(left, 'layer')} high", self._stage.nodes

    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether this is an end that fails, and its output is to be shown."""
        return self._shown == "ends" and event.stage in _END and event.outcome != "passed"

    @shows(events.EndChecked)
    def _show_end_checked(self, event: events.EndChecked) -> None:
        self.line(_END[event.end], f"{event.outcome}: {event.reason} · {event.seconds:.2f} s")

    @shows(events.PassDone)
    def _show_stage_done(self, event: events.PassDone) -> None:
        self.pass_line(event, f"{event.before} -> {count(event.after, 'layer')} high")

    @shows(events.Verified)
    def _show_verified(self, event: events.Verified) -> None:
        on = f" on {event.machine}" if event.machine else ""
        self.line("verified", f"{event.path} passes in {event.runs} of {event.runs} fresh processes{on}")


def say_result(console: Console, result: PrecisionResult, names: Path | None, line: str | None) -> None:
    """The end of a search: which layers must be high, what it cost, what to do next.

    ``names`` is the file of --list. ``line`` goes on with the search where a limit has ended it; None if none does.
    """
    console.note("")
    console.say(_split_line(result))
    if result.high:
        shown = result.high if console.verbosity > 0 else result.high[:_MOST_SHOWN]
        console.say(*(f"  {layer.label}" for layer in shown))
        if len(shown) < len(result.high):
            console.say(f"  and {len(result.high) - len(shown)} more (-v shows all)")
        say_places(console, [layer.source for layer in result.high], called="layer")
    if result.form == "emulate":
        how = "emulated (--emulate): low layers compute in float32, and Casts round what goes in and out"
        console.say(f"form   {result.low}, {how}")
    elif result.form == "native":
        console.say(f"form   {result.low}, native (--native): low layers compute in their own low type")
    for loss in result.range_loss[:_MOST_SHOWN]:
        parts = [f"{loss.saturated} too large for {result.low}"] if loss.saturated else []
        parts += [f"{loss.vanished} become zero"] if loss.vanished else []
        console.note(f"weight {loss.name!r}: of {count(loss.count, 'value')} {', '.join(parts)}")
    if len(result.range_loss) > _MOST_SHOWN:
        console.note(f"and {len(result.range_loss) - _MOST_SHOWN} weights more (--report lists all)")
    for reason, times in result.stays.items():
        console.note(f"{count(times, 'node')} left as in the model: {reason}")
    if result.passive:
        often = sorted(result.passive.items(), key=lambda item: -item[1])
        operators = [f"{times} {operator}" if times > 1 else operator for operator, times in often[:_MOST_OPERATORS]]
        operators += [f"{len(often) - len(operators)} operators more"] if len(often) > len(operators) else []
        total = sum(result.passive.values())
        lack = "has no precision of its own" if total == 1 else "have no precision of their own"
        console.note(f"{count(total, 'node')} {lack}: {', '.join(operators)}")
    counts = [f"{times} {outcome}" for outcome, times in result.outcomes.items()]
    counts += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(counts)}")
    console.say(f"{result.seconds:.1f} s")
    if result.stopped is not None:
        resume = [] if line is None else [f"resume   {line}"]
        console.note("", f"stopped by {result.stopped}: fewer layers may be enough", *resume)
    _say_next(console, result, names)


def _split_line(result: PrecisionResult) -> str:
    """How many layers are high, and why those."""
    layers = count(result.layers, "layer")
    if not result.high:
        return f"0 of {layers} need {result.precision}: the check passes with every layer in {result.low}"
    if len(result.high) == result.layers and result.mode == "minimal" and result.one_minimal:
        return f"all {result.layers} layers need {result.precision}"
    why = f"the {'first' if result.direction == 'forward' else 'last'} ones"
    if result.mode == "minimal":
        why = "none of them can be low alone" if result.one_minimal else "fewer may be enough"
    return f"{len(result.high)} of {layers} in {result.precision}, the rest in {result.low}: {why}"


def _say_next(console: Console, result: PrecisionResult, names: Path | None) -> None:
    if result.output is not None:
        size = size_text(result.output.stat().st_size)
        console.note("", f"{result.output}, {size}   the mixed model")
    if names is not None:
        console.note(f"{names}   names for nodes_to_exclude, node_block_list")
    elif len(result.names) > _MOST_SHOWN:
        console.note("", f"{len(result.names)} names for nodes_to_exclude, node_block_list: add --list FILE")
    elif result.names:
        console.note("", f"nodes_to_exclude = {result.names!r}")
    if result.output is not None:
        console.note("", f"Next   {line_of(['biopsy', 'inspect', 'model', as_word(result.output), '--mode=basic'])}")


class PrecisionSections:
    """Makes the sections of a report, of all that is known when the search ends, and writes that of a result."""

    def __init__(
        self, options: PrecisionOptions, index: ModelIndex, progress: PrecisionReport, report: ReportFile
    ) -> None:
        self._options = options
        self._index = index
        self._history = progress.history
        self._report = report
        self._known: PrecisionResult | None = None

    def write(self, result: PrecisionResult) -> None:
        """Write the report. Raises UsageError if it cannot be written."""
        self._known = result
        needed = f"{len(result.high)} of {count(result.layers, 'layer')} must be {result.precision}"
        ended = f" The search was stopped by {result.stopped}: fewer may be enough." if result.stopped else ""
        text = f"{needed}, the others may be {result.low}." if result.high else f"Every layer may be {result.low}."
        verdict = Verdict(kind="reduced" if result.high else "passes", text=text + ended)
        status = errors.Interrupted.status if result.stopped else 0
        self._report.write(status, lambda: {"verdict": verdict, **self.of_error()})

    def of_error(self) -> Mapping[str, Any]:
        """What is known besides the error that ended the search."""
        own, known = checking.own_run(self._options.check), self._known
        engines = [] if own is None else [spec.text for spec in own.specs_to_run()]
        high = () if known is None else sorted({layer.place for layer in known.high if not layer.where})
        return {
            "model": model_tree_of(self._options.model),
            "versions": versions_tree(engines),
            "whole": map_tree(self._index, high),
            "search": None if self._history.is_empty else {"mode": self._options.mode, **self._history.tree()},
            "precision": None if known is None else precision_tree(known),
        }
