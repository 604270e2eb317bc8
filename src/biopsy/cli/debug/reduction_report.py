"""What a reduction shows: a line for each thing learnt, one live line on a terminal, the end of it all, what may
vary, and what to type next; and what its report tells.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy import events
from biopsy.checks.command_line import PLACEHOLDER, OwnInspect, OwnRun, parse
from biopsy.checks.words import as_word, names_path, output_word
from biopsy.cli.advice import Advice, file_of, lacking, merge_words, say_advice
from biopsy.cli.arguments.checks import RuleOptions
from biopsy.cli.arguments.comparing import JudgeOptions
from biopsy.cli.arguments.groups import MAKING
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.progress import SearchProgress, say_places, shows
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.mismatch import error_text
from biopsy.findings.model import model_tree
from biopsy.findings.report import versions_tree
from biopsy.findings.search_history import SearchHistory
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.variation.result import Finding, Variation
from biopsy.reduction.result import Reduction
from biopsy.session.result_file import size_of
from biopsy.text import ListOption, count, first_line, is_refused, line_of, size_text

_MOST_NODES_SHOWN = 24
_MOST_SOURCES_SHOWN = 8
_WIDEST_LABEL = 60


_MOST_REASONS = 3


class ReductionReport(SearchProgress):
    """Listens to a reduction. ``shown`` says whose output is shown: "all" checks', the "original"'s, or "none"."""

    passes_by, beyond, span = "do not fail", "smaller results may exist", " in this pass"
    _nodes = 0

    def left_text(self, left: int) -> tuple[str, int]:
        """How many nodes are left, and how many the model has."""
        return f"{left} of {count(self._nodes, 'node')} left", self._nodes

    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether this is the first check, and its output is to be shown."""
        return self._shown == "original" and event.stage == "original"

    @shows(events.ModelRead)
    def _show_model(self, event: events.ModelRead) -> None:
        self._nodes = event.nodes
        super()._show_model(event)

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        self.line("fails", f"the original: {event.reason} · {event.seconds:.2f} s")
        if event.signature != event.reason:
            self.line("", f"counted as the same failure: {event.signature}")

    @shows(events.PassDone)
    def _show_stage_done(self, event: events.PassDone) -> None:
        self._live.stop()
        if event.before == event.after and (event.checks == 0 or event.stage == "suspects"):
            return  # a guess that was wrong proves nothing
        self.pass_line(event, f"{event.before} -> {count(event.after, 'node')}")

    @shows(events.Verified)
    def _show_verified(self, event: events.Verified) -> None:
        often = "" if event.runs == 1 else f" in {event.failed} of {event.runs} fresh processes"
        on = f" on {event.machine}" if event.machine else ""
        self.line("verified", f"{event.path} fails in the same way{often}{on}")


def say_result(
    console: Console, result: Reduction, line: str, advice: Sequence[Advice], variation: Variation | None = None
) -> None:
    """The end of a reduction: what is left, what it cost, what else was met, what may vary, what to do next.

    ``line`` goes on with it where a limit has ended it.
    """
    console.note("")
    most = _MOST_NODES_SHOWN if console.verbosity < 1 else len(result.nodes)
    head = f"{len(result.nodes)} of {result.nodes_before} nodes"
    console.say(*_graph(head, result.nodes, result.reads, most))
    say_places(console, result.sources)
    told = [f"{n} {what}" for what, n in result.outcomes.items()]
    told += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(told)}")
    console.say(f"{result.seconds:.1f} s   {result.output}, {size_text(size_of(result.output))}")
    for title, size in (("original", result.error_before), ("result", result.error_after)):
        if size is not None:
            console.say(f"error   {title:<8}   {error_text(size)}")
    if result.inputs is not None:
        console.say(f"inputs   {result.inputs}, the recorded values that it is fed")
    if result.min_good is not None:
        console.say(f"passes   {result.min_good}, the passing model closest in size")
    for reason, times in result.other_failures.items():
        kept = result.other_models.get(reason)
        console.say(f"also met {times} x {reason}{f', as in {kept}' if kept else ''}")
    if result.cannot_say and len(result.nodes) > 1:
        for reason, times in sorted(result.cannot_say.items(), key=lambda entry: -entry[1])[:_MOST_REASONS]:
            console.say(f"could not say {times} x {first_line(reason)}")
        console.say("          such candidates count for nothing: with values for them the result may get smaller")
    say_variation(console, variation)
    if result.stopped is not None:
        console.note("", f"stopped by {result.stopped}: smaller results may exist", f"resume   {line}")
    say_advice(console, advice)


