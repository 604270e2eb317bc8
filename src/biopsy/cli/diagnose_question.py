"""The question of ``biopsy diagnose``, made from its options. Importing this imports the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import names_path
from biopsy.cli import advice
from biopsy.cli.arguments import checks, comparing
from biopsy.cli.arguments.engines import default_engine
from biopsy.cli.console import Console
from biopsy.cli.debug import checking
from biopsy.cli.diagnose_options import DiagnoseOptions
from biopsy.cli.run.options import RunOptions
from biopsy.diagnosis.evidence import held_folder
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Effort,
    Judging,
    Samples,
    Words,
    require_sizes,
    resolved_samples,
    with_engine,
)
from biopsy.engines.registry import create
from biopsy.model.index import ModelIndex, index_file
from biopsy.processes.own_process import processors
from biopsy.questions.builds.settings import ENGINE_PLACE, SETTINGS_PLACE
from biopsy.questions.layers.question import Judge
from biopsy.questions.transformations.question import parse_tool
from biopsy.text import first_of, is_refused, line_of


def question_of(options: DiagnoseOptions, console: Console, held: ExitStack) -> DiagnosisQuestion:
    """The question; ``held`` locks the folder for this diagnosis until it is closed.

    Raises UsageError for arguments that would mislead, and what ``index_file`` raises.
    """
    given, command = options.check, parse(options.check or ())
    is_placed = options.names_engine and isinstance(command, OwnRun) and _has_place(command.words)
    if is_placed:  # with the engine in its place, the engines of ``biopsy run`` are known
        given = list(with_engine(command.words, options.specs()[-1].text))
    own_run = checking.own_run(given)
    tool = None if options.by is None else parse_tool(options.by).text
    engines = _engines(options, own_run, console, is_placed=is_placed)
    index = index_file(options.model, options.external_data_dir)
    judging: comparing.JudgeOptions = options if own_run is None else own_run
    check, template = _check(given, own_run, engines)
    samples, folder = _samples(options, own_run, index, held, console)
    limits: Words = ()
    for option in judging.as_typed(comparing.JudgeOptions.declared):
        name, values = option.name, option.values
        is_joined = len(values) == 1 and values[0].startswith("-")
        limits += (f"{name}={values[0]}",) if is_joined else (name, *values)
    return DiagnosisQuestion(
        index=index,
        model=options.model,
        folder=folder,
        engines=engines,
        check=check,
        template=template,
        samples=samples,
        judging=Judging(judge=Judge(*judging.limits()), limits=limits, rules=options.rules()),
        weights_folder=options.external_data_dir,
        effort=Effort(
            seconds=options.max_time or 0.0,
            jobs=options.jobs or processors(),
            thorough=options.thorough,
            downloads=options.downloads,
            answered=options.answered,
        ),
        fresh=options.fresh,
        tool=tool,
        line=_asking(options.words),
    )


_OF_ONE_CALL = ("--report", "--bundle", "--max-time")


def _asking(words: Sequence[str]) -> Words:
    """The words of a line that ask, without those that say what is made of the answers, and how soon."""
    asking = [word for word in words if word != "--answered"]
    return tuple(advice.words_with(asking, checks.REST_OPTIONS, "", (), _OF_ONE_CALL)[1:])


def _has_place(words: Sequence[str]) -> bool:
    return any(place in word for word in words for place in (ENGINE_PLACE, SETTINGS_PLACE))


def _engines(options: DiagnoseOptions, own_run: RunOptions | None, console: Console, *, is_placed: bool) -> Words:
    """The engines as specifications: those of a check that is ``biopsy run``, or those that the user names."""
    if own_run is not None:
        if options.names_engine and not is_placed:
            raise errors.UsageError(
                "the check names the engines, and so do you", next_steps=["name them behind --check only"]
            )
        specs = own_run.specs_to_run()
    elif options.names_engine:
        specs = options.specs()
    elif options.check is not None:
        return ()
    else:
        specs = [default_engine(runs=True)]
        console.note(f"no engine is named: {specs[0].text} is used")
    for spec in specs:
        create(spec)
    return tuple(spec.text for spec in specs)


def _samples(
    options: DiagnoseOptions, own_run: RunOptions | None, index: ModelIndex, held: ExitStack, console: Console
) -> tuple[Samples, Path]:
    """The inputs, and the folder, locked from now on, that they are written to if they are made up."""
    source = options if own_run is None else own_run
    inputs = source.inputs()
    if own_run is not None:
        checking.require_inputs_of_golden_values(own_run, keep_inputs=False)
    if options.check is None or (own_run is not None and not own_run.load_inputs):
        try:
            require_sizes(index, inputs)
        except errors.UsageError as error:
            sizes, *others = error.next_steps
            line = line_of(["biopsy", *options.words])
            steps = [f"{line} {sizes}" if sizes.startswith("--") and not is_refused(line) else sizes, *others]
            raise errors.UsageError(error.summary, details=error.details, next_steps=steps) from error
    has_value = {index.names[tensor] for tensor in index.inputs if tensor in index.weights}
    if unfed := sorted(has_value & {name for feed in inputs.given or () for name in feed}):
        console.warn(f"the values given for {first_of(list(map(repr, unfed)), 3)} are not fed: the model has its own")
    folder = held.enter_context(held_folder(options.folder, beside=options.dir is None, warn=console.warn))
    if options.check is None:
        return resolved_samples(index, inputs, folder, options.load_inputs or ()), folder
    return Samples(inputs=inputs, files=tuple(source.load_inputs or ()), made_up=False), folder


def _check(
    given: Sequence[str] | None, own_run: RunOptions | None, engines: Words
) -> tuple[Words | None, Words | None]:
    """The words of the check, and the same with a place for the engine; None where there are none."""
    if given is None:
        return None, None
    if not given:
        raise errors.UsageError("there is no command after --check", next_steps=["--check ./check.sh {}"])
    words = tuple("{}" if names_path(word, checks.DEFAULT_CANDIDATE) else word for word in given)
    if not _has_place(words):
        return words, None
    if not engines or own_run is not None:
        raise errors.UsageError(
            "the check has a place for an engine, and no engine is named for it",
            next_steps=["--engine NAME    before --check"],
        )
    return with_engine(words, engines[-1]), words
