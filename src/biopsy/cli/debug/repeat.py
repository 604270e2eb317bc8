"""``biopsy debug repeat``: a command, run again and again; how often it fails, in which ways, and its files sorted."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import parse
from biopsy.checks.journal import read_iterations, write_iterations
from biopsy.checks.judge import RepeatedRun, Rules, RunTally, interval, rate_text, runs_needed
from biopsy.checks.outcome import Artifacts, Evidence, Judged, Outcome, write_iteration
from biopsy.checks.words import as_word, output_word
from biopsy.cli.arguments import checks, types
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.progress import Progress, finished_line, inconclusive, running_text, say_output, time_left
from biopsy.cli.report import ReportOption, report_file
from biopsy.findings.report import versions_tree
from biopsy.processes import cleanup
from biopsy.processes.writing import require_writable
from biopsy.session.trial import cannot_run
from biopsy.text import count, line_of

if TYPE_CHECKING:
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
    checks.BudgetOptions.add(
        parser,
        only=["jobs"],
        jobs="run N at once (default: 1, since runs of one command often share files; not with --artifacts, "
        "which they would share; the file of --iter-info is another for each run, if the check names it)",
    )
    other_machines.add(parser, runs="the command", sent="the files that it names")
    group = parser.add_argument_group("the check")
    checks.CheckOption.add(group, check="the command to run, never through a shell; takes the rest of the line")
    checks.RuleOptions.add(group, match="how alike two failures must be to count as one kind")
    checks.CheckTimeOptions.add(group, check_timeout="none")
    checks.ShownOutputOptions.add(group, hide_fail_output="the first failure of each kind")
    group = parser.add_argument_group("files of each iteration")
    checks.ArtifactOptions.add(group)
    checks.IterationOptions.add(group, only=["iter_info"])
    checks.EventsOption.add(group)
    checks.ReplayOptions.add(
        group,
        load_debug_replay="count the iterations in this file, of --save-debug-replay here or in Polygraphy, instead of "
        "running them",
        save_debug_replay="after each iteration, save whether each has passed, as Polygraphy does",
    )
    ReportOption.add(group, also={"report": ["--save-report"]})


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command; returns 0 when it ran as often as asked; raises what ends with another status."""
    _require_sense(args)
    with other_machines.machines_of(args, console, _not_elsewhere(args)) as machines:
        args.jobs = (args.jobs or 1) if machines is None else other_machines.jobs_on(machines, args.jobs)
        report = report_file(args, console)
        rules = checks.RuleOptions.of(args).rules()
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


def _not_elsewhere(args: argparse.Namespace) -> dict[str, str]:
    """Options that cannot be combined with ``--on``, each with the reason."""
    unnamed = {} if _names_iteration_info(args) else {"--iter-info": "no word of the check names it, so it is not sent"}
    return {"--artifacts": other_machines.STAYS_THERE, **unnamed}


def _require_sense(args: argparse.Namespace) -> None:
    """Raise UsageError for what would fail later, or spoil what is measured."""
    if not args.check:
        raise errors.UsageError("there is no command to run", next_steps=["--check COMMAND ...    at the end"])
    own = checking.own_run(args.check)
    if own is not None and own.model.is_file():
        checking.require_names(args.check, own.model)
    if args.on is None and args.jobs is not None and args.jobs > 1:
        unnamed = [] if _names_iteration_info(args) else ["--iter-info"]
        shared = [*(["--artifacts"] if args.artifacts else []), *unnamed]
        if shared:
            why = f", which the check does not name as {args.iter_info}" if shared == ["--iter-info"] else ""
            raise errors.UsageError(
                f"with --jobs {args.jobs} several runs would share the files of {' and '.join(shared)}{why}",
                next_steps=["leave --jobs out"],
            )
    for path in (args.events, args.iter_info, args.save_debug_replay):
        if path is not None:
            require_writable(path)


def _names_iteration_info(args: argparse.Namespace) -> bool:
    """Whether the check says where it reads the file of ``--iter-info``, if there is one."""
    return args.iter_info is None or parse(args.check).names_file(args.iter_info)


