"""The argument parser of each command: errors that name the option and the nearest one, the options that every
command has, and the rule that a file serves one purpose only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from biopsy import errors
from biopsy.checks.words import FORMATS, HELP, LEVELS, VERSION
from biopsy.cli.arguments import types
from biopsy.cli.arguments.declared import Declaration, Options, option, switch
from biopsy.cli.arguments.groups import CommandLimits
from biopsy.cli.arguments.types import READ, Derived, FileKind
from biopsy.cli.commands import Command
from biopsy.cli.console import Console, LogFile
from biopsy.text import did_you_mean


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

    def declaration_of(self, option: str) -> Declaration | None:
        """What a record of options declares of an option; None if this command does not have it from one."""
        return getattr(self._option_string_actions.get(option), "declaration", None)

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
        CommandLimits.add(parser.add_argument_group("limits of the command"), timeout=command.may_take or "no limit")
    add_options(parser)
    return parser


def leading_options(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """What the common options before a command say, whose ``parser`` goes on with it, or shows its help at once."""
    for word in HELP:
        if word in words:
            parser.print_short_help() if word == "-h" else parser.print_help()
            parser.exit()
    common = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    add_options(common)
    found: argparse.Namespace = common.parse_args(list(words))
    return found


# The options that every command has: what is shown, in which form, and where it is written too.
#
# They stand before the words of a command, between them or behind them. Their names are those of Polygraphy.


def _level(text: str) -> tuple[str, str]:
    path, _, level = text.rpartition(":")
    if level.upper() not in LEVELS:
        names = [name.lower() for name in LEVELS]
        raise errors.UsageError(
            f"there is no level {level!r}; the levels: {', '.join(names)}",
            next_steps=did_you_mean(level.lower(), names, most=1),
        )
    return path, level.upper()


class MessageOptions(Options):
    """What is shown, in which form, and where it is written too."""

    verbose: int = option("-v --verbose", action="count", default=0, meaning="show more; twice: tracebacks too")
    quiet: int = option("-q --quiet", action="count", default=0, meaning="show less; twice: warnings and errors only")
    silent: bool = switch("--silent", meaning="show nothing but the error that ends the command")
    verbosity: Sequence[tuple[str, str]] | None = option(
        "--verbosity",
        nargs="+",
        type=_level,
        action="extend",
        metavar="[PATH:]LEVEL",
        meaning="what to show, instead of -v and -q: extra_verbose, verbose, info (default), start, finish, warning, "
        "error or critical; a level for one PATH of Polygraphy's sources is accepted and has no effect",
    )
    log_format: Sequence[str] = option(
        "--log-format",
        nargs="+",
        choices=FORMATS,
        action="extend",
        default=[],
        metavar="FORMAT",
        meaning=f"the form of every line: {', '.join(FORMATS)}",
    )
    log_file: Path | None = option("--log-file", type=types.WRITTEN, meaning="write what is shown to this file too")

    def apply(self, console: Console) -> None:
        """Show from now on what the options ask for, in the form that they ask for."""
        console.verbosity = self._level()
        console.form.timestamp = "timestamp" in self.log_format
        console.form.line_info = "line-info" in self.log_format
        console.form.colours = "no-colors" not in self.log_format

    def open_log(self, console: Console) -> None:
        """Begin the file of ``--log-file``; and say what of the options has no effect. Raises UsageError."""
        if self.log_file:
            console.log = LogFile(self.log_file)
        without_effect = [f"{path}:{level.lower()}" for path, level in self.verbosity or () if path]
        if without_effect:
            shown = next(name for name, level in LEVELS.items() if level == console.verbosity)
            console.warn(
                f"--verbosity {' '.join(without_effect)} has no effect: biopsy has no level for a part of its sources; "
                f"{shown.lower()} holds for all of them"
            )

    def _level(self) -> int:
        """How many times ``-v``, negative for ``-q``: what is loudest or most silent has a name too."""
        if self.silent:
            return LEVELS["CRITICAL"]
        for path, level in reversed(self.verbosity or ()):
            if not path:
                return LEVELS[level]
        return max(min(LEVELS.values()), min(max(LEVELS.values()), self.verbose - self.quiet))


def add_options(parser: argparse.ArgumentParser) -> None:
    """``-v``, ``-q`` and the like."""
    group = parser.add_argument_group("messages (these may also stand before the command)")
    group.add_argument("-h", nargs=0, action=_Shows, help="show what most people need, and exit")
    group.add_argument("--help", nargs=0, action=_Shows, help="show all options, and exit")
    MessageOptions.add(group)
    group.add_argument(*reversed(VERSION), nargs=0, action=_Shows, help="show the version and exit")


class _Shows(argparse.Action):
    """Shows the short or the whole help, or the version, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option == "-h" and isinstance(parser, Parser):
            parser.print_short_help()
        elif option in HELP:
            parser.print_help()
        else:
            say_version()
        parser.exit()


def say_version() -> None:
    """``biopsy 0.1.0``."""
    from biopsy import __version__  # which looks for the distribution

    Console().say(f"biopsy {__version__}")


# One file, one purpose: the rule for all commands, and the files that a command line reads and writes.
#
# Options declare what happens to their files by their type (``arguments.types``); a command declares the files that it
# names itself by ``derived_files``.


@dataclass(frozen=True)
class Purpose:
    """One file, and what a command does with it. ``option`` is what a person calls it; ``dest`` its name in args."""

    path: Path
    option: str
    dest: str
    kind: FileKind


