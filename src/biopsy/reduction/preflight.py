"""The checks before a search: the original must fail, a model of one Identity node must not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial

from biopsy import errors, events
from biopsy.checks.command import ARBITER
from biopsy.checks.journal import FRESH
from biopsy.checks.judge import RUNS_TO_TELL_APART, Rules, Signature, same_failure, signature_of, status_text
from biopsy.checks.outcome import Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.comparison.mismatch import ErrorSize, error_size, kind_of, may_be_rounding, worst_of
from biopsy.model.nodes import warning_of_random
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
    """Check the original, which must fail, and a one-node Identity model, which must not (``allow_vacuous``: it may).

    ``beside``: once the original has failed, the other checks may run while the search begins. If only an inner tensor
    of the original is wrong and ``problem.mark_intermediate`` is None, every tensor of a candidate becomes an output.

    Returns how the original fails, and the size of its error if the check reports it. Raises OriginalPasses if the
    original passes, CheckError if the check cannot say whether it fails, or fails on any model.
    """
    oracle, failure, problem = driver.oracle, driver.oracle.failure, driver.problem
    failure.reference = _resumed_signature(driver)
    trial = driver.trial(problem.original, ORIGINAL, "the original model")
    if oracle.check.stoppable:
        oracle.ahead(iter([trial]))
        problem.types.prepare()  # while the check runs
    judged, tries = flakiness.failure(lambda: trial, at_once=True)
    if judged.outcome is not Outcome.REPRODUCES:
        marked = _marked(driver, judged)
        # With other outputs, an engine may also fail to build the model, which is another failure.
        has_wrong_values = (
            marked is not None and marked.outcome is Outcome.REPRODUCES and marked.evidence.verdict.stage == "compare"
        )
        if problem.mark_intermediate is not None or not has_wrong_values:
            raise _original_passes(driver, judged, tries, marked)
        driver.listener(events.Remark(_UNMASKED))
        problem.mark_intermediate = True
        trial = driver.trial(problem.original, ORIGINAL, "the original model, every tensor an output")
        judged, tries = flakiness.failure(lambda: trial, at_once=True)
        if judged.outcome is not Outcome.REPRODUCES:
            raise _original_passes(driver, judged, tries, None)
    signature, verdict = signature_of(judged.evidence), judged.evidence.verdict
    if failure.reference is None:
        oracle.memory.note(_NOTE, json.dumps(plain(signature)))
    failure.reference = signature  # not the one from the journal, which may be forged to match more failures
    oracle.check.expect(judged.evidence.seconds)
    driver.best = problem.original
    failure_text = judged.reason if "matches" in judged.reason else str(signature)
    driver.listener(events.OriginalFails(failure_text, judged.reason, judged.evidence.seconds))
    random = warning_of_random(problem.index) if verdict.stage in {"", "compare"} else None
    for text in filter(None, [verdict.hint, random]):
        driver.listener(events.Remark(text, warning=True))
    with oracle.budget.enforced():
        error = weigh_original(oracle, trial, verdict)
        if oracle.check.automatic:
            model = identity_of(problem.index)
            identity = Trial(parts=[model], size=1, stage=IDENTITY, description="a one-node Identity model")
            if beside and oracle.jobs > 1 and tries == 1 and oracle.memory.repetitions == 1:
                _repeat_beside(driver, flakiness, trial, identity, allow_vacuous)
            else:
                flakiness.begin(trial, tries)
                _try_identity(driver, identity, allow_vacuous=allow_vacuous)
    return judged, error


def _repeat_beside(driver: Driver, flakiness: Flakiness, original: Trial, identity: Trial, allow_vacuous: bool) -> None:
    """Repeat the original and try the Identity model while the search begins.

    If the failure is known to be flaky, so is the number of runs of the Identity model, which is then tried at once.
    """

    def heed(answer: Judged | errors.CheckError) -> Remedy | None:
        if isinstance(answer, errors.CheckError) or answer.outcome is not Outcome.REPRODUCES:
            passes = not isinstance(answer, errors.CheckError) and answer.outcome is Outcome.PASSES
            driver.identity_passed = 1 if passes else None
            return None
        vacuous = partial(_vacuous, driver, answer, is_allowed=allow_vacuous)
        if not allow_vacuous:
            return vacuous
        vacuous()
        return None

    try_identity = partial(_try_identity, driver, identity, allow_vacuous=allow_vacuous)
    flakiness.begin_beside(original, try_identity)
    if flakiness.is_flaky:
        try_identity()
    else:
        driver.oracle.beside.ask(identity, heed)


def _resumed_signature(driver: Driver) -> Signature | None:
    """The signature of the failure that an interrupted reduction searched; None without one."""
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
    elif check.given:
        steps = [f"call it by hand: {check.given}, and returns True for a model that fails"]
    else:
        steps = ["run that line by hand; if your check shows a failure otherwise, give --fail-regex or --fail-code"]
        if check.sees_values:
            steps.append(
                "if only an inner tensor is wrong, record all of them (--onnx-outputs mark all), and check with"
                " biopsy run {} --load-inputs layerwise.json --load-outputs golden.json"
            )
    runs = tries if judged.outcome is Outcome.PASSES and not driver.problem.mark_intermediate else 0
    model = str(driver.problem.index.path or "")
    return errors.OriginalPasses(message, model=model, runs=runs, details=details, next_steps=steps)


def _marked(driver: Driver, judged: Judged) -> Judged | None:
    """The check's answer about the original with every tensor as an output, which shows tensors that are masked later.

    None if the check cannot be asked, or does not look at values.
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
    return driver.oracle.again(
        driver.trial(problem.original, MARKED, "the original, every tensor an output", marked=True)
    )