def _run(
    args: argparse.Namespace,
    rules: Rules,
    tally: RunTally,
    artifacts: Artifacts,
    progress: RepeatProgress,
    machines: OtherMachines | None,
) -> None:
    from biopsy.checks.task import NO_CANDIDATE
    from biopsy.session.pool import repeated

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
    return cannot_run(run.judged, line, kept=f"nothing was concluded from iteration {run.number}{before}")


class IterationInfo:
    """Writes the number of each run where its ``check`` reads it: to ``file``, or to one beside it that it is told.

    No ``file``: nothing is written.
    """

    def __init__(self, check: CommandCheck, file: Path | None) -> None:
        from biopsy.session.pool import Places

        self._check = check
        self._file = file
        self._places = None if file is None else Places(file)
        self._taken: dict[int, int] = {}  # the place of each run, by its number

    def begin(self, number: int, running: Collection[int]) -> CommandCheck:
        """Write it for a run that is about to begin while others are ``running``; returns the check to run."""
        if self._file is None or self._places is None:
            return self._check

        self._taken = {run: place for run, place in self._taken.items() if run in running}
        place = self._places.free(set(self._taken.values()))
        self._taken[number] = place
        path = self._places.candidate(place)
        write_iteration(path, number)
        if path == self._file:
            return self._check
        cleanup.take_what_stands_at(path)
        return self._check.with_files({self._file: path})

    def close(self, last: int | None) -> None:
        """Leave the file of the ``last`` run that was counted, and none beside it, once all runs have ended."""
        if self._file is None or self._places is None:
            return

        self._places.clear(keep_last=True)
        if last is not None:
            write_iteration(self._file, last)


# What ``biopsy debug repeat`` shows while the command runs.


class RepeatProgress(Progress):
    """What is shown while the command runs: a line for each new kind of failure, and one live line on a terminal."""

    def __init__(self, console: Console, args: argparse.Namespace, machines: OtherMachines | None = None) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._machines = machines
        self._missing: set[Path] = set()

    def show_plan(self, line: str) -> None:
        """Say what is going to happen."""
        until = self._args.until
        often = {"good": "until it passes", "bad": "until it fails"}.get(until) or count(until, "time")
        at_once = f", {self._args.jobs} at once" if self._args.jobs > 1 else ""
        self.line("repeat", f"{often}{at_once}: {line}")
        if self._machines is not None:
            from biopsy.session.machines import tell_of_machines

            tell_of_machines(self._machines, self)
        for file in self._args.artifacts:
            if file.exists():
                self(events.Remark(f"{file} exists already: it counts as a file of iteration 0"))

    def show_run(self, number: int, line: str) -> None:
        """A run is about to begin."""
        self.keep(events.Checking(number=number, stage="repeat", description="run", line=line))
        if number == 0:
            self._live.update("repeat", "the first run")

    def show_outcome(self, run: RepeatedRun, tally: RunTally, missing: list[Path], *, is_new: bool) -> None:
        """A run has ended, and was counted."""
        judged = run.judged
        seconds = judged.evidence.seconds
        self.keep(judged.event(run.number, "repeat"))
        if judged.evidence.remark:
            self(events.Remark(judged.evidence.remark))
        self._console.detail(f"  run {run.number}  {word_for(judged.outcome)}: {judged.reason} · {seconds:.2f} s")
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, judged.evidence.output, whole=self._args.show_output)
        if is_new:
            self.line("fails", f"iteration {run.number}: {judged.reason} · {seconds:.2f} s")
        for file in set(missing) - self._missing:
            self._missing.add(file)
            self(events.Remark(f"the artifact {file} was not there after iteration {run.number}"))
        if tally.runs != self._args.until:
            until = self._args.until
            done = tally.runs / until if isinstance(until, int) else 0.0
            self._live.update("repeat", self._progress(tally), done)

    def _progress(self, tally: RunTally) -> str:
        spent = time.monotonic() - self._started
        until = self._args.until
        if not isinstance(until, int):
            return f"{outcomes_text(tally)}{self._use} · {spent / tally.runs:.2g} s each"
        left = spent / tally.runs * (until - tally.runs)
        return f"{tally.runs} of {until} · {outcomes_text(tally)}{self._use} · {time_left(left)}"

    @property
    def _use(self) -> str:
        """What other machines are at; "" if there are none."""
        if self._machines is None:
            return ""
        use = self._machines.use
        return f" · {running_text(use.running, use.machines)}"


