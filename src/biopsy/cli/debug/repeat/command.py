"""``biopsy debug repeat``: a command, run again and again; how often it fails, in which ways, and its files sorted."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import checks, file_kinds, types
from biopsy.cli.debug import checking
from biopsy.cli.debug.repeat.progress import RepeatProgress, outcomes_text
from biopsy.cli.debug.repeat.summary import save_report, say_result

if TYPE_CHECKING:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.judge import Rules
    from biopsy.checks.repetition import RepeatedRun, RunTally
    from biopsy.cli.console import Console

REST_OPTIONS = checks.REST_OPTIONS

_EPILOG = """\
examples:
  How often does it fail?
    biopsy debug repeat --until 50 --check biopsy run model.onnx --onnxrt --validate
  Keep the files of each run, until one fails:
    biopsy debug repeat --until bad --artifacts replay.json --art-dir replays \\
        --check ./build_and_test.sh replay.json

exit status of the command: 0 passes; 125 cannot say; 126 and 127 could not be run; any other fails.

exit status: 0 if the command ran as often as asked, whether it passed or failed (--save-report writes what was
measured); 4 if it could not be run; 5 if interrupted, with what was measured so far.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug repeat``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--until",
        type=types.until,
        required=True,
        metavar="N|good|bad",
        help="stop after N runs, or after the first that passes (good) or fails (bad)",
    )
    parser.add_argument(
        "--jobs",
        type=types.positive,
        default=1,
        metavar="N",
        help="run N at once (default: 1, since runs of one command often share files; not with --artifacts or "
        "--iter-info, which they would share)",
    )
    group = parser.add_argument_group("the check")
    checks.add_command(group, "the command to run, never through a shell")
    checks.add_rules(group, "how alike two failures must be to count as one kind")
    checks.add_timeout(group, "none")
    checks.add_shown_output(group, "the first failure of each kind")
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    checks.add_iteration_info(group)
    checks.add_events(group)
    group.add_argument("--save-report", type=file_kinds.WRITTEN, metavar="FILE", help="write what was measured as JSON")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command; returns 0 when it ran as often as asked; raises what ends with another status."""
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.repetition import RunTally

    _require_sense(args)
    rules = checking.rules_of(args)
    tally, artifacts = RunTally(rules.match), Artifacts(tuple(args.artifacts), args.art_dir)
    started, interrupted = time.monotonic(), False
    with checking.ended_politely(), RepeatProgress(console, args) as progress:
        try:
            _run(args, rules, tally, artifacts, progress)
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - started
    if args.save_report is not None:
        save_report(args, tally, seconds, interrupted=interrupted)
    say_result(console, tally, args, seconds)
    if interrupted:
        raise errors.Interrupted("runs in progress were ended, and are not counted")
    return 0


def _require_sense(args: argparse.Namespace) -> None:
    """Raise UsageError for what would fail later, or spoil what is measured."""
    from biopsy.filesystem.write import require_writable

    if not args.check:
        raise errors.UsageError("there is no command to run", next_steps=["--check COMMAND ...    at the end"])
    own = checking.own_run(args)
    if own is not None and own.model.is_file():
        checking.require_names(args, own.model)
    shared = [*(["--artifacts"] if args.artifacts else []), *(["--iter-info"] if args.iter_info else [])]
    if args.jobs > 1 and shared:
        raise errors.UsageError(
            f"with --jobs {args.jobs} several runs would share the files of {' and '.join(shared)}",
            next_steps=["leave --jobs out"],
        )
    for path in (args.events, args.save_report, args.iter_info):
        if path is not None:
            require_writable(path)


def _run(
    args: argparse.Namespace, rules: Rules, tally: RunTally, artifacts: Artifacts, progress: RepeatProgress
) -> None:
    from biopsy.checks.artifacts import write_iteration
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.outcome import Outcome
    from biopsy.checks.repetition import NO_CANDIDATE, repeated

    check = CommandCheck(args.check, str(NO_CANDIDATE), args.check_timeout)
    line = check.line(NO_CANDIDATE)
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(args.until)
    times = args.until if last is None else None

    def before(number: int) -> None:
        if args.iter_info is not None:
            write_iteration(args.iter_info, number)
        progress.show_run(number, line)

    progress.show_plan(line)
    with contextlib.closing(repeated(check, rules, times, args.jobs, before)) as runs:
        for run in runs:
            if run.judged.outcome is Outcome.INFRASTRUCTURE:
                raise _could_not_be_run(run, tally, line)
            missing = artifacts.sort(run.judged.outcome, run.number, "")
            progress.show_outcome(run, tally, missing, is_new=tally.add(run))
            if run.judged.outcome is last:
                return


def _could_not_be_run(run: RepeatedRun, tally: RunTally, line: str) -> errors.CheckError:
    before = f"; {outcomes_text(tally)} before it" if tally.runs else ""
    return errors.CheckError(
        f"the check could not be run: {run.judged.reason}",
        kept=f"nothing was concluded from iteration {run.number}{before}",
        next_steps=[f"run it by hand: {line}"],
    )
