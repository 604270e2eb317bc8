"""What ``biopsy debug build`` says at the end: how many builds are bad, and which choices go with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from biopsy.checks.words import as_word
from biopsy.cli.debug.build.progress import outcomes_text
from biopsy.cli.debug.finished import finished_line
from biopsy.cli.live_line import COLUMN
from biopsy.quantities import count
from biopsy.shell_words import line_of

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.tactics.building import BuildPlan, BuildTally


def say_result(console: Console, plan: BuildPlan, tally: BuildTally, seconds: float) -> None:
    """What was counted, what bad builds share, and what to type next."""
    from biopsy.checks.outcome import Outcome
    from biopsy.cli.inspect.diff_tactics import verdict_lines
    from biopsy.tactics.difference import difference

    console.note("")
    console.say(f"{count(tally.runs, 'build')}   {outcomes_text(tally)} · {seconds:.1f} s")
    if tally.runs:
        console.say(finished_line(tally.outcomes[Outcome.PASSES], tally.runs))
    for variation in plan.variations:
        for value in variation.values:
            console.say(_rate_line(f"{variation.key}={value}", tally))
    if plan.artifacts.files and plan.artifacts.folder.is_dir():
        console.say(f"{'files':<{COLUMN}} {plan.artifacts.folder}, in good, bad and other")
    if not tally.builds:
        return
    if plan.checks_building and tally.outcomes[Outcome.PASSES] == tally.runs:
        console.say(f"built {tally.runs} of {count(tally.runs, 'time')}")
        return
    console.note("")
    for line in verdict_lines(difference(tally.builds)):
        console.say(line)
    if plan.record is not None:
        words = ["biopsy", "debug", "diff-tactics", "--dir", as_word(plan.artifacts.folder)]
        console.note(f"{'Next':<{COLUMN}} {line_of(words)}")
    else:
        again = line_of(["biopsy", *sys.argv[1:3]])
        console.note(
            f"{'Next':<{COLUMN}} {again} ... --save-tactics replay.json    keeps what was chosen in each build"
        )


def _rate_line(key: str, tally: BuildTally) -> str:
    key_of = key.removeprefix("env.")
    kind = "environment" if key != key_of else "option"
    those = [
        build for build in tally.builds if any(choice.kind == kind and choice.value == key for choice in build.choices)
    ]
    bad = sum(build.is_bad for build in those)
    return f"{'':<{COLUMN}} {key:<32} {bad} of {len(those)} bad"
