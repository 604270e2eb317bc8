"""Before the search: the original must fail, and a model of one Identity node should not."""

from __future__ import annotations

from dataclasses import replace

from biopsy import errors, events
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature, signature_of
from biopsy.model.identity import identity_of
from biopsy.reduction.driver import Driver, RestartError


def preflight(driver: Driver) -> None:
    """Check the original, which must fail, and a one-node Identity model, which should not.

    Raises OriginalPasses if the original passes, CheckError if the check cannot say.
    """
    judged = _check_original(driver)
    if judged.outcome is not Outcome.REPRODUCES:
        raise _original_passes(driver, judged)
    driver.reference = signature_of(judged.evidence)
    driver.check.expect(judged.evidence.seconds)
    driver.best = driver.problem.whole
    driver.listener(events.OriginalFails(_described(driver.reference, judged), judged.reason, judged.evidence.seconds))
    if driver.check.automatic:
        _try_identity(driver)


def _check_original(driver: Driver) -> Judged:
    whole = driver.problem.whole
    while True:
        try:
            return driver.check_once(whole, driver.boundary(whole), "original", "the original model")
        except RestartError:
            continue  # there is no answer before the first one: ask again


def _described(signature: Signature, judged: Judged) -> str:
    return judged.reason if "matches" in judged.reason else str(signature)


def _original_passes(driver: Driver, judged: Judged) -> errors.BiopsyError:
    path = driver.workspace.candidate
    line = driver.check.line(driver.problem.index.path or path)
    if judged.outcome is Outcome.INVALID:
        return errors.CheckError(
            f"the check cannot say whether the original model fails: {judged.reason}", next_steps=[line]
        )
    tried = "" if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: "
    message = (
        f"the original model does not fail this check ({tried}{judged.reason}), so there is nothing to reduce.\n"
        f"  tried   {line}"
    )
    if driver.problem.may_cut_outputs:
        message += f"\n  {_masked(driver)}"
    return errors.OriginalPasses(
        message,
        next_steps=["run that line by hand; if your check shows a failure otherwise, give --fail-regex or --fail-code"],
    )


def _masked(driver: Driver) -> str:
    """Whether the failure shows once every tensor is an output: a wrong tensor can be masked by what follows it."""
    boundary = replace(driver.problem.everything_marked(), places=driver.workspace.places)
    judged = driver.check_once(driver.problem.whole, boundary, "marked", "the original, every tensor an output")
    if judged.outcome is Outcome.REPRODUCES:
        return (
            "but with every intermediate tensor marked as an output it fails: a wrong value inside is masked later.\n"
            "          give --mark-intermediate to reduce from there"
        )
    return "passes  also with every intermediate tensor marked as an output"


def _try_identity(driver: Driver) -> None:
    try:
        judged = driver.check_bytes([identity_of(driver.problem.index)], 1, "identity", "a one-node Identity model")
    except errors.CheckError:
        return  # what an engine or a script makes of a stranger's inputs is no matter of the user's model
    if judged.outcome is Outcome.REPRODUCES:
        driver.listener(
            events.Remark(
                "a one-node Identity model fails this check in the same way: the check fails on anything, and the"
                " result will say nothing. Does it look at the candidate? Is its path right?",
                grave=True,
            )
        )
