"""How a command ends that runs a check again and again: its last line, and its status where the check said nothing."""

from __future__ import annotations

from collections.abc import Mapping

from biopsy import errors
from biopsy.checks.outcome import Outcome


def finished_line(passed: int, runs: int) -> str:
    """``Finished 5 iteration(s) | Passed: 5/5 | Pass Rate: 100.0%``; a run that did not pass counts as failed."""
    return f"Finished {runs} iteration(s) | Passed: {passed}/{runs} | Pass Rate: {100.0 * passed / runs}%"


def inconclusive(outcomes: Mapping[Outcome, int], runs: str) -> errors.CheckError | None:
    """The error to end with where no run has passed or failed, of which nothing can be concluded; else None.

    ``runs`` is what they are called, in the plural.
    """
    if not outcomes or outcomes.get(Outcome.PASSES, 0) + outcomes.get(Outcome.REPRODUCES, 0):
        return None
    told = ", ".join(f"{times} {outcome.value}" for outcome, times in outcomes.items() if times)
    return errors.CheckError(
        f"nothing was concluded: none of the {runs} passed or failed ({told})",
        next_steps=["run the line above by hand: the check must end with 0 where it passes, 1 where it fails"],
    )
