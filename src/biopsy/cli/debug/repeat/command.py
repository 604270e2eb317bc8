"""``biopsy debug repeat``: a command, run again and again; how often it fails, in which ways, and its files sorted."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.cli.arguments import checks, types
from biopsy.cli.arguments.report_option import add_report
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.debug.repeat.iteration_info import IterationInfo
from biopsy.cli.debug.repeat.progress import RepeatProgress, outcomes_text
from biopsy.cli.debug.repeat.summary import say_result, sections
from biopsy.cli.report_file import report_file

if TYPE_CHECKING:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.judge import Rules
    from biopsy.checks.repetition import RepeatedRun, RunTally
    from biopsy.cli.console import Console
    from biopsy.session.machines import OtherMachines

REST_OPTIONS = checks.REST_OPTIONS

_EPILOG = """\
examples:
  How often does it fail?
    biopsy debug repeat --until 50 --check biopsy run model.onnx --onnxrt --validate
  Keep the files of each run, until one fails:
    biopsy debug repeat --until bad --artifacts replay.json --art-dir replays \\
        --check ./build_and_test.sh replay.json
  On all machines of a Ray cluster, as many at once as they have GPUs:
    biopsy debug repeat --until 500 --on ray --resources GPU=1 --check biopsy run model.onnx --trt --onnxrt

exit status of the command: 0 passes; 125 cannot say; 126 and 127 could not be run; any other fails.