def purposes_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[Purpose]:
    """The files that the parsed arguments name by options of a file kind."""
    for action in parser._actions:
        if isinstance(action.type, FileKind):
            value = getattr(args, action.dest, None)
            is_operand = not action.option_strings and action.dest != "model"
            role = f"a {action.metavar} that is read" if is_operand else name_of(action)
            for one in value if isinstance(value, list) else [value]:
                if one is not None:
                    yield Purpose(action.type.path_of(str(one)), role, action.dest, action.type)


def purposes_of_check(args: argparse.Namespace) -> list[Purpose]:
    """The files that a check's words name and that stand there: what it runs, and what it reads."""
    from biopsy.checks.command_line import parse

    named = parse(getattr(args, "check", None) or ()).files_named()
    return [Purpose(path, "the check", CHECKS_PROGRAM if runs else CHECKS_DATA, READ) for path, runs in named]


def sources(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Path]:
    """The files of data that a command or its check reads: what it writes holds something of them. Scripts are none."""
    read = [one for one in purposes_of(parser, args) if one.kind.task == "read" and not one.kind.textual]
    return [one.path for one in (*read, *purposes_of_check(args)) if one.dest != CHECKS_PROGRAM]


def name_of(action: argparse.Action) -> str:
    """What a person calls an option: its longest common spelling, or what it stands for."""
    spellings = sorted(action.option_strings, key=lambda spelling: not spelling.startswith("--"))
    return spellings[0] if spellings else "the model" if action.dest == "model" else str(action.metavar)


CHECKS_PROGRAM, CHECKS_DATA, WEIGHTS = " program of the check", " file of the check", " weights"
"""In the place of ``dest``: no option is called so."""


def _weights_of_the_model(found: Sequence[Purpose], folder: Path | None) -> list[Purpose]:
    """The files that the weights of the model stand in, which no option names.

    They are looked for only where something that is a file already is to be replaced: only then can one be lost.
    """
    model = next((one.path for one in found if one.dest == "model"), None)
    replaced = [one.path for one in found if one.kind.task != "read" and one.path.is_file()]
    if model is None or all(_same(path, model) for path in replaced):
        return []
    from biopsy.model import external, load

    try:
        files = external.files_referred_to(load.read_bytes(model), folder or model.parent)
    except errors.BiopsyError:  # the command itself says what is wrong with the model
        return []
    return [Purpose(path, "the weights of the model", WEIGHTS, READ) for path in files]


def require_distinct(purposes: Sequence[Purpose]) -> None:
    """Raise UsageError if one file has two purposes, so that it would be lost."""
    for one, other in ((one, other) for place, one in enumerate(purposes) for other in purposes[:place]):
        if _ruins(one, other) and (_same(one.path, other.path) or _inside(one, other) or _inside(other, one)):
            first, second = sorted((other, one), key=lambda purpose: purpose.kind.task != "read")
            end = "moved away" if "move" in (one.kind.task, other.kind.task) else "lost"
            path = other.path if other.kind.task != "read" else one.path
            raise errors.UsageError(
                f"{path} is given twice, for {first.option} and for {second.option}: it would be {end}",
                next_steps=["give another name to what is written"],
            )


def _ruins(one: Purpose, other: Purpose) -> bool:
    """Whether two purposes cannot be had with one file."""
    if one.option == other.option:  # the same again
        return False
    tasks = {one.kind.task, other.kind.task}
    if tasks == {"read"} or other.dest in one.kind.over or one.dest in other.kind.over:
        return False
    if one.kind.container and other.kind.container:
        return False  # names in it are our own
    if CHECKS_DATA in (one.dest, other.dest) and tasks & {"make anew", "move"}:
        return False  # the check reads or writes what is made anew for it
    return tasks != {"make anew", "move"}  # files of an iteration are what artifacts are for


def _same(one: Path, other: Path) -> bool:
    try:
        if one.resolve() != other.resolve() and not (one.exists() and other.exists() and one.samefile(other)):
            return False
        return one.is_dir() or one.is_file() or not one.exists()  # two streams may well go to one device
    except (OSError, RuntimeError, ValueError):
        return False


def _inside(one: Purpose, other: Purpose) -> bool:
    """Whether ``one`` would replace a file in a folder that is read as a whole, such as inputs in several files."""
    if one.kind.task == "read" or other.kind.task != "read" or other.kind.container or one.kind.container:
        return False
    return one.path.is_file() and other.path.is_dir() and other.path.resolve() in one.path.resolve().parents


_LONGEST_NAME = 255  # bytes, as nearly all file systems have it
_ROOM = len("..4194304.part")  # what is written stands under a longer name until it is whole


def require_no_file_twice(parser: argparse.ArgumentParser, args: argparse.Namespace, derived: Derived) -> None:
    """Raise UsageError if one file of a command line has two purposes."""
    found = list(purposes_of(parser, args))
    found += [Purpose(path, name, name, kind) for name, (path, kind) in derived.items() if path is not None]
    for one in found:
        size, most = len(os.fsencode(one.path.name)), _LONGEST_NAME - (0 if one.kind.task == "read" else _ROOM)
        if size > most:
            raise errors.UsageError(
                f"the name of {one.path} ({one.option}) has {size} bytes: it may have {most}",
                next_steps=["give a shorter name"],
            )
    found += _weights_of_the_model(found, getattr(args, "external_data_dir", None))
    require_distinct([*found, *purposes_of_check(args)])
