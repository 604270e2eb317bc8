"""What ``biopsy run`` shows of comparisons, all of what fails, little of what passes; its report, what it tells a
reduction of a mismatch, where in their author's code outputs that fail come from, and what to type next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.command_line import PLACEHOLDER, OwnRun
from biopsy.checks.words import as_word, output_word
from biopsy.cli import advice, commands
from biopsy.cli.advice import Advice
from biopsy.cli.arguments.types import FileKind
from biopsy.cli.console import Console
from biopsy.cli.parser import Parser, parser_of
from biopsy.cli.run.findings import Findings, names_failing, what_passed
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.describe import index, number, report_lines, wide_tolerance
from biopsy.comparison.metrics import NotFinite
from biopsy.comparison.runs import RunComparison
from biopsy.model.index import index_file
from biopsy.model.sources import NodeSource, noted_source
from biopsy.text import ListOption, first_of, is_refused, line_of

_MOST_PASSING = 10
_MOST_FAILING = 20


def show_comparison(compared: RunComparison, console: Console) -> None:
    """One comparison: a line per output that passes, several per output that fails; long lists are cut without -v."""
    console.note("", f"{compared.actual}, expected: {compared.expected}")
    if compared.actual_iterations != compared.expected_iterations:
        console.warn(
            f"{compared.actual} has {compared.actual_iterations} iterations, {compared.expected} has "
            f"{compared.expected_iterations}: the rest is not compared"
        )
    if compared.missing:
        console.say(f"  {compared.actual} does not give {', '.join(map(repr, compared.missing))}")
    unexpected = list(map(repr, compared.iterations[0].only_actual))
    if unexpected:
        console.warn(f"not compared, because nothing is expected of them: {first_of(unexpected, 5)}")
    outputs = [(iteration.number, output) for iteration in compared.iterations for output in iteration.outputs]
    passing = [pair for pair in outputs if pair[1].passed]
    failing = compared.failures
    is_long = console.verbosity <= 0
    most_passing = 0 if is_long and len(passing) > _MOST_PASSING else len(passing)
    most_failing = _MOST_FAILING if is_long else len(failing)
    for pairs, most, say, rest in (
        (passing, most_passing, console.note, "outputs pass"),
        (failing, most_failing, console.say, "more outputs fail"),
    ):
        for iteration, output in pairs[:most]:
            first, *lines = report_lines(output)
            where = f"iteration {iteration}: " if len(compared.iterations) > 1 else ""
            say(*(f"  {line}" for line in (f"{where}{first}", *lines)))
        if len(pairs) > most:
            say(f"  {len(pairs) - most} {rest} (-v shows them)")
    for warning in dict.fromkeys(filter(None, (wide_tolerance(output) for _, output in passing))):
        console.warn(warning)
    if not compared.complete:
        console.note("  the comparison ended at the first failure (--fail-fast)")
    # The line that scripts written for Polygraphy look for. Where outputs are missing, no iteration passes.
    passed = 0 if compared.missing else sum(iteration.passed for iteration in compared.iterations)
    total = len(compared.iterations)
    beyond = any(output.tolerances_decide and output.measured is not None for _, output in failing)
    found = "is within" if compared.passed else "exceeds" if beyond else ""
    console.note(
        f"  Accuracy Summary | {compared.actual} vs. {compared.expected} | Passed: {passed}/{total} iterations | "
        f"Pass Rate: {100 * passed / total:.2f}%{found and f' | Difference {found} tolerance'}",
        "",
    )


def show_not_finite(found: Sequence[tuple[str, NotFinite]], console: Console) -> None:
    """The outputs that hold NaN or infinity."""
    for runner, odd in found[: None if console.verbosity > 0 else _MOST_FAILING]:
        counts = " and ".join(f"{count} {what}" for count, what in ((odd.nan, "NaN"), (odd.inf, "infinite")) if count)
        console.say(
            f"{runner}: {odd.name}  {counts} of {odd.elements} elements, first {number(odd.value)} "
            f"at {index(odd.first)} (iteration {odd.iteration})"
        )


def write_report(options: RunOptions, found: Findings, console: Console) -> None:
    """Write everything found. Raises UsageError if it cannot be written."""
    status = {"passes": 0, "fails": 1, "unknown": errors.CannotCompare.status}[found.verdict]
    options.report_file(console).write(status, lambda: sections(options, found))


def sections(options: RunOptions, found: Findings) -> dict[str, Any]:
    """What a report tells of a run."""
    from biopsy.findings.answers import EngineRun, run_section
    from biopsy.findings.model import model_tree_of
    from biopsy.findings.report import versions_tree
    from biopsy.findings.verdict import Verdict

    runs = [
        EngineRun(
            engine=one.engine,
            seconds=[] if one.result is None else [iteration.runtime for iteration in one.result.iterations],
            remarks=one.remarks,
            failure=one.failure,
        )
        for one in found.ran
    ]
    text = "; ".join(found.reasons) or found.undecided or what_passed(found)
    # To ask the version of an engine that crashed could crash this process too.
    crashed = any(isinstance(one.failure, errors.EngineCrash) for one in found.ran)
    return {
        "verdict": Verdict(kind=found.verdict, text=text, certainty=found.hint or None),
        "model": model_tree_of(options.model),
        "versions": versions_tree(() if crashed else [one.engine.label for one in found.ran]),
        "next": [vars(one) for one in advice_of(options, found.guessed)] if found.ran and found.reasons else None,
        "run": {
            "reasons": found.reasons,
            "hint": found.hint or None,
            **run_section(runs, found.compared, found.noise, found.odd),
            "origins": origin_trees(options.model, names_failing(found)),
        },
    }


# Where in their author's code the outputs that fail come from, as far as an exporter wrote that into the model.

_MOST_SHOWN = 3
_MOST_TOLD = 200


def origins(path: Path, names: Iterable[str]) -> Iterator[tuple[str, int, str, NodeSource]]:
    """(output, number of the node that computes it, its label, where that comes from), of each of which it is known.

    A model that cannot be read any more has none.
    """
    try:
        index = index_file(path)
    except (errors.BiopsyError, OSError):
        return
    for name in names:
        number = index.producer.get(index.ids.get(name, -1))
        source = None if number is None else noted_source(index, number)
        if number is not None and source is not None:
            yield name, number, index.nodes[number].label, source


def origin_lines(path: Path, names: Iterable[str]) -> list[str]:
    """A line for each of the first few."""
    return [
        f"{output!r} comes from {label}, {source.with_code}"
        for output, _, label, source in islice(origins(path, names), _MOST_SHOWN)
    ]


def origin_trees(path: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The origins of the first few outputs, for a report."""
    return [
        {"output": output, "number": number, "label": label, "source": source.as_tree()}
        for output, number, label, source in islice(origins(path, names), _MOST_TOLD)
    ]