def _masked(driver: Driver, judged: Judged) -> list[str]:
    """Details on the check with every tensor as an output: its answer, and what to type if it fails."""
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
    """The option to leave out if only options keep the failure from counting; else ""."""
    status = judged.evidence.status
    name = status_text(status, returned=judged.evidence.returned).removeprefix("signal ")
    if status and rules.fail_codes and status not in rules.fail_codes:
        return f"{name} is not among --fail-code {' '.join(map(str, sorted(rules.fail_codes)))}: leave it out"
    if status and status in rules.ignored_codes:
        return f"{name} is among --ignore-fail-code: leave it out"
    return ""


def confirm_not_vacuous(driver: Driver) -> None:
    """Run the model of one Identity node again, as often as proves that it passes.

    Otherwise nothing shows, of a result of a single node or of a failure that was found to be flaky meanwhile, that the
    check does not fail now and then on anything. Raises VacuousCheck.
    """
    wanted = max(driver.oracle.memory.repetitions, RUNS_TO_TELL_APART if driver.left == 1 else 1)
    if driver.identity_passed is None or driver.identity_passed >= wanted:
        return
    trial = Trial(
        parts=[identity_of(driver.problem.index)], size=1, stage=IDENTITY, description="a one-node Identity model"
    )
    _try_identity(driver, trial, allow_vacuous=False, times=wanted - driver.identity_passed)


def _try_identity(driver: Driver, trial: Trial, *, allow_vacuous: bool, times: int | None = None) -> None:
    """Raise VacuousCheck if a model of one Identity node fails in the same way in one of the runs that a pass needs."""
    for runs_left in range(times or driver.oracle.memory.repetitions, 0, -1):
        try:
            judged = driver.oracle.again(trial, runs_left)
        except errors.CheckChanged:
            raise
        except errors.CheckError:
            driver.identity_passed = None
            return  # a script may not accept the model's inputs, which says nothing about the user's model
        if judged.outcome is Outcome.REPRODUCES:
            _vacuous(driver, judged, is_allowed=allow_vacuous)
        if judged.outcome is not Outcome.PASSES:
            driver.identity_passed = None
            return
        driver.identity_passed = (driver.identity_passed or 0) + 1


def _vacuous(driver: Driver, judged: Judged, *, is_allowed: bool) -> None:
    """Raise VacuousCheck, since the check fails on any model, or only warn if the user allows that."""
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
        if oracle.are_told_apart(replace(plain, parts=[identity_of(index)]), plain):
            alike.append(
                "  passes   a model of one Identity node of opset 17 and IR version 8, float32: what fails is not a "
                f"node, but opset {index.opset}, IR version {index.ir_version}, or the type of the first input"
            )
    except errors.CheckChanged:
        raise
    except errors.CheckError:
        pass
    reason = [telling_apart(original, identity)] if ends else [] if alike else [_likeliest_reason(oracle, identity)]
    # Its last lines are shown only if nothing else identifies the failure.
    is_named = identity.reported or identity.raised or identity.status < 0 or not identity.words.exact
    printed = [] if is_named else [f"  printed  {shown_words(identity)}"]
    shown = [f"  original   {ends[0]}", f"  Identity   {ends[1]}"] if ends else printed
    raise errors.VacuousCheck(
        f"a model of one Identity node fails this check in the same way ({identity.with_names(judged.reason)}): the"
        " check fails on anything,"
        " and a reduction would say nothing.",
        details=[f"  tried   {oracle.check.line(index.path or driver.workspace.candidate)}", *shown, *alike],
        kept="nothing was written",
        next_steps=[
            *reason,
            "call it by hand, without a try around it (allow_vacuous_check=True reduces anyway)"
            if oracle.check.given
            else "run that line by hand: it shows all that the check prints (--allow-vacuous-check reduces anyway)",
        ],
    )


