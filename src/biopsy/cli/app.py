"""Runs one command line: finds the command, imports its module, parses its options, executes it, and turns the result
or the exception into an exit status. Reports options on the wrong side of ``--check``.
"""

from __future__ import annotations

import errno
import importlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

from biopsy import errors
from biopsy.checks.words import HELP, VERSION, split_leading
from biopsy.cli import commands
from biopsy.cli.advice import line_with
from biopsy.cli.arguments.groups import CommandLimits
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
    """Run one command line, given without the program's name; returns the exit status and never raises.

    Without ``argv``, this is the program itself: it runs the words of the process and ends it with that status.
    """
    program = Path(sys.argv[0]).name
    program = "biopsy" if program in {"", "__main__.py", "-c", "-m"} else program.removesuffix(".exe")
    console = Console()
    own_process.is_program = argv is None
    words = list(sys.argv[1:] if argv is None else argv)
    status = _status_of(lambda: _dispatch(program, words, console, is_program=argv is None), console, words)
    console.end_log()
    return leave(status) if argv is None else status


def _status_of(work: Callable[[], int], console: Console, words: Sequence[str] = ()) -> int:
    """The exit status of ``work``, which runs the command line ``words``; shows the exception that ends it."""
    try:
        return work()
    except KeyboardInterrupt:
        problem: errors.BiopsyError = errors.Interrupted("interrupted")
    except errors.BiopsyError as error:
        problem = error
    except MemoryError as error:
        problem = errors.BiopsyError(f"there is not enough memory for this: {error}".rstrip(": "))
    except Exception as error:  # the last line of defence: shown as a defect of biopsy
        if not (isinstance(error, OSError) and error.errno in _ENVIRONMENT_ERRORS):
            _reported(errors.BiopsyError(f"{type(error).__name__}: {error}"))
            if "-vv" in words:  # which nothing may have parsed yet
                console.verbosity = max(console.verbosity, 2)
            return console.defect(error)
        problem = errors.BiopsyError(f"{error.filename or 'a file'}: {error.strerror}")
    return console.failure(_reported(problem))


_ENVIRONMENT_ERRORS = {
    errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO,
}  # fmt: skip
"""Errors of the machine, such as a full disk, which are not a defect of biopsy."""


def _reported(error: errors.BiopsyError) -> errors.BiopsyError:
    """Write an error to the verdict file, if this process is a check; returns it, with the reason if that fails."""
    from biopsy.checks import verdict

    try:
        verdict.report_error(error)
    except errors.BiopsyError as unwritten:
        return errors.BiopsyError(f"{error.message}; {unwritten.message}", kept=error.kept, next_steps=error.next_steps)
    return error


def _dispatch(program: str, words: list[str], console: Console, *, is_program: bool) -> int:
    leading, plain = split_leading(words)
    asks_for_help = plain[:1] == ["help"]  # ``help debug reduce`` is ``--help debug reduce``
    line = commands.read([*leading, "--help", *plain[1:]] if asks_for_help else words)
    command = line.command
    if command is None:
        return _without_command(program, line, console)
    module = importlib.import_module(command.module)
    parser = parser_of(program, command)
    own, check = commands.split_at(getattr(module, "REST_OPTIONS", ()), line.rest)
    check_option = "--check" if check is None else line.rest[len(own)]
    require_engines_in_check(command, own, check_option, check, program)
    settings = applied(program, command, own, check_option, check)
    check = settings.check
    try:
        args = parser.parse_args(settings.own, leading_options(parser, line.leading))
    except SystemExit as exit_:  # argparse ends --help and --version this way
        return int(exit_.code or 0)
    if check is not None:
        args.check = check
    args.words, args.began, args.started = words, time.time(), time.monotonic()
    messages = MessageOptions.of(args)
    messages.apply(console)
    console.asks = getattr(args, "check", ()) is None
    own_process.settings_of_checks.clear()  # those of an earlier command line
    console.basis.own = settings.basis
    if settings.basis:
        from biopsy.checks import verdict

        verdict.report_settings(settings.basis)
    shown = console.on_stderr() if getattr(args, "json", False) else console
    for remark in settings.remarks:
        shown.remark(remark)
    for warning in getattr(args, "without_effect", ()):
        console.warn(warning)

    execute = partial(_execute, partial(module.execute, args, console), console, shown)
    with ExitStack() as held:
        held.enter_context(variables({KEEP_VARIABLE: "1"} if getattr(args, "keep_processes", False) else {}))
        held.enter_context(as_private_as_what_is_read(sources(parser, args)))
        held.enter_context(module.warmed_up(args, console) if hasattr(module, "warmed_up") else nullcontext())
        if check is not None:
            require_own_options_before_check(parser, check_option, check, program)
            warn_of_unread_options(parser, check_option, check, console)
        require_no_file_twice(parser, args, module.derived_files(args) if hasattr(module, "derived_files") else {})
        messages.open_log(console)
        if not command.reports_looking:
            from biopsy.checks import verdict

            verdict.report_looking()
        if not (is_program and command.may_crash):
            return execute()
        conclude = (
            partial(module.conclude_crash, args, console) if hasattr(module, "conclude_crash") else console.failure
        )
        return _execute_supervised(execute, console, conclude, words, command, CommandLimits.of(args))


