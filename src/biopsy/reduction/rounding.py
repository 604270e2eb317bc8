"""Before the search: how large the original's mismatch is, and whether it is more than rounding at all."""

from __future__ import annotations

from dataclasses import replace

from biopsy import errors, events
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import (
    ErrorSize,
    Mismatch,
    Rounding,
    error_size,
    kind_of,
    may_be_rounding,
    worst_of,
)
from biopsy.session.oracle import Oracle
from biopsy.session.stage import ROUNDING
from biopsy.session.trial import Trial
from biopsy.shell_words import option_line


def weigh_original(oracle: Oracle, trial: Trial, verdict: VerdictFile) -> ErrorSize | None:
    """The size of the original's mismatch, which candidates are held against from now on; None if it is none.

    If it may be only rounding, the check is asked once more, with a run in float64. If it is, that is told, and no
    candidate is held against it: rounding is then what is searched for. Does nothing where the user's own codes or
    expressions decide, or any failure counts, or the check tells no sizes.
    """
    rules = oracle.failure.rules
    if rules.decide_alone or rules.match == "any":
        return None
    mismatches, rounding = verdict.mismatches, verdict.rounding  # as it fails now: a journal may be forged
    if kind_of(mismatches) != "mismatch":
        return None
    if rounding is None and may_be_rounding(mismatches):
        rounding = _asked(oracle, trial)
    if rounding is not None and rounding.verdict == "rounding":
        oracle.listener(events.Remark(_only_rounding(mismatches, rounding), warning=True))
    else:
        oracle.failure.original = mismatches
    return error_size(mismatches, rounding)


def _asked(oracle: Oracle, trial: Trial) -> Rounding | None:
    arbiter = (trial.check or oracle.check).arbiter()
    if arbiter is None:
        return None
    asking = replace(trial, stage=ROUNDING, description="the original, judged against float64", check=arbiter)
    try:
        return oracle.again(asking).evidence.verdict.rounding
    except errors.CheckChanged:
        raise
    except errors.CheckError:
        return None  # it was no question about a candidate


def _only_rounding(mismatches: tuple[Mismatch, ...], rounding: Rounding) -> str:
    worst = worst_of(mismatches)
    times = "" if rounding.times is None else f", {rounding.times:.3g} times that of plain float32"
    passing = None if worst is None else worst.passing_atol
    advice = ""
    if worst is not None and passing is not None:
        advice = f" {option_line('--atol', f'{worst.output}:{passing:g}')} would pass."
    more = f" ({rounding.reason})" if rounding.reason else ""
    return (
        f"the original's error is only rounding{times}{more}.{advice} The result will show where engines round"
        " differently, and no bug"
    )
