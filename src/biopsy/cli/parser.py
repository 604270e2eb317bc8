"""The argument parser: errors that name the option and the nearest one; the parser of each command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

from biopsy import errors
from biopsy.checks.leading_options import HELP
from biopsy.cli import messages
from biopsy.cli.arguments import limits
from biopsy.cli.arguments.conflicts import name_of
from biopsy.cli.commands import Command
from biopsy.cli.console import Console
from biopsy.similar_names import did_you_mean


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, and loads rich only to colour a help text."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ``main`` turns into a message and status 2."""
        raise errors.UsageError(message, next_steps=[f"{self.prog} --help"])

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UsageError, with the nearest options, for words that are none."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = ["--engine NAME:release=VERSION    runs an engine from another release"] * ("--package" in unknown)
            near += [step for word in unknown if word.startswith("-") for step in self._nearest(word.partition("=")[0])]
            raise errors.UsageError(
                f"unrecognized arguments: {' '.join(unknown)}", next_steps=[*near, f"{self.prog} --help"]
            )
        return options

    def has_option(self, word: str) -> bool:
        """Whether a word is an option that this command has and shows, alone or with a value behind ``=``."""
        action = self._option_string_actions.get(word.partition("=")[0])
        return action is not None and action.help != argparse.SUPPRESS

    def dest_of(self, option: str) -> str:
        """Where the values of an option go, whichever of its spellings it has; "" if this command does not have it."""
        action = self._option_string_actions.get(option)
        return "" if action is None else action.dest

    def answers_to(self, word: str) -> bool:
        """Whether a word is an option that this command has, or says why it has not."""
        return word.partition("=")[0] in self._option_string_actions

    def most_values(self, word: str) -> int:
        """How many of the words behind this option may be its values."""
        action = self._option_string_actions[word.partition("=")[0]]
        if "=" in word or action.nargs == 0:
            return 0
        return 1 if action.nargs in {None, "?"} else action.nargs if isinstance(action.nargs, int) else sys.maxsize

    def rivals(self, word: str, option: str) -> bool:
        """Whether a word is an option that says the same as another one, or excludes it."""
        one, other = (self._option_string_actions.get(text.partition("=")[0]) for text in (word, option))
        if one is None or other is None:
            return False
        exclusive = (group._group_actions for group in self._mutually_exclusive_groups)
        return one.dest == other.dest or any(one in actions and other in actions for actions in exclusive)

    def _nearest(self, word: str) -> list[str]:
        return did_you_mean(word, self._option_string_actions, most=1, cutoff=0.7)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value of a word; what is wrong with it is said after the name of its option."""
        try:
            return super()._get_value(action, arg_string)
        except (argparse.ArgumentError, errors.UsageError) as error:
            raise errors.UsageError(
                f"{name_of(action)} {arg_string}: {error.message}",
                next_steps=[*getattr(error, "next_steps", ()), f"{self.prog} --help"],
            ) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise errors.UsageError(
                f"{name_of(action)} {value}: it must be one of {', '.join(known)}",
                next_steps=[*did_you_mean(str(value), known, most=1), f"{self.prog} --help"],
            )

    def format_help(self) -> str:
        """The whole help text, coloured on a terminal."""
        from biopsy.cli import help_text

        return "\n".join((*help_text.whole(self), ""))

    def print_help(self, file: Any = None) -> None:
        """Show the whole help text, also where stdout is closed or its reader has gone."""
        from biopsy.cli import help_text

        Console(file).coloured(*help_text.whole(self))

    def print_short_help(self) -> None:
        """Show what most people need of it."""
        from biopsy.cli import help_text

        program, *words = self.prog.split()
        Console().coloured(*help_text.short(self, program, tuple(words)))


@cache
def parser_of(program: str, command: Command) -> Parser:
    """The parser of a command, made once: a fork of a process that has made it finds it ready."""
    parser = Parser(
        prog=" ".join((program, *command.words)),
        description=command.summary,
        add_help=False,
        allow_abbrev=False,
    )
    importlib.import_module(command.module).configure(parser)
    if command.may_crash:
        limits.add(parser, command.may_take)
    messages.add_options(parser)
    return parser


def leading_options(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """What the common options before a command say, whose ``parser`` goes on with it, or shows its help at once."""
    for word in HELP:
        if word in words:
            parser.print_short_help() if word == "-h" else parser.print_help()
            parser.exit()
    common = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    messages.add_options(common)
    found: argparse.Namespace = common.parse_args(list(words))
    return found
