"""What the commands that run a check have in common: their options, the rules made of them, and how they end.

Each function adds the options of one purpose to a group; texts that differ from command to command are arguments.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from biopsy import errors
from biopsy.cli.arguments import file_kinds, types
from biopsy.isolation.interrupts import interrupted_once
from biopsy.text import printable

if TYPE_CHECKING:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console

_MOST_JOBS = 64  # each has some descriptors of its own, of which a process has a thousand

REST_OPTIONS = ("--check", "--check-inference")
"""These take the whole rest of the line, whatever it holds."""

_SECONDS_TO_END = 5.0
"""Who asks again after so long is heard again: what is written by then, or does not end, is given up."""


def add_command(group: argparse._ArgumentGroup, meaning: str) -> None:
    """``--check``; ``meaning`` is its help."""
    group.add_argument(*REST_OPTIONS, nargs="...", metavar="COMMAND ...", help=meaning)


def add_rules(group: argparse._ArgumentGroup, match: str) -> None:
    """What counts as a failure: ``--fail-code`` and its like. ``match`` begins the help of ``--match``."""
    codes = group.add_mutually_exclusive_group()
    codes.add_argument(
        "--fail-code",
        "--fail-returncode",
        nargs="+",
        type=int,
        action="extend",
        metavar="STATUS",
        help="only these exit statuses fail",
    )
    codes.add_argument(
        "--ignore-fail-code",
        "--ignore-fail-returncode",
        nargs="+",
        type=int,
        action="extend",
        metavar="STATUS",
        help="these exit statuses do not fail",
    )
    group.add_argument(
        "--fail-regex",
        nargs="+",
        action="extend",
        metavar="REGEX",
        help="fails only if one of these is found in its output",
    )
    group.add_argument(
        "--match",
        choices=("any", "status", "auto", "message", "exact"),
        default="auto",
        help=f"{match} (default: auto: the check's own report, else the uncaught Python exception, else the exit "
        "status)",
    )


def add_timeout(group: argparse._ArgumentGroup, default: str) -> None:
    """``--check-timeout``; ``default`` says in words what holds without it."""
    group.add_argument(
        "--check-timeout",
        type=types.duration,
        metavar="SECONDS",
        help=f"end a check that takes longer (default: {default})",
    )


def add_memory(group: argparse._ArgumentGroup, meaning: str = "") -> None:
    """``--check-memory``; ``meaning`` says what it makes of a candidate."""
    group.add_argument(
        "--check-memory",
        type=types.byte_size,
        metavar="SIZE",
        help=f"end a check whose processes together need more, such as 4GB{meaning} (default: no limit)",
    )


def add_cold(group: argparse._ArgumentGroup) -> None:
    """``--cold-checks``."""
    group.add_argument(
        "--cold-checks",
        action="store_true",
        help="start a process for every check, also where the check is 'biopsy run' and could be a fork of a warm one",
    )


def add_repeating(group: argparse._ArgumentGroup) -> None:
    """``--repeat`` and ``--confidence``."""
    group.add_argument(
        "--repeat",
        type=types.positive,
        metavar="N",
        help="a candidate passes only if it passes N times (default: once; as often as --confidence needs if the "
        "failure turns out to be flaky)",
    )
    group.add_argument(
        "--confidence",
        type=types.probability,
        default=0.99,
        metavar="P",
        help="how sure to be that a candidate passes if the failure is flaky (default: 0.99)",
    )


def add_limits(group: argparse._ArgumentGroup) -> None:
    """``--jobs``, ``--max-checks`` and ``--max-time``."""
    group.add_argument(
        "--jobs",
        type=types.positive,
        metavar="N",
        help="checks that run at once; the result is the same for any N (default: as many as there are processors, "
        "one where checks would share files)",
    )
    group.add_argument(
        "--max-checks", type=types.positive, metavar="N", help="stop after so many checks, with the best result"
    )
    group.add_argument(
        "--max-time", type=types.duration, metavar="TIME", help="stop after 90s, 10m, 2h, with the best result"
    )


def add_shown_output(group: argparse._ArgumentGroup, hidden: str) -> None:
    """``--show-output`` or ``--hide-fail-output``; ``hidden`` is the failure whose output the latter hides too."""
    shown = group.add_mutually_exclusive_group()
    shown.add_argument("--show-output", action="store_true", help="show the output of every check")
    shown.add_argument("--hide-fail-output", action="store_true", help=f"do not even show the output of {hidden}")


def add_artifacts(group: argparse._ArgumentGroup) -> None:
    """``--artifacts`` and ``--art-dir``."""
    group.add_argument(
        "--artifacts",
        nargs="+",
        type=file_kinds.ARTIFACT,
        default=[],
        metavar="FILE",
        help="files to sort into 'good', 'bad' and 'other' after each check",
    )
    group.add_argument(
        "--art-dir",
        "--artifacts-dir",
        type=file_kinds.FOLDER_WRITTEN,
        default=Path("polygraphy_artifacts"),
        metavar="DIR",
        help="where they are sorted to (default: polygraphy_artifacts)",
    )


def add_iteration_info(group: argparse._ArgumentGroup) -> None:
    """``--iter-info``."""
    group.add_argument(
        "--iter-info",
        "--iteration-info",
        type=file_kinds.ITERATION,
        metavar="FILE",
        help='write {"iteration": N} before each check',
    )


def add_events(group: argparse._ArgumentGroup) -> None:
    """``--events``."""
    group.add_argument("--events", type=file_kinds.WRITTEN, metavar="FILE", help="write what happens as JSON lines")


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that the options of ``add_rules`` say. Raises UsageError for what is no regular expression."""
    from biopsy.checks.judge import Rules

    patterns = tuple(types.regex("--fail-regex", text) for text in args.fail_regex or ())
    return Rules(frozenset(args.fail_code or ()), frozenset(args.ignore_fail_code or ()), patterns, args.match)


