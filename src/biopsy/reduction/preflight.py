"""Before the search: the original must fail, by more than rounding, and a model of one Identity node must not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

from biopsy import errors, events
from biopsy.checks.journal import FRESH
from biopsy.checks.judge import Rules, Signature, same_failure, signature_of, status_text
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import ErrorSize, error_size, kind_of, may_be_rounding, worst_of
from biopsy.model.nodes import random_words
from biopsy.model.slice import identity_bytes, identity_of
from biopsy.records import plain, record_of
from biopsy.reduction.driver import Driver
from biopsy.session.checked_search import Flakiness
from biopsy.session.oracle import Oracle, Remedy
from biopsy.session.trial import IDENTITY, MARKED, ORIGINAL, ROUNDING, Trial
from biopsy.text import line_of, option_line

_NOTE = "signature"

_UNMASKED = "the outputs are right; an inner tensor is wrong: continuing as with --mark-intermediate"


def preflight(
    driver: Driver, flakiness: Flakiness, *, allow_vacuous: bool, beside: bool = False
) -> tuple[Judged, ErrorSize | None]:
    """Check the original, which must fail, and a one-node Identity model, which must not unless that is allowed.

    ``beside``: once the original has failed, the rest may be asked while the search begins, if several checks may run.
    Where the original's outputs are right and an inner tensor is wrong, every tensor of a candidate becomes an output
    from then on if the problem leaves that open.

    Returns how the original fails, and the size of its error, None where the check tells none. Raises OriginalPasses if
    the original passes, CheckError if the check cannot say, or fails on anything.
    """
    oracle, failure, problem = driver.oracle, driver.oracle.failure, driver.problem
    failure.reference = _resumed_signature(driver)
    trial = driver.trial(problem.whole, ORIGINAL, "the original model")
    if oracle.check.stoppable:
        oracle.ahead(iter([trial]))
        problem.types.prepare()  # while the check runs
    judged, tries = flakiness.failure(lambda: trial, at_once=True)
    if judged.outcome is not Outcome.REPRODUCES:
        marked = _marked(driver, judged)
        # An engine may also fail to build a model with other outputs, which is another failure than a wrong value.
        shows_wrong_values = (
            marked is not None and marked.outcome is Outcome.REPRODUCES and marked.evidence.verdict.stage == "compare"
        )
        if problem.mark_intermediate is not None or not shows_wrong_values:
            raise _original_passes(driver, judged, tries, marked)
        driver.listener(events.Remark(_UNMASKED))
        problem.mark_intermediate = True
        trial = driver.trial(problem.whole, ORIGINAL, "the original model, every tensor an output")
        judged, tries = flakiness.failure(lambda: trial, at_once=True)
        if judged.outcome is not Outcome.REPRODUCES:
            raise _original_passes(driver, judged, tries, None)
    signature, verdict = signature_of(judged.evidence), judged.evidence.verdict
    if failure.reference is None:
        oracle.memory.note(_NOTE, json.dumps(plain(signature)))
    failure.reference = signature  # also where one is remembered: that one may be forged, and wider
    oracle.check.expect(judged.evidence.seconds)
    driver.best = problem.whole
    counted = judged.reason if "matches" in judged.reason else str(signature)
    driver.listener(events.OriginalFails(counted, judged.reason, judged.evidence.seconds))
    random = random_words(problem.index) if verdict.stage in {"", "compare"} else None
    for text in filter(None, [verdict.hint, random]):  # what makes the failure worth less
        driver.listener(events.Remark(text, warning=True))
    with oracle.budget.enforced():
        error = weigh_original(oracle, trial, verdict)
        if oracle.check.automatic:
            model = identity_of(problem.index)
            identity = Trial(parts=[model], size=1, stage=IDENTITY, description="a one-node Identity model")
            if beside and oracle.jobs > 1 and tries == 1 and oracle.memory.repetitions == 1:
                _look_closer_beside(driver, flakiness, trial, identity, allow_vacuous)
            else:
                flakiness.begin(trial, tries)
                _try_identity(driver, identity, allow_vacuous=allow_vacuous)
    return judged, error


def _look_closer_beside(
    driver: Driver, flakiness: Flakiness, original: Trial, identity: Trial, allow_vacuous: bool
) -> None:
    """Repeat the original and try the Identity model while the search begins.

    If the failure is known to be flaky by then, the Identity model is tried at once: how often it must pass is known.
    """

    def heed(answer: Judged | errors.CheckError) -> Remedy | None:
        if isinstance(answer, errors.CheckError) or answer.outcome is not Outcome.REPRODUCES:
            return None
        vacuous = partial(_vacuous, driver, answer, is_allowed=allow_vacuous)
        if not allow_vacuous:
            return vacuous
        vacuous()
        return None

    tried = partial(_try_identity, driver, identity, allow_vacuous=allow_vacuous)
    flakiness.begin_beside(original, tried)
    if flakiness.is_flaky:
        tried()
    else:
        driver.oracle.beside.ask(identity, heed)


def _resumed_signature(driver: Driver) -> Signature | None:
    """The signature that an interrupted reduction was after: it must stay the same one."""
    memory = driver.oracle.memory
    noted = memory.noted(_NOTE)
    if noted is None:
        return None
    try:
        return record_of(Signature, json.loads(noted))
    except (ValueError, RecursionError) as error:
        raise errors.UsageError(
            f"the journal {memory.journal_path} does not tell which failure it is about: {error}",
            kept="the journal, as it is",
            next_steps=[FRESH],
        ) from error


def _original_passes(driver: Driver, judged: Judged, tries: int, marked: Judged | None) -> errors.BiopsyError:
    check, verdict = driver.oracle.check, judged.evidence.verdict
    line = check.line(driver.problem.index.path or driver.workspace.candidate)
    if judged.outcome is Outcome.INVALID:
        return errors.CheckError(
            f"the check cannot say whether the original model fails: {judged.reason}", next_steps=[line]
        )
    tried = "" if judged.outcome is Outcome.PASSES else f"{judged.outcome.value}: "
    often = f" in {tries} runs" if tries > 1 else ""
    message = (
        f"the original model does not fail this check{often} ({tried}{judged.reason}), so there is nothing to reduce."
    )
    details = [f"  tried   {line}", *(_masked(driver, marked) if marked is not None else ())]
    if not check.automatic:
        steps = []
    elif uncounted := _uncounted(judged, driver.oracle.failure.rules):
        steps = [uncounted]
    elif marked is not None and marked.outcome is Outcome.REPRODUCES:
        steps = []  # the details say what to type
    elif verdict.hint:
        steps = [verdict.hint]
    elif verdict.outcome == "passes":
        steps = ["give the inputs that it fails with (--load-inputs), or smaller tolerances (--atol, --rtol)"]
    else:
        steps = ["run that line by hand; if your check shows a failure otherwise, give --fail-regex or --fail-code"]
        if check.sees_values:
            steps.append(
                "if only an inner tensor is wrong, record all of them (--onnx-outputs mark all), and check with"
                " biopsy run {} --load-inputs layerwise.json --load-outputs golden.json"
            )
    return errors.OriginalPasses(message, details=details, next_steps=steps)


def _marked(driver: Driver, judged: Judged) -> Judged | None:
    """What the check says of the original with every tensor an output; None if that cannot be asked, or says nothing.

    A wrong tensor can be masked by what follows it.
    """
    problem, check = driver.problem, driver.oracle.check
    if judged.outcome is Outcome.INVALID or not problem.may_cut_outputs or problem.mark_intermediate:
        return None
    if not check.sees_values:
        return None
    if not check.automatic:
        driver.listener(
            events.Remark("the original once more, every tensor an output: is a wrong value inside masked later?")
        )
    return driver.oracle.again(driver.trial(problem.whole, MARKED, "the original, every tensor an output", marked=True))


def _masked(driver: Driver, judged: Judged) -> list[str]:
    """Whether the failure shows once every tensor is an output, and what to type if it does or might."""
    if judged.outcome is Outcome.REPRODUCES:
        return [
            "  but with every intermediate tensor marked as an output it fails: a wrong value inside is masked later.",
            "          give --mark-intermediate to reduce from there",
        ]
    marked = "with every intermediate tensor marked as an output"
    uncounted = _uncounted(judged, driver.oracle.failure.rules)
    if judged.outcome is not Outcome.PASSES or uncounted:
        return [f"  fails   otherwise {marked}: {judged.reason}"]
    return [] if judged.evidence.verdict.hint else [f"  passes  also {marked}"]


def _uncounted(judged: Judged, rules: Rules) -> str:
    """What to leave out, where the options alone keep a failure from being one; else ""."""
    status = judged.evidence.status
    name = status_text(status).removeprefix("signal ")
    if status and rules.fail_codes and status not in rules.fail_codes:
        return f"{name} is not among --fail-code {' '.join(map(str, sorted(rules.fail_codes)))}: leave it out"
    if status and status in rules.ignored_codes:
        return f"{name} is among --ignore-fail-code: leave it out"
    return ""


def _try_identity(driver: Driver, trial: Trial, *, allow_vacuous: bool) -> None:
    """Raise CheckError if a model of one Identity node fails in the same way, in any of the runs that a pass needs."""
    for left in range(driver.oracle.memory.repetitions, 0, -1):
        try:
            judged = driver.oracle.again(trial, left)
        except errors.CheckChanged:
            raise
        except errors.CheckError:
            return  # how an engine or a script fails on a stranger's inputs says nothing of the user's model
        if judged.outcome is Outcome.REPRODUCES:
            _vacuous(driver, judged, is_allowed=allow_vacuous)
        if judged.outcome is not Outcome.PASSES:
            return


def _vacuous(driver: Driver, judged: Judged, *, is_allowed: bool) -> None:
    """Say that the check fails on anything. Raises VacuousCheck unless the user allows that."""
    if is_allowed:
        driver.listener(
            events.Remark(
                "a one-node Identity model fails this check in the same way: the check fails on anything, and the"
                " result says nothing",
                warning=True,
            )
        )
        return
    oracle, index = driver.oracle, driver.problem.index
    original, identity = oracle.failure.reference, signature_of(judged.evidence)
    assert original is not None
    ends = last_words(original, identity, oracle.failure.rules)
    plain = Trial(parts=[identity_bytes()], size=1, stage=IDENTITY, description="a one-node Identity model of opset 17")
    alike = []
    try:
        if oracle.again(plain).outcome is Outcome.PASSES:  # then what makes it fail is what all models like it have
            alike.append(
                "  passes   a model of one Identity node of opset 17 and IR version 8, float32: what fails is no node, "
                f"but opset {index.opset}, IR version {index.ir_version}, or the type of the first input"
            )
    except errors.CheckChanged:
        raise
    except errors.CheckError:
        pass
    reason = [telling_apart(original, identity)] if ends else [] if alike else [_likeliest_reason(oracle, identity)]
    # Where nothing else names the failure, only its last words speak for it.
    is_named = identity.reported or identity.raised or identity.status < 0 or not identity.words.exact
    printed = [] if is_named else [f"  printed  {shown_words(identity)}"]
    shown = [f"  original   {ends[0]}", f"  Identity   {ends[1]}"] if ends else printed
    raise errors.VacuousCheck(
        f"a model of one Identity node fails this check in the same way ({judged.reason}): the check fails on anything,"
        " and a reduction would say nothing.",
        details=[f"  tried   {oracle.check.line(index.path or driver.workspace.candidate)}", *shown, *alike],
        kept="nothing was written",
        next_steps=[
            *reason,
            "run that line by hand: it shows all that the check prints (--allow-vacuous-check reduces anyway)",
        ],
    )


def _likeliest_reason(oracle: Oracle, failure: Signature) -> str:
    """Why a check fails on anything, by what is known of it, and what to do about that."""
    if not oracle.check.names_candidate:
        return "the check does not name the candidate: write {} in it, where the path of the model belongs"
    if failure.stage in {"load", "build", "run"}:
        return "is the engine itself broken? 'biopsy doctor' tells, and 'biopsy run' on any small model"
    if failure.reported:
        return "does the check look at the candidate, {}, rather than at a file of its own?"
    return (
        "does the check fail before it compares? A wrong path does that, and so do input names of the whole model: read"
        " them from the candidate. So does a server that an earlier check started: --keep-processes lets it run on"
    )


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
    arbiter = (trial.check or oracle.check).arbiter() if rounding is None and may_be_rounding(mismatches) else None
    if arbiter is not None:
        asking = replace(trial, stage=ROUNDING, description="the original, judged against float64", check=arbiter)
        try:
            rounding = oracle.again(asking).evidence.verdict.rounding
        except errors.CheckChanged:
            raise
        except errors.CheckError:
            pass  # it was no question about a candidate
    if rounding is None or rounding.verdict != "rounding":
        oracle.failure.original = mismatches
        return error_size(mismatches, rounding)
    worst = worst_of(mismatches)
    advice = ""
    if worst is not None and worst.passing_atol is not None:
        advice = f" {option_line('--atol', f'{worst.output}:{worst.passing_atol:g}')} would pass."
    times = "" if rounding.times is None else f", {rounding.times:.3g} times that of plain float32"
    more = f" ({rounding.reason})" if rounding.reason else ""
    text = (
        f"the original's error is only rounding{times}{more}.{advice} The result will show where engines round"
        " differently, and no bug"
    )
    oracle.listener(events.Remark(text, warning=True))
    return error_size(mismatches, rounding)


# What the original and the result say at their end: a person must see it where only a status makes them alike.

_SHORTEST_HINT = 8
_LONGEST_SHOWN = 300


def last_words(original: Signature, result: Signature, rules: Rules) -> tuple[str, str] | None:
    """The ends of both if they mean different failures and the rules did not ask; None otherwise.

    What a signal, a limit or the check's own report says is stronger than any last line.
    """
    stronger = original.status < 0 or original.timed_out or original.out_of_memory or original.reported
    if stronger or rules.decide_alone or rules.match not in {"status", "auto"}:
        return None
    if same_failure(result, original, "message"):
        return None
    return shown_words(original), shown_words(result)


def shown_words(signature: Signature) -> str:
    """The end of what was printed, as one line of a message."""
    text = " ".join(signature.words.exact.split())
    return text[:_LONGEST_SHOWN] or "(nothing)"


def telling_apart(original: Signature, other: Signature) -> str:
    """The options that tell two failures apart that have the same status."""
    match = "message" if same_failure(other, original, "auto") else "auto"
    pieces = [piece.strip(" :;,.") for piece in re.split(r"(?<!\w)_(?!\w)", original.words.meaning)]
    usable = [
        piece
        for piece in pieces
        if len(piece) >= _SHORTEST_HINT and piece in original.words.exact and piece not in other.words.exact
    ]
    regex = re.escape(max(usable, key=len)).replace("\\ ", " ") if usable else ""
    named = f"; --fail-regex {line_of([regex])} names the one you are after" if regex else ""
    return f"--match {match} tells them apart{named}"
