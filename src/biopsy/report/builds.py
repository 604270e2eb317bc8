"""The sections of repeated builds and runs: how many failed, and what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from biopsy.checks.repetition import RunTally, interval
from biopsy.quantities import count
from biopsy.report.tree import Tree
from biopsy.report.verdict import verdict_tree
from biopsy.tactics.build_findings import BuildFindings
from biopsy.tactics.difference import Choice, ChoiceGroup, Difference

_MOST_GROUPS = 500
_MOST_KINDS = 200


def builds_tree(found: BuildFindings) -> Tree:
    """The key ``builds``: what was built with, what the check said of each build, what bad builds have in common."""
    return {
        "engine": found.engine,
        "version": found.version or None,
        "runs": found.runs,
        "outcomes": {outcome.value: times for outcome, times in found.outcomes.items()},
        "seconds": round(found.seconds, 3),
        "difference": difference_tree(found.difference),
    }


def builds_verdict(found: BuildFindings) -> Tree:
    """How many builds are bad, and what goes with it."""
    text = f"{found.bad} of {count(found.runs, 'build')} are bad."
    causes = [group.told.text for group in found.difference.decided]
    if causes:
        return verdict_tree("flaky", f"{text} It goes with {', '.join(causes[:3])}.")
    if not found.runs:
        return verdict_tree("unknown", "Nothing was built.")
    return verdict_tree("passes" if not found.bad else "fails" if not found.good else "flaky", text)


def difference_tree(found: Difference) -> Tree:
    """What bad builds have chosen more often than good ones, as plain values."""
    return {
        "good": found.good,
        "bad": found.bad,
        "tests": found.tests,
        "decided": len(found.decided),
        "more_builds": found.more,
        "groups": [_group_tree(group) for group in found.groups[:_MOST_GROUPS]],
    }


def _group_tree(group: ChoiceGroup) -> Tree:
    def plain(choice: Choice) -> dict[str, str]:
        return {"where": choice.where, "kind": choice.kind, "value": choice.value}

    return {
        "choices": [plain(choice) for choice in group.choices],
        "bad": group.table.bad,
        "good": group.table.good,
        "chance": group.chance,
        "adjusted": group.adjusted,
    }


def repeat_tree(tally: RunTally, command: Sequence[str], until: Any, *, interrupted: bool) -> Tree:
    """The key ``repeat``: how often a command passed, with the 95 % interval of that rate, and how it failed."""
    return {
        "command": list(command),
        "until": until,
        "interrupted": interrupted,
        "iterations": tally.runs,
        "passed": tally.passed,
        "failed": tally.failed,
        "others": {outcome.value: times for outcome, times in tally.undecided.items()},
        "pass_rate": tally.passed / tally.decided if tally.decided else None,
        "pass_rate_interval": list(interval(tally.passed, tally.decided)),
        "failures": [
            {"reason": kind.reason, "times": kind.times, "first": kind.first} for kind in tally.kinds[:_MOST_KINDS]
        ],
    }


def repeat_verdict(tally: RunTally) -> Tree:
    """How often the command failed."""
    text = f"It failed in {tally.failed} of {count(tally.decided, 'run')}."
    if not tally.decided:
        return verdict_tree("unknown", "No run has passed or failed.")
    return verdict_tree("passes" if not tally.failed else "fails" if not tally.passed else "flaky", text)