def jobs_of(args: argparse.Namespace, console: Console) -> int:
    """How many checks run at once; one where they would look at, or write, the same files, which is told."""
    from biopsy.checks.command_line import parse
    from biopsy.isolation.memory import processors

    if args.check is None:
        return 1
    jobs: int = min(args.jobs or processors(), _MOST_JOBS)
    shared = {
        "--artifacts": args.artifacts,
        "--iter-info": args.iter_info,
        "--iter-inputs": getattr(args, "iter_inputs", None),
        "--no-remove-intermediate": args.no_remove_intermediate,
    }
    reasons = [f"{option} names a file that every check has" for option, given in shared.items() if given]
    if not parse(args.check).names_candidate(str(args.iter_artifact)):
        reasons.append("the check does not name the candidate, so all would look at the same file")
    if not reasons or jobs == 1:
        return jobs
    (console.warn if args.jobs else console.note)(f"one check at a time: {reasons[0]}")
    return 1


def command_of(args: argparse.Namespace, jobs: int) -> CommandCheck:
    """The check that ``--check`` names; what must warm up for it begins to."""
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.warm import command_check

    given = (args.check, str(args.iter_artifact), args.check_timeout, args.check_memory)
    check = CommandCheck(*given) if args.cold_checks else command_check(*given, jobs)
    check.start()
    return check


def check_of(args: argparse.Namespace, jobs: int) -> Check:
    """The check: a command, or the person who typed the line."""
    if args.check is not None:
        return command_of(args, jobs)
    from biopsy.checks.interactive import InteractiveCheck

    return InteractiveCheck(_ask)


def _ask(question: str) -> str:
    """Show a question and read a line, where the person who types it looks; begin a new line after it.

    Raises what input() raises.
    """
    typed = _is_terminal(sys.stdin)
    elsewhere = typed and not _is_terminal(sys.stdout) and _is_terminal(sys.stderr)
    shown = sys.stderr if elsewhere else sys.stdout  # as where the output goes into a file
    encoding = (shown.encoding if shown is not None else None) or "utf-8"
    question = printable(question).encode(encoding, "backslashreplace").decode(encoding)
    if elsewhere:
        print(question, end="", file=shown, flush=True)
    try:
        answer = input("" if elsewhere else question)
    except EOFError:
        print(file=shown)
        raise
    if not typed:
        print()  # noqa: T201
    return answer


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is open, and a terminal."""
    return stream is not None and stream.isatty()


def own_run(args: argparse.Namespace) -> argparse.Namespace | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong."""
    from biopsy.checks.command_line import OwnRun, parse
    from biopsy.cli.app import Parser
    from biopsy.cli.run import command as run

    command = parse(args.check or ())
    if not isinstance(command, OwnRun):
        return None
    parser = Parser(prog="biopsy run", allow_abbrev=False, add_help=False)
    run.configure(parser)
    try:
        return parser.parse_known_args(list(command.options))[0]
    except errors.UsageError:
        return None  # the check itself will tell what is wrong with it


def require_names(args: argparse.Namespace, model: Path) -> None:
    """Raise DoesNotFit or CannotCompare if a check that is our own ``run`` speaks of another model than this one."""
    own = own_run(args)
    if own is not None:
        from biopsy.cli.run.names import require_names_of_check
        from biopsy.model.index import index_file

        require_names_of_check(own, index_file(model))


def ended_politely() -> AbstractContextManager[None]:
    """What asks this process to end interrupts what stands inside, once: see ``interrupted_once``."""
    return interrupted_once(_SECONDS_TO_END)
