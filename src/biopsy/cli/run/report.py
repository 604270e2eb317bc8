"""What ``biopsy run`` shows of comparisons, all of what fails, little of what passes; its report, what it tells a
reduction of a mismatch, where in their author's code outputs that fail come from, and what to type next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from biopsy.cli.run.execution import Feeder
from biopsy.cli.run.findings import Findings, names_failing, what_passed
from biopsy.cli.run.noise import yardsticks
from biopsy.cli.run.options import RunOptions
from biopsy.comparison.compare import OutputComparison
from biopsy.comparison.describe import index, number, report_lines, wide_tolerance
from biopsy.comparison.metrics import NotFinite
from biopsy.comparison.mismatch import Rounding
from biopsy.comparison.mismatch_size import explained, only, run_mismatches
from biopsy.comparison.runs import RunComparison
from biopsy.engines.base import Engine
from biopsy.engines.registry import EXACT, create
from biopsy.model.index import index_file
from biopsy.model.sources import NodeSource, noted_source
from biopsy.tensors.results import RunnerResult
from biopsy.text import ListOption, first_line, is_refused, line_of

_MOST_PASSING = 10
_MOST_FAILING = 20


def show_comparison(compared: RunComparison, console: Console) -> None:
    """One comparison: a line per output that passes, several per output that fails; long lists are cut without -v."""
    console.note("", f"{compared.actual}, expected: {compared.expected}")
    _show_differing_sets(compared, console)
    outputs = [(iteration.number, output) for iteration in compared.iterations for output in iteration.outputs]
    several = len(compared.iterations) > 1
    passing = [pair for pair in outputs if pair[1].passed]
    most = len(passing) if console.verbosity > 0 or len(passing) <= _MOST_PASSING else 0
    for iteration, output in passing[:most]:
        _show_output(iteration if several else None, output, console.note)
    if len(passing) > most:
        console.note(f"  {len(passing)} outputs pass (-v shows them)")
    failing = compared.failures
    most = len(failing) if console.verbosity > 0 else _MOST_FAILING
    for iteration, output in failing[:most]:
        _show_output(iteration if several else None, output, console.say)
    if len(failing) > most:
        console.say(f"  {len(failing) - most} more outputs fail (-v shows them)")
    for warning in dict.fromkeys(filter(None, (wide_tolerance(output) for _, output in passing))):
        console.warn(warning)
    if not compared.complete:
        console.note("  the comparison ended at the first failure (--fail-fast)")
    console.note(f"  {_pass_rate(compared)}", "")


def _pass_rate(compared: RunComparison) -> str:
    """The line that scripts written for Polygraphy look for. Where outputs are missing, no iteration passes."""
    passed = 0 if compared.missing else sum(iteration.passed for iteration in compared.iterations)
    total = len(compared.iterations)
    beyond = any(output.tolerances_decide and output.measured is not None for _, output in compared.failures)
    found = "is within" if compared.passed else "exceeds" if beyond else ""
    return (
        f"Accuracy Summary | {compared.actual} vs. {compared.expected} | Passed: {passed}/{total} iterations | "
        f"Pass Rate: {100 * passed / total:.2f}%{found and f' | Difference {found} tolerance'}"
    )


def _show_output(iteration: int | None, output: OutputComparison, say: Callable[[str], None]) -> None:
    where = "" if iteration is None else f"iteration {iteration}: "
    first, *rest = report_lines(output)
    say(f"  {where}{first}")
    for line in rest:
        say(f"  {line}")


def _show_differing_sets(compared: RunComparison, console: Console) -> None:
    if compared.actual_iterations != compared.expected_iterations:
        console.warn(
            f"{compared.actual} has {compared.actual_iterations} iterations, {compared.expected} has "
            f"{compared.expected_iterations}: the rest is not compared"
        )
    first = compared.iterations[0]
    if compared.missing:
        console.say(f"  {compared.actual} does not give {', '.join(map(repr, compared.missing))}")
    if first.only_actual:
        names = ", ".join(map(repr, first.only_actual[:5]))
        console.warn(f"not compared, because nothing is expected of them: {names}{_more(first.only_actual)}")


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 5} more" if len(names) > 5 else ""


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
    options.report_file(console).write(_STATUS[found.verdict], lambda: sections(options, found))


_STATUS = {"passes": 0, "fails": 1, "unknown": errors.CannotCompare.status}


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
    ran = run_section(runs, found.compared, found.noise, found.odd)
    crashed = any(one.crashed for one in found.ran)  # to ask its version could crash this process too
    return {
        "verdict": Verdict(kind=found.verdict, text=text, certainty=found.hint or None),
        "model": model_tree_of(options.model),
        "versions": versions_tree(() if crashed else [one.engine.label for one in found.ran]),
        "next": [vars(one) for one in advice_of(options, found.guessed)] if found.ran and found.reasons else None,
        "run": {
            "reasons": found.reasons,
            "hint": found.hint or None,
            **ran,
            "origins": origin_trees(options.model, names_failing(found)),
        },
    }


# Where in their author's code the outputs that fail come from, as far as an exporter wrote that into the model.

_MOST_SHOWN = 3
_MOST_TOLD = 200


@dataclass(frozen=True, kw_only=True)
class OutputOrigin:
    """The node that computes an output, and where that comes from."""

    output: str
    number: int
    label: str
    source: NodeSource

    def as_tree(self) -> dict[str, Any]:
        """As plain values, for a report."""
        node = {"output": self.output, "number": self.number, "label": self.label}
        return {**node, "source": self.source.as_tree()}


def origins(path: Path, names: Iterable[str]) -> Iterator[OutputOrigin]:
    """Of each of some tensors, of which it is known. A model that cannot be read any more has none."""
    try:
        index = index_file(path)
    except (errors.BiopsyError, OSError):
        return
    for name in names:
        number = index.producer.get(index.ids.get(name, -1))
        source = None if number is None else noted_source(index, number)
        if number is not None and source is not None:
            yield OutputOrigin(output=name, number=number, label=index.nodes[number].label, source=source)


def origin_lines(path: Path, names: Iterable[str]) -> list[str]:
    """A line for each of the first few."""
    shown = list(origins(path, names))[:_MOST_SHOWN]
    return [f"{one.output!r} comes from {one.label}, {one.source.with_code}" for one in shown]


def origin_trees(path: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """The origins of the first few outputs, for a report."""
    return [one.as_tree() for one in list(origins(path, names))[:_MOST_TOLD]]


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
    # The model stands first: behind an option that goes, it would be taken for a value of it.
    kept = _lasting(["biopsy", "run", PLACEHOLDER, *words[: places[0]], *words[places[0] + 1 :]])
    diagnosis = [as_word(options.model) if word == PLACEHOLDER else word for word in kept.options]
    if _is_understood("diagnose", diagnosis):
        line, why = line_of(_diagnosis(options, diagnosis, guessed)), "why it fails, and what avoids it"
    else:
        line, why = line_of(_reduction(options, kept)), "the smallest part that still fails"
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
    recorded = _recorded(options)
    yield from ("biopsy", "debug", "reduce", as_word(options.model), "-o", output_word("reduced.onnx", options.model))
    if options.external_data_dir is not None:
        yield from ("--external-data-dir", as_word(options.external_data_dir))
    if recorded is not None:
        golden, inputs = recorded
        yield from advice.recording_options(advice.spec_of(golden, inputs), [as_word(inputs)])
        kept = kept.without_option(_spellings("load_inputs")).with_options("--load-inputs", advice.CUT_INPUTS)
    elif options.load_outputs and not (options.load_inputs or options.data_loader_script):
        yield "--no-reduce-inputs"
    yield from ("--check", *kept.without_option(_spellings("external_data_dir")).words)


def _recorded(options: RunOptions) -> tuple[Path, Path] | None:
    """The files of golden values and inputs, if there is just one of each, and the first has those of inner tensors."""
    golden, inputs = options.load_outputs or (), options.load_inputs or ()
    if len(golden) != 1 or len(inputs) != 1:
        return None
    try:
        index = index_file(options.model, options.external_data_dir)
    except (errors.BiopsyError, OSError):
        return None
    return (golden[0], inputs[0]) if advice.holds_inner_values(golden[0], index) else None


def _lasting(words: Sequence[str]) -> OwnRun:
    """The words of a run without what it writes, and what is of this run alone."""
    unwanted = [
        spelling
        for action in _parser()._actions
        if action.dest in _OF_ONE_RUN or (isinstance(action.type, FileKind) and action.type.task == "write")
        for spelling in action.option_strings
    ]
    return OwnRun(tuple(words)).without_option(unwanted)


def _spellings(dest: str) -> list[str]:
    return [spelling for action in _parser()._actions if action.dest == dest for spelling in action.option_strings]


def _is_understood(command: str, words: Sequence[str]) -> bool:
    """Whether a command has all the options of some words."""
    try:
        _parser(command).parse_args(list(words))
    except errors.UsageError:
        return False
    return True


def _parser(word: str = "run") -> Parser:
    command = commands.find([word])
    assert command is not None
    return parser_of("biopsy", command)


# What ``biopsy run`` tells a reduction of a mismatch: its kinds, its size, and, if asked, whether it is rounding.

Pair = tuple[RunnerResult, RunnerResult]
"""What an engine gave, and what was expected of it."""

_ROUNDINGS = 10
_PERTURBED = 4
"""Runs with inputs changed by rounding: what is near a border is seen on its other side with 94 % in one of them."""


class Arbiter:
    """Tells by runs in float64 whether a mismatch is only rounding.

    ``rerun`` runs another engine on the same model, with the inputs of a feeder.
    """

    def __init__(self, rerun: Callable[[Engine, Feeder], RunnerResult], feeder: Feeder) -> None:
        self._rerun = rerun
        self._feeder = feeder

    def judge(self, pair: Pair, compared: RunComparison) -> Rounding:
        """Whether rounding explains what differs; "unknown" where float64 cannot run, or not on all that differs."""
        names = {output.name for _, output in compared.failures}
        try:
            exact, plain = yardsticks(lambda engine: self._rerun(engine, self._feeder))
            actual, expected, plain, exact = (only(side, names) for side in (*pair, plain, exact))
            return explained(actual, expected, plain, exact, self._perturbed)
        except errors.BiopsyError as error:
            return Rounding("unknown", reason=first_line(error.message))

    def _perturbed(self) -> Iterator[RunnerResult]:
        for seed in range(_PERTURBED):
            try:
                source = self._feeder.roundings_off(_ROUNDINGS, seed)
            except errors.CannotCompare:
                return  # no input can be changed by a rounding, and no output by it
            yield self._rerun(create(EXACT), source)


def sized(found: Findings, pairs: Sequence[Pair], arbiter: Arbiter | None) -> Findings:
    """The findings with the size of the first mismatch, and, given an arbiter, with what float64 says of it."""
    first = next((at for at, one in enumerate(found.compared) if not one.passed), None)
    if first is None:
        return found
    pair, compared = pairs[first], found.compared[first]
    rounding = None if arbiter is None or compared.missing else arbiter.judge(pair, compared)
    return replace(found, mismatches=run_mismatches(*pair, compared), rounding=rounding)
