"""What ``biopsy debug build`` says at the end: how many builds are bad, and which choices go with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from biopsy.checks.words import as_word
from biopsy.cli.debug.build.progress import BuildProgress, outcomes_text
from biopsy.cli.debug.finished import finished_line
from biopsy.cli.live_line import COLUMN
from biopsy.quantities import count
from biopsy.shell_words import line_of

_NEXT = "Next"

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.tactics.build_plan import BuildPlan
    from biopsy.tactics.building import BuildTally


USUAL_RECORD = "replay.json"
"""Where examples and proposed lines keep what an engine chose."""


def say_result(console: Console, plan: BuildPlan, tally: BuildTally, *, seconds: float, recorded: str) -> None:
    """What was counted, what bad builds share, and what to type next.

    ``recorded`` is the same command line with a record of what the engine chose.
    """
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
    verdict = list(verdict_lines(difference(tally.builds)))
    console.say(*verdict)
    has_advice = any(line.startswith(_NEXT) for line in verdict)
    for place, line in enumerate(_next(plan, tally, recorded)):
        console.note(f"{'' if has_advice or place else _NEXT:<{COLUMN}} {line}")


def _next(plan: BuildPlan, tally: BuildTally, recorded: str) -> Iterator[str]:
    """What to type next: a comparison only where there are two kinds of builds to compare."""
    from biopsy.checks.outcome import Outcome

    good, bad = tally.outcomes[Outcome.PASSES], tally.outcomes[Outcome.REPRODUCES]
    if good and bad and plan.record is not None:
        yield line_of(["biopsy", "debug", "diff-tactics", "--dir", as_word(plan.artifacts.folder)])
    elif good and bad:
        yield "with a record of what is chosen in each build:"
        yield recorded
    elif good and plan.until != "bad":
        yield "--until bad    goes on building until one fails"
    elif bad and not plan.variations:
        doctor = line_of(["biopsy", "doctor", plan.spec.name])
        yield f"--vary KEY=V1,V2    builds with other settings, as listed by: {doctor}"


def sections(plan: BuildPlan, tally: BuildTally, seconds: float, progress: BuildProgress) -> Mapping[str, Any]:
    """What a report tells."""
    from biopsy.report.builds import builds_tree, builds_verdict
    from biopsy.report.model_summary import model_tree_of
    from biopsy.report.versions import versions_tree
    from biopsy.tactics.build_findings import findings_of

    found, path = findings_of(plan, tally, seconds), plan.model.path
    return {
        "verdict": builds_verdict(found),
        "model": None if path is None else model_tree_of(path),
        "versions": versions_tree([plan.spec.text]),
        "search": progress.history.tree(),
        "builds": builds_tree(found),
    }


def _rate_line(key: str, tally: BuildTally) -> str:
    key_of = key.removeprefix("env.")
    kind = "environment" if key != key_of else "option"
    those = [
        build for build in tally.builds if any(choice.kind == kind and choice.value == key for choice in build.choices)
    ]
    bad = sum(build.is_bad for build in those)
    return f"{'':<{COLUMN}} {key:<32} {bad} of {len(those)} bad"
