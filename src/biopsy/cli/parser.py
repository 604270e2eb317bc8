"""The argument parser: errors that name the option and the nearest one; the parser of each command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from functools import cache
from typing import Any, NoReturn

from biopsy import errors
from biopsy.cli.arguments.conflicts import name_of
from biopsy.cli.commands import Command
from biopsy.cli.console import Console


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, and loads rich only to colour a help text."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ``main`` turns into a message and status 2."""
        raise errors.UsageError(message, next_steps=[f"{self.prog} --help"])

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UsageError, with the nearest options, for words that are none."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = [step for word in unknown if word.startswith("-") for step in self._nearest(word.partition("=")[0])]
            raise errors.UsageError(
                f"unrecognized arguments: {' '.join(unknown)}", next_steps=[*near, f"{self.prog} --help"]
            )
        return options

    def has_option(self, word: str) -> bool:
        """Whether a word is an option of this command, alone or with a value behind ``=``."""
        return word.partition("=")[0] in self._option_string_actions

    def _nearest(self, word: str) -> list[str]:
        from biopsy.model.known_names import nearest

        return nearest(word, list(self._option_string_actions), most=1, cutoff=0.7)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value of a word; what is wrong with it is said after the name of its option."""
        try:
            return super()._get_value(action, arg_string)
        except (argparse.ArgumentError, errors.UsageError) as error:
            raise errors.UsageError(
                f"{name_of(action)} {arg_string}: {error.message}", next_steps=[f"{self.prog} --help"]
            ) from error

    def format_help(self) -> str:
        """The help text, coloured on a terminal."""
        if sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
            from rich_argparse import RawDescriptionRichHelpFormatter

            self.formatter_class = RawDescriptionRichHelpFormatter
        return super().format_help()

    def print_help(self, file: Any = None) -> None:
        """Show the help text, also where stdout is closed or its reader has gone."""
        Console(file).coloured(*self.format_help().rstrip("\n").split("\n"))


@cache
def parser_of(program: str, command: Command) -> Parser:
    """The parser of a command, made once: a fork of a process that has made it finds it ready."""
    parser = Parser(
        prog=" ".join((program, *command.words)),
        description=command.summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_output_options(parser)
    importlib.import_module(command.module).configure(parser)
    return parser


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("messages")
    group.add_argument("-v", "--verbose", action="count", default=0, help="show more; twice: tracebacks too")
    group.add_argument("-q", "--quiet", action="count", default=0, help="show less")
