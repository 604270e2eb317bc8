"""The parser of each command, the options that every command has, and the rule that one file has one purpose."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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
    """An argument parser that raises UsageError instead of exiting; its errors suggest the nearest option."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ``main`` turns into a message and status 2."""
        raise errors.UsageError(message, next_steps=[f"{self.prog} --help"])

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UsageError, with the nearest options, for unknown ones."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = ["--engine NAME:release=VERSION    runs an engine from another release"] * ("--package" in unknown)
            near += [step for word in unknown if word.startswith("-") for step in self._nearest(word.partition("=")[0])]
            taken = [action for action in self._actions if not action.option_strings and action.nargs is None]
            message = f"unrecognized arguments: {' '.join(unknown)}"
            if taken and not any(word.startswith("-") for word in unknown):
                one = " and ".join(f"one {action.metavar or action.dest.upper()}" for action in taken)
                message = f"{self.prog} takes {one}: what is {' '.join(map(repr, unknown))}?"
            raise errors.UsageError(message, next_steps=[*near, f"{self.prog} --help"])
        return options

    def has_option(self, word: str) -> bool:
        """Whether a word is an option that this command has and shows, alone or with a value after ``=``."""
        action = self._option_string_actions.get(word.partition("=")[0])
        return action is not None and action.help != argparse.SUPPRESS

    def declaration_of(self, option: str) -> Declaration | None:
        """The declaration of an option in a record of ``Options``; None if it is not there."""
        return getattr(self._option_string_actions.get(option), "declaration", None)

    def dest_of(self, option: str) -> str:
        """Argparse's ``dest`` of an option, for any of its spellings; "" if this command does not have it."""
        action = self._option_string_actions.get(option)
        return "" if action is None else action.dest

    def answers_to(self, word: str) -> bool:
        """Whether a word is an option of this command, or one of Polygraphy that it refuses with a reason."""
        return word.partition("=")[0] in self._option_string_actions

    def most_values(self, word: str) -> int:
        """How many of the words after this option may be its values."""
        action = self._option_string_actions[word.partition("=")[0]]
        if "=" in word or action.nargs == 0:
            return 0
        return 1 if action.nargs in {None, "?"} else action.nargs if isinstance(action.nargs, int) else sys.maxsize

    def rivals(self, word: str, option: str) -> bool:
        """Whether two words are the same option, or options that exclude each other."""
        first, second = (self._option_string_actions.get(text.partition("=")[0]) for text in (word, option))
        if first is None or second is None:
            return False
        exclusive = (group._group_actions for group in self._mutually_exclusive_groups)
        return first.dest == second.dest or any(first in actions and second in actions for actions in exclusive)

    def _nearest(self, word: str) -> list[str]:
        return did_you_mean(word, self._option_string_actions, most=1, cutoff=0.7)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value of a word. Errors name its option."""
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

    def show_help(self, *, short: bool) -> None:
        """Show all options, or only what most people need."""
        from biopsy.cli import help_text

        lines = help_text.short(self, tuple(self.prog.split()[1:])) if short else help_text.full(self)
        Console().coloured(*lines)


@cache
def parser_of(program: str, command: Command) -> Parser:
    """The parser of a command. It is cached, so that forks of a warm process find it made."""
    parser = Parser(
        prog=" ".join((program, *command.words)),
        description=command.summary,
        add_help=False,
        allow_abbrev=False,
    )
    module = importlib.import_module(command.module)
    parser.epilog = getattr(module, "EPILOG", None)
    module.configure(parser)
    _add_absent_options(parser, " ".join(command.words))
    if command.may_crash:
        CommandLimits.add(parser, timeout=command.default_timeout or "no limit")
    add_options(parser)
    return parser


def leading_options(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """The values of common options that stand before a command, for its ``parser`` to continue with.

    Shows the help and raises SystemExit if one of them asks for it.
    """
    for word in HELP:
        if word in words:
            parser.show_help(short=word == "-h")
            parser.exit()
    common = Parser(prog=parser.prog, add_help=False, allow_abbrev=False)
    add_options(common)
    values: argparse.Namespace = common.parse_args(list(words))
    return values


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
    """Options that every command has: what to show, in which form, and a file to write it to as well.

    They are spelled as in Polygraphy, and may stand before, between or after the words of a command.
    """

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
        """Set up the console as the options say."""
        console.verbosity = self._level()
        console.form.timestamp = "timestamp" in self.log_format
        console.form.line_info = "line-info" in self.log_format
        console.form.colours = "no-colors" not in self.log_format

    def open_log(self, console: Console) -> None:
        """Open the file of ``--log-file``, and warn of options without effect. Raises UsageError."""
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
        """The number of ``-v``, or of ``-q`` as a negative number; ``--verbosity`` and ``--silent`` take precedence."""
        if self.silent:
            return LEVELS["CRITICAL"]
        for path, level in reversed(self.verbosity or ()):
            if not path:
                return LEVELS[level]
        return max(min(LEVELS.values()), min(max(LEVELS.values()), self.verbose - self.quiet))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    group = parser.add_argument_group("messages (these may also stand before the command)")
    group.add_argument("-h", nargs=0, action=_ShowAndExit, help="show what most people need, and exit")
    group.add_argument("--help", nargs=0, action=_ShowAndExit, help="show all options, and exit")
    MessageOptions.add(group)
    group.add_argument(*reversed(VERSION), nargs=0, action=_ShowAndExit, help="show the version and exit")


class _ShowAndExit(argparse.Action):
    """Shows the short or the full help, or the version, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option in VERSION:
            say_version()
        else:
            assert isinstance(parser, Parser)
            parser.show_help(short=option == "-h")
        parser.exit()


