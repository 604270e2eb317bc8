"""The search of ``biopsy debug workaround``: its question, made from the arguments, and what it shows: a line for
each thing learnt, the best three, what to type. Importing this imports the search.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.cli.advice import Advice, say_advice
from biopsy.cli.arguments import checks, comparing, groups
from biopsy.cli.arguments.checks import ShownChecks
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking
from biopsy.cli.progress import CheckProgress, shows
from biopsy.cli.run.execution import settled
from biopsy.cli.run.files import golden_values
from biopsy.cli.run.options import RunOptions
from biopsy.engines.registry import PLAIN, create, parse_spec
from biopsy.findings.bundle.engine_script import calls_of
from biopsy.findings.model import model_tree_of
from biopsy.findings.report import versions_tree
from biopsy.model.index import ModelIndex, index_file
from biopsy.model.sources import noted_source, places_of
from biopsy.questions.builds.settings import ENGINE_PLACE, CheckTemplate
from biopsy.questions.layers.question import Judge
from biopsy.questions.workarounds.question import KINDS, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.session.trial import Budget
from biopsy.text import count, first_of, is_refused, series

if TYPE_CHECKING:
    from biopsy.questions.workarounds.result import VerifiedChange, Workarounds


def question_of(args: argparse.Namespace, console: Console) -> WorkaroundQuestion:
    """What is asked. Raises UsageError for arguments that could only mislead, and what ``index_file`` raises."""
    own_run = checking.own_run(args.check)
    index = index_file(args.model, args.external_data_dir)
    checking.require_names(args.check, args.model)
    template = template_of(args)
    create(template.spec)
    references, named = _references(args, own_run, template)
    inputs = groups.InputOptions.of(args).inputs() if own_run is None else own_run.inputs()
    golden = own_run.load_outputs if own_run is not None else None
    wanted = index.fed_types()
    kinds = tuple(kind for kind in KINDS if kind in (args.only or KINDS) and kind not in args.skip)
    if not kinds:
        raise errors.UsageError("--only and --skip leave nothing to try")
    target = None
    if args.output is not None:
        weights = groups.WeightsFileOption.of(args).weights_file(args.output)
        target = PatchedFile(path=args.output, external=weights, threshold=args.external_data_size_threshold)
    return WorkaroundQuestion(
        index=index,
        model=args.model,
        template=template,
        right=WhatIsRight(
            samples=settled(wanted, inputs, console)[0],
            drawn=inputs,
            golden=golden_of(golden_values(golden) if golden else (), index),
            judge=Judge(*(own_run or comparing.JudgeOptions.of(args)).limits()),
            references=references,
            named=named,
        ),
        rules=checks.RuleOptions.of(args).rules(),
        kinds=kinds,
        piece=args.piece,
        nodes=tuple(args.nodes),
        default_name=checks.DEFAULT_CANDIDATE,
        timeout=args.check_timeout,
        target=target,
        budget=Budget(checks=args.max_checks, seconds=args.max_time),
    )


# The check, and the engines in it


def template_of(args: argparse.Namespace) -> CheckTemplate:
    """The words of the check with ``{engine}`` in the place of the engine that must be used. Raises UsageError."""
    if args.check is None:
        if args.engine is None:
            raise errors.UsageError(
                "which engine must be used?", next_steps=["--engine NAME", "biopsy doctor    lists them"]
            )
        spec = parse_spec(args.engine)
        right = args.reference_engine or next(engine for engine in PLAIN if parse_spec(engine) != spec)
        words = ["biopsy", "run", "{}", "--engine", right, "--engine", ENGINE_PLACE]
        inputs = groups.InputOptions.of(args).as_typed(("load_inputs", *groups.MAKING, "input_symbols"))
        weights = groups.WeightsFolderOption.of(args).as_typed()
        for option in (*inputs, *weights, *comparing.JudgeOptions.of(args).as_typed()):
            words += option.words
        return CheckTemplate(tuple(words), spec, is_own_run=True)
    if not args.check:
        raise errors.UsageError("there is no command after --check", next_steps=["--check ./check.sh {} {engine}"])
    untold = "the check does not tell which engine must be used: it is not 'biopsy run', or names it as {engine}"
    return checking.template_of(args.check, args.engine, untold)


def _references(
    args: argparse.Namespace, own_run: RunOptions | None, template: CheckTemplate
) -> tuple[tuple[str, ...], bool]:
    """The engines to trust, and whether a person has named them."""
    if args.reference_engine is not None:
        create(args.reference_engine)
        return (args.reference_engine,), True
    command = parse(args.check or ())
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

_WIDTH = 44


class WorkaroundProgress(CheckProgress):
    """A line for what was learnt on the way, and the output of the first failure."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, ShownChecks.of(args), head="check", needs="a change is a workaround")
        self._has_failed = False

    @shows(events.OriginalFails)
    def _show_failure(self, event: events.OriginalFails) -> None:
        if not self._has_failed:  # the reduction finds it once more
            super()._show_failure(event)
        self._has_failed = True

    @shows(events.Trusted)
    def _show_trusted(self, event: events.Trusted) -> None:
        agrees = f", as {event.confirmed_by} does" if event.confirmed_by else ""
        samples = f"{count(event.samples, 'sample')} of the check, {count(event.fresh, 'fresh one')}"
        self.line("right", f"what {event.engine} gives{agrees} · {samples} · {event.seconds:.1f} s")

    @shows(events.StageStarted)
    def _show_stage(self, event: events.StageStarted) -> None:
        self._head = event.stage

    @shows(events.PlacesFound)
    def _show_places(self, event: events.PlacesFound) -> None:
        if event.nodes:
            self.line("piece", first_of(event.nodes, _MOST_NODES))

    @shows(events.ChangeTried)
    def _show_tried(self, event: events.ChangeTried) -> None:
        slower = "" if event.latency is None else f" · {event.latency:.2f} times as long"
        told = f"right{slower}" if event.right else f"no: {' '.join(event.reason.split())}"[:100]
        if event.right or self._console.verbosity > 0:
            self.line(event.change, f"{event.text:<{_WIDTH}} {told}")


