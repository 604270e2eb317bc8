"""The search of ``biopsy debug precision``: its job, made from the arguments, what it shows while it goes on and at
the end, and what its report tells.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.judge import rate_text
from biopsy.checks.outcome import Artifacts
from biopsy.checks.words import as_word
from biopsy.cli.arguments import checks, groups
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.progress import Progress, say_output, say_places, shows, time_left
from biopsy.cli.report import ReportFile
from biopsy.findings.model import map_tree, model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.findings.verdict import Verdict
from biopsy.model.index import ModelIndex
from biopsy.questions.precision.search import PrecisionJob, PrecisionResult, PrecisionTarget, precision_tree
from biopsy.session.checked_search import Repeating, SearchOptions
from biopsy.session.files import IterationFiles
from biopsy.session.pool import Parallelism
from biopsy.session.trial import Budget
from biopsy.text import count, line_of, size_text


def job_of(
    args: argparse.Namespace, parallelism: Parallelism, write_report: Callable[[PrecisionResult], None]
) -> PrecisionJob:
    """What is to be searched, and how. Raises UsageError for arguments that contradict each other."""
    if args.save_external_data is not None and args.output is None:
        raise errors.UsageError("--save-external-data needs an output", next_steps=["-o mixed.onnx"])
    external = None if args.output is None else groups.WeightsFileOption.of(args).weights_file(args.output)
    return PrecisionJob(
        target=PrecisionTarget(
            output=args.output, external=external, report=args.report, names=args.list, write_report=write_report
        ),
        mode=args.mode,
        direction=args.direction,
        cost=args.cost,
        search=_search(args, parallelism),
    )


def _search(args: argparse.Namespace, parallelism: Parallelism) -> SearchOptions:
    return SearchOptions(
        rules=checks.RuleOptions.of(args).rules(),
        candidate=args.candidate,
        files=IterationFiles(
            artifacts=Artifacts(tuple(args.artifacts), args.art_dir),
            info=args.iter_info,
            keep_last=args.no_remove_intermediate,
        ),
        parallelism=parallelism,
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
        repeating=Repeating(repeat=args.repeat, confidence=args.confidence),
        resume=checks.ResumedSearch.of(args).resume(_journal(args), "search"),
    )


def _journal(args: argparse.Namespace) -> Path | None:
    """Where the journal stands; None without an output to name it after. Raises UsageError if it is needed then."""
    if args.output is not None:
        return checks.journal_of(args.output)
    wanted = {"--fresh": args.fresh, "--load-debug-replay": args.load_debug_replay}
    wanted["--save-debug-replay"] = args.save_debug_replay
    for option, value in wanted.items():
        if value:
            raise errors.UsageError(f"{option} needs an output", next_steps=["-o mixed.onnx"])
    return None


# What a search over precisions shows: a line for each thing learnt, one live line on a terminal, and the end.

_MOST_SHOWN = 24
_MOST_OPERATORS = 8
_END = {"high": "all high", "low": "all low"}


class PrecisionReport(Progress):
    """Listens to a search. ``shown`` says whose output is shown: "all" checks', that of "ends" that fail, "none"."""

    def __init__(self, console: Console, log: Path | None, shown: str) -> None:
        super().__init__(console, log)
        self._shown = shown
        self._done = 0
        self._stage = events.StageStarted("", 0, 0)
        self._done_before_stage = 0

    @shows(events.ModelRead)
    def _show_model(self, event: events.ModelRead) -> None:
        parts = [event.name, count(event.nodes, "node"), f"opset {event.opset}"]
        self.line("model", " · ".join([*parts, f"{size_text(event.weight_bytes)} of weights"]))

    @shows(events.EndChecked)
    def _show_end_checked(self, event: events.EndChecked) -> None:
        self.line(_END[event.end], f"{event.outcome}: {event.reason} · {event.seconds:.2f} s")

    @shows(events.StageStarted)
    def _show_stage_started(self, event: events.StageStarted) -> None:
        self._stage, self._done_before_stage = event, self._done

    @shows(events.CheckingCandidate)
    def _show_checking(self, event: events.CheckingCandidate) -> None:
        self._console.detail(f"  check {event.number}  {event.description}: {event.line}")
        seconds = (time.monotonic() - self._started) / max(1, self._done)
        usual = self._stage.usual - (self._done - self._done_before_stage)
        parts = [
            f"{count(event.left, 'layer')} high",
            f"{count(self._done, 'check')}, {1 / max(seconds, 1e-3):.1f}/s",
            *([time_left(usual * seconds)] if usual > 0 and self._done > 2 else []),
            f"trying {event.description}",
        ]
        self._live.update(event.stage, " · ".join(parts), 1 - event.left / max(1, self._stage.nodes))

    @shows(events.CheckedCandidate)
    def _show_checked(self, event: events.CheckedCandidate) -> None:
        self._done += 1
        self._console.detail(f"  check {event.number}  {event.outcome}: {event.reason} · {event.seconds:.2f} s")
        wanted = event.stage in _END and self._shown == "ends" and event.outcome != "passed"
        if self._shown == "all" or wanted or self._console.verbosity > 0:
            self._live.stop()
            say_output(self._console, event.output, whole=self._shown == "all")
            self._shown = "all" if self._shown == "all" else "none"

    @shows(events.PassDone)
    def _show_stage_done(self, event: events.PassDone) -> None:
        change = f"{event.before} -> {count(event.after, 'layer')} high"
        self.pass_line(event, change)

    @shows(events.Resumed)
    def _show_resumed(self, event: events.Resumed) -> None:
        self.line("resumed", f"{count(event.runs, 'check')} remembered in {event.journal}")

    @shows(events.FlakyFailure)
    def _show_flakiness(self, event: events.FlakyFailure) -> None:
        self.line("flaky", f"the same model fails in {rate_text(event.failed, event.runs)}")
        needed = f"a candidate passes only after {count(event.needed, 'run')} that pass"
        self.line("", f"{needed}: luck in less than {1 - event.confidence:.2g} of all cases")

    @shows(events.Stopped)
    def _show_stopped(self, event: events.Stopped) -> None:
        self.line("stopped", f"by {event.reason}, before the end: fewer layers may be enough")

    @shows(events.Verified)
    def _show_verified(self, event: events.Verified) -> None:
        on = f" on {event.machine}" if event.machine else ""
        self.line("verified", f"{event.path} passes in {event.runs} of {event.runs} fresh processes{on}")


