"""The search of ``biopsy debug precision``: its job, made from the options, what it shows, and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.outcome import Check
from biopsy.checks.words import as_word
from biopsy.cli import advice
from biopsy.cli.arguments import checks
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.debug.precision_options import PrecisionOptions
from biopsy.cli.progress import SearchProgress, say_places
from biopsy.cli.report import ReportFile
from biopsy.cli.run.files import require_names_of_check
from biopsy.cli.run.options import RunOptions
from biopsy.engines.runner import casts_text, in_declared_types
from biopsy.findings.model import map_tree, model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.findings.verdict import Verdict
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.precision.mixed_models import Low, Precisions, mixed_models
from biopsy.questions.precision.search import PrecisionJob, PrecisionResult, precision_tree
from biopsy.questions.precision.task import run_job
from biopsy.recording.reference_run import random_samples
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import IterationFiles
from biopsy.session.pool import Parallelism
from biopsy.session.workspace import set_aside
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count, line_of, size_text


def search(options: PrecisionOptions, check: Check, parallelism: Parallelism, report: ReportFile) -> int:
    """Search, show and report the result; returns the exit status."""
    console, own = report.console, checking.own_run(options.check)
    index = index_file(options.model, options.external_data_dir)
    require_names_of_check(own, index, options.load_inputs or ())
    if own is not None:
        _warn(options, own, console)
    shown = "all" if options.show_output else "none" if options.hide_fail_output else "ends"
    known: PrecisionResult | None = None
    with PrecisionReport(console, options.events, shown) as progress:

        def sections() -> Mapping[str, Any]:
            """The sections besides the verdict or the error, with all that is known when the search ends."""
            engines = [] if own is None else [spec.text for spec in own.specs_to_run()]
            high = () if known is None else sorted({layer.place for layer in known.high if not layer.where})
            history = progress.history
            return {
                "model": model_tree_of(options.model),
                "versions": versions_tree(engines),
                "whole": map_tree(index, high),
                "search": None if history.is_empty else {"mode": options.mode, **history.tree()},
                "precision": None if known is None else precision_tree(known),
            }

        def write(result: PrecisionResult) -> None:
            nonlocal known
            known = result
            status = errors.Interrupted.status if result.stopped else 0
            report.write(status, lambda: {"verdict": _verdict(result), **sections()})

        built = None if options.builder is None else options.artifact
        with report.also_of_errors(sections):
            job = _job(options, parallelism, write)
            with checking.ended_politely(), set_aside(built, "search", console.warn) as remark:
                if remark is not None:
                    console.note(remark)
                feeds, precisions = _calibration_feeds(options, index, console), _precisions(options)
                result = run_job(
                    index, lambda place: mixed_models(index, place, precisions, feeds), check, job, progress
                )
        without = (result.stopped or "").split()[:1]
        line = None if options.output is None else advice.resume_line(options.words, checks.REST_OPTIONS, without)
        say_result(console, result, options.names, line)
        return progress.ended(errors.Interrupted.status if result.stopped else 0)


def _verdict(result: PrecisionResult) -> Verdict:
    """How many layers must be high."""
    needed = f"{len(result.high)} of {count(result.layers, 'layer')} must be {result.precision}"
    ended = f" The search was stopped by {result.stopped}: fewer may be enough." if result.stopped else ""
    text = f"{needed}, the others may be {result.low}." if result.high else f"Every layer may be {result.low}."
    return Verdict(kind="reduced" if result.high else "passes", text=text + ended)


def _job(options: PrecisionOptions, parallelism: Parallelism, write: Callable[[PrecisionResult], None]) -> PrecisionJob:
    """The job of the search. Raises UsageError for options that contradict each other."""
    if options.save_external_data is not None and options.output is None:
        raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
    return PrecisionJob(
        output=options.output,
        external=None if options.output is None else options.weights_file(options.output),
        report=options.report,
        names=options.names,
        write_report=write,
        mode=options.mode,
        direction=options.direction,
        cost=options.cost,
        search=SearchOptions(
            rules=options.rules(),
            candidate=options.candidate,
            files=IterationFiles(
                artifacts=options.sorted_files(), info=options.iter_info, keep_last=options.no_remove_intermediate
            ),
            parallelism=parallelism,
            budget=options.budget(),
            repeating=options.repeating(),
            resume=options.resume(options.journal(), "search"),
        ),
    )


def _precisions(options: PrecisionOptions) -> Precisions:
    """The precisions that are mixed."""
    low: Low = "fp8_e5m2" if (options.low, options.fp8_format) == ("fp8", "e5m2") else options.low or "fp16"
    is_native = options.builder is not None and options.builder.startswith("trt") and options.low != "fp8"
    return Precisions(low=low, high=options.precision, form=options.form or ("native" if is_native else "emulate"))


def _warn(options: PrecisionOptions, own: RunOptions, console: Console) -> None:
    """Warn if the check sees little or nothing of what lower precision loses."""
    precisions = _precisions(options)
    uses_openvino = any(engine.startswith("openvino") for engine in own.engines or ())
    if precisions.form == "emulate" and precisions.low == "fp16" and uses_openvino:
        console.warn("OpenVINO drops Casts to fp16 and back on a CPU, so little is rounded there: check with --onnxrt")
    if not (own.load_outputs or own.validate or own.compare_with or own.build_only):
        console.warn(
            "this check compares the mixed model with nothing but itself and cannot see what lower precision loses: "
            "save inputs and outputs of the original (biopsy run MODEL --save-inputs --save-outputs), and have the "
            "check load them (--load-inputs --load-outputs)"
        )


def _calibration_feeds(options: PrecisionOptions, index: ModelIndex, console: Console) -> Sequence[Feed]:
    """Inputs to calibrate int8 with: the user's, else those that the check loads, else random ones.

    Empty for other precisions, which need none.
    """
    if options.low != "int8":
        given = [*options.sources_given(), *options.draws_given()]
        if given:
            console.warn(f"{', '.join(given)} has no effect without --int8: only calibration needs inputs")
        return ()
    _precisions(options).require_possible()
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
        console.warn(casts_text(changes))
    return typed


_MOST_SHOWN = 24
_MOST_OPERATORS = 8
_END = {"high": "all high", "low": "all low"}


class PrecisionReport(SearchProgress):
    """Shows a search. ``shown`` says whose output is shown: that of "all" checks, of "ends" that fail, or of "none"."""

    passes_by, beyond = "pass", "fewer layers may be enough"

    def left_text(self, left: int) -> tuple[str, int]:
        """How many layers are high, in words, and how many were at the beginning."""
        return f"{count(left, 'layer')} high", self._stage.nodes

    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether this is a failing check of one of the ends, and its output is to be shown."""
        return self._shown == "ends" and event.stage in _END and event.outcome != "passed"

    def show(self, event: events.Event) -> None:
        """Show the checks of both ends, the passes, and the verification."""
        match event:
            case events.EndChecked():
                self.line(_END[event.end], f"{event.outcome}: {event.reason} · {event.seconds:.2f} s")
            case events.PassDone():
                self.pass_line(event, f"{event.before} -> {count(event.after, 'layer')} high")
            case events.Verified():
                on = f" on {event.machine}" if event.machine else ""
                self.line("verified", f"{event.path} passes in {event.runs} of {event.runs} fresh processes{on}")
            case _:
                super().show(event)