def say_version() -> None:
    """Show ``biopsy 0.1.0``."""
    from biopsy import __version__  # which looks up the distribution

    Console().say(f"biopsy {__version__}")


# One file has one purpose. The type of an option (``arguments.types.FileKind``) says what happens to its file;
# ``derived_files`` of a command's module names the files that no option names.


@dataclass(frozen=True)
class Purpose:
    """A file, and what a command does with it. ``option`` is its name in messages, ``dest`` its name in ``args``."""

    path: Path
    option: str
    dest: str
    kind: FileKind


def purposes_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[Purpose]:
    """The files that options name."""
    for action in parser._actions:
        if isinstance(action.type, FileKind):
            value = getattr(args, action.dest, None)
            is_operand = not action.option_strings and action.dest != "model"
            role = f"a {action.metavar} that is read" if is_operand else name_of(action)
            for path in value if isinstance(value, list) else [value]:
                if path is not None:
                    yield Purpose(action.type.path_of(str(path)), role, action.dest, action.type)


def purposes_of_check(args: argparse.Namespace) -> list[Purpose]:
    """The existing files that the words of a check name: what it runs, and what it reads."""
    from biopsy.checks.command_line import parse

    files = parse(getattr(args, "check", None) or ()).files_named()
    return [Purpose(path, "the check", CHECK_PROGRAM if is_run else CHECK_FILE, READ) for path, is_run in files]


def sources(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Path]:
    """The data files that a command or its check reads, without scripts. What it writes may hold parts of them."""
    purposes = purposes_of(parser, args)
    read = [purpose for purpose in purposes if purpose.kind.task == "read" and not purpose.kind.textual]
    return [purpose.path for purpose in (*read, *purposes_of_check(args)) if purpose.dest != CHECK_PROGRAM]


def name_of(action: argparse.Action) -> str:
    """The name of an option in messages: its first long spelling; of an operand, its metavar or "the model"."""
    spellings = sorted(action.option_strings, key=lambda spelling: not spelling.startswith("--"))
    return spellings[0] if spellings else "the model" if action.dest == "model" else str(action.metavar)


CHECK_PROGRAM, CHECK_FILE, WEIGHTS = " program of the check", " file of the check", " weights"
"""Values of ``Purpose.dest`` that no option has."""


def _weights_of_the_model(purposes: Sequence[Purpose], folder: Path | None) -> list[Purpose]:
    """The files of the model's external weights, which no option names.

    The model is read for them only where an existing file would be replaced.
    """
    model = next((purpose.path for purpose in purposes if purpose.dest == "model"), None)
    replaced = [purpose.path for purpose in purposes if purpose.kind.task != "read" and purpose.path.is_file()]
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
        shared = _same(one.path, other.path) or _replaces_file_in(one, other) or _replaces_file_in(other, one)
        if shared and _exclude_each_other(one, other):
            first, second = sorted((other, one), key=lambda purpose: purpose.kind.task != "read")
            end = "moved away" if "move" in (one.kind.task, other.kind.task) else "lost"
            path = other.path if other.kind.task != "read" else one.path
            raise errors.UsageError(
                f"{path} is given twice, for {first.option} and for {second.option}: it would be {end}",
                next_steps=["give another name to what is written"],
            )


