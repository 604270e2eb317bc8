"""One command line from its words to its exit status: the module of the command is imported, parsed for and run."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from biopsy import errors
from biopsy.cli.arguments import conflicts, file_kinds
from biopsy.cli.commands import GROUPS, commands_like, find, overview
from biopsy.cli.console import Console
from biopsy.cli.parser import Parser, parser_of
from biopsy.filesystem.privacy import as_private_as_what_is_read
from biopsy.isolation import interrupts
from biopsy.isolation.leaving import leave


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name); returns the exit status, and never raises.

    Without one, this is the program: its words are those of the process, which ends with that status.
    """
    program = Path(sys.argv[0]).name
    program = "biopsy" if program in {"", "__main__.py", "-c", "-m"} else program.removesuffix(".exe")
    console = Console()
    interrupts.is_program = argv is None
    words = list(sys.argv[1:] if argv is None else argv)
    status = _ended(lambda: _dispatch(program, words, console, is_program=argv is None), console)
    return leave(status) if argv is None else status


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
    command = find(words)
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
    args.words = words
    console.verbosity = args.verbose - args.quiet
    console.asks = getattr(args, "check", ()) is None
    work = partial(module.execute, args, console)
    warmed_up = getattr(module, "warmed_up", _not_warmed_up)
    with as_private_as_what_is_read(conflicts.sources(parser, args)), warmed_up(args):
        if rest is not None:
            _require_own_place(parser, words[used + len(own)], rest, program)
        conflicts.require_no_file_twice(parser, args, getattr(module, "derived_files", _none)(args))
        if not command.says_when_it_looks:
            _say_that_it_looks()
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


def _not_warmed_up(args: argparse.Namespace) -> AbstractContextManager[None]:
    """What most commands have begin before anything else: nothing."""
    return nullcontext()


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
    command = find(inner) if isinstance(check, OwnCommand) and check.is_this_installation else None
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


def _outside_commands(program: str, words: list[str], console: Console) -> int:
    """``biopsy``, ``biopsy --help``, ``biopsy debug``, and words that are no command."""
    if words[:1] in (["--version"], ["-V"]):
        from biopsy import __version__

        console.say(f"biopsy {__version__}")
        return 0
    plain = [word for word in words if word not in {"-h", "--help"}]
    asked_for_help = len(plain) < len(words) or not words
    if not plain or (plain[0] in GROUPS and len(plain) == 1):
        console.say(*overview(program, plain[0] if plain else None))
        return 0 if asked_for_help else 2
    asked = " ".join(plain[:2]) if plain[0] in GROUPS else plain[0]
    raise errors.UsageError(
        f"there is no command '{asked}'",
        next_steps=[
            *(f"{program} {name}" for name in commands_like(plain[:2])),
            f"{program} {plain[0]} --help" if plain[0] in GROUPS else f"{program} --help",
        ],
    )