def _graph(head: str, labels: Sequence[str], reads: Sequence[Sequence[int]], most: int) -> Iterator[str]:
    """The lines of a small graph after ``head``: one with arrows for a chain, else one for each node with its sources.

    At most so many nodes are shown.
    """
    more = f"and {len(labels) - most} more (-v shows all)" if len(labels) > most else ""
    if all(tuple(sources) == ((place - 1,) if place else ()) for place, sources in enumerate(reads)):
        yield f"{head}   {' -> '.join(labels[:most])}{f' {more}' if more else ''}"
        return
    yield head
    width = min(_WIDEST_LABEL, max(map(len, labels[:most])))
    for place, (label, sources) in enumerate(zip(labels[:most], reads, strict=False), 1):
        told = ", ".join(str(source + 1) for source in sources[:_MOST_SOURCES_SHOWN])
        rest = ", ..." if len(sources) > _MOST_SOURCES_SHOWN else ""
        yield f"{place:>4}  {label:<{width}}  reads {told}{rest}" if told else f"{place:>4}  {label}"
    if more:
        yield f"      {more}"


# What may vary, in a few lines.

_COLUMN = 9
_WIDEST_TITLE = 40
_WIDEST_TEXT = 66


def say_variation(console: Console, variation: Variation | None) -> None:
    """A line for each feature that must be as it is, or may be another; nothing if that was not asked."""
    if variation is None:
        return
    if variation.kept:
        console.say(f"{'may vary':<{_COLUMN}} not known: {variation.kept}")
        return
    is_verbose = console.verbosity > 0
    groups = {
        "may vary": [finding for finding in variation.free if finding.is_given or is_verbose],
        "must be": variation.fixed,
        "unknown": variation.unknown if is_verbose else (),
    }
    titles = [finding.title for head in ("may vary", "must be") for finding in groups[head]]
    width = min(_WIDEST_TITLE, max(map(len, titles), default=0))
    for head, findings in groups.items():
        for place, finding in enumerate(findings):
            text = finding.text if is_verbose else _in_short(finding)
            console.say(f"{'' if place else head:<{_COLUMN}} {finding.title:<{width}}  {text}")
    told = [count(variation.checks, "check")]
    if not variation.free and not variation.fixed:
        told.append("nothing can be said of what may vary")
    if variation.unknown:
        told.append(f"of {count(len(variation.unknown), 'more feature')} nothing is known (-v)")
    if variation.together is not None:
        at_once = {"always": "fails", "sometimes": "does not always fail", "never": "does not fail"}
        told.append(f"{at_once[variation.together]} where all that may vary is changed at once")
    if not variation.complete:
        told.append("the budget was too small for more: --explain-checks N")
    console.say(f"{'':<{_COLUMN}} {' · '.join(told)}")


def _in_short(finding: Finding) -> str:
    """All that was tried where that is short; else how much was."""
    if len(finding.text) <= _WIDEST_TEXT:
        return finding.text
    if not finding.gone:
        return f"any of {len(finding.still)} tried"
    tried = len(finding.still) + len(finding.gone)
    return f"{finding.short} ({count(tried, 'change')} tried, {len(finding.gone)} of them passed)"


class Sections:
    """Makes the sections of a reduction, also of one that has ended early.

    If they are ``wanted``, the model is described now: its file may be where the result goes.
    """

    def __init__(self, args: argparse.Namespace, index: ModelIndex, history: SearchHistory, *, wanted: bool) -> None:
        self._args = args
        self._index = index
        self._history = history
        self._model = model_tree(index, args.model) if wanted else {}

    def of_result(
        self, found: Reduction, variation: Variation | None, advice: Sequence[Advice], folder: Path
    ) -> Mapping[str, Any]:
        """What was found, and what to type next; paths as seen from a folder."""
        from biopsy.findings.reduction import reduction_sections

        return {
            **self._always(),
            **reduction_sections(found, self._index, self._history, self._args.mode, folder),
            "variation": None if variation is None else variation.as_json(),
            "next": [vars(one) for one in advice],
        }

    def of_error(self) -> Mapping[str, Any]:
        """What is known where an error ended the search."""
        search = None if self._history.is_empty else {"mode": self._args.mode, **self._history.tree()}
        return {**self._always(), "search": search}

    def _always(self) -> Mapping[str, Any]:
        own = checking.own_run(self._args.check)
        engines = [] if own is None else [spec.text for spec in own.specs_to_run()]
        return {"model": self._model, "versions": versions_tree(engines)}


# What to type after ``debug reduce``, from what was found: how the result fails decides what can be asked of it.
#
# Each line can be pasted as it is, and carries what the failure was seen with: engines, inputs, tolerances, rules.

_BY_ITSELF = "the failure by itself"
_RULES = ("fail_code", "ignore_fail_code", "fail_regex")

_OF_OUTPUTS = frozenset(JudgeOptions.declared) - {"compare"}
_OF_INPUTS = frozenset({"input_shapes", "val_range"})
"""Options of ``run`` whose values may name a tensor, by their place in the parsed options."""