def _execute(work: Callable[[], int], console: Console, shown: Console) -> int:
    """Execute a command. Then warn of types that could not be inferred, and name the settings that its result rests on.

    The settings are those from files; they are named only where the command's verdict has not done so.
    """
    try:
        status = int(work())
    except errors.OriginalPasses:
        shown.say_basis()
        raise
    finally:
        for warning in own_process.taken_warnings():
            console.warn(warning)
    shown.say_basis()
    return status


def _execute_supervised(
    work: Callable[[], int],
    console: Console,
    conclude: Callable[[errors.EngineCrash], int],
    words: Sequence[str],
    command: commands.Command,
    limits: CommandLimits,
) -> int:
    """Execute a command in a process of its own, which may crash, and within limits.

    A check without limits runs in this process: the process that started it sees how it ends.
    """
    from biopsy.checks import verdict
    from biopsy.processes import supervised

    if verdict.is_wanted() and not limits.has_limits:
        return work()
    bounds = limits.limits_of_command(command.default_timeout)
    if not supervised.is_possible():
        return work()
    try:
        return supervised.run(lambda: _status_of(work, console), bounds)
    except errors.EngineCrash as crash:
        return conclude(crash)
    except supervised.LimitReachedError as reached:
        # The line to type allows ten times the time, or twice the memory.
        if reached.cause == "time":
            limit = f"it took longer than {bounds.seconds:g} s"
            higher = ("--timeout", f"{10 * (bounds.seconds or 0):g}s")
        else:
            limit = f"it used more than {size_text(bounds.memory or 0)} of memory"
            higher = ("--memory-limit", f"{-(-2 * (bounds.memory or 0) // 10**6)}MB")
        line = line_with(words, (), command.words[-1], higher, without=higher[:1])
        raise errors.BiopsyError(
            f"biopsy {' '.join(command.words)} was stopped: {limit}",
            kept="nothing was written",
            next_steps=[f"{line}    if you trust the model"],
        ) from reached


def _without_command(program: str, line: commands.SplitLine, console: Console) -> int:
    """Show the version or an overview of commands. Raises UsageError for words that are not a command."""
    leading, plain = line.leading, [word for word in line.rest if word not in HELP]
    if not plain and leading and not {*leading} - {"-v"}:  # Polygraphy says its version for -v alone
        leading = [*VERSION]
    if {*leading, *plain[1:]} & {*VERSION}:
        say_version()
        return 0
    asks_for_help = len(plain) < len(line.rest) or bool({*leading} & {*HELP}) or not (plain or leading)
    if not plain or (plain[0] in GROUPS and len(plain) == 1):
        from biopsy.cli.help_text import painted

        console.coloured(*painted(commands.overview(program, plain[0] if plain else None)))
        return 0 if asks_for_help else 2
    raise commands.unknown(program, plain)


