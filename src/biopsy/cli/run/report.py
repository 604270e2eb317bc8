"""What ``biopsy run`` shows and reports: comparisons, the source lines of outputs that fail, and what to type next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
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
from biopsy.cli.parser import parser_of
from biopsy.cli.run.findings import Findings, names_failing, what_passed
from biopsy.cli.run.options import RunOptions, run_parser
from biopsy.comparison.describe import index, number, report_lines, wide_tolerance
from biopsy.comparison.metrics import NotFinite
from biopsy.comparison.runs import RunComparison
from biopsy.model.index import index_file
from biopsy.model.sources import NodeSource, noted_source
from biopsy.text import ListOption, first_of, is_refused, line_of

_MOST_PASSING = 10
_MOST_FAILING = 20


def show_comparison(compared: RunComparison, console: Console) -> None:
    """Show a comparison: a line for an output that passes, several for one that fails; -v shows long lists in full."""
    console.note("", f"{compared.actual}, expected: {compared.expected}")
    if compared.actual_iterations != compared.expected_iterations:
        console.warn(
            f"{compared.actual} has {compared.actual_iterations} iterations, {compared.expected} has "
            f"{compared.expected_iterations}: the others are not compared"
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
    for pairs, most, say, remaining in (
        (passing, most_passing, console.note, "outputs pass"),
        (failing, most_failing, console.say, "more outputs fail"),
    ):
        for iteration, output in pairs[:most]:
            first, *lines = report_lines(output)
            where = f"iteration {iteration}: " if len(compared.iterations) > 1 else ""
            say(*(f"  {line}" for line in (f"{where}{first}", *lines)))
        if len(pairs) > most:
            say(f"  {len(pairs) - most} {remaining} (-v shows them)")
    for warning in dict.fromkeys(filter(None, (wide_tolerance(output) for _, output in passing))):
        console.warn(warning)
    if not compared.complete:
        console.note("  the comparison ended at the first failure (--fail-fast)")
    # Scripts for Polygraphy look for this line. If outputs are missing, no iteration passes.
    passed = 0 if compared.missing else sum(iteration.passed for iteration in compared.iterations)
    total = len(compared.iterations)
    beyond = any(output.tolerances_decide and output.measured is not None and not output.forms for _, output in failing)
    relation = "is within" if compared.passed else "exceeds" if beyond else ""
    console.note(
        f"  Accuracy Summary | {compared.actual} vs. {compared.expected} | Passed: {passed}/{total} iterations | "
        f"Pass Rate: {100 * passed / total:.2f}%{relation and f' | Difference {relation} tolerance'}",
        "",
    )


def show_not_finite(outputs: Sequence[tuple[str, NotFinite]], console: Console) -> None:
    """Show the outputs with NaN or infinity, each with its runner."""
    for runner, output in outputs[: None if console.verbosity > 0 else _MOST_FAILING]:
        numbers = ((output.nan, "NaN"), (output.inf, "infinite"))
        counts = " and ".join(f"{count} {kind}" for count, kind in numbers if count)
        console.say(
            f"{runner}: {output.name}  {counts} of {output.elements} elements, first {number(output.value)} "
            f"at {index(output.first)} (iteration {output.iteration})"
        )


def write_report(options: RunOptions, findings: Findings, console: Console) -> None:
    """Write the report of a run. Raises UsageError if it cannot be written."""
    status = {"passes": 0, "fails": 1, "unknown": errors.CannotCompare.status}[findings.verdict]
    options.report_file(console).write(status, lambda: sections(options, findings))


def sections(options: RunOptions, findings: Findings) -> dict[str, Any]:
    """The sections of the report of a run."""
    from biopsy.findings.answers import EngineRun, run_section
    from biopsy.findings.model import model_tree_of
    from biopsy.findings.report import versions_tree
    from biopsy.findings.verdict import Verdict

    runs = [
        EngineRun(
            engine=run.engine,
            seconds=[] if run.result is None else [iteration.runtime for iteration in run.result.iterations],
            remarks=run.remarks,
            failure=run.failure,
        )
        for run in findings.runs
    ]
    text = "; ".join(findings.reasons) or findings.undecided or what_passed(findings)
    # Asking a crashed engine for its version could crash this process too.
    crashed = any(isinstance(run.failure, errors.EngineCrash) for run in findings.runs)
    fails = findings.runs and findings.reasons
    return {
        "verdict": Verdict(kind=findings.verdict, text=text, certainty=findings.hint or None),
        "model": model_tree_of(options.model),
        "versions": versions_tree(() if crashed else [run.engine.label for run in findings.runs]),
        "next": [vars(advice) for advice in advice_of(options, findings.guessed)] if fails else None,
        "run": {
            "reasons": findings.reasons,
            "hint": findings.hint or None,
            **run_section(runs, findings.compared, findings.noise, findings.not_finite),
            "costs": [asdict(cost) for cost in findings.costs],
            "origins": [
                {"output": output, "number": number, "label": label, "source": source.as_tree()}
                for output, number, label, source in islice(
                    origins(options.model, names_failing(findings)), _MOST_REPORTED
                )
            ],
        },
    }


_MOST_SHOWN = 3
_MOST_REPORTED = 200


def origins(path: Path, names: Iterable[str]) -> Iterator[tuple[str, int, str, NodeSource]]:
    """(output, number of the node that computes it, its label, its source), for outputs whose source is known.

    The source is the line of the author's code, if an exporter wrote it into the model. A model that cannot be read any
    more has no sources.
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
    """A line for each of the first few outputs whose source is known."""
    return [
        f"{output!r} comes from {label}, {source.with_code}"
        for output, _, label, source in islice(origins(path, names), _MOST_SHOWN)
    ]


