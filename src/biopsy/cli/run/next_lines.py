"""What to type after a run that fails: the command that finds out why, with the options of that run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.command_line import PLACEHOLDER, OwnRun
from biopsy.checks.words import as_word, output_word
from biopsy.cli import commands, golden_values
from biopsy.cli.advice import Advice
from biopsy.cli.arguments.file_kinds import FileKind
from biopsy.shell_words import ListOption, is_refused, line_of

if TYPE_CHECKING:
    from biopsy.cli.parser import Parser

_OF_ONE_RUN = frozenset({
    "record_memory", "memory_limit", "timeout", "warm_up", "verbose", "quiet", "silent", "verbosity", "log_format",
})  # fmt: skip
"""Options that say how a run is made or shown, and nothing of how it fails."""


def advice_of(args: argparse.Namespace, guessed: Mapping[str, Sequence[int]]) -> list[Advice]:
    """The line that goes on with a run that has failed; none where the words do not name the model as one of them.

    ``guessed`` are shapes that nobody said: a diagnosis makes none up, so its line says them.
    """
    from biopsy.cli.run.building import is_built_model

    words = commands.read(args.words).rest
    places = [place for place, word in enumerate(words) if not word.startswith("-") and Path(word) == args.model]
    if len(places) != 1 or is_built_model(args):
        return []
    # The model stands first: behind an option that goes, it would be taken for a value of it.
    options = _lasting(["biopsy", "run", PLACEHOLDER, *words[: places[0]], *words[places[0] + 1 :]])
    diagnosis = [as_word(args.model) if word == PLACEHOLDER else word for word in options.options]
    if _is_understood("diagnose", diagnosis):
        line, why = line_of(_diagnosis(args, diagnosis, guessed)), "why it fails, and what avoids it"
    else:
        line, why = line_of(_reduction(args, options)), "the smallest part that still fails"
    return [] if is_refused(line) else [Advice(line, why)]


def _diagnosis(
    args: argparse.Namespace, words: Sequence[str], guessed: Mapping[str, Sequence[int]]
) -> Iterator[str | ListOption]:
    """A diagnosis with these words, and with the shapes that the run made up beside those that it was given."""
    yield from ("biopsy", "diagnose")
    if not guessed:
        yield from words
        return
    yield from OwnRun(tuple(words)).without_option(_spellings("input_shapes")).words
    given = [word for word in args.input_shapes or () if word.rpartition(":[")[0] not in guessed]
    made_up = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in guessed.items()]
    yield ListOption("--input-shapes", [*given, *made_up])


def _reduction(args: argparse.Namespace, options: OwnRun) -> Iterator[str]:
    """A reduction whose check is the same run; parts of golden values need inputs that belong to them.

    Where these are of tensors inside the model too, it cuts there, and no engine needs to be trusted.
    """
    golden = _golden(args)
    yield from ("biopsy", "debug", "reduce", as_word(args.model), "-o", output_word("reduced.onnx", args.model))
    if args.external_data_dir is not None:
        yield from ("--external-data-dir", as_word(args.external_data_dir))
    if golden is not None:
        inputs = args.load_inputs[0]
        yield from golden_values.recording_options(golden_values.spec_of(golden, inputs), [as_word(inputs)])
        options = options.without_option(_spellings("load_inputs")).with_options(
            "--load-inputs", golden_values.CUT_INPUTS
        )
    elif args.load_outputs and not (args.load_inputs or args.data_loader_script):
        yield "--no-reduce-inputs"
    yield from ("--check", *options.without_option(_spellings("external_data_dir")).words)


def _golden(args: argparse.Namespace) -> Path | None:
    """The file of golden values, if there is just one, has those of inner tensors, and belongs to inputs of a file."""
    from biopsy.model.index import index_file

    if len(args.load_outputs or ()) != 1 or len(args.load_inputs or ()) != 1:
        return None
    (golden,) = args.load_outputs
    try:
        index = index_file(args.model, args.external_data_dir)
    except (errors.BiopsyError, OSError):
        return None
    return golden if golden_values.holds_inner_values(golden, index) else None


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
    from biopsy.cli.parser import parser_of

    command = commands.find([word])
    assert command is not None
    return parser_of("biopsy", command)