def _exclude_each_other(one: Purpose, other: Purpose) -> bool:
    """Whether one file cannot serve both purposes."""
    if one.option == other.option:
        return False
    tasks = {one.kind.task, other.kind.task}
    if tasks == {"read"} or other.dest in one.kind.over or one.dest in other.kind.over:
        return False
    if one.kind.container and other.kind.container:
        return False  # biopsy chooses the names in both
    if CHECK_FILE in (one.dest, other.dest) and tasks & {"make anew", "move"}:
        return False  # such a file is written for the check, or by it
    return tasks != {"make anew", "move"}  # files of an iteration are what artifacts are for


def _same(one: Path, other: Path) -> bool:
    try:
        if one.resolve() != other.resolve() and not (one.exists() and other.exists() and one.samefile(other)):
            return False
        return one.is_dir() or one.is_file() or not one.exists()  # two streams may well go to one device
    except (OSError, RuntimeError, ValueError):
        return False


def _replaces_file_in(one: Purpose, other: Purpose) -> bool:
    """Whether ``one`` would replace a file in the folder of ``other``, whose files are all read, such as inputs."""
    if one.kind.task == "read" or other.kind.task != "read" or other.kind.container or one.kind.container:
        return False
    return one.path.is_file() and other.path.is_dir() and other.path.resolve() in one.path.resolve().parents


_LONGEST_NAME = 255  # bytes, the limit of nearly all file systems
_ROOM = len("..4194304.part")  # added to the name of a file while it is written


def require_no_file_twice(parser: argparse.ArgumentParser, args: argparse.Namespace, derived: Derived) -> None:
    """Raise UsageError if one file of a command line has two purposes, or a name that is too long."""
    purposes = list(purposes_of(parser, args))
    purposes += [Purpose(path, name, name, kind) for name, (path, kind) in derived.items() if path is not None]
    for purpose in purposes:
        size = len(os.fsencode(purpose.path.name))
        most = _LONGEST_NAME - (0 if purpose.kind.task == "read" else _ROOM)
        if size > most:
            raise errors.UsageError(
                f"the name of {purpose.path} ({purpose.option}) has {size} bytes: it may have {most}",
                next_steps=["give a shorter name"],
            )
    purposes += _weights_of_the_model(purposes, getattr(args, "external_data_dir", None))
    require_distinct([*purposes, *purposes_of_check(args)])


_ABSENT_OPTIONS = Path(__file__).parent / "arguments" / "absent_options.txt"
"""Options of Polygraphy that a command lacks: some are refused with a reason, others are accepted without effect. Its
first lines say how it is read."""


class AbsentOption(NamedTuple):
    """Spellings of an option, why it is missing, and what to type ``instead``; "" if it is accepted without effect."""

    options: tuple[str, ...]
    why: str
    instead: str = ""
    takes_value: bool = True


@cache
def absent_options() -> dict[str, list[AbsentOption]]:
    """The rows by command, such as ``debug reduce``."""
    rows: dict[str, list[AbsentOption]] = {}
    commands: list[str] = []
    for line in re.sub(r"\n +", " ", _ABSENT_OPTIONS.read_text(encoding="utf-8")).splitlines():
        if line.startswith("["):
            commands = line.strip("[]").split(", ")
        elif line and not line.startswith("#"):
            left, why, instead = (*line.split(" | "), "")[:3]
            options = tuple(word for word in left.split() if word.startswith("-"))
            row = AbsentOption(options, why, instead, takes_value=bool(instead) or len(left.split()) > len(options))
            for command in commands:
                rows.setdefault(command, []).append(row)
    return rows


class _Absent(argparse.Action):
    """Raises UsageError, or adds a warning to ``without_effect``."""

    def __init__(self, *args: Any, row: AbsentOption, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._row = row

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if self._row.instead:
            raise errors.UsageError(f"{option} is not available: {self._row.why}", next_steps=[self._row.instead])
        namespace.without_effect = (*namespace.without_effect, f"{option} has no effect: {self._row.why}")


def _add_absent_options(parser: argparse.ArgumentParser, command: str) -> None:
    """Add the options that only Polygraphy's command of this name has; the help does not show them."""
    parser.set_defaults(without_effect=())
    for row in absent_options().get(command, ()):
        parser.add_argument(
            *row.options,
            action=_Absent,
            row=row,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            nargs="*" if row.instead else None if row.takes_value else 0,
            help=argparse.SUPPRESS,
        )
