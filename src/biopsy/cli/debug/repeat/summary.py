"""What ``biopsy debug repeat`` says and writes at the end: rates, kinds of failures, what to type next."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy.checks.words import as_word, output_word
from biopsy.cli.debug.finished import finished_line
from biopsy.cli.debug.repeat.progress import RepeatProgress, outcomes_text
from biopsy.cli.live_line import COLUMN
from biopsy.quantities import count
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from biopsy.checks.repetition import RunTally
    from biopsy.cli.console import Console

_CONFIDENCE = 0.99  # of the advice at the end


def say_result(console: Console, tally: RunTally, args: argparse.Namespace, seconds: float) -> None:
    """What was measured, and what to type next."""
    from biopsy.checks.repetition import rate_text

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
    from biopsy.report.builds import repeat_tree, repeat_verdict
    from biopsy.report.versions import versions_tree

    return {
        "verdict": repeat_verdict(tally),
        "versions": versions_tree(),
        "search": progress.history.tree(),
        "repeat": repeat_tree(tally, args.check, args.until, interrupted=interrupted),
    }