_OF_ONE_RUN = frozenset({
    "record_memory", "memory_limit", "timeout", "warm_up", "verbose", "quiet", "silent", "verbosity", "log_format",
})  # fmt: skip
"""Options that have no influence on how a run fails."""


def advice_of(options: RunOptions, guessed: Mapping[str, Sequence[int]]) -> list[Advice]:
    """The line that diagnoses, or else reduces, a run that has failed, with its options.

    There is none if the model is not exactly one of the words. A diagnosis guesses no shapes, so its line gives those
    in ``guessed``.
    """
    words = commands.read(options.words).rest
    places = [place for place, word in enumerate(words) if not word.startswith("-") and Path(word) == options.model]
    if len(places) != 1 or options.has_built_model:
        return []
    unwanted = [
        spelling
        for action in run_parser()._actions
        if action.dest in _OF_ONE_RUN or (isinstance(action.type, FileKind) and action.type.task == "write")
        for spelling in action.option_strings
    ]
    # The model comes first: after an option that is removed, it would be taken for its value.
    typed = ("biopsy", "run", PLACEHOLDER, *words[: places[0]], *words[places[0] + 1 :])
    kept = OwnRun(typed).without_option(unwanted)
    diagnosis = [as_word(options.model) if word == PLACEHOLDER else word for word in kept.options]
    command = commands.find(["diagnose"])
    assert command is not None
    try:
        parser_of("biopsy", command).parse_args(diagnosis)
    except errors.UsageError:  # it lacks some of these options
        line, why = line_of(_reduction(options, kept)), "the smallest part that still fails"
    else:
        line, why = line_of(_diagnosis(options, diagnosis, guessed)), "why it fails, and what avoids it"
    return [] if is_refused(line) else [Advice(line, why)]


def _diagnosis(
    options: RunOptions, words: Sequence[str], guessed: Mapping[str, Sequence[int]]
) -> Iterator[str | ListOption]:
    """A diagnosis with these words and with the guessed shapes."""
    yield from ("biopsy", "diagnose")
    if not guessed:
        yield from words
        return
    yield from OwnRun(tuple(words)).without_option(_spellings("input_shapes")).words
    given = [word for word in options.input_shapes or () if word.rpartition(":[")[0] not in guessed]
    made_up = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in guessed.items()]
    yield ListOption("--input-shapes", [*given, *made_up])


def _reduction(options: RunOptions, kept: OwnRun) -> Iterator[str]:
    """A reduction with the same run as its check.

    If golden values of tensors inside the model were loaded, it cuts the model at these tensors.
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


def _spellings(field: str) -> Sequence[str]:
    declaration = RunOptions.declared[field]
    return () if declaration is None else declaration.spellings
