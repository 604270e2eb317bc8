"""From the arguments to the check: its rules, how many run at once, the check itself, and how its work is ended."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import types
from biopsy.cli.debug import other_machines
from biopsy.cli.debug.releases_of_check import releases_installed
from biopsy.isolation.interrupts import interrupted_once

if TYPE_CHECKING:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.command_line import OwnRun
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Check
    from biopsy.cli.console import Console
    from biopsy.cli.parser import Parser
    from biopsy.session.machines import OtherMachines

_MOST_JOBS = 64  # each has some descriptors of its own, of which a process has a thousand

_SECONDS_TO_END = 5.0
"""Who asks again after so long is heard again: what is written by then, or does not end, is given up."""


def rules_of(args: argparse.Namespace) -> Rules:
    """The rules that the options of ``add_rules`` say. Raises UsageError for what is no regular expression."""
    from biopsy.checks.judge import Rules

    patterns = tuple(types.regex("--fail-regex", text) for text in args.fail_regex or ())
    return Rules(
        fail_codes=frozenset(args.fail_code or ()),
        ignored_codes=frozenset(args.ignore_fail_code or ()),
        fail_regexes=patterns,
        match=args.match,
    )


@contextlib.contextmanager
def warmed_up(args: argparse.Namespace, console: Console) -> Iterator[None]:
    """Have what warms up for the check begin now: nothing else that a command does comes before.

    But for releases that the check needs, which are installed first. ``command_of`` hands what has begun to the check;
    if it is not called, this ends it.
    """
    from biopsy.checks import warming
    from biopsy.isolation.fork_server import ServerGoneError

    args.warming = None
    with releases_installed(args, console):
        if args.check and not args.cold_checks and not _runs_elsewhere(args) and warming.serves(args.check):
            with contextlib.suppress(ServerGoneError):
                args.warming = warming.started(args.check, _jobs(args)[0])
        try:
            yield
        finally:
            if args.warming is not None:
                args.warming.close()


def _runs_elsewhere(args: argparse.Namespace) -> bool:
    """Whether other machines run the checks."""
    return getattr(args, "on", None) is not None


def jobs_of(args: argparse.Namespace, console: Console, machines: OtherMachines | None = None) -> int:
    """How many checks run at once, by default as many as ``machines`` have room for, or this one.

    One where they would look at, or write, the same files, which is told.
    """
    jobs, reason = _jobs(args, machines)
    if reason:
        (console.warn if args.jobs else console.note)(f"one check at a time: {reason}")
    if machines is not None:
        machines.expect(jobs)  # they get ready while the rest is loaded
    return jobs


def _jobs(args: argparse.Namespace, machines: OtherMachines | None = None) -> tuple[int, str]:
    """How many checks run at once, and what keeps it at one although more were possible; "" if nothing does."""
    from biopsy.checks.command_line import parse
    from biopsy.isolation.memory import processors

    if args.check is None:
        return 1, ""
    here = min(args.jobs or processors(), _MOST_JOBS)
    jobs: int = here if machines is None else other_machines.jobs_on(machines, args.jobs)
    command = parse(args.check)
    shared = {"--artifacts": args.artifacts, "--no-remove-intermediate": args.no_remove_intermediate}
    reasons = [f"{option} names a file that every check has" for option, given in shared.items() if given]
    read = {"--iter-info": args.iter_info, "--iter-inputs": getattr(args, "iter_inputs", None)}
    for option, file in read.items():
        if file is not None and not command.names_file(file):
            reasons.append(f"the check does not name the file of {option} as {file}, so all would look at the same one")
    if not command.names_candidate(str(args.iter_artifact)):
        reasons.append("the check does not name the candidate, so all would look at the same file")
    return (jobs, "") if not reasons or jobs == 1 else (1, reasons[0])


def command_of(args: argparse.Namespace, jobs: int) -> CommandCheck:
    """The check that ``--check`` names, with what ``warmed_up`` has begun for it; or that begins now."""
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.warm import command_check

    given = (args.check, str(args.iter_artifact), args.check_timeout, args.check_memory)
    begun, args.warming = getattr(args, "warming", None), None
    check = CommandCheck(*given) if args.cold_checks else command_check(*given, jobs, begun)
    if not _runs_elsewhere(args):
        check.start()
    return check


def note_on_check(check: Check, args: argparse.Namespace, console: Console) -> None:
    """Say so if the words of a check do not name the candidate that it is to judge; with -v, if it is warm or cold."""
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.command_line import OwnInspect, parse
    from biopsy.checks.served import ServedCheck

    if isinstance(check, ServedCheck) and check.is_served:
        console.detail(f"checks     forks of {check.served_by} (warm) · the last one is a fresh process")
    elif isinstance(check, CommandCheck):
        console.detail("checks     run cold: each is a process of its own")
    if isinstance(check, CommandCheck) and not check.names_candidate:
        console.note(
            f"the check names neither {{}} nor {args.iter_artifact}: put {{}} where it takes the model, unless it "
            "finds the candidate itself"
        )
    command = parse(args.check or ())
    if args.fail_regex and isinstance(command, OwnInspect) and command.prints_no_nodes:
        console.warn("the check prints no nodes, which --fail-regex may look for: add --show layers to it")


def check_of(args: argparse.Namespace, jobs: int) -> Check:
    """The check: a command, or the person who typed the line."""
    if args.check is not None:
        return command_of(args, jobs)
    from biopsy.checks.interactive import InteractiveCheck
    from biopsy.cli.debug.person import ask

    return InteractiveCheck(ask)


def own_run(args: argparse.Namespace) -> argparse.Namespace | None:
    """The options of a check such as ``biopsy run {} ...``; None if the check is something else, or is wrong."""
    from biopsy.checks.command_line import OwnRun, parse

    command = parse(args.check or ())
    return options_of_run(command) if isinstance(command, OwnRun) else None


def options_of_run(command: OwnRun) -> argparse.Namespace | None:
    """The options of a ``biopsy run``; None if they are wrong, of which the check itself will tell."""
    try:
        return run_parser().parse_known_args(list(command.options))[0]
    except errors.UsageError:
        return None


def run_parser() -> Parser:
    """The parser of ``biopsy run``."""
    from biopsy.cli.parser import Parser
    from biopsy.cli.run import command as run

    parser = Parser(prog="biopsy run", allow_abbrev=False, add_help=False)
    run.configure(parser)
    return parser


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
