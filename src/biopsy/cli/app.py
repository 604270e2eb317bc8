"""The command tree: one line per command, its module imported only when it is the one asked for.

A command module has two functions: ``configure(parser)`` adds its options, ``execute(args, console)`` does the work
and returns the exit status. A third, ``derived_files(args)``, tells of files that it names by itself (see
``conflicts``); a fourth, ``conclude_crash(args, console, crash)``, tells of an engine that has ended the process in
which the command did its work, and returns the exit status. Adding a command is one file plus one line in ``COMMANDS``;
what else it must declare are the fields of ``Command``.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from biopsy import errors
from biopsy.cli.arguments import conflicts, file_kinds
from biopsy.cli.console import Console
from biopsy.filesystem.privacy import as_private_as_what_is_read
from biopsy.isolation import interrupts

STATUSES = """\
exit status:
  0  done, or the model passes        3  the original does not fail: nothing to reduce
  1  the thing checked fails          4  infrastructure error: nothing was concluded
  2  wrong usage                      5  interrupted, with the best result saved"""


class Command(NamedTuple):
    """One command: its words, the module that holds it, and its line in the help."""

    words: tuple[str, ...]
    module: str
    summary: str
    may_crash: bool = False
    """Engines, or other native code that a wrong model may crash, work in its process: it is watched from another."""
    says_when_it_looks: bool = False
    """It calls ``verdict.report_looking`` by itself, once all that it needs is loaded and before it opens its model:
    what ends it earlier is not the model's fault. For the others this is said before they begin."""


