"""``biopsy debug repeat``: a command, run again and again; how often it fails, in which ways, and its files sorted."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors, events
from biopsy.checks.words import as_word
from biopsy.cli.arguments import checks, file_kinds, types
from biopsy.cli.check_output import say_output
from biopsy.cli.live_line import COLUMN
from biopsy.cli.progress import Progress, time_left
from biopsy.quantities import count
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.judge import Rules
    from biopsy.checks.outcome import Outcome
    from biopsy.checks.repetition import RepeatedRun, RunTally
    from biopsy.cli.console import Console

REST_OPTIONS = checks.REST_OPTIONS

_CONFIDENCE = 0.99  # of the advice at the end

_EPILOG = """\
examples:
  How often does it fail?
    biopsy debug repeat --until 50 --check biopsy run model.onnx --onnxrt --validate
  Keep what each run wrote, until one fails:
    biopsy debug repeat --until bad --artifacts replay.json --art-dir replays \\
        --check ./build_and_test.sh replay.json

exit status of the command: 0 passes, 125 cannot say, 126 and 127 mean that it could not be run; any other fails.

exit status: 0 if it was run as often as asked, whatever it said, for measuring failures is no failure (--save-report
tells what was measured); 4 if it could not be run; 5 if interrupted, with what was measured until then.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``debug repeat``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--until",
        type=types.until,
        required=True,
        metavar="N|good|bad",
        help="stop after N iterations, or after the first one that passes (good) or fails (bad)",
    )
    parser.add_argument(
        "--jobs",
        type=types.positive,
        default=1,
        metavar="N",
        help="run so many at once (default: 1, since runs of one command often share files; not with --artifacts or "
        "--iter-info, which they would share)",
    )
    group = parser.add_argument_group("the check")
    checks.add_command(group, "the command to run: the whole rest of the line, never through a shell")
    checks.add_rules(group, "how alike two failures must be to be counted as one kind")
    checks.add_timeout(group, "none")
    checks.add_shown_output(group, "the first failure of each kind")
    group = parser.add_argument_group("files of each iteration")
    checks.add_artifacts(group)
    checks.add_iteration_info(group)
    checks.add_events(group)
    group.add_argument("--save-report", type=file_kinds.WRITTEN, metavar="FILE", help="write what was measured as JSON")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command; returns 0 when it was run as often as asked, or raises what ends with another status."""
    from biopsy.checks.artifacts import Artifacts
    from biopsy.checks.repetition import RunTally

    _require_sense(args)
    rules = checks.rules_of(args)
    tally, artifacts = RunTally(rules.match), Artifacts(tuple(args.artifacts), args.art_dir)
    started, interrupted = time.monotonic(), False
    with checks.ended_politely(), RepeatProgress(console, args) as display:
        try:
            _run(args, rules, tally, artifacts, display)
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - started
    if args.save_report is not None:
        _save_report(args, tally, seconds, interrupted=interrupted)
    _say_result(console, tally, args, seconds)
    if interrupted:
        raise errors.Interrupted("what still ran was ended, and is not counted")
    return 0


def _require_sense(args: argparse.Namespace) -> None:
    """Raise UsageError for what would go wrong later, or spoil what is measured."""
    from biopsy.checks.artifacts import require_distinct
    from biopsy.filesystem.write import require_writable

    if not args.check:
        raise errors.UsageError("there is no command to run", next_steps=["--check COMMAND ...    at the end"])
    own = checks.own_run(args)
    if own is not None and own.model.is_file():
        checks.require_names(args, own.model)
    shared = [*(["--artifacts"] if args.artifacts else []), *(["--iter-info"] if args.iter_info else [])]
    if args.jobs > 1 and shared:
        raise errors.UsageError(
            f"with --jobs {args.jobs} several runs would share the files of {' and '.join(shared)}",
            next_steps=["leave --jobs out"],
        )
    written = {"--events": args.events, "--save-report": args.save_report, "--iter-info": args.iter_info}
    for option, path in written.items():
        if path is None:
            continue
        require_writable(path)
        if option != "--iter-info":  # that one is made anew for each run, as artifacts are
            require_distinct(args.artifacts, path)


def _run(
    args: argparse.Namespace, rules: Rules, tally: RunTally, artifacts: Artifacts, display: RepeatProgress
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
        display.begins(number, line)

    display.plan(line)
    with contextlib.closing(repeated(check, rules, times, args.jobs, before)) as runs:
        for run in runs:
            if run.judged.outcome is Outcome.INFRASTRUCTURE:
                raise _could_not_be_run(run, tally, line)
            missing = artifacts.sort(run.judged.outcome, run.number, "")
            display.ended(run, tally, missing, is_new=tally.add(run))
            if run.judged.outcome is last:
                return


def _could_not_be_run(run: RepeatedRun, tally: RunTally, line: str) -> errors.CheckError:
    before = f"; {_outcomes(tally)} before it" if tally.runs else ""
    return errors.CheckError(
        f"the check could not be run: {run.judged.reason}",
        kept=f"nothing was concluded from iteration {run.number}{before}",
        next_steps=[f"run it by hand: {line}"],
    )


class RepeatProgress(Progress):
    """What is shown while the command runs: a line for each new kind of failure, and one live line on a terminal."""

    def __init__(self, console: Console, args: argparse.Namespace) -> None:
        super().__init__(console, args.events)
        self._args = args
        self._told_missing: set[Path] = set()

    def plan(self, line: str) -> None:
        """Say what is going to happen."""
        until = self._args.until
        often = {"good": "until it passes", "bad": "until it fails"}.get(until) or count(until, "time")
        at_once = f", {self._args.jobs} at once" if self._args.jobs > 1 else ""
        self.line("repeat", f"{often}{at_once}: {line}")
        for file in self._args.artifacts:
            if file.exists():
                self(events.Remark(f"{file} is there already: it is taken for a file of iteration 0"))

    def begins(self, number: int, line: str) -> None:
        """A run is about to begin."""
        self._log.write(events.Checking(number, "repeat", "run", 0, 0, line))
        if number == 0:
            self._live.update("repeat", "the first one")

    def ended(self, run: RepeatedRun, tally: RunTally, missing: list[Path], *, is_new: bool) -> None:
        """A run has ended, and was counted."""
        judged = run.judged
        seconds = judged.evidence.seconds
        self._log.write(
            events.Checked(
                run.number, "repeat", judged.outcome.value, judged.reason, 0, 0, seconds, judged.evidence.output
            )
        )
        self._console.detail(f"  run {run.number}  {_word(judged.outcome)}: {judged.reason} · {seconds:.2f} s")
        if self._args.show_output or (is_new and not self._args.hide_fail_output):
            self._live.stop()
            say_output(self._console, judged.evidence.output, whole=self._args.show_output)
        if is_new:
            self.line("fails", f"iteration {run.number}: {judged.reason} · {seconds:.2f} s")
        for file in set(missing) - self._told_missing:
            self._told_missing.add(file)
            self(events.Remark(f"the artifact {file} was not there after iteration {run.number}"))
        if tally.runs != self._args.until:
            until = self._args.until
            done = tally.runs / until if isinstance(until, int) else 0.0
            self._live.update("repeat", self._progress(tally), done)

    def _progress(self, tally: RunTally) -> str:
        spent = time.monotonic() - self._started
        until = self._args.until
        if not isinstance(until, int):
            return f"{_outcomes(tally)} · {spent / tally.runs:.2g} s each"
        left = spent / tally.runs * (until - tally.runs)
        return f"{tally.runs} of {until} · {_outcomes(tally)} · {time_left(left)}"


def _word(outcome: Outcome) -> str:
    """There is no original here whose failure could be reproduced: a run that fails fails."""
    return "failed" if outcome.name == "REPRODUCES" else outcome.value


def _outcomes(tally: RunTally) -> str:
    """``13 passed · 7 failed · 1 timed out``."""
    return " · ".join(
        [f"{tally.passed} passed", f"{tally.failed} failed"]
        + [f"{times} {outcome.value}" for outcome, times in tally.undecided.items()]
    )


def _say_result(console: Console, tally: RunTally, args: argparse.Namespace, seconds: float) -> None:
    """What was measured, and what to do with it."""
    from biopsy.checks.repetition import rate_text

    console.note("")
    console.say(f"{count(tally.runs, 'iteration')}   {_outcomes(tally)} · {seconds:.1f} s")
    if tally.decided:
        left_out = f", the {tally.runs - tally.decided} others left out" if tally.undecided else ""
        console.say(f"{'pass rate':<{COLUMN}} {rate_text(tally.passed, tally.decided)}{left_out}")
    head = "failures"
    for kind in sorted(tally.kinds, key=lambda kind: -kind.times):
        console.say(f"{head:<{COLUMN}} {kind.times} x {kind.reason}, first in iteration {kind.first}")
        head = ""
    if args.artifacts and tally.runs:
        console.say(f"{'artifacts':<{COLUMN}} {args.art_dir}, in good, bad and other")
    if tally.decided:
        head = "Next"
        console.note("")
        for line in _advice(tally, args.check):
            console.note(f"{head:<8} {line}")
            head = ""


def _advice(tally: RunTally, command: Sequence[str]) -> list[str]:
    from biopsy.checks.repetition import interval, runs_needed

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
        f"only after {sure} passing runs in a row it is {100 * _CONFIDENCE:.0f} % sure that passing is no luck",
        f"({likely} if the rate is the measured one; more iterations tell it better)",
        _reduction(command, "--repeat", str(sure)),
    ]


def _reduction(command: Sequence[str], *options: str) -> str:
    """The line that reduces the model that a command looks at, if it names one alone."""
    models = {word for word in command if word.endswith(".onnx") and Path(word).is_file()}
    if len(models) != 1:
        return " ".join(("biopsy debug reduce MODEL", *options, "--check ... {}"))
    (model,) = models
    words = ("biopsy", "debug", "reduce", as_word(Path(model)), "-o", "reduced.onnx", *options)
    check = ("{}" if word == model else word for word in command)
    return line_of((*words, "--check", *check))


def _save_report(args: argparse.Namespace, tally: RunTally, seconds: float, *, interrupted: bool) -> None:
    from biopsy.checks.repetition import interval
    from biopsy.filesystem.write import write_whole

    found = {
        "command": args.check,
        "until": args.until,
        "interrupted": interrupted,
        "iterations": tally.runs,
        "passed": tally.passed,
        "failed": tally.failed,
        "others": {outcome.value: times for outcome, times in tally.undecided.items()},
        "pass_rate": tally.passed / tally.decided if tally.decided else None,
        "pass_rate_interval": interval(tally.passed, tally.decided),
        "failures": [{"reason": kind.reason, "times": kind.times, "first": kind.first} for kind in tally.kinds],
        "seconds": round(seconds, 3),
    }
    write_whole(args.save_report, [json.dumps(found, indent=4).encode(), b"\n"])