# What to type after a run that fails: the command that finds out why, with the options of that run.

_OF_ONE_RUN = frozenset({
    "record_memory", "memory_limit", "timeout", "warm_up", "verbose", "quiet", "silent", "verbosity", "log_format",
})  # fmt: skip
"""Options that say how a run is made or shown, and nothing of how it fails."""


def advice_of(options: RunOptions, guessed: Mapping[str, Sequence[int]]) -> list[Advice]:
    """The line that goes on with a run that has failed; none where the words do not name the model as one of them.

    ``guessed`` are shapes that nobody said: a diagnosis makes none up, so its line says them.
    """
    words = commands.read(options.words).rest
    places = [place for place, word in enumerate(words) if not word.startswith("-") and Path(word) == options.model]
    if len(places) != 1 or options.has_built_model:
        return []
    unwanted = [
        spelling
        for action in _parser()._actions
        if action.dest in _OF_ONE_RUN or (isinstance(action.type, FileKind) and action.type.task == "write")
        for spelling in action.option_strings
    ]
    # The model stands first: behind an option that goes, it would be taken for a value of it.
    typed = ("biopsy", "run", PLACEHOLDER, *words[: places[0]], *words[places[0] + 1 :])
    kept = OwnRun(typed).without_option(unwanted)
    diagnosis = [as_word(options.model) if word == PLACEHOLDER else word for word in kept.options]
    try:
        _parser("diagnose").parse_args(diagnosis)
    except errors.UsageError:  # it lacks some of these options
        line, why = line_of(_reduction(options, kept)), "the smallest part that still fails"
    else:
        line, why = line_of(_diagnosis(options, diagnosis, guessed)), "why it fails, and what avoids it"
    return [] if is_refused(line) else [Advice(line, why)]


def _diagnosis(
    options: RunOptions, words: Sequence[str], guessed: Mapping[str, Sequence[int]]
) -> Iterator[str | ListOption]:
    """A diagnosis with these words, and with the shapes that the run made up beside those that it was given."""
    yield from ("biopsy", "diagnose")
    if not guessed:
        yield from words
        return
    yield from OwnRun(tuple(words)).without_option(_spellings("input_shapes")).words
    given = [word for word in options.input_shapes or () if word.rpartition(":[")[0] not in guessed]
    made_up = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in guessed.items()]
    yield ListOption("--input-shapes", [*given, *made_up])


def _reduction(options: RunOptions, kept: OwnRun) -> Iterator[str]:
    """A reduction whose check is the same run; parts of golden values need inputs that belong to them.

    Where these are of tensors inside the model too, it cuts there, and no engine needs to be trusted.
    """
    golden, inputs = options.load_outputs or (), options.load_inputs or ()
    cuts = False
    if len(golden) == 1 and len(inputs) == 1:
        with suppress(errors.BiopsyError, OSError):
            cuts = advice.holds_inner_values(golden[0], index_file(options.model, options.external_data_dir))
    yield from ("biopsy", "debug", "reduce", as_word(options.model), "-o", output_word("reduced.onnx", options.model))
    if options.external_data_dir is not None:
        yield from ("--external-data-dir", as_word(options.external_data_dir))
    if cuts:
        yield from advice.recording_options(advice.spec_of(golden[0], inputs[0]), [as_word(inputs[0])])
        kept = kept.without_option(_spellings("load_inputs")).with_options("--load-inputs", advice.CUT_INPUTS)
    elif golden and not (inputs or options.data_loader_script):
        yield "--no-reduce-inputs"
    yield from ("--check", *kept.without_option(_spellings("external_data_dir")).words)


def _spellings(dest: str) -> list[str]:
    return [spelling for action in _parser()._actions if action.dest == dest for spelling in action.option_strings]


def _parser(word: str = "run") -> Parser:
    command = commands.find([word])
    assert command is not None
    return parser_of("biopsy", command)
