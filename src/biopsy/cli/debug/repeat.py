"""``biopsy debug repeat``: runs a command many times, tells how often and how it fails, and sorts its files."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import parse
from biopsy.checks.journal import read_iterations, write_iterations
from biopsy.checks.judge import RepeatedRun, RunTally, interval, rate_text, runs_needed
from biopsy.checks.outcome import Evidence, Judged, Outcome, write_iteration
from biopsy.checks.task import NO_CANDIDATE
from biopsy.checks.words import as_word, output_word
from biopsy.cli.arguments import checks, types
from biopsy.cli.arguments.declared import option
from biopsy.cli.console import COLUMN, Console
from biopsy.cli.debug import checking, other_machines
from biopsy.cli.progress import Progress, finished_line, inconclusive, running_text, time_left
from biopsy.cli.report import ReportOption
from biopsy.findings.report import versions_tree
from biopsy.processes import cleanup
from biopsy.processes.writing import require_writable
from biopsy.session.machines import OtherMachines, tell_of_machines
from biopsy.session.pool import Places, repeated
from biopsy.session.trial import cannot_run
from biopsy.text import count, line_of

REST_OPTIONS = checks.REST_OPTIONS

EPILOG = """\
examples:
  How often does it fail?
    biopsy debug repeat --until 50 --check biopsy run model.onnx --onnxrt --validate
  Keep the files of each run, until one fails:
    biopsy debug repeat --until bad --artifacts replay.json --art-dir replays \\
        --check ./build_and_test.sh replay.json
  On all machines of a Ray cluster, as many at once as they have GPUs:
    biopsy debug repeat --until 500 --on ray --resources GPU=1 --check biopsy run model.onnx --trt --onnxrt

exit status of the command: 0 passes; 125 cannot say; 126 and 127 could not be run; any other fails.