def require_own_options_before_check(parser: Parser, option: str, check: Sequence[str], program: str) -> None:
    """Raise UsageError if a check that is a command of biopsy is given an option that only ``parser`` has."""
    inner = own_command(check)
    if inner is None:
        return
    command, words = inner
    inner_parser = parser_of(program, command)
    given, _ = split_at((*getattr(importlib.import_module(command.module), "REST_OPTIONS", ()), "--"), words)
    for word in given:
        if word.startswith("-") and parser.has_option(word) and not inner_parser.has_option(word):
            name, outer = word.partition("=")[0], parser.prog.removeprefix(f"{program} ")
            raise errors.UsageError(
                f"{name} is not an option of {' '.join(command.words)}: it belongs to {outer}, and everything after"
                f" {option} goes to the check",
                next_steps=[f"write {name} before {option}"],
            )


def require_engines_in_check(
    command: commands.Command, own: Sequence[str], option: str, check: Sequence[str] | None, program: str
) -> None:
    """Raise UsageError, with the line to type, if a search is given an engine, which belongs in its check.

    ``own`` are the words before ``option``, ``check`` those after it; None if there is no check.
    """
    if command.words not in _SEARCHES or not any(word.partition("=")[0] in _ENGINES for word in own):
        return  # the options of run cost their imports
    from biopsy.checks.command_line import OwnRun, parse

    run_parser = parser_of(program, commands.read(["run"]).command or command)
    parser = parser_of(program, command)
    kept, moved, values_left = list[str](), list[str](), 0  # how many of the next words may be values of a moved option
    for word in own:
        if word.startswith("-"):
            values_left = -1
            if run_parser.has_option(word) and not parser.answers_to(word):
                values_left = run_parser.most_values(word)
            (kept if values_left < 0 else moved).append(word)
        else:
            (moved if values_left > 0 else kept).append(word)
            values_left -= 1
    engines = [word for word in moved if word.partition("=")[0] in _ENGINES]
    given = None if check is None else parse(check)
    if not engines or not (given is None or isinstance(given, OwnRun)):
        return
    new_check = ["biopsy", "run", "{}", *moved] if given is None else [*given.with_options(*moved).words]
    raise errors.UsageError(
        f"{engines[0]} is not an option of {' '.join(command.words)}: an engine belongs in the check",
        next_steps=[line_of([program, *command.words, *kept, option, *new_check])],
    )


_SEARCHES = {("debug", "reduce"), ("debug", "precision")}
"""Commands that run their check on candidates."""

_ENGINES = {"--engine", "--onnxrt", "--openvino", "--trt", "--reference", "--reference:float64"}


def warn_of_unread_options(parser: Parser, option: str, check: Sequence[str], console: Console) -> None:
    """Warn of options of ``parser`` after ``--check`` that the script there seems not to read."""
    from biopsy.checks.command_line import OwnCommand, parse

    command = parse(check)
    names = [word.partition("=")[0] for word in check if word.startswith("--") and parser.has_option(word)]
    if isinstance(command, OwnCommand) or not names:
        return
    texts = [_script_text(path) for path, is_run in command.files_named() if is_run]
    for name in dict.fromkeys(names):
        if not texts or None in texts:
            if name not in _COMMON_OPTIONS:
                outer = parser.prog.partition(" ")[2]
                console.note(f"the check gets {name}; if it is meant for {outer}, write it before {option}")
        elif not any(sign in text for text in texts if text for sign in (name, *_READS_ALL_SIGNS)):
            console.warn(
                f"{name} stands after {option}, so the check gets it, and does not read it: write it before {option}"
            )


_COMMON_OPTIONS = {"--help", "--verbose", "--quiet", "--silent", "--version", "--output"}
"""Options that many programs have."""

_READS_ALL_SIGNS = ("$@", "$*", "sys.argv[1:]", "parse_known_args", "click", "fire", "typer", "docopt")
"""Signs that a script passes its words on, or reads options without naming them in its text."""

_MAX_SCRIPT_BYTES = 1 << 20


def _script_text(path: Path) -> str | None:
    """The text of a script; None for a file that is too long or not in UTF-8."""
    try:
        if path.stat().st_size > _MAX_SCRIPT_BYTES or not path.is_file():
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