def say_result(console: Console, result: PrecisionResult, names: Path | None, line: str | None) -> None:
    """The end of a search: which layers must be high, what it cost, what to do next.

    ``names`` is the file of --list. ``line`` goes on with the search where a limit has ended it; None if none does.
    """
    console.note("")
    _say_layers(console, result)
    if result.form is not None:
        console.say(f"form   {result.low}, {_FORMS[result.form]}")
    for range_loss in result.range_loss[:_MOST_SHOWN]:
        parts = [f"{range_loss.saturated} too large for {result.low}"] if range_loss.saturated else []
        parts += [f"{range_loss.vanished} become zero"] if range_loss.vanished else []
        console.note(f"weight {range_loss.name!r}: of {count(range_loss.count, 'value')} {', '.join(parts)}")
    if len(result.range_loss) > _MOST_SHOWN:
        console.note(f"and {len(result.range_loss) - _MOST_SHOWN} weights more (--report lists all)")
    for reason, times in result.stays.items():
        console.note(f"{count(times, 'node')} left as in the model: {reason}")
    if result.passive:
        console.note(_passive_line(result.passive))
    counts = [f"{times} {outcome}" for outcome, times in result.outcomes.items()]
    counts += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(counts)}")
    console.say(f"{result.seconds:.1f} s")
    if result.stopped is not None:
        resume = [] if line is None else [f"resume   {line}"]
        console.note("", f"stopped by {result.stopped}: fewer layers may be enough", *resume)
    _say_next(console, result, names)


