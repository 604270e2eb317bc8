"""Options on the wrong side of ``--check``, which takes the whole rest of the line: what to type instead."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli import commands
from biopsy.cli.check_words import own_command, split_at
from biopsy.cli.parser import Parser, parser_of
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_LONGEST_SCRIPT = 1 << 20
"""Bytes of a script that is searched for an option."""


def require_own_place(parser: Parser, option: str, rest: Sequence[str], program: str) -> None:
    """Raise UsageError if a check that is our own command is given an option that is one of ``parser`` alone."""
    inner = own_command(rest)
    if inner is None:
        return
    command, words = inner
    theirs = parser_of(program, command)
    module = importlib.import_module(command.module)
    given, _ = split_at((*getattr(module, "REST_OPTIONS", ()), "--"), words)
    for word in given:
        if word.startswith("-") and parser.has_option(word) and not theirs.has_option(word):
            name, mine = word.partition("=")[0], parser.prog.removeprefix(f"{program} ")
            raise errors.UsageError(
                f"{name} is no option of {' '.join(command.words)}: it belongs to {mine}, which takes all behind"
                f" {option} for the check",
                next_steps=[f"write {name} before {option}"],
            )


def require_check_for_engines(
    command: commands.Command, own: Sequence[str], option: str, rest: Sequence[str] | None, program: str
) -> None:
    """Raise UsageError, with the line to type, if a search is given an engine, which belongs into its check.

    ``own`` are the words before ``option``, ``rest`` those behind it; None if there is no check.
    """
    if command.words not in _SEARCHES or not any(word.partition("=")[0] in _ENGINES for word in own):
        return  # the options of run cost their imports
    from biopsy.checks.command_line import OwnRun, parse

    run = parser_of(program, commands.read(["run"]).command or command)
    left, moved = _parted(own, parser_of(program, command), run)
    engines = [word for word in moved if word.partition("=")[0] in _ENGINES]
    given = None if rest is None else parse(rest)
    if not engines or not (given is None or isinstance(given, OwnRun)):
        return
    check = ["biopsy", "run", "{}", *moved] if given is None else [*given.with_options(*moved).words]
    raise errors.UsageError(
        f"{engines[0]} is no option of {' '.join(command.words)}: an engine belongs in the check",
        next_steps=[line_of([program, *command.words, *left, option, *check])],
    )


_SEARCHES = {("debug", "reduce"), ("debug", "precision")}
"""Commands whose check is asked about candidates."""

_ENGINES = {"--engine", "--onnxrt", "--openvino", "--trt", "--reference", "--reference:float64"}


def _parted(words: Sequence[str], mine: Parser, theirs: Parser) -> tuple[list[str], list[str]]:
    """The words without the options, and their values, that only another command has; and those."""
    left, moved = list[str](), list[str]()
    room = 0
    for word in words:
        if word.startswith("-"):
            is_theirs = theirs.has_option(word) and not mine.answers_to(word)
            room = theirs.most_values(word) if is_theirs else 0
            (moved if is_theirs else left).append(word)
        else:
            (moved if room else left).append(word)
            room = max(0, room - 1)
    return left, moved


def warn_of_unread(parser: Parser, option: str, rest: Sequence[str], console: Console) -> None:
    """Warn of options of ``parser`` that a script is given and cannot know: its text neither has them nor reads all."""
    from biopsy.checks.command_line import OwnCommand, parse

    check = parse(rest)
    if isinstance(check, OwnCommand):
        return
    given = [word.partition("=")[0] for word in rest if word.startswith("--") and parser.has_option(word)]
    texts = [_text(path) for path, is_run in check.files_named() if is_run] if given else []
    if not texts or None in texts:
        mine = parser.prog.partition(" ")[2]
        for name in dict.fromkeys(given):
            if name not in _COMMON:
                console.note(f"the check gets {name}; if it is meant for {mine}, write it before {option}")
        return
    for name in dict.fromkeys(given):
        if not any(name in text or any(sign in text for sign in _READ_ALL) for text in texts if text is not None):
            console.warn(
                f"{name} stands behind {option}, so the check gets it, and does not read it: write it before {option}"
            )


_COMMON = {"--help", "--verbose", "--quiet", "--silent", "--version", "--output"}
"""Options that many programs have."""

_READ_ALL = ("$@", "$*", "sys.argv[1:]", "parse_known_args", "click", "fire", "typer", "docopt")
"""Signs that a script hands its words on, or reads them in a way that their names do not show."""


def _text(path: Path) -> str | None:
    """The text of a script; None if it is none, or is long."""
    try:
        if path.stat().st_size > _LONGEST_SCRIPT or not path.is_file():
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