def advice_of(found: Reduction, args: argparse.Namespace) -> list[Advice]:
    """The few lines that follow; none where the result went into a pipe."""
    if not found.output.is_file():
        return []
    inspected = ["biopsy", "inspect", "model", as_word(found.output), "--mode=full"]
    advice = [*_of_check(found, args), Advice(line_of(inspected), "what it holds")]
    return [one for one in advice if not is_refused(one.line)]


def _of_check(found: Reduction, args: argparse.Namespace) -> Iterator[Advice]:
    """What can be asked of the result with the words of its check, ``{}`` in the place of the model."""
    judged = found.judged_after or found.judged_before
    if not args.check or judged is None:
        return
    check = parse([PLACEHOLDER if names_path(word, str(args.iter_artifact)) else word for word in args.check])
    if found.inputs is not None and isinstance(check, OwnRun):
        check = check.with_inputs(found.inputs)
    if not isinstance(check, OwnRun):
        if check.names_candidate("") and not isinstance(check, OwnInspect):
            yield Advice(line_of(check.words_for(found.output, "")), _BY_ITSELF)
        return
    index = index_file(found.output)
    own = checking.options_of_run(_speaking_of(check, index.ids, index))
    if own is None:
        return
    check = _speaking_of(check, {index.names[tensor] for tensor in index.outputs}, index)
    engines, said = own.specs_to_run(), judged.evidence.verdict
    suspect = next((spec.text for spec in reversed(engines) if said.engine in (spec.text, spec.name)), engines[-1].text)
    is_compared = said.stage == "compare"
    # Where a function of the user's judges, or nothing is compared, no layer can be told to be wrong.
    if is_compared and len(found.nodes) > 1 and not own.has_functions:
        others = [spec.text for spec in engines if spec.text != suspect]
        yield from _layers(found, args, own, suspect, others)
    rules = [*RuleOptions.of(args).as_typed(_RULES)]
    match = [] if args.match == "auto" else ["--match", args.match]
    words = ["biopsy", "debug", "flags", as_word(found.output), *match, *rules]
    line = line_of([*words, ListOption("--engine", [suspect]), "--check", *check.words])
    yield Advice(line, f"which setting of {suspect.partition(':')[0]} switches it off")
    if not rules:  # which ``debug known`` does not take
        line = line_of(["biopsy", "debug", "known", as_word(found.output), "--check", *check.words])
        yield Advice(line, "whether it is a known bug")
    if not is_compared:
        yield Advice(line_of(check.words_for(found.output, "")), _BY_ITSELF)


def _layers(
    found: Reduction, args: argparse.Namespace, own: RunOptions, suspect: str, others: Sequence[str]
) -> Iterator[Advice]:
    """Which layer is wrong: by another engine, or by golden values, with the inputs of the result.

    ``own`` are the options of the check, also those about tensors inside the result.
    """
    why = "which of its layers is wrong, alone or together with others"
    words = ["biopsy", "debug", "layers", as_word(found.output)]
    golden = file_of(args.record_with) if own.load_outputs else None
    if golden is not None:
        fed = []
        if lacking(golden, index_file(found.output)):  # some of the inputs stand elsewhere
            merged = output_word("reduced_inputs.npz", args.model)
            yield Advice(line_of(merge_words([*(args.load_inputs or ()), golden], merged)), "the inputs of the result")
            fed = ["--load-inputs", merged]
        line = line_of(
            [
                *words,
                "--suspect",
                suspect,
                *fed,
                "--load-outputs",
                as_word(golden),
                *own.as_typed(JudgeOptions.declared),
            ]
        )
        yield Advice(line, why)
        return
    reference = ["--reference-engine", others[0]] if others and not own.load_outputs else []
    files = [found.inputs] if found.inputs is not None else own.load_inputs
    inputs = [ListOption("--load-inputs", [str(path) for path in files])] if files else []
    making = own.as_typed((*MAKING, "input_symbols"))
    line = line_of([*words, *reference, "--suspect", suspect, *inputs, *making, *own.as_typed(JudgeOptions.declared)])
    yield Advice(line, why)


def _speaking_of(check: OwnRun, outputs: Container[str], index: ModelIndex) -> OwnRun:
    """The check without values for tensors that the result does not have: they are no error in a check alone."""
    parser = checking.run_parser()
    inputs = {index.names[tensor] for tensor in index.fed_inputs()}

    def is_kept(option: str, value: str) -> bool:
        name = value.rpartition(":")[0]
        dest = parser.dest_of(option)
        if not name or dest not in _OF_OUTPUTS | _OF_INPUTS:
            return True
        known = outputs if dest in _OF_OUTPUTS else inputs
        return name in known or name.partition("[")[0] in known  # an item of a sequence

    return check.with_values(is_kept)
