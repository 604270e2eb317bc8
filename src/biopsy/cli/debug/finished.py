"""The last line of a command that runs a check again and again, in the words that scripts around Polygraphy read."""

from __future__ import annotations


def finished_line(passed: int, runs: int) -> str:
    """``Finished 5 iteration(s) | Passed: 5/5 | Pass Rate: 100.0%``; a run that did not pass counts as failed."""
    return f"Finished {runs} iteration(s) | Passed: {passed}/{runs} | Pass Rate: {100.0 * passed / runs}%"