exit status: 0 if the command ran as often as asked, whether it passed or failed (--report writes what was
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
        metavar="N",
        help="run N at once (default: 1, since runs of one command often share files; not with --artifacts, "
        "which they would share; the file of --iter-info is another for each run, if the check names it)",
    )
    other_machines.add(parser, runs="the command", sent="the files that it names")
    group = parser.add_argument_group("the check")
    checks.add_command(group, "the command to run, never through a shell")
    checks.add_rules(group, "how alike two failures must be to count as one kind")
    checks.add_timeout(group, "none")
    checks.add_shown_output(group, "the first failure of each kind")
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    checks.add_iteration_info(group)
    checks.add_events(group)
    checks.add_replays(
        group,
        "count the iterations in this file, of --save-debug-replay here or in Polygraphy, instead of running them",
        "after each iteration, save whether each has passed, as Polygraphy does",
    )
    add_report(group, "--save-report")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command; returns 0 when it ran as often as asked; raises what ends with another status."""
    _require_sense(args)
    with other_machines.machines_of(args, console, _not_elsewhere(args)) as machines:
        args.jobs = (args.jobs or 1) if machines is None else other_machines.jobs_on(machines, args.jobs)
        return _execute(args, console, machines)


def _not_elsewhere(args: argparse.Namespace) -> dict[str, str]:
    """Options that cannot be combined with ``--on``, each with the reason."""
    unnamed = {} if _names_iteration_info(args) else {"--iter-info": "no word of the check names it, so it is not sent"}
    return {"--artifacts": other_machines.STAYS_THERE, **unnamed}


def _execute(args: argparse.Namespace, console: Console, machines: OtherMachines | None) -> int:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.repetition import RunTally
    from biopsy.cli.debug.finished import inconclusive

    report = report_file(args, console)
    rules = checking.rules_of(args)
    tally, artifacts = RunTally(rules.match), Artifacts(tuple(args.artifacts), args.art_dir)
    started, interrupted = time.monotonic(), False
    with RepeatProgress(console, args, machines) as progress:
        try:
            with checking.ended_politely():
                _run(args, rules, tally, artifacts, progress, machines)
        except KeyboardInterrupt:
            interrupted = True
        seconds = time.monotonic() - started
        doubt = inconclusive(tally.outcomes, "runs")
        status = progress.ended(errors.Interrupted.status if interrupted else doubt.status if doubt else 0)
        report.write(status, lambda: sections(args, tally, progress, interrupted=interrupted))
        say_result(console, tally, args, seconds)
    if interrupted:
        raise errors.Interrupted("runs in progress were ended, and are not counted")
    if doubt is not None:
        raise doubt
    return 0


def _require_sense(args: argparse.Namespace) -> None:
    """Raise UsageError for what would fail later, or spoil what is measured."""
    from biopsy.filesystem.write import require_writable

    if not args.check:
        raise errors.UsageError("there is no command to run", next_steps=["--check COMMAND ...    at the end"])
    own = checking.own_run(args)
    if own is not None and own.model.is_file():
        checking.require_names(args, own.model)
    if args.on is None and args.jobs is not None and args.jobs > 1:
        _require_own_files(args)
    for path in (args.events, args.iter_info, args.save_debug_replay):
        if path is not None:
            require_writable(path)


def _require_own_files(args: argparse.Namespace) -> None:
    """Raise UsageError if runs at the same time would share a file: what is moved away, or what the check names not."""
    unnamed = [] if _names_iteration_info(args) else ["--iter-info"]
    shared = [*(["--artifacts"] if args.artifacts else []), *unnamed]
    if shared:
        why = f", which the check does not name as {args.iter_info}" if shared == ["--iter-info"] else ""
        raise errors.UsageError(
            f"with --jobs {args.jobs} several runs would share the files of {' and '.join(shared)}{why}",
            next_steps=["leave --jobs out"],
        )


def _names_iteration_info(args: argparse.Namespace) -> bool:
    """Whether the check says where it reads the file of ``--iter-info``, if there is one."""
    from biopsy.checks.command_line import parse

    return args.iter_info is None or parse(args.check).names_file(args.iter_info)


def _run(
    args: argparse.Namespace,
    rules: Rules,
    tally: RunTally,
    artifacts: Artifacts,
    progress: RepeatProgress,
    machines: OtherMachines | None,
) -> None:
    from biopsy.checks.command import CommandCheck
    from biopsy.checks.iteration_replay import write_iterations
    from biopsy.checks.outcome import Outcome
    from biopsy.checks.task import NO_CANDIDATE
    from biopsy.session.repeated_runs import repeated

    check = CommandCheck(args.check, str(NO_CANDIDATE), args.check_timeout)
    line = check.line(NO_CANDIDATE)
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(args.until)
    times = args.until if last is None else None

    info, counted = IterationInfo(check, args.iter_info), list[int]()

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        progress.show_run(number, line)
        return info.begin(number, running)

    progress.show_plan(line)
    known = _known(args, times)
    passed: dict[int, bool] = {}
    with contextlib.ExitStack() as ends:
        ends.callback(lambda: info.close(counted[-1] if counted else None))
        runs = ends.enter_context(contextlib.closing(repeated(begin, rules, times, args.jobs, len(known), machines)))
        for run in itertools.chain(known, runs):
            counted.append(run.number)
            if run.judged.outcome is Outcome.INFRASTRUCTURE:
                raise _could_not_be_run(run, tally, line)
            missing = [] if run.number < len(known) else artifacts.sort(run.judged.outcome, run.number, "")
            progress.show_outcome(run, tally, missing, is_new=tally.add(run))
            if args.save_debug_replay is not None:
                if run.judged.outcome in {Outcome.PASSES, Outcome.REPRODUCES}:  # the form has no word for the others
                    passed[run.number] = run.judged.outcome is Outcome.PASSES
                write_iterations(args.save_debug_replay, passed)
            if run.judged.outcome is last:
                return


def _known(args: argparse.Namespace, times: int | None) -> list[RepeatedRun]:
    """The iterations that a replay holds; their failures are of one kind, for it does not tell more."""
    from biopsy.checks.iteration_replay import read_iterations
    from biopsy.checks.outcome import Evidence, Judged, Outcome
    from biopsy.checks.repetition import RepeatedRun

    if args.load_debug_replay is None:
        return []
    outcomes = {True: (Outcome.PASSES, 0), False: (Outcome.REPRODUCES, 1)}
    found = []
    for number, passed in enumerate(read_iterations(args.load_debug_replay)[:times]):
        outcome, status = outcomes[passed]
        evidence = Evidence(status=status)
        found.append(RepeatedRun(number, Judged(outcome, f"by the replay {args.load_debug_replay}", evidence)))
    return found


def _could_not_be_run(run: RepeatedRun, tally: RunTally, line: str) -> errors.CheckError:
    before = f"; {outcomes_text(tally)} before it" if tally.runs else ""
    return errors.CheckError(
        f"the check could not be run: {run.judged.reason}",
        kept=f"nothing was concluded from iteration {run.number}{before}",
        next_steps=[f"run it by hand: {line}"],
    )