def say_result(console: Console, result: PrecisionResult, names: Path | None, resume_line: str | None) -> None:
    """Show which layers must be high, what the search cost, and what to do next.

    ``names`` is the file of ``--list``. ``resume_line`` resumes a search that a limit has ended; None if no line does.
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
    for line in _end_lines(result, names, resume_line):
        console.note(line)
    words = [] if result.output is None else ["biopsy", "inspect", "model", as_word(result.output), "--mode=basic"]
    advice.say_advice(console, [advice.Advice(line_of(words))] if words else [])


def _split_line(result: PrecisionResult) -> str:
    """How many layers must be high, and why these."""
    layers = count(result.layers, "layer")
    if not result.high:
        return f"0 of {layers} need {result.precision}: the check passes with every layer in {result.low}"
    if len(result.high) == result.layers and result.mode == "minimal" and result.one_minimal:
        return f"all {result.layers} layers need {result.precision}"
    why = f"the {'first' if result.direction == 'forward' else 'last'} ones"
    if result.mode == "minimal":
        why = "none of them can be low alone" if result.one_minimal else "fewer may be enough"
    return f"{len(result.high)} of {layers} in {result.precision}, the rest in {result.low}: {why}"


def _end_lines(result: PrecisionResult, names: Path | None, resume_line: str | None) -> Iterator[str]:
    """How to resume a search that was stopped, and what was written."""
    if result.stopped is not None:
        yield from ("", f"stopped by {result.stopped}: fewer layers may be enough")
        if resume_line is not None:
            yield f"resume   {resume_line}"
    if result.output is not None:
        size = size_text(result.output.stat().st_size)
        yield from ("", f"{result.output}, {size}   the mixed model")
    if names is not None:
        yield f"{names}   names for nodes_to_exclude, node_block_list"
    elif len(result.names) > _MOST_SHOWN:
        yield from ("", f"{len(result.names)} names for nodes_to_exclude, node_block_list: add --list FILE")
    elif result.names:
        yield from ("", f"nodes_to_exclude = {result.names!r}")
