"""Options behind ``--check``, which takes the whole rest of the line, that are probably not meant for the check."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.check_words import own_command, split_at
from biopsy.cli.parser import Parser, parser_of

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


def warn_of_unread(parser: Parser, option: str, rest: Sequence[str], console: Console) -> None:
    """Warn of options of ``parser`` that a script is given and cannot know: its text neither has them nor reads all."""
    from biopsy.checks.command_line import OwnCommand, parse

    check = parse(rest)
    if isinstance(check, OwnCommand):
        return
    given = [word.partition("=")[0] for word in rest if word.startswith("--") and parser.has_option(word)]
    texts = [_text(path) for path, is_run in check.files_named() if is_run] if given else []
    if not texts or None in texts:
        return
    for name in dict.fromkeys(given):
        if not any(name in text or any(sign in text for sign in _READ_ALL) for text in texts if text is not None):
            console.warn(
                f"{name} stands behind {option}, so the check gets it, and does not read it: write it before {option}"
            )


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
