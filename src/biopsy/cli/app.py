"""One command line from its words to its exit status: the module of the command is imported, parsed for and run.
Options on the wrong side of ``--check`` are told of before that.
"""

from __future__ import annotations

import errno
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path

from biopsy import errors
from biopsy.checks.words import HELP, VERSION, split_leading
from biopsy.cli import commands
from biopsy.cli.advice import line_with
from biopsy.cli.arguments.groups import CommandLimits
from biopsy.cli.arguments.types import Derived
from biopsy.cli.commands import GROUPS, own_command, split_at
from biopsy.cli.console import Console
from biopsy.cli.parser import (
    MessageOptions,
    Parser,
    leading_options,
    parser_of,
    require_no_file_twice,
    say_version,
    sources,
)
from biopsy.cli.settings import applied
from biopsy.processes import own_process
from biopsy.processes.forks import KEEP_VARIABLE
from biopsy.processes.own_process import leave, variables
from biopsy.processes.writing import as_private_as_what_is_read
from biopsy.text import line_of, size_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name); returns the exit status, and never raises.

    Without one, this is the program: its words are those of the process, which ends with that status.
    """
    program = Path(sys.argv[0]).name
    program = "biopsy" if program in {"", "__main__.py", "-c", "-m"} else program.removesuffix(".exe")
    console = Console()
    own_process.is_program = argv is None
    words = list(sys.argv[1:] if argv is None else argv)
    status = _ended(lambda: _dispatch(program, words, console, is_program=argv is None), console)
    console.end_log()
    return leave(status) if argv is None else status


def _ended(work: Callable[[], int], console: Console) -> int:
    """The status of work, whichever way it ends."""
    try:
        return work()
    except KeyboardInterrupt:
        problem: errors.BiopsyError = errors.Interrupted("interrupted")
    except errors.BiopsyError as error:
        problem = error
    except MemoryError as error:
        problem = errors.BiopsyError(f"there is not enough memory for this: {error}".rstrip(": "))
    except Exception as error:  # the last line of defence: a defect of ours is told as one
        if not (isinstance(error, OSError) and error.errno in _OF_THE_MACHINE):
            _told(errors.BiopsyError(f"{type(error).__name__}: {error}"))
            return console.defect(error)
        problem = errors.BiopsyError(f"{error.filename or 'a file'}: {error.strerror}")
    return console.failure(_told(problem))


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
    leading, plain = split_leading(words)
    asks_for_help = plain[:1] == ["help"]  # ``help debug reduce`` is ``--help debug reduce``
    asked = commands.read([*leading, "--help", *plain[1:]] if asks_for_help else words)
    command = asked.command
    if command is None:
        return _outside_commands(program, asked, console)
    module = importlib.import_module(command.module)
    parser = parser_of(program, command)
    own, rest = commands.split_at(getattr(module, "REST_OPTIONS", ()), asked.rest)
    rest_option = "--check" if rest is None else asked.rest[len(own)]
    require_check_for_engines(command, own, rest_option, rest, program)
    settings = applied(program, command, own, rest_option, rest)
    rest = settings.rest
    try:
        args = parser.parse_args(settings.own, leading_options(parser, asked.leading))
    except SystemExit as exit_:  # argparse ends --help and --version this way
        return int(exit_.code or 0)
    if rest is not None:
        args.check = rest
    args.words, args.began, args.started = words, time.time(), time.monotonic()
    messages = MessageOptions.of(args)
    messages.apply(console)
    console.asks = getattr(args, "check", ()) is None
    _rest_on(settings.basis, console)
    shown = console.on_stderr() if getattr(args, "json", False) else console
    for line in settings.remarks:
        shown.remark(line)
    for line in getattr(args, "without_effect", ()):
        console.warn(line)

    execute = partial(_executed, partial(module.execute, args, console), console, shown)
    with ExitStack() as held:
        held.enter_context(variables({KEEP_VARIABLE: "1"} if getattr(args, "keep_processes", False) else {}))
        held.enter_context(as_private_as_what_is_read(sources(parser, args)))
        held.enter_context(getattr(module, "warmed_up", _not_warmed_up)(args, console))
        if rest is not None:
            require_own_place(parser, rest_option, rest, program)
            warn_of_unread(parser, rest_option, rest, console)
        require_no_file_twice(parser, args, getattr(module, "derived_files", _no_files)(args))
        messages.open_log(console)
        if not command.says_when_it_looks:
            from biopsy.checks import verdict

            verdict.report_looking()
        if not (is_program and command.may_crash):
            return execute()
        conclude = partial(getattr(module, "conclude_crash", _tell), args, console)
        return _watched(execute, console, conclude, words, command, CommandLimits.of(args))


def _not_warmed_up(*_: object) -> AbstractContextManager[None]:
    """What most commands have begin before anything else: nothing."""
    return nullcontext()


def _no_files(_: object) -> Derived:
    """The files that most commands name by themselves."""
    return {}


def _tell(_: object, console: Console, crash: errors.EngineCrash) -> int:
    """What most commands do when an engine has ended the process that they worked in."""
    return console.failure(crash)


def _rest_on(basis: str, console: Console) -> None:
    """Have verdicts say on which settings of files they rest, and whoever has this process as its check too."""
    own_process.settings_of_checks.clear()  # those of another command line
    console.basis.own = basis
    if basis:
        from biopsy.checks import verdict

        verdict.report_settings(basis)


def _executed(work: Callable[[], int], console: Console, shown: Console) -> int:
    """Run a command; then name the settings from files that its result rests on, unless its verdict did.

    And warn of types that could not be inferred.
    """
    try:
        status = int(work())
    except errors.OriginalPasses:
        shown.say_basis()
        raise
    finally:
        for line in own_process.taken_warnings():
            console.warn(line)
    shown.say_basis()
    return status


def _watched(
    work: Callable[[], int],
    console: Console,
    conclude: Callable[[errors.EngineCrash], int],
    words: Sequence[str],
    command: commands.Command,
    limits: CommandLimits,
) -> int:
    """Do the work where a crash ends it alone, and within limits.

    A check without limits needs no watcher: whoever started it sees the signal.
    """
    from biopsy.checks import verdict
    from biopsy.processes import supervised

    if verdict.is_wanted() and not limits.has_limits:
        return work()
    bounds = limits.limits_of_command(command.may_take)
    if not supervised.is_possible():
        return work()
    try:
        return supervised.run(lambda: _ended(work, console), bounds)
    except errors.EngineCrash as crash:
        return conclude(crash)
    except supervised.LimitReachedError as reached:
        # The line to type lets it take ten times as long, or twice the memory.
        if reached.cause == "time":
            limit = f"it took longer than {bounds.seconds:g} s"
            more = ("--timeout", f"{10 * (bounds.seconds or 0):g}s")
        else:
            limit = f"it used more than {size_text(bounds.memory or 0)} of memory"
            more = ("--memory-limit", f"{-(-2 * (bounds.memory or 0) // 10**6)}MB")
        line = line_with(words, (), command.words[-1], more, without=more[:1])
        raise errors.BiopsyError(
            f"biopsy {' '.join(command.words)} was stopped: {limit}",
            kept="nothing was written",
            next_steps=[f"{line}    if you trust the model"],
        ) from reached


def _outside_commands(program: str, asked: commands.Asked, console: Console) -> int:
    """``biopsy``, ``biopsy --help``, ``biopsy debug``, and words that are no command."""
    leading, plain = asked.leading, [word for word in asked.rest if word not in HELP]
    if not plain and leading and not {*leading} - {"-v"}:  # Polygraphy says its version for -v alone
        leading = [*VERSION]
    if {*leading, *plain[1:]} & {*VERSION}:
        say_version()
        return 0
    asked_for_help = len(plain) < len(asked.rest) or bool({*leading} & {*HELP}) or not (plain or leading)
    if not plain or (plain[0] in GROUPS and len(plain) == 1):
        from biopsy.cli.help_text import painted

        console.coloured(*painted(commands.overview(program, plain[0] if plain else None)))
        return 0 if asked_for_help else 2
    raise commands.unknown(program, plain)


# Options on the wrong side of ``--check``, which takes the whole rest of the line: what to type instead.

_LONGEST_SCRIPT = 1 << 20
"""Bytes of a script that is searched for an option."""


def require_own_place(parser: Parser, option: str, rest: Sequence[str], program: str) -> None:
    """Raise UsageError if a check that is our own command is given an option that is one of ``parser`` alone."""
    inner = own_command(rest)
    if inner is None:
        return
    command, words = inner
    theirs = parser_of(program, command)
    given, _ = split_at((*getattr(importlib.import_module(command.module), "REST_OPTIONS", ()), "--"), words)
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
    mine = parser_of(program, command)
    left, moved, room = list[str](), list[str](), 0  # how many of the words to come are values of what is moved
    for word in own:
        if word.startswith("-"):
            room = -1
            if run.has_option(word) and not mine.answers_to(word):
                room = run.most_values(word)
            (left if room < 0 else moved).append(word)
        else:
            (moved if room > 0 else left).append(word)
            room -= 1
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


def warn_of_unread(parser: Parser, option: str, rest: Sequence[str], console: Console) -> None:
    """Warn of options of ``parser`` that a script is given and cannot know: its text neither has them nor reads all."""
    from biopsy.checks.command_line import OwnCommand, parse

    check = parse(rest)
    names = [word.partition("=")[0] for word in rest if word.startswith("--") and parser.has_option(word)]
    if isinstance(check, OwnCommand) or not names:
        return
    texts = [_text(path) for path, is_run in check.files_named() if is_run]
    for name in dict.fromkeys(names):
        if not texts or None in texts:
            if name not in _COMMON:
                mine = parser.prog.partition(" ")[2]
                console.note(f"the check gets {name}; if it is meant for {mine}, write it before {option}")
        elif not any(sign in text for text in texts if text for sign in (name, *_READ_ALL)):
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
