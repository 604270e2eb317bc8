"""The options that every command has: what is shown, in which form, and where it is written too.

They stand before the words of a command, between them or behind them. Their names are those of Polygraphy.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.checks.leading_options import FORMATS, LEVELS, VERSION
from biopsy.cli.arguments import file_kinds
from biopsy.similar_names import did_you_mean

if TYPE_CHECKING:
    from biopsy.cli.console import Console

_SILENT = "CRITICAL"


def add_options(parser: argparse.ArgumentParser) -> None:
    """``-v``, ``-q`` and the like."""
    group = parser.add_argument_group("messages (these may also stand before the command)")
    group.add_argument("-h", nargs=0, action=_Help, help="show what most people need, and exit")
    group.add_argument("--help", nargs=0, action=_Help, help="show all options, and exit")
    group.add_argument("-v", "--verbose", action="count", default=0, help="show more; twice: tracebacks too")
    group.add_argument("-q", "--quiet", action="count", default=0, help="show less; twice: warnings and errors only")
    group.add_argument("--silent", action="store_true", help="show nothing but the error that ends the command")
    group.add_argument(
        "--verbosity",
        nargs="+",
        type=_level,
        action="extend",
        metavar="[PATH:]LEVEL",
        help="what to show, instead of -v and -q: extra_verbose, verbose, info (default), start, finish, warning, "
        "error or critical; a level for one PATH of Polygraphy's sources is accepted and has no effect",
    )
    group.add_argument(
        "--log-format",
        nargs="+",
        choices=FORMATS,
        action="extend",
        default=[],
        metavar="FORMAT",
        help=f"the form of every line: {', '.join(FORMATS)}",
    )
    group.add_argument(
        "--log-file", type=file_kinds.WRITTEN, metavar="FILE", help="write what is shown to this file too"
    )
    group.add_argument(*reversed(VERSION), nargs=0, action=_Version, help="show the version and exit")


def apply(args: argparse.Namespace, console: Console) -> None:
    """Show from now on what the options ask for, in the form that they ask for."""
    console.verbosity = _verbosity(args)
    console.form.timestamp = "timestamp" in args.log_format
    console.form.line_info = "line-info" in args.log_format
    console.form.colours = "no-colors" not in args.log_format


def open_log(args: argparse.Namespace, console: Console) -> None:
    """Begin the file of ``--log-file``; and say what of the options has no effect. Raises UsageError."""
    if args.log_file:
        from biopsy.cli.log_file import LogFile

        console.log = LogFile(args.log_file)
    without_effect = [f"{path}:{level.lower()}" for path, level in args.verbosity or () if path]
    if without_effect:
        shown = next(name for name, level in LEVELS.items() if level == console.verbosity)
        console.warn(
            f"--verbosity {' '.join(without_effect)} has no effect: biopsy has no level for a part of its sources; "
            f"{shown.lower()} holds for all of them"
        )


def _verbosity(args: argparse.Namespace) -> int:
    """How many times ``-v``, negative for ``-q``: what is loudest or most silent has a name too."""
    if args.silent:
        return LEVELS[_SILENT]
    for path, level in reversed(args.verbosity or ()):
        if not path:
            return LEVELS[level]
    asked: int = args.verbose - args.quiet
    return max(min(LEVELS.values()), min(max(LEVELS.values()), asked))


def _level(text: str) -> tuple[str, str]:
    path, _, level = text.rpartition(":")
    if level.upper() not in LEVELS:
        names = [name.lower() for name in LEVELS]
        raise errors.UsageError(
            f"there is no level {level!r}; the levels: {', '.join(names)}",
            next_steps=did_you_mean(level.lower(), names, most=1),
        )
    return path, level.upper()


class _Help(argparse.Action):
    """Shows the short or the whole help, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        show_short = getattr(parser, "print_short_help", parser.print_help)
        (show_short if option == "-h" else parser.print_help)()
        parser.exit()


class _Version(argparse.Action):
    """Shows the version and exits, as --help does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        say_version()
        parser.exit()


def say_version() -> None:
    """``biopsy 0.1.0``."""
    from biopsy import __version__
    from biopsy.cli.console import Console

    Console().say(f"biopsy {__version__}")
