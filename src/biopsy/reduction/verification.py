"""The last word on a reduction: the file as it was written must fail as the original does, and as often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature, signature_of
from biopsy.comparison.mismatch import ErrorSize, error_size
from biopsy.reduction.driver import Driver
from biopsy.reduction.last_words import doubt, last_words
from biopsy.session.flakiness import Flakiness
from biopsy.session.stage import FINAL
from biopsy.session.trial import Trial


@dataclass(frozen=True)
class Verification:
    """What the last check has shown: in how many runs the result failed once, its error, and how it was judged.

    ``last_words`` are what the original and the result say at their end where these tell of different failures.
    """

    tries: int = 0
    error: ErrorSize | None = None
    last_words: tuple[str, str] | None = None
    judged: Judged | None = None


def verified(
    driver: Driver, output: Path, flakiness: Flakiness, fresh: Callable[[], Trial], restore: Callable[[], None]
) -> Verification:
    """Check the result, of which ``fresh`` makes a trial, in processes of its own.

    Raises CheckError if it does not fail, or more rarely than the original; ``restore`` has written it again by then.
    """
    judged, tries = flakiness.failure(fresh)
    rates = None
    if judged.outcome is Outcome.REPRODUCES and tries > 1:
        rates = flakiness.rarer(fresh, tries, driver.original(FINAL, "the original once more"))
    if rates is not None:
        restore()
        raise _rarer(driver, output, *rates)
    if judged.outcome is not Outcome.REPRODUCES:
        restore()
        raise _not_verified(driver, output, judged, tries)
    verdict = judged.evidence.verdict
    driver.listener(events.Verified(str(output), 1, tries, judged.evidence.machine))
    words = _compared_last_words(driver, signature_of(judged.evidence))
    return Verification(tries, error_size(verdict.mismatches, verdict.rounding), words, judged)


def _compared_last_words(driver: Driver, result: Signature) -> tuple[str, str] | None:
    assert driver.reference is not None
    words = last_words(driver.reference, result, driver.oracle.failure.rules)
    if words is not None:
        text, *lines = doubt(driver.reference, result)
        driver.listener(events.Remark(text, warning=True, lines=tuple(lines)))
    return words


def _rarer(driver: Driver, output: Path, shown: str, original: str) -> errors.CheckError:
    return errors.CheckError(
        f"the original failed in {original} runs, the result only in {shown}: perhaps it is another failure that looks "
        "the same",
        kept=f"{output}, which fails now and then",
        next_steps=[
            driver.check.line(output),
            "if it is the same failure: --repeat 10, which takes a candidate that fails in one of ten runs",
            "if not: --fail-regex or --match message, so that the check tells them apart",
        ],
    )


def _not_verified(driver: Driver, output: Path, judged: Judged, tries: int) -> errors.CheckError:
    return errors.CheckError(
        f"the result does not fail when it is checked again ({judged.outcome.value}: {judged.reason}"
        f"{f', in {tries} runs' if tries > 1 else ''}): the check does not always say the same",
        kept=f"{output}, which failed once",
        next_steps=[driver.check.line(output)],
    )