def _likeliest_reason(oracle: Oracle, failure: Signature) -> str:
    """The likeliest reason why a check fails on any model, and what to do about it."""
    if not oracle.check.names_candidate:
        return "the check does not name the candidate: write {} in it, where the path of the model belongs"
    if failure.stage in {"load", "build", "run"}:
        return "is the engine itself broken? 'biopsy doctor' tells, and 'biopsy run' on any small model"
    if oracle.check.given:
        return f"does the function use its argument as what it is? {oracle.check.given}"
    if failure.stage == "interface":
        return "does the tool change the inputs or outputs of every model? Then no part of this one is at fault"
    if failure.reported:
        return "does the check look at the candidate, {}, rather than at a file of its own?"
    return (
        "does the check fail before it compares? A wrong path does that, and so do input names of the whole model: read"
        " them from the candidate. So does a server that an earlier check started: --keep-processes lets it run on"
    )


def weigh_original(oracle: Oracle, trial: Trial, verdict: VerdictFile) -> ErrorSize | None:
    """Have candidates compared with the original's mismatch from now on; returns its size, or None if there is none.

    If it may be only rounding, the check runs once more, against a run in float64. If it is rounding, a remark says so,
    and candidates are not compared with it, since rounding is then what the search is for. Nothing is done if the
    user's codes or expressions decide, any failure counts, or the check reports no sizes.
    """
    rules = oracle.failure.rules
    if rules.decide_alone or rules.match == "any":
        return None
    mismatches, rounding = verdict.mismatches, verdict.rounding  # as it fails now: a journal may be forged
    if kind_of(mismatches) != "mismatch":
        return None
    arbiter = (
        (trial.check or oracle.check).telling(ARBITER) if rounding is None and may_be_rounding(mismatches) else None
    )
    if arbiter is not None:
        asking = replace(trial, stage=ROUNDING, description="the original, judged against float64", check=arbiter)
        try:
            rounding = oracle.again(asking).evidence.verdict.rounding
        except errors.CheckChanged:
            raise
        except errors.CheckError:
            pass  # the search does not need this check
    if rounding is None or rounding.verdict != "rounding":
        oracle.failure.original = mismatches
        return error_size(mismatches, rounding)
    worst = worst_of(mismatches)
    advice = ""
    if worst is not None and worst.passing_atol is not None:
        advice = f" {option_line('--atol', f'{worst.output}:{worst.passing_atol:g}')} would pass."
    times = "" if rounding.times is None else f", {rounding.times:.3g} times the rounding error of a plain run"
    reason = f" ({rounding.reason})" if rounding.reason else ""
    text = (
        f"the original's error is only rounding, by float64{times}{reason}.{advice} The result may show no bug, but"
        " where engines round differently"
    )
    oracle.listener(events.Remark(text, warning=True))
    return error_size(mismatches, rounding)


_SHORTEST_HINT = 8
_LONGEST_SHOWN = 300


def last_words(original: Signature, result: Signature, rules: Rules) -> tuple[str, str] | None:
    """The last lines of both if these mean different failures that only have the same status; None otherwise.

    A signal, a limit or the check's own report identifies a failure better than any last line.
    """
    is_identified = original.status < 0 or original.timed_out or original.out_of_memory or original.reported
    if is_identified or rules.decide_alone or rules.match not in {"status", "auto"}:
        return None
    if same_failure(result, original, "message"):
        return None
    return shown_words(original), shown_words(result)


def shown_words(signature: Signature) -> str:
    """The end of the output of a check, as one line."""
    text = " ".join(signature.words.exact.split())
    return text[:_LONGEST_SHOWN] or "(nothing)"


def telling_apart(original: Signature, other: Signature) -> str:
    """Advice on the options that distinguish two failures with the same status."""
    match = "message" if same_failure(other, original, "auto") else "auto"
    pieces = [piece.strip(" :;,.") for piece in re.split(r"(?<!\w)_(?!\w)", original.words.meaning)]
    usable = [
        piece
        for piece in pieces
        if len(piece) >= _SHORTEST_HINT and piece in original.words.exact and piece not in other.words.exact
    ]
    regex = re.escape(max(usable, key=len)).replace("\\ ", " ") if usable else ""
    advice = f"; --fail-regex {line_of([regex])} names the one you are after" if regex else ""
    return f"--match {match} tells them apart{advice}"
