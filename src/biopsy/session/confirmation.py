"""A result that only a journal vouches for: a person is asked about it once more."""

from __future__ import annotations

from biopsy import errors
from biopsy.checks.outcome import Outcome
from biopsy.session.oracle import Oracle
from biopsy.session.trial import Trial


def require_confirmed(oracle: Oracle, trial: Trial, wanted: Outcome, claim: str, kept: str) -> None:
    """Ask a person about a result that only a journal says they have seen: anybody may have written that.

    Raises CheckError, with what is ``kept``, if the answer is not the ``wanted`` outcome; ``claim`` says what the
    journal does. Checks that are no person are asked about every result, once it is written.
    """
    if oracle.check.automatic or oracle.memory.was_asked(trial):
        return
    judged = oracle.again(trial)
    if judged.outcome is wanted:
        return
    from biopsy.checks.journal import FRESH

    raise errors.CheckError(
        f"the journal says that {claim}, and you do not ({judged.outcome.value})", kept=kept, next_steps=[FRESH]
    )
