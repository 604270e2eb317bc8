"""The lines that a command advises at its end, taken from what it has shown."""

import shlex

from biopsy.cli import commands
from biopsy.cli.parser import parser_of


def advised(shown: str) -> list[str]:
    """The lines to type after ``Next``."""
    told = shown.partition("\nNext")[2].splitlines()
    return [line.strip() for line in told if line.strip().startswith("biopsy ")]


def parse(line: str) -> None:
    """Parse a line as the program does, and the check in it as well. Raises UsageError."""
    program, *words = shlex.split(line)
    assert program == "biopsy"
    asked = commands.read(words)
    assert asked.command is not None, line
    own, rest = commands.split_at(("--check",), asked.rest)
    parser_of("biopsy", asked.command).parse_args(own)
    if rest is not None and rest[0] == "biopsy":
        parse(shlex.join(rest))
