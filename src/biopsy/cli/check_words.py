"""The words of a check on a command line: where they begin, and which command of ours they run, if any."""

from __future__ import annotations

from collections.abc import Sequence

from biopsy.cli import commands


def split_at(options: Sequence[str], words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before an option that takes the whole rest of the line, and that rest; None without such an option.

    argparse would look at the rest too, and take what looks like an option of ours for one.
    """
    at = next((place for place, word in enumerate(words) if word in options), None)
    return (words, None) if at is None else (words[:at], words[at + 1 :])


def own_command(check: Sequence[str]) -> tuple[commands.Command, list[str]] | None:
    """The command of this installation that a check runs, and the words behind it; None if it runs anything else."""
    from biopsy.checks.command_line import OwnCommand, parse

    parsed = parse(check)
    if not (isinstance(parsed, OwnCommand) and parsed.is_this_installation):
        return None
    asked = commands.read(parsed.arguments)
    return None if asked.command is None else (asked.command, asked.rest)