_FORMS = {
    "emulate": "emulated (--emulate): low layers compute in float32, and Casts round what goes in and out",
    "native": "native (--native): low layers compute in their own low type",
}
"""How the low precision got into the candidates, in words."""


def _say_layers(console: Console, result: PrecisionResult) -> None:
    if not result.high:
        layers = count(result.layers, "layer")
        console.say(f"0 of {layers} need {result.precision}: the check passes with every layer in {result.low}")
        return
    console.say(_split_line(result))
    shown = result.high if console.verbosity > 0 else result.high[:_MOST_SHOWN]
    for layer in shown:
        console.say(f"  {layer.label}")
    if len(shown) < len(result.high):
        console.say(f"  and {len(result.high) - len(shown)} more (-v shows all)")
    say_places(console, [layer.source for layer in result.high], called="layer")


def _split_line(result: PrecisionResult) -> str:
    """How many layers are high, and why those."""
    if len(result.high) == result.layers and result.mode == "minimal" and result.one_minimal:
        return f"all {result.layers} layers need {result.precision}"
    why = {
        "minimal": "none of them can be low alone" if result.one_minimal else "fewer may be enough",
        "bisect": f"the {'first' if result.direction == 'forward' else 'last'} ones",
        "linear": f"the {'first' if result.direction == 'forward' else 'last'} ones",
    }[result.mode]
    return (
        f"{len(result.high)} of {count(result.layers, 'layer')} in {result.precision}, the rest in {result.low}: {why}"
    )


def _passive_line(passive: Mapping[str, int]) -> str:
    """``3 nodes have no precision of their own: 2 Relu, Reshape``, the most frequent operators first."""
    often = sorted(passive.items(), key=lambda item: -item[1])
    told = [f"{times} {operator}" if times > 1 else operator for operator, times in often[:_MOST_OPERATORS]]
    more = [f"{len(often) - len(told)} operators more"] if len(often) > len(told) else []
    total = sum(passive.values())
    lack = "has no precision of its own" if total == 1 else "have no precision of their own"
    return f"{count(total, 'node')} {lack}: {', '.join(told + more)}"


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


# What ``biopsy debug precision --report`` tells: all that is known when the search ends, also where it ends early.


class PrecisionSections:
    """Makes the sections of a search over precisions, and writes the report of a result."""

    def __init__(self, args: argparse.Namespace, index: ModelIndex, history: SearchHistory, report: ReportFile) -> None:
        self._args = args
        self._index = index
        self._history = history
        self._report = report
        self._known: PrecisionResult | None = None

    def write(self, result: PrecisionResult) -> None:
        """Write the report. Raises UsageError if it cannot be written."""
        self._known = result
        self._report.write(errors.Interrupted.status if result.stopped else 0, self.of_result)

    def of_result(self) -> Mapping[str, Any]:
        """What was found."""
        sections = self.of_error()
        return sections if self._known is None else {"verdict": _verdict(self._known), **sections}

    def of_error(self) -> Mapping[str, Any]:
        """What is known besides the error that ended the search."""
        own, known = checking.own_run(self._args.check), self._known
        engines = [] if own is None else [spec.text for spec in own.specs_to_run()]
        high = () if known is None else sorted({layer.place for layer in known.high if not layer.where})
        return {
            "model": model_tree_of(self._args.model),
            "versions": versions_tree(engines),
            "whole": map_tree(self._index, high),
            "search": None if self._history.is_empty else {"mode": self._args.mode, **self._history.tree()},
            "precision": None if known is None else precision_tree(known),
        }


def _verdict(found: PrecisionResult) -> Verdict:
    needed = f"{len(found.high)} of {count(found.layers, 'layer')} must be {found.precision}"
    ended = f" The search was stopped by {found.stopped}: fewer may be enough." if found.stopped else ""
    text = f"{needed}, the others may be {found.low}." if found.high else f"Every layer may be {found.low}."
    return Verdict(kind="reduced" if found.high else "passes", text=text + ended)