def say_result(console: Console, found: Workarounds, index: ModelIndex, lines: Mapping[int, str]) -> None:
    """The best workarounds in the order of what they cost; ``lines`` are the checks that show them, by their place."""
    console.note("")
    _say_tried(console, found)
    if not found.found:
        tried = len({(one.kind, one.text) for one in found.tried})
        told = "Nothing that was tried makes the model right" if tried else "No change could be tried"
        early = f"; stopped by {found.stopped}" if found.stopped else ""
        console.say(f"{told}: {count(tried, 'change')}, {count(found.checks, 'check')}{early}.")
        return
    samples = f"{count(found.trust.samples, 'sample')} and {count(found.trust.fresh, 'fresh input')}"
    console.say(f"{count(len(found.best), 'workaround')}, right on {samples}, the cheapest first:")
    for number, one in enumerate(found.best, 1):
        _say_one(console, number, one, index)
    others = [one.kind for one in found.found if not any(one is best for best in found.best)]
    if others:
        kinds = series([f"{others.count(kind)} {kind}" for kind in dict.fromkeys(others)])
        console.note(f"{'also':<{COLUMN}} {kinds}, as above")
    if found.stopped:
        console.note(f"The search was stopped by {found.stopped}: others may exist.")
    patched = found.patched
    if patched is not None and found.output is not None:
        _say_difference(console, patched, found.output)
    say_advice(console, advice_of(lines))


def advice_of(lines: Mapping[int, str]) -> list[Advice]:
    """The lines to type."""
    return [
        Advice(line, f"workaround {number}: the check passes") for number, line in lines.items() if not is_refused(line)
    ]


def _say_tried(console: Console, found: Workarounds) -> None:
    """What does not help: settings and releases by name, of changes of the model how many (-v tells each of them)."""
    refused = [one for one in found.tried if not one.right]
    for kind in dict.fromkeys(one.kind for one in refused):
        texts = [one.text for one in refused if one.kind == kind]
        told = first_of(texts, _MOST_NAMED) if kind in ("setting", "release") else f"{len(texts)} tried"
        console.note(f"{'no help':<{COLUMN}} {kind}: {told}")


def _say_one(console: Console, number: int, one: VerifiedChange, index: ModelIndex) -> None:
    console.say(f"  {number}  {one.kind:<{COLUMN}} {one.text}")
    details = [one.latency.text] if one.latency is not None else []
    if one.changes_model:
        details.append(f"changes {series(list(one.nodes))}")
    else:
        details += [f"--engine {one.engine}", *(f"{name}={value}" for name, value in one.environment.items())]
    console.say(f"     {'':<{COLUMN}} {' · '.join(details)}")
    for place in _places(one, index) if one.changes_model else ():
        console.say(f"     {'':<{COLUMN}} {place}")
    for limit in one.holds:
        console.say(f"     {'':<{COLUMN}} the same function for {limit}")
    for line in () if one.changes_model else calls_of(parse_spec(one.engine), index):
        console.note(f"     {'':<{COLUMN}} {line}")


def _places(one: VerifiedChange, index: ModelIndex) -> list[str]:
    """The lines of code that the nodes that are changed come from."""
    changed = set(one.nodes)
    numbers = [node.number for node in index.nodes if node.label in changed]
    return [place.text for place in places_of(noted_source(index, number) for number in numbers)[:_MOST_NAMED]]


def _say_difference(console: Console, patched: VerifiedChange, output: Path) -> None:
    console.note("")
    console.say(f"{output!s:<{COLUMN}} {patched.text}")
    most = len(patched.difference) if console.verbosity > 0 else _MOST_LINES
    for line in patched.difference[:most]:
        console.say(f"  {line}")
    if len(patched.difference) > most:
        console.note(f"  and {count(len(patched.difference) - most, 'more line')} (-v shows them)")


def sections(
    found: Workarounds, index: ModelIndex, progress: WorkaroundProgress, lines: Mapping[int, str]
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import workarounds_tree, workarounds_verdict

    engines = [found.trust.reference, *filter(None, [found.trust.confirmed_by]), found.engine]
    return {
        "verdict": workarounds_verdict(found, lines),
        "model": model_tree_of(Path(found.model)),
        "versions": versions_tree(engines),
        "search": progress.history.tree(),
        "next": [vars(one) for one in advice_of(lines)],
        "workaround": workarounds_tree(found, index),
    }
