"""A diagnosis from its beginning to its end: the steps of the plan, their evidence, and the verdict."""

from __future__ import annotations

import time
from dataclasses import replace

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.diagnosis.context import CANDIDATE, PERSON, TIME, DiagnosisStep, StepContext, TimeUpError, was_asked_for
from biopsy.diagnosis.evidence import PLAN, EvidenceFile, KnownSteps, identity_of
from biopsy.diagnosis.facts import Diagnosis, KnownFacts, Outcome, StepReport
from biopsy.diagnosis.question import DiagnosisQuestion, require_no_place
from biopsy.diagnosis.verdict import verdict_of
from biopsy.processes.writing import as_private_as
from biopsy.session.workspace import sources


def diagnose(question: DiagnosisQuestion, listener: events.Listener = events.ignore) -> Diagnosis:
    """Ask one question after the other until the answer is known, or the time is over, and say what was found.

    The folder, in the ``held_folder`` of the caller, holds the evidence; a diagnosis that was stopped goes on where it
    was. Ctrl-C ends it: ``stopped`` says so, with what is known by then. Raises UsageError if the folder cannot be
    used, CheckError if nothing can be said of the model, and what engines raise that are not there.
    """
    started = time.monotonic()
    if question.check is None:
        require_no_place([*question.samples.files, *filter(None, [question.weights_folder])], "give it another name")
    with as_private_as(sources(question.index)):
        check = CommandCheck(
            question.check if question.check is not None else question.original_words(question.rivals[0]),
            str(question.folder / CANDIDATE),
        )
        evidence = EvidenceFile(question.folder, identity_of(question, check), fresh=question.fresh)
        if evidence.resumed:
            listener(events.Resumed(str(evidence.path), len(evidence.known.steps)))
        else:  # what an older one has left is of another question
            question = replace(question, fresh=True)
        with StepContext(question, listener) as context:
            known, stopped = _PlanRun(context, evidence, listener).run()
        verdict = verdict_of(known.facts, known.steps, question)
        evidence.save(known, complete=stopped is None)
    return Diagnosis(
        verdict=verdict,
        steps=known.steps,
        facts=known.facts,
        folder=str(question.folder),
        seconds=time.monotonic() - started,
        stopped=stopped,
    )


class _PlanRun:
    """The questions of the plan, one after the other."""

    def __init__(self, context: StepContext, evidence: EvidenceFile, listener: events.Listener) -> None:
        self._context = context
        self._evidence = evidence
        self._listener = listener
        self._facts = evidence.known.facts
        self._stopped: str | None = None

    def run(self) -> tuple[KnownSteps, str | None]:
        """What is known at the end, and what ended it before; None if nothing did."""
        before = {report.name: report for report in self._evidence.known.steps}
        reports: list[StepReport] = []
        for number, step in enumerate(PLAN, 1):
            report = before.get(step.name) or self._report(step, number)
            reports.append(report)
            self._listener(
                events.StepDone(
                    name=report.name,
                    outcome=report.outcome,
                    answer=report.answer,
                    seconds=report.seconds,
                    checks=report.checks,
                )
            )
            if report.outcome in ("done", "failed"):
                self._evidence.save(KnownSteps(self._facts, tuple(reports)), complete=False)
        return KnownSteps(self._facts, tuple(reports)), self._stopped

    def _report(self, step: DiagnosisStep, number: int) -> StepReport:
        if self._stopped is not None:
            answer = f"not asked: {self._stopped} came before"
            return StepReport(name=step.name, question=step.question, outcome="stopped", answer=answer)
        why_not = step.not_asked(self._facts, self._context)
        if why_not is not None:
            return StepReport(name=step.name, question=step.question, outcome="skipped", answer=why_not)
        self._listener(events.StepStarted(step.name, step.question, number, len(PLAN)))
        started, checks = time.monotonic(), self._context.checks
        outcome, answer = self._answer(step)
        return StepReport(
            name=step.name,
            question=step.question,
            outcome=outcome,
            answer=answer,
            seconds=time.monotonic() - started,
            checks=self._context.checks - checks,
            evidence=step.evidence if outcome == "done" else None,
        )

    def _answer(self, step: DiagnosisStep) -> tuple[Outcome, str]:
        """The outcome of a step, and its line; what is learnt is kept."""
        try:
            self._context.begin_step(step.share)
            if not step.warm:
                self._context.cool()
            answered = step.answer(self._facts, self._context)
        except TimeUpError:
            self._stopped = TIME if self._context.is_over else self._stopped
            return "stopped", "not answered in time"
        except (KeyboardInterrupt, errors.Interrupted) as stop:
            if isinstance(stop, errors.Interrupted) and not was_asked_for(stop):
                raise
            self._stopped = PERSON
            kept = f": {stop.message}; kept {stop.kept}" if isinstance(stop, errors.Interrupted) and stop.kept else ""
            return "stopped", f"interrupted{kept}"
        except errors.VacuousCheck as error:  # nothing that the check says is about the model
            raise errors.VacuousCheck(
                "a model of one Identity node fails this check in the same way: the check fails on anything, and "
                "nothing can be said of the model.",
                details=error.details,
                kept=f"{self._context.question.folder}, with what the check printed",
                next_steps=error.next_steps[:1],
            ) from error
        except errors.BiopsyError as error:
            if self._facts == KnownFacts():
                raise
            return "failed", error.summary
        self._facts = answered.facts
        if answered.ended is None:
            return "done", answered.line
        if answered.ended == PERSON or self._context.is_over:
            self._stopped = answered.ended
        return "stopped", f"not finished: {answered.line}"
