"""From the arguments of ``biopsy diagnose`` to the question. Importing this imports the diagnosis."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import names_path
from biopsy.cli.arguments import checks, comparing
from biopsy.cli.arguments.engines import EngineOptions, default_engine
from biopsy.cli.arguments.groups import InputOptions
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.diagnose.options import folder_of
from biopsy.cli.run.options import RunOptions
from biopsy.diagnosis.evidence import held_folder
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Effort,
    Judging,
    Samples,
    Words,
    require_sizes,
    settled,
    with_engine,
)
from biopsy.engines.registry import create
from biopsy.model.index import ModelIndex, index_file
from biopsy.processes.own_process import processors
from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE
from biopsy.questions.layers.question import Judge
from biopsy.questions.transformations.question import parse_tool


def question_of(args: argparse.Namespace, console: Console, held: ExitStack) -> DiagnosisQuestion:
    """What is asked; ``held`` keeps the folder for this diagnosis until it is closed.

    Raises UsageError for arguments that could only mislead, and what ``index_file`` raises.
    """
    typed, args = args, _with_engine(args)
    own_run = checking.own_run(args.check)
    tool = None if args.by is None else parse_tool(args.by).text
    engines = _engines(args, own_run, console, is_placed=typed is not args)
    index = index_file(args.model, args.external_data_dir)
    equal = comparing.JudgeOptions.of(args) if own_run is None else own_run
    check, template = _check(args, own_run, engines)
    samples, folder = _samples(args, own_run, index, held, console)
    limits: Words = ()
    for option in equal.as_typed(comparing.JudgeOptions.declared):
        name, values = option.name, option.values
        is_joined = len(values) == 1 and values[0].startswith("-")
        limits += (f"{name}={values[0]}",) if is_joined else (name, *values)
    return DiagnosisQuestion(
        index=index,
        model=args.model,
        folder=folder,
        engines=engines,
        check=check,
        template=template,
        samples=samples,
        judging=Judging(
            judge=Judge(*equal.limits()),
            limits=limits,
            rules=checks.RuleOptions.of(args).rules(),
        ),
        weights_folder=args.external_data_dir,
        effort=Effort(
            seconds=args.max_time,
            jobs=args.jobs or processors(),
            thorough=args.thorough,
            downloads=args.downloads,
        ),
        fresh=args.fresh,
        tool=tool,
    )


def _with_engine(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the engine in its place, if the check is ``biopsy run``: which engines those words name is
    then known without a place.
    """
    command = parse(args.check or ())
    chosen = EngineOptions.of(args)
    if not chosen.names_engine or not isinstance(command, OwnRun) or not _has_place(command.words):
        return args
    words = list(with_engine(command.words, chosen.specs()[-1].text))
    return argparse.Namespace(**{**vars(args), "check": words})


def _has_place(words: Sequence[str]) -> bool:
    return any(place in word for word in words for place in (ENGINE_PLACE, SETTINGS_PLACE))


def _engines(args: argparse.Namespace, own_run: RunOptions | None, console: Console, *, is_placed: bool) -> Words:
    """The engines as specs; of a check that is ``biopsy run`` those that it runs."""
    chosen = EngineOptions.of(args)
    if own_run is not None:
        if chosen.names_engine and not is_placed:
            raise errors.UsageError(
                "the check names the engines, and so do you", next_steps=["name them behind --check only"]
            )
        specs = own_run.specs_to_run()
    elif chosen.names_engine:
        specs = chosen.specs()
    elif args.check is not None:
        return ()
    else:
        specs = [default_engine(runs=True)]
        console.note(f"no engine is named: {specs[0].text} is used")
    for spec in specs:
        create(spec)
    return tuple(spec.text for spec in specs)


def _samples(
    args: argparse.Namespace, own_run: RunOptions | None, index: ModelIndex, held: ExitStack, console: Console
) -> tuple[Samples, Path]:
    """The inputs, written to the folder where nobody gave them, and that folder, which is held from now on."""
    asked = InputOptions.of(args) if own_run is None else own_run
    inputs = asked.inputs()
    if args.check is None:
        require_sizes(index, inputs)
    elif own_run is not None:
        checking.require_inputs_of_golden_values(own_run, keep_inputs=False)
        if not own_run.load_inputs:
            require_sizes(index, inputs)
    folder = held.enter_context(held_folder(folder_of(args), beside=args.dir is None, warn=console.warn))
    if args.check is None:
        return settled(index, inputs, folder, args.load_inputs or ()), folder
    return Samples(inputs=inputs, files=tuple(asked.load_inputs or ()), made_up=False), folder


def _check(args: argparse.Namespace, own_run: RunOptions | None, engines: Words) -> tuple[Words | None, Words | None]:
    """The words of the check, and those in which the engine has its place; None where there are none."""
    if args.check is None:
        return None, None
    if not args.check:
        raise errors.UsageError("there is no command after --check", next_steps=["--check ./check.sh {}"])
    words = tuple("{}" if names_path(word, checks.DEFAULT_CANDIDATE) else word for word in args.check)
    if not _has_place(words):
        return words, None
    if not engines or own_run is not None:
        raise errors.UsageError(
            "the check has a place for an engine, and no engine is named for it",
            next_steps=["--engine NAME    before --check"],
        )
    return with_engine(words, engines[-1]), words
