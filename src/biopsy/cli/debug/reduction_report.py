"""The jobs of ``biopsy debug reduce`` and its ``--explain``, made from the options; what a reduction shows, and what to
type next; its report. Importing this imports the reducer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command_line import PLACEHOLDER, OwnInspect, OwnRun, parse
from biopsy.checks.outcome import Check
from biopsy.checks.words import as_word, names_path, output_word
from biopsy.cli.advice import Advice, file_of, merge_words, missing_inputs, say_advice
from biopsy.cli.arguments import checks
from biopsy.cli.arguments.comparing import JudgeOptions
from biopsy.cli.arguments.groups import MAKING
from biopsy.cli.arguments.types import parse_shapes
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.debug.reduce_options import ReduceOptions
from biopsy.cli.progress import SearchProgress, say_places
from biopsy.cli.run.options import RunOptions, run_parser
from biopsy.comparison.mismatch import COSTS, error_text
from biopsy.engines.registry import PLAIN
from biopsy.findings.model import model_tree
from biopsy.findings.report import SearchHistory, versions_tree
from biopsy.model.index import ModelIndex, index_file
from biopsy.questions.layers.findings import ranking_in
from biopsy.questions.variation.result import UNCLEAR, Variation
from biopsy.questions.variation.vary import USUAL_CHECKS, USUAL_SECONDS, VariationJob, vary
from biopsy.reduction.problem import Border
from biopsy.reduction.reduce import RecordingOptions, ReductionJob
from biopsy.reduction.result import Reduction, Target
from biopsy.session.checked_search import SearchOptions
from biopsy.session.files import IterationFiles, size_of
from biopsy.session.pool import Parallelism, Workers
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import ListOption, count, first_line, is_refused, line_of, size_text


def job_of(
    options: ReduceOptions, own_run: RunOptions | None, jobs: int, machines: Workers | None = None
) -> ReductionJob:
    """The job of the reduction; ``machines`` run the checks, or this one if None.

    ``own_run`` are the options of a check that is ``biopsy run``. Raises UsageError for options that would mislead.
    """
    checking.require_writable_candidate(options.candidate)
    checking.require_inputs_of_golden_values(own_run, keep_inputs=options.no_reduce_inputs)
    has_golden_values = own_run is not None and bool(own_run.load_outputs)
    return ReductionJob(
        target=Target(options.result, options.min_good, options.weights_file(options.result)),
        mode=options.mode,
        search=SearchOptions(
            rules=options.rules(),
            candidate=options.candidate,
            files=IterationFiles(
                artifacts=options.sorted_files(),
                info=options.iter_info,
                inputs=options.iter_inputs,
                keep_last=options.no_remove_intermediate,
            ),
            parallelism=Parallelism(jobs=jobs, executor=machines),
            budget=options.budget(),
            repeating=options.repeating(),
            resume=options.resume(checks.journal_of(options.result), "reduction"),
            keep_other=options.keep_other,
        ),
        recording=RecordingOptions(
            samples=_samples(options, own_run),
            draws=options.draws(),
            engines=(options.record_with,) if options.record_with else PLAIN,
            memory=options.run_memory,
            infer_types=not options.no_shape_inference,
            types_by_running=options.force_fallback_shape_inference,
        ),
        border=Border(
            cut=options.cut,
            keep_inputs=options.no_reduce_inputs,
            keep_outputs=options.no_reduce_outputs,
            mark_intermediate=True if options.mark_intermediate else None if has_golden_values else False,
        ),
        input_shapes=parse_shapes(options.model_input_shapes, "--model-input-shapes"),
        values=options.values,
        command=parse(options.check or ()),
        passes=options.passes(),
        ranking=() if options.order_by is None else ranking_in(options.order_by, options.model),
        allow_vacuous_check=options.allow_vacuous_check,
        feeds_recorded=options.records_feeds(own_run),
    )


def _samples(options: ReduceOptions, own_run: RunOptions | None) -> Callable[[], Sequence[Feed]] | None:
    """Reads the inputs to record with: the user's, else those that ``biopsy run`` loads in the check; None if neither.

    The user's files are read now, so that an error in them is reported now. The check reports errors in its own.
    """
    feeds = options.given_feeds()
    if feeds is not None:
        return lambda: feeds
    if own_run is not None and own_run.load_inputs:
        # The file of --iter-inputs is written for each candidate: it is an old one, or not there yet.
        files = own_run.load_inputs
        if options.iter_inputs not in files and all(file.exists() for file in files):
            return lambda: [feed for file in files for feed in read_feeds(file)]
    return None


def require_explainable(options: ReduceOptions) -> None:
    """Raise UsageError for options that ``--explain`` cannot be combined with."""
    if not options.explains:
        return
    if options.check is None:
        raise errors.UsageError(
            "--explain asks many questions: it needs a check, and no person", next_steps=["--check COMMAND ..."]
        )
    for spelling in options.given(("artifacts", "iter_inputs", "no_remove_intermediate")):
        raise errors.UsageError(
            f"--explain cannot be combined with {spelling}, which is for the candidates of the reduction",
            next_steps=["reduce the result once more, with --explain alone"],
        )


def explained(
    options: ReduceOptions,
    own_run: RunOptions | None,
    begin: Callable[[], Check],
    jobs: int,
    result: Reduction,
    listener: events.Listener,
) -> Variation | None:
    """What may vary in the result; None without ``--explain``, and with a remark if it cannot be found out.

    ``begin`` makes the check; ``biopsy run`` gets the inputs that are recorded beside the result. Raises Interrupted.
    """
    if not options.explains:
        return None
    if result.stopped is not None:
        listener(events.Remark(f"may vary   not asked: the reduction was ended by {result.stopped}"))
        return None
    with checking.ended_politely(), contextlib.closing(begin()) as check:
        try:
            inputs = None if own_run is None else own_run.inputs()
            if inputs is not None and result.inputs is not None:
                inputs = replace(inputs, given=read_feeds(result.inputs))
            search = SearchOptions(
                rules=options.rules(),
                candidate=options.candidate,
                files=IterationFiles(info=options.iter_info),
                parallelism=Parallelism(jobs=jobs),
                budget=Budget(checks=options.explain_checks or USUAL_CHECKS, seconds=USUAL_SECONDS),
                repeating=options.repeating(),
                resume=replace(options.resume(options.explanation_journal, "explanation"), load=None, save=None),
            )
            job = VariationJob(
                search=search,
                inputs=inputs,
                values_free=result.values_free,
                reference=result.failure,
                allow_vacuous_check=options.allow_vacuous_check,
            )
            return vary(index_file(result.output), check, job, events.without(events.ModelRead, listener))
        except errors.Interrupted as stop:
            kept = ", and ".join(filter(None, [f"{result.output}, which fails in the same way", stop.kept]))
            raise errors.Interrupted(stop.message, kept=kept) from stop
        except errors.BiopsyError as error:  # the result of the reduction is still valid
            listener(events.Remark(f"may vary   not known: {error.summary}", warning=True))
            return None


_MOST_NODES_SHOWN = 24
_MOST_SOURCES_SHOWN = 8
_WIDEST_LABEL = 60
_MOST_REASONS = 3


class ReductionReport(SearchProgress):
    """Shows a reduction. ``shown`` says whose output is shown: that of "all" checks, the "original", or "none"."""

    passes_by, beyond, span = "do not fail", "smaller results may exist", " in this pass"
    _nodes = 0

    def left_text(self, left: int) -> tuple[str, int]:
        """How many nodes are left, in words, and how many the model has."""
        return f"{left} of {count(self._nodes, 'node')} left", self._nodes

    def is_wanted(self, event: events.CheckedCandidate) -> bool:
        """Whether this is the check of the original, and its output is to be shown."""
        return self._shown == "original" and event.stage == "original"

    def show(self, event: events.Event) -> None:
        """Show the failure, the passes, and the verification."""
        match event:
            case events.ModelRead():
                self._nodes = event.nodes
                super().show(event)
            case events.OriginalFails():
                self.line("fails", f"the original: {event.reason} · {event.seconds:.2f} s")
                if event.signature != event.reason:
                    self.line("", f"counted as the same failure: {event.signature}")
            case events.PassDone():
                self._live.stop()
                if event.before != event.after or (event.checks and event.stage != "suspects"):
                    self.pass_line(event, f"{event.before} -> {count(event.after, 'node')}")
            case events.FormerNames():
                self.line("names", ", ".join(f"{name} was {former!r}" for name, former in event.names.items()))
            case events.Verified():
                often = "" if event.runs == 1 else f" in {event.failed} of {event.runs} fresh processes"
                on = f" on {event.machine}" if event.machine else ""
                self.line("verified", f"{event.path} fails in the same way{often}{on}")
            case _:
                super().show(event)


def say_result(
    console: Console, result: Reduction, resume_line: str, advice: Sequence[Advice], variation: Variation | None = None
) -> None:
    """Show the result of a reduction, what it cost, other failures, what may vary, and what to do next.

    ``resume_line`` resumes a reduction that a limit has ended.
    """
    console.note("")
    most = _MOST_NODES_SHOWN if console.verbosity < 1 else len(result.nodes)
    head = f"{len(result.nodes)} of {result.nodes_before} nodes"
    console.say(*_graph(head, result.nodes, result.reads, most))
    say_places(console, result.sources)
    counts = [f"{times} {outcome}" for outcome, times in result.outcomes.items()]
    counts += [f"{result.remembered} remembered"] if result.remembered else []
    console.say(f"{count(result.checks, 'check')}   {' · '.join(counts)}")
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
    if variation is not None:
        console.say(*_variation_lines(variation, is_verbose=console.verbosity > 0))
    if result.stopped is not None:
        console.note("", f"stopped by {result.stopped}: smaller results may exist", f"resume   {resume_line}")
    say_advice(console, advice)


def _graph(head: str, labels: Sequence[str], reads: Sequence[Sequence[int]], most: int) -> Iterator[str]:
    """A small graph after ``head``: a line with arrows for a chain, else a line for each node with those it reads.

    At most ``most`` nodes are shown.
    """
    more = f"and {len(labels) - most} more (-v shows all)" if len(labels) > most else ""
    if all(tuple(sources) == ((place - 1,) if place else ()) for place, sources in enumerate(reads)):
        yield f"{head}   {' -> '.join(labels[:most])}{f' {more}' if more else ''}"
        return
    yield head
    width = min(_WIDEST_LABEL, max(map(len, labels[:most])))
    for place, (label, sources) in enumerate(zip(labels[:most], reads, strict=False), 1):
        read = ", ".join(str(source + 1) for source in sources[:_MOST_SOURCES_SHOWN])
        dots = ", ..." if len(sources) > _MOST_SOURCES_SHOWN else ""
        yield f"{place:>4}  {label:<{width}}  reads {read}{dots}" if read else f"{place:>4}  {label}"
    if more:
        yield f"      {more}"


_COLUMN = 9
_WIDEST_TITLE = 40
_WIDEST_TEXT = 66


def _variation_lines(variation: Variation, *, is_verbose: bool) -> Iterator[str]:
    """A line for each feature that must be as it is or may be another, and a summary."""
    if variation.kept:
        yield f"{'may vary':<{_COLUMN}} not known: {variation.kept}"
        return
    groups = {
        "may vary": [finding for finding in variation.free if finding.is_explicit or is_verbose],
        "must be": variation.fixed,
        "unknown": variation.unknown if is_verbose else (),
    }
    titles = [finding.title for head in ("may vary", "must be") for finding in groups[head]]
    width = min(_WIDEST_TITLE, max(map(len, titles), default=0))
    for head, findings in groups.items():
        for place, finding in enumerate(findings):
            text, tried = finding.text, len(finding.still) + len(finding.gone)
            if not is_verbose and len(text) > _WIDEST_TEXT:  # counts in place of a long list
                passed = f"{count(tried, 'change')} tried, {len(finding.gone)} of them passed"
                passed = f"{finding.short or UNCLEAR} ({passed})"
                text = passed if finding.gone else f"any of {tried} tried"
            yield f"{'' if place else head:<{_COLUMN}} {finding.title:<{width}}  {text}"
    summary = [count(variation.checks, "check")]
    if not variation.free and not variation.fixed:
        summary.append("nothing can be said of what may vary")
    if variation.unknown:
        summary.append(f"of {count(len(variation.unknown), 'more feature')} nothing is known (-v)")
    if variation.together is not None:
        at_once = {"always": "fails", "sometimes": "does not always fail", "never": "does not fail"}
        summary.append(f"{at_once[variation.together]} where all that may vary is changed at once")
    if not variation.complete:
        summary.append("the budget was too small for more: --explain-checks N")
    yield f"{'':<{_COLUMN}} {' · '.join(summary)}"


class Sections:
    """Makes the sections of the report of a reduction, or of an error that ended it.

    If they are ``wanted``, the model is described now: the result may overwrite its file.
    """

    def __init__(
        self,
        options: ReduceOptions,
        own_run: RunOptions | None,
        index: ModelIndex,
        history: SearchHistory,
        *,
        wanted: bool,
    ) -> None:
        self._mode = options.mode
        self._index = index
        self._history = history
        self._engines = [] if own_run is None else [spec.text for spec in own_run.specs_to_run()]
        self._model = model_tree(index, options.model) if wanted else {}

    def of_result(
        self, result: Reduction, variation: Variation | None, advice: Sequence[Advice], folder: Path
    ) -> Mapping[str, Any]:
        """The sections of a result; paths are relative to ``folder``."""
        from biopsy.findings.reduction import reduction_sections

        return {
            **self._always(),
            **reduction_sections(result, self._index, self._history, self._mode, folder),
            "variation": None if variation is None else variation.as_json(),
            "next": [vars(each) for each in advice],
        }

    def of_error(self) -> Mapping[str, Any]:
        """The sections with what is known when an error ends the search."""
        search = None if self._history.is_empty else {"mode": self._mode, **self._history.tree()}
        return {**self._always(), "search": search}

    def _always(self) -> Mapping[str, Any]:
        return {"model": self._model, "versions": versions_tree(self._engines)}


_BY_ITSELF = "the failure by itself"
_RULES = ("fail_code", "ignore_fail_code", "fail_regex")

_OF_OUTPUTS = frozenset(JudgeOptions.declared) - {"compare"}
_OF_INPUTS = frozenset({"input_shapes", "val_range"})
"""Options of ``run`` whose values may name a tensor, by their place in the parsed options."""


def advice_of(result: Reduction, options: ReduceOptions) -> list[Advice]:
    """What to type next: complete lines with the engines, inputs, tolerances and rules that the failure was found with.

    None if the result was written to a pipe.
    """
    if not result.output.is_file():
        return []
    inspected = ["biopsy", "inspect", "model", as_word(result.output), "--mode=full"]
    advice = [*_of_check(result, options), Advice(line_of(inspected), "what it holds")]
    return [each for each in advice if not is_refused(each.line)]


def _of_check(result: Reduction, options: ReduceOptions) -> Iterator[Advice]:
    """The questions about the result that follow from its check and from how it fails."""
    judged, output = result.judged_after or result.judged_before, as_word(result.output)
    if not options.check or judged is None:
        return
    candidate = str(options.iter_artifact)
    check = parse([PLACEHOLDER if names_path(word, candidate) else word for word in options.check])
    if not isinstance(check, OwnRun):
        if check.names_candidate("") and not isinstance(check, OwnInspect):
            yield Advice(line_of(check.words_for(result.output, "")), _BY_ITSELF)
        return
    if result.inputs is not None:
        check = check.with_inputs(result.inputs)
    index = index_file(result.output)
    own = checking.own_run(_speaking_of(check, index.ids, index).words)
    if own is None:
        return
    check = _speaking_of(check, {index.names[tensor] for tensor in index.outputs}, index)
    engines, verdict = own.specs_to_run(), judged.evidence.verdict
    named = (spec.text for spec in reversed(engines) if verdict.engine in (spec.text, spec.name))
    suspect = next(named, engines[-1].text)
    is_compared = verdict.stage == "compare" and verdict.kind not in COSTS
    # Layers are judged by a comparison, and not by a function of the user's.
    if is_compared and len(result.nodes) > 1 and not own.has_functions:
        others = [spec.text for spec in engines if spec.text != suspect]
        yield from _layers(result, options, own, suspect, others)
    rules = [*options.as_typed(_RULES)]
    match = [] if options.match == "auto" else ["--match", options.match]
    words: list[str | ListOption] = [*match, *rules, ListOption("--engine", [suspect]), "--check", *check.words]
    line = line_of(["biopsy", "debug", "flags", output, *words])
    yield Advice(line, f"which setting of {suspect.partition(':')[0]} switches it off")
    if not rules:  # which ``debug known`` does not take
        line = line_of(["biopsy", "debug", "known", output, "--check", *check.words])
        yield Advice(line, "whether it is a known bug")
    if not is_compared:
        yield Advice(line_of(check.words_for(result.output, "")), _BY_ITSELF)


def _layers(
    result: Reduction, options: ReduceOptions, own: RunOptions, suspect: str, others: Sequence[str]
) -> Iterator[Advice]:
    """The lines that find the wrong layers of the result, by another engine or by golden values.

    ``own`` are the options of the check, also those about tensors inside the result.
    """
    golden = file_of(options.record_with) if own.load_outputs else None
    judged = [*own.as_typed(JudgeOptions.declared)]
    if golden is not None:
        fed: list[str] = []
        if missing_inputs(golden, index_file(result.output)):  # some of the inputs are in another file
            merged = output_word("reduced_inputs.npz", options.model)
            line = line_of(merge_words([*(options.load_inputs or ()), golden], merged))
            yield Advice(line, "the inputs of the result")
            fed = ["--load-inputs", merged]
        words: list[str | ListOption] = ["--suspect", suspect, *fed, "--load-outputs", as_word(golden), *judged]
    else:
        reference = ["--reference-engine", others[0]] if others and not own.load_outputs else []
        files = [result.inputs] if result.inputs is not None else own.load_inputs
        inputs = [ListOption("--load-inputs", [str(path) for path in files])] if files else []
        making = own.as_typed((*MAKING, "input_symbols"))
        words = [*reference, "--suspect", suspect, *inputs, *making, *judged]
    line = line_of(["biopsy", "debug", "layers", as_word(result.output), *words])
    yield Advice(line, "which of its layers is wrong, alone or together with others")


def _speaking_of(check: OwnRun, outputs: Container[str], index: ModelIndex) -> OwnRun:
    """The check without values for tensors that the result lacks: outside a reduction they are errors."""
    parser = run_parser()
    inputs = {index.names[tensor] for tensor in index.fed_inputs()}

    def is_kept(option: str, value: str) -> bool:
        name = value.rpartition(":")[0]
        dest = parser.dest_of(option)
        if not name or dest not in _OF_OUTPUTS | _OF_INPUTS:
            return True
        known = outputs if dest in _OF_OUTPUTS else inputs
        return name in known or name.partition("[")[0] in known  # an item of a sequence

    return check.with_values(is_kept)