def word_for(outcome: Outcome) -> str:
    """There is no original here whose failure could be reproduced: a run that fails fails."""
    return "failed" if outcome.name == "REPRODUCES" else outcome.value


def outcomes_text(tally: RunTally) -> str:
    """``13 passed · 7 failed · 1 timed out``."""
    return " · ".join(
        [f"{tally.passed} passed", f"{tally.failed} failed"]
        + [f"{times} {outcome.value}" for outcome, times in tally.undecided.items()]
    )


# What ``biopsy debug repeat`` says and writes at the end: rates, kinds of failures, what to type next.

_CONFIDENCE = 0.99  # of the advice at the end


def say_result(console: Console, tally: RunTally, args: argparse.Namespace, seconds: float) -> None:
    """What was measured, and what to type next."""
    console.note("")
    console.say(f"{count(tally.runs, 'iteration')}   {outcomes_text(tally)} · {seconds:.1f} s")
    if tally.decided:
        left_out = f", the {tally.runs - tally.decided} others left out" if tally.undecided else ""
        console.say(f"{'pass rate':<{COLUMN}} {rate_text(tally.passed, tally.decided)}{left_out}")
    head = "failures"
    for kind in sorted(tally.kinds, key=lambda kind: -kind.times):
        console.say(f"{head:<{COLUMN}} {kind.times} x {kind.reason}, first in iteration {kind.first}")
        head = ""
    if tally.runs:
        console.say(finished_line(tally.passed, tally.runs))
    if args.artifacts and args.art_dir.is_dir():
        console.say(f"{'artifacts':<{COLUMN}} {args.art_dir}, in good, bad and other")
    if tally.decided:
        head = "Next"
        console.note("")
        for line in _advice(tally, args.check):
            console.note(f"{head:<8} {line}")
            head = ""


def _advice(tally: RunTally, command: Sequence[str]) -> list[str]:
    lower, upper = interval(tally.failed, tally.decided)
    if not tally.failed:
        return [
            f"it may still fail, in up to {100 * upper:.2g} % of runs; go on until it does:",
            f"biopsy debug repeat --until bad --check {line_of(command)}",
        ]
    if not tally.passed:
        return [
            f"it failed every time, but may pass in up to {100 * (1 - lower):.2g} % of runs; more iterations tell",
            _reduction(command),
        ]
    sure = runs_needed(lower, _CONFIDENCE)
    likely = runs_needed(tally.failed / tally.decided, _CONFIDENCE)
    return [
        f"a candidate that passes {sure} times in a row is {100 * _CONFIDENCE:.0f} % sure not to pass by luck",
        f"({likely} times would do if the true rate is the one measured; more iterations narrow it down)",
        _reduction(command, "--repeat", str(sure)),
    ]


def _reduction(command: Sequence[str], *options: str) -> str:
    """The line that reduces the model that a command looks at, if it names one alone."""
    models = {word for word in command if word.endswith(".onnx") and Path(word).is_file()}
    if len(models) != 1:
        return " ".join(("biopsy debug reduce MODEL", *options, "--check ... {}"))
    (model,) = models
    words = (
        "biopsy",
        "debug",
        "reduce",
        as_word(Path(model)),
        "-o",
        output_word("reduced.onnx", Path(model)),
        *options,
    )
    check = ("{}" if word == model else word for word in command)
    return line_of((*words, "--check", *check))


def sections(
    args: argparse.Namespace, tally: RunTally, progress: RepeatProgress, *, interrupted: bool
) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.findings.answers import repeat_tree, repeat_verdict

    return {
        "verdict": repeat_verdict(tally),
        "versions": versions_tree(),
        "search": progress.history.tree(),
        "repeat": repeat_tree(tally, args.check, args.until, interrupted=interrupted),
    }