COMMANDS: tuple[Command, ...] = (
    Command(
        ("run",),
        "biopsy.cli.run.command",
        "run a model in one or more engines and compare the outputs",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("debug", "reduce"), "biopsy.cli.debug.reduce", "find the smallest part of a model that still fails"),
    Command(("debug", "precision"), "biopsy.cli.debug.precision", "find the layers that need a high precision"),
    Command(("debug", "repeat"), "biopsy.cli.debug.repeat", "repeat a command: how often it fails, and in which ways"),
    Command(
        ("debug", "build"), "biopsy.cli.debug.build", "build a model again and again, and sort the builds by a check"
    ),
    Command(
        ("debug", "diff-tactics"),
        "biopsy.cli.inspect.diff_tactics",
        "show which engine choices correlate with bad builds",
    ),
    Command(("debug", "flags"), "biopsy.cli.debug.flags", "find the engine setting that makes a failure go away"),
    Command(("debug", "layers"), "biopsy.cli.debug.layers", "find the layers that an engine computes wrongly"),
    Command(("data", "to-input"), "biopsy.cli.data.to_input", "merge inputs and outputs into one file of inputs"),
    Command(("data", "merge"), "biopsy.cli.data.to_input", "the same as 'data to-input'"),
    Command(
        ("inspect", "model"),
        "biopsy.cli.inspect.model",
        "show the nodes, attributes and weights of a model",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("inspect", "data"), "biopsy.cli.inspect.data", "show statistics of saved inputs or outputs"),
    Command(
        ("inspect", "capability"),
        "biopsy.cli.inspect.capability",
        "show which nodes an engine refuses, and why",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(("inspect", "tactics"), "biopsy.cli.inspect.tactics", "show what an engine chose for each layer"),
    Command(
        ("inspect", "diff-tactics"),
        "biopsy.cli.inspect.diff_tactics",
        "show which engine choices correlate with bad builds",
    ),
    Command(
        ("surgeon", "sanitize"),
        "biopsy.cli.surgeon.sanitize",
        "fix shapes, fold constants, clean up",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("surgeon", "extract"),
        "biopsy.cli.surgeon.extract",
        "cut a subgraph out of a model",
        may_crash=True,
        says_when_it_looks=True,
    ),
    Command(
        ("doctor",), "biopsy.cli.doctor", "show which engines work here, and how to get the others", may_crash=True
    ),
    Command(("demo",), "biopsy.cli.demo", "find a real bug of an engine in a model of 458 nodes"),
)

GROUPS = {
    "debug": "find what makes a model fail",
    "data": "files of inputs and outputs",
    "inspect": "show what a file holds",
    "surgeon": "change a model",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of exiting, and loads rich only to colour a help text."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, which ``main`` turns into a message and status 2."""
        raise errors.UsageError(message, next_steps=[f"{self.prog} --help"])

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options. Raises UsageError, with the nearest options, for words that are none."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            near = [step for word in unknown if word.startswith("-") for step in self._nearest(word.partition("=")[0])]
            raise errors.UsageError(
                f"unrecognized arguments: {' '.join(unknown)}", next_steps=[*near, f"{self.prog} --help"]
            )
        return found

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
                f"{conflicts.name_of(action)} {arg_string}: {error.message}", next_steps=[f"{self.prog} --help"]
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name); returns the exit status. Never raises, never exits."""
    program = Path(sys.argv[0]).name
    program = "biopsy" if program in {"", "__main__.py", "-c", "-m"} else program.removesuffix(".exe")
    console = Console()
    interrupts.is_program = argv is None
    words = list(sys.argv[1:] if argv is None else argv)
    return _ended(lambda: _dispatch(program, words, console, is_program=argv is None), console)


def _ended(work: Callable[[], int], console: Console) -> int:
    """The status of work, whichever way it ends."""
    try:
        return work()
    except KeyboardInterrupt:
        return console.failure(_told(errors.Interrupted("interrupted")))
    except errors.BiopsyError as error:
        return console.failure(_told(error))
    except Exception as error:  # the last line of defence: a defect of ours is told as one
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
            return console.failure(_told(errors.BiopsyError(f"{error.filename or 'a file'}: {error.strerror}")))
        if isinstance(error, MemoryError):
            problem = errors.BiopsyError(f"there is not enough memory for this: {error}".rstrip(": "))
            return console.failure(_told(problem))
        _told(errors.BiopsyError(f"{type(error).__name__}: {error}"))
        return console.defect(error)


_OF_THE_MACHINE = {errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO}
"""What goes wrong outside of us: not a defect, wherever it is met."""


def _told(error: errors.BiopsyError) -> errors.BiopsyError:
    """The error, once the verdict file says, if this process is a check, what ended it; or what kept it from that."""
    from biopsy.checks import verdict

    try:
        verdict.report_error(error)
    except errors.BiopsyError as unwritten:
        return errors.BiopsyError(f"{error.message}; {unwritten.message}", kept=error.kept, next_steps=error.next_steps)
    return error


def _dispatch(program: str, words: list[str], console: Console, *, is_program: bool) -> int:
    command = _find(words)
    if command is None:
        return _outside_commands(program, words, console)
    used = len(command.words)
    module = importlib.import_module(command.module)
    parser = parser_of(program, command)
    own, rest = _split_at(getattr(module, "REST_OPTIONS", ()), words[used:])
    try:
        args = parser.parse_args(own)
    except SystemExit as exit_:  # argparse ends --help and --version this way
        return int(exit_.code or 0)
    if rest is not None:
        args.check = rest
        _require_own_place(parser, words[used + len(own)], rest, program)
    args.words = words
    console.verbosity = args.verbose - args.quiet
    console.asks = getattr(args, "check", ()) is None
    conflicts.require_no_file_twice(parser, args, getattr(module, "derived_files", _none)(args))
    if not command.says_when_it_looks:
        _say_that_it_looks()
    work = partial(module.execute, args, console)
    with as_private_as_what_is_read(conflicts.sources(parser, args)):
        if is_program and command.may_crash and not _is_a_check():
            return _watched(work, console, partial(getattr(module, "conclude_crash", _tell), args, console))
        return int(work())


def _watched(work: Callable[[], int], console: Console, conclude: Callable[[errors.EngineCrash], int]) -> int:
    """Do the work where a crash ends it alone. A check needs none of that: whoever runs it sees the signal itself."""
    from biopsy.isolation import supervised

    if not supervised.is_possible():
        return int(work())
    try:
        return supervised.run(lambda: _ended(work, console))
    except errors.EngineCrash as crash:
        return conclude(crash)


def _tell(args: argparse.Namespace, console: Console, crash: errors.EngineCrash) -> int:
    """What most commands do when an engine has ended the process that they worked in."""
    del args
    return console.failure(crash)


def _is_a_check() -> bool:
    from biopsy.checks import verdict

    return verdict.is_wanted()


def _say_that_it_looks() -> None:
    from biopsy.checks import verdict

    verdict.report_looking()


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


def _none(args: argparse.Namespace) -> file_kinds.Derived:
    """The files that most commands name by themselves."""
    return {}


def _split_at(options: Sequence[str], words: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before an option that takes the whole rest of the line, and that rest; None without such an option.

    argparse would look at the rest too, and take what looks like an option of ours for one.
    """
    at = next((place for place, word in enumerate(words) if word in options), None)
    return (words, None) if at is None else (words[:at], words[at + 1 :])


def _require_own_place(parser: Parser, option: str, rest: Sequence[str], program: str) -> None:
    """Raise UsageError if a check that is our own command is given an option that is one of ``parser`` alone."""
    from biopsy.checks.command_line import OwnCommand, parse

    check = parse(rest)
    inner = check.arguments if isinstance(check, OwnCommand) else ()
    command = _find(inner) if isinstance(check, OwnCommand) and check.is_this_installation else None
    if command is None:
        return
    theirs = parser_of(program, command)
    module = importlib.import_module(command.module)
    given, _ = _split_at((*getattr(module, "REST_OPTIONS", ()), "--"), list(inner[len(command.words) :]))
    for word in given:
        if word.startswith("-") and parser.has_option(word) and not theirs.has_option(word):
            name, mine = word.partition("=")[0], parser.prog.removeprefix(f"{program} ")
            raise errors.UsageError(
                f"{name} is no option of {' '.join(command.words)}: it belongs to {mine}, which takes all behind"
                f" {option} for the check",
                next_steps=[f"write {name} before {option}"],
            )


def _find(words: Sequence[str]) -> Command | None:
    for command in COMMANDS:
        if tuple(words[: len(command.words)]) == command.words:
            return command
    return None


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("messages")
    group.add_argument("-v", "--verbose", action="count", default=0, help="say more; twice for tracebacks")
    group.add_argument("-q", "--quiet", action="count", default=0, help="say less")


def _outside_commands(program: str, words: list[str], console: Console) -> int:
    """``biopsy``, ``biopsy --help``, ``biopsy debug``, and words that are no command."""
    if words[:1] in (["--version"], ["-V"]):
        from biopsy import __version__

        console.say(f"biopsy {__version__}")
        return 0
    plain = [word for word in words if word not in {"-h", "--help"}]
    asked_for_help = len(plain) < len(words) or not words
    if not plain or (plain[0] in GROUPS and len(plain) == 1):
        console.say(*_overview(program, plain[0] if plain else None))
        return 0 if asked_for_help else 2
    asked = " ".join(plain[:2]) if plain[0] in GROUPS else plain[0]
    raise errors.UsageError(
        f"there is no command '{asked}'",
        next_steps=[
            *(f"{program} {name}" for name in _commands_like(plain[:2])),
            f"{program} {plain[0]} --help" if plain[0] in GROUPS else f"{program} --help",
        ],
    )


def _commands_like(words: Sequence[str]) -> list[str]:
    """The commands that may be meant: with the group forgotten, or mistyped; the best alone."""
    from difflib import get_close_matches

    by_last: dict[str, list[str]] = {}
    for command in COMMANDS:
        by_last.setdefault(command.words[-1], []).append(" ".join(command.words))
    if words[0] in by_last:
        return by_last[words[0]]
    names = [" ".join(command.words) for command in COMMANDS]
    close = get_close_matches(" ".join(words), names, n=1, cutoff=0.7)
    if close or words[0] in GROUPS:
        return close
    return [name for last in get_close_matches(words[0], by_last, n=1, cutoff=0.6) for name in by_last[last]]


def _overview(program: str, group: str | None) -> list[str]:
    chosen = [command for command in COMMANDS if group in (None, command.words[0])]
    width = max(len(" ".join(command.words)) for command in chosen)
    about = (
        GROUPS[group] if group else "find the smallest piece of a failing ONNX model that still fails in the same way"
    )
    lines = [f"usage: {program} {group or ''}{' ' if group else ''}COMMAND ...", "", about, "", "commands:"]
    lines += [f"  {' '.join(command.words):<{width}}  {command.summary}" for command in chosen]
    lines += ["", f"{program} COMMAND --help shows the options of a command, with examples.", "", *STATUSES.split("\n")]
    return lines
