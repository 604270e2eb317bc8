"""Before the search: the original must fail, and a model of one Identity node should not."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from biopsy import errors, events
from biopsy.checks.interactive import UndoError
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.signature import Signature, signature_of
from biopsy.model.identity import identity_of
from biopsy.model.random_operators import random_words
from biopsy.reduction.driver import Driver
from biopsy.reduction.steadiness import Steadiness
from biopsy.reduction.trials import Trial


def preflight(driver: Driver, steadiness: Steadiness) -> None:
    """Check the original, which must fail, and a one-node Identity model, which should not.

    Raises OriginalPasses if the original passes, CheckError if the check cannot say.
    """
    trials = driver.trials
    trials.reference = _remembered_signature(driver)
    trial = driver.original("original", "the original model")
    if driver.check.stoppable:
        trials.ahead(iter([trial]))
        driver.problem.prepare()  # while the check runs
    judged, tries = _checked_original(steadiness, trial)
    if judged.outcome is not Outcome.REPRODUCES:
        raise _original_passes(driver, judged, tries)
    if trials.reference is None:
        trials.reference = signature_of(judged.evidence)
        if trials.journal is not None:
            trials.journal.note("signature", json.dumps(asdict(trials.reference)))
    driver.check.expect(judged.evidence.seconds)
    driver.best = driver.problem.whole
    driver.listener(events.OriginalFails(_described(trials.reference, judged), judged.reason, judged.evidence.seconds))
    _warn(driver, judged)
    trials.limited = True
    if driver.check.automatic:
        identity = Trial([identity_of(driver.problem.index)], 1, "identity", "a one-node Identity model")
        if trials.jobs > 1:
            trials.ahead(iter([identity]))
        steadiness.begin(trial, tries)
        _try_identity(driver, identity)


def _warn(driver: Driver, judged: Judged) -> None:
    """Say what makes the failure worth less: random operators where values are compared, and what the check hints."""
    told = [judged.evidence.verdict.hint]
    if judged.evidence.verdict.stage in {"", "compare"}:
        told.append(random_words(driver.problem.index) or "")
    for text in filter(None, told):
        driver.listener(events.Remark(text, grave=True))


def _checked_original(steadiness: Steadiness, trial: Trial) -> tuple[Judged, int]:
    while True:
        try:
            return steadiness.failure(lambda: trial, at_once=True)
        except UndoError:
            continue  # there is no answer before the first one: ask again


def _remembered_signature(driver: Driver) -> Signature | None:
    """The signature that an interrupted reduction was after: it must stay the same one."""
    journal = driver.trials.journal
    noted = journal.noted("signature") if journal is not None else None
    if noted is None:
        return None
    found = json.loads(noted)
    return Signature(**{**found, "outputs": tuple(found["outputs"])})


def _described(signature: Signature, judged: Judged) -> str:
    return judged.reason if "matches" in judged.reason else str(signature)


def _original_passes(driver: Driver, judged: Judged, tries: int) -> errors.BiopsyError:
    path = driver.workspace.candidate
    line = driver.check.line(driver.problem.index.path or path)
    if judged.outcome is Outcome.INVALID:
        return errors.CheckError(
            f"the check cannot say whether the original model fails: {judged.reason}", next_steps=[line]
        )
    tried = "" if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: "
    often = f" in {tries} runs" if tries > 1 else ""
    message = (
        f"the original model does not fail this check ({tried}{judged.reason}{often}), so there is nothing to reduce.\n"
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
    judged = driver.trials.again(driver.original("marked", "the original, every tensor an output", boundary))
    if judged.outcome is Outcome.REPRODUCES:
        return (
            "but with every intermediate tensor marked as an output it fails: a wrong value inside is masked later.\n"
            "          give --mark-intermediate to reduce from there"
        )
    return "passes  also with every intermediate tensor marked as an output"


def _try_identity(driver: Driver, trial: Trial) -> None:
    try:
        judged = driver.trials.again(trial)
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