exit status: 0 if the command ran as often as wanted, whether it passed or failed (--report writes what was
measured); 4 if it could not be run; 5 if interrupted, with what was measured so far.
"""


class RepeatedCheck(
    other_machines.MachineOptions,
    checks.BudgetOptions,
    checks.CheckOptions,
    checks.ArtifactOptions,
    checks.IterationOptions,
    checks.ReplayOptions,
    ReportOption,
):
    """All options of ``debug repeat``."""

    until: int | Literal["good", "bad"] = option(
        "--until",
        type=types.until,
        required=True,
        metavar="N|good|bad",
        meaning="stop after N runs, or after the first that passes (good) or fails (bad)",
    )

    @property
    def command(self) -> list[str]:
        """The words of the command. Raises UsageError if there are none."""
        if not self.check:
            raise errors.UsageError("there is no command to run", next_steps=["--check COMMAND ...    at the end"])
        return self.check

    @property
    def unnamed(self) -> list[str]:
        """``--iter-info``, if it is given and the words of the command do not name its file."""
        is_named = self.iter_info is None or parse(self.command).names_file(self.iter_info)
        return [] if is_named else ["--iter-info"]

    def require_possible(self) -> None:
        """Raise UsageError for options that would fail later, or distort the measured rate."""
        shared = [*(["--artifacts"] if self.artifacts else []), *self.unnamed]
        if self.on is None and self.jobs is not None and self.jobs > 1 and shared:
            why = f", which the check does not name as {self.iter_info}" if shared == ["--iter-info"] else ""
            raise errors.UsageError(
                f"with --jobs {self.jobs} several runs would share the files of {' and '.join(shared)}{why}",
                next_steps=["leave --jobs out"],
            )
        for path in filter(None, (self.events, self.iter_info, self.save_debug_replay)):
            require_writable(path)

    def known(self, times: int | None) -> list[RepeatedRun]:
        """The iterations of a replay, at most ``times``; it tells no reasons, so all failures are of one kind."""
        if self.load_debug_replay is None:
            return []
        reason = f"by the replay {self.load_debug_replay}"
        passes = Judged(Outcome.PASSES, reason, Evidence(status=0))
        fails = Judged(Outcome.REPRODUCES, reason, Evidence(status=1))
        answers = read_iterations(self.load_debug_replay)[:times]
        return [RepeatedRun(number, passes if passed else fails) for number, passed in enumerate(answers)]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug repeat``."""
    RepeatedCheck.add(
        parser,
        without=("max_checks", "max_time", "iter_artifact", "no_remove_intermediate"),
        also={"report": ["--save-report"]},
        titles={"jobs": "", **dict.fromkeys(checks.ReplayOptions.declared, "files of each iteration")},
        jobs="run N at once (default: 1, since runs of one command often share files; not with --artifacts, "
        "which they would share; each run gets its own file of --iter-info if the check names it)",
        on=other_machines.meaning(runs="the command", sent="the files that it names"),
        check="the command to run, never through a shell; takes the rest of the line",
        match="how alike two failures must be to count as one kind",
        check_timeout="none",
        hide_fail_output="the first failure of each kind",
        load_debug_replay="count the iterations in this file, of --save-debug-replay here or in Polygraphy, instead of "
        "running them",
        save_debug_replay="after each iteration, save whether each has passed, as Polygraphy does",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command; returns 0 once it ran as often as wanted; raises what ends with another status."""
    options = RepeatedCheck.of(args)
    own = checking.own_run(options.command)
    if own is not None and own.model.is_file():
        checking.require_names(options.command, own.model)
    options.require_possible()
    refused = dict.fromkeys(options.unnamed, "no word of the check names it, so it is not sent")
    refused["--artifacts"] = other_machines.STAYS_THERE
    with other_machines.machines_of(args, console, refused) as machines:
        jobs = (options.jobs or 1) if machines is None else machines.jobs(options.jobs)
        report = options.report_file(console)
        tally = RunTally(options.rules().match)
        started, interrupted = time.monotonic(), False
        with RepeatProgress(console, options, jobs, machines) as progress:
            try:
                with checking.ended_politely():
                    _run(options, tally, progress, jobs, machines)
            except KeyboardInterrupt:
                interrupted = True
            seconds = time.monotonic() - started
            end: errors.BiopsyError | None = inconclusive(tally.outcomes, "runs")
            end = errors.Interrupted("runs in progress were ended, and are not counted") if interrupted else end
            status = progress.ended(0 if end is None else end.status)
            report.write(status, partial(_sections, options, tally, progress, interrupted))
            _say_result(console, tally, options, seconds)
        if end is not None:
            raise end
        return 0


def _run(
    options: RepeatedCheck, tally: RunTally, progress: RepeatProgress, jobs: int, machines: OtherMachines | None
) -> None:
    """Run the command, count the outcomes and keep its files."""
    check = CommandCheck(options.command, str(NO_CANDIDATE), options.check_timeout)
    line, artifacts = check.line(NO_CANDIDATE), options.sorted_files()
    last = {"good": Outcome.PASSES, "bad": Outcome.REPRODUCES}.get(str(options.until))
    times = options.until if isinstance(options.until, int) else None
    info, counted = IterationInfo(check, options.iter_info), list[int]()

    def begin(number: int, running: Collection[int]) -> CommandCheck:
        progress.show_run(number, line)
        return info.begin(number, running)

    progress.show_plan(line)
    known = options.known(times)
    passed: dict[int, bool] = {}
    with contextlib.ExitStack() as ends:
        ends.callback(lambda: info.close(counted[-1] if counted else None))
        again = repeated(begin, options.rules(), times, jobs, len(known), machines)
        for run in itertools.chain(known, ends.enter_context(contextlib.closing(again))):
            counted.append(run.number)
            if run.judged.outcome is Outcome.INFRASTRUCTURE:
                before = f"; {outcomes_text(tally)} before it" if tally.runs else ""
                kept = f"nothing was concluded from iteration {run.number}{before}"
                raise cannot_run(run.judged, line, kept=kept)
            missing = [] if run.number < len(known) else artifacts.sort(run.judged.outcome, run.number, "")
            progress.show_outcome(run, tally, missing, is_new=tally.add(run))
            if options.save_debug_replay is not None:
                if run.judged.outcome in {Outcome.PASSES, Outcome.REPRODUCES}:  # Polygraphy's format has no others
                    passed[run.number] = run.judged.outcome is Outcome.PASSES
                write_iterations(options.save_debug_replay, passed)
            if run.judged.outcome is last:
                return


class IterationInfo:
    """Writes the number of each run for its ``check`` to read: to ``file``, or to a file beside it if that is in use.

    The check gets the name of the other file. If ``file`` is None, nothing is written.
    """

    def __init__(self, check: CommandCheck, file: Path | None) -> None:
        self._check = check
        self._file = file
        self._places = None if file is None else Places(file)
        self._taken: dict[int, int] = {}  # the place of each run, by its number

    def begin(self, number: int, running: Collection[int]) -> CommandCheck:
        """Write the number of a run that begins while others are ``running``; returns the check to run."""
        if self._file is None or self._places is None:
            return self._check
        self._taken = {run: place for run, place in self._taken.items() if run in running}
        place = self._taken[number] = self._places.free(set(self._taken.values()))
        path = self._places.candidate(place)
        write_iteration(path, number)
        if path == self._file:
            return self._check
        cleanup.mark_existing_transient(path)
        return self._check.with_files({self._file: path})

    def close(self, last: int | None) -> None:
        """Once all runs have ended, leave the file with the number of the ``last`` counted run, and none beside it."""
        if self._file is not None and self._places is not None:
            self._places.clear(keep_last=True)
            if last is not None:
                write_iteration(self._file, last)


class RepeatProgress(Progress):
    """Shows a line for each new kind of failure, and on the live line how many runs have passed and failed."""

    def __init__(
        self, console: Console, options: RepeatedCheck, jobs: int, machines: OtherMachines | None = None
    ) -> None:
        super().__init__(console, options.events)
        self._options = options
        self._jobs = jobs
        self._machines = machines
        self._missing: set[Path] = set()

    def show_plan(self, line: str) -> None:
        """Show what will be run, and how often."""
        until = self._options.until
        often = {"good": "until it passes", "bad": "until it fails"}.get(str(until)) or count(int(until), "time")
        at_once = f", {self._jobs} at once" if self._jobs > 1 else ""
        self.line("repeat", f"{often}{at_once}: {line}")
        if self._machines is not None:
            tell_of_machines(self._machines, self)
        for file in self._options.artifacts:
            if file.exists():
                self(events.Remark(f"{file} exists already: it counts as a file of iteration 0"))

    def show_run(self, number: int, line: str) -> None:
        """Show that a run is about to begin."""
        self.keep(events.Checking(number=number, stage="repeat", description="run", line=line))
        if number == 0:
            self._live.update("repeat", "the first run")

    def show_outcome(self, run: RepeatedRun, tally: RunTally, missing: list[Path], *, is_new: bool) -> None:
        """Show a run that has ended and was counted."""
        judged, until = run.judged, self._options.until
        seconds = judged.evidence.seconds
        self.keep(judged.event(run.number, "repeat"))
        if judged.evidence.remark:
            self(events.Remark(judged.evidence.remark))
        # Nothing is reproduced here, as there is no original: a run only fails.
        word = "failed" if judged.outcome is Outcome.REPRODUCES else judged.outcome.value
        self._console.detail(f"  run {run.number}  {word}: {judged.reason} · {seconds:.2f} s")
        self.show_output(self._options, judged.evidence.output, is_first=is_new)
        if is_new:
            self.line("fails", f"iteration {run.number}: {judged.reason} · {seconds:.2f} s")
        for file in set(missing) - self._missing:
            self._missing.add(file)
            self(events.Remark(f"the artifact {file} was not there after iteration {run.number}"))
        if tally.runs == until:
            return
        machines = self._machines
        in_use = "" if machines is None else f" · {running_text(machines.running, machines.borrowed)}"
        each = (time.monotonic() - self._started) / tally.runs
        if isinstance(until, int):
            left = time_left(each * (until - tally.runs))
            text = f"{tally.runs} of {until} · {outcomes_text(tally)}{in_use} · {left}"
            self._live.update("repeat", text, tally.runs / until)
        else:
            self._live.update("repeat", f"{outcomes_text(tally)}{in_use} · {each:.2g} s each", 0.0)


def outcomes_text(tally: RunTally) -> str:
    """``13 passed · 7 failed · 1 timed out``."""
    others = [f"{times} {outcome.value}" for outcome, times in tally.undecided.items()]
    return " · ".join([f"{tally.passed} passed", f"{tally.failed} failed", *others])


_CONFIDENCE = 0.99  # of the number of repetitions that is proposed


def _say_result(console: Console, tally: RunTally, options: RepeatedCheck, seconds: float) -> None:
    """Show the rates, the kinds of failures, and what to type next."""
    console.note("")
    console.say(f"{count(tally.runs, 'iteration')}   {outcomes_text(tally)} · {seconds:.1f} s")
    if tally.decided:
        left_out = f", the {tally.runs - tally.decided} others left out" if tally.undecided else ""
        console.say(f"{'pass rate':<{COLUMN}} {rate_text(tally.passed, tally.decided)}{left_out}")
    for place, kind in enumerate(sorted(tally.kinds, key=lambda kind: -kind.times)):
        head = "" if place else "failures"
        console.say(f"{head:<{COLUMN}} {kind.times} x {kind.reason}, first in iteration {kind.first}")
    if tally.runs:
        console.say(finished_line(tally.passed, tally.runs))
    if options.artifacts and options.art_dir.is_dir():
        console.say(f"{'artifacts':<{COLUMN}} {options.art_dir}, in good, bad and other")
    if tally.decided:
        console.note("")
        for place, line in enumerate(_next_lines(tally, options.command)):
            console.note(f"{'' if place else 'Next':<8} {line}")


def _next_lines(tally: RunTally, command: list[str]) -> list[str]:
    """What the rate means, and what to type next."""
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
    cautious = runs_needed(lower, _CONFIDENCE)
    likely = runs_needed(tally.failed / tally.decided, _CONFIDENCE)
    return [
        f"a candidate that passes {cautious} times in a row is {100 * _CONFIDENCE:.0f} % sure not to pass by luck",
        f"({likely} times would do if the true rate is the one measured; more iterations narrow it down)",
        _reduction(command, "--repeat", str(cautious)),
    ]


def _reduction(command: list[str], *options: str) -> str:
    """The line that reduces the model of a command; a pattern of it unless the command names exactly one."""
    models = {word for word in command if word.endswith(".onnx") and Path(word).is_file()}
    if len(models) != 1:
        return " ".join(("biopsy debug reduce MODEL", *options, "--check ... {}"))
    (model,) = models
    written = ["-o", output_word("reduced.onnx", Path(model))]
    check = ("{}" if word == model else word for word in command)
    return line_of(["biopsy", "debug", "reduce", as_word(Path(model)), *written, *options, "--check", *check])


def _sections(
    options: RepeatedCheck, tally: RunTally, progress: RepeatProgress, interrupted: bool
) -> Mapping[str, Any]:
    """The sections of the report."""
    from biopsy.findings.answers import repeat_tree, repeat_verdict  # imports numpy

    return {
        "verdict": repeat_verdict(tally),
        "versions": versions_tree(),
        "search": progress.history.tree(),
        "repeat": repeat_tree(tally, options.command, options.until, interrupted=interrupted),
    }
