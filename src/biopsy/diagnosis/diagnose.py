"""Runs a diagnosis: the steps of the plan, the verdict, and the sections of the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.checks.command import CommandCheck
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import error_text
from biopsy.diagnosis.context import NOT_ASKED, PERSON, TIME, DiagnosisStep, StepContext, TimeUpError, is_user_interrupt
from biopsy.diagnosis.evidence import PLAN, EvidenceFile, KnownSteps, identity_of
from biopsy.diagnosis.facts import Diagnosis, KnownFacts, ModelFailure, Outcome, RoundingFacts, StepReport
from biopsy.diagnosis.following import next_lines
from biopsy.diagnosis.question import DiagnosisQuestion, path_of, require_no_placeholder
from biopsy.diagnosis.steps import causes, layers, parts
from biopsy.diagnosis.steps.failing import read_run, read_tree
from biopsy.diagnosis.verdict import nodes_at_fault, verdict_of
from biopsy.findings.model import MeasuredErrors, graph_tree, map_tree, model_tree, numbers_in
from biopsy.findings.reduction import file_tree
from biopsy.findings.report import Tree, versions_tree
from biopsy.model.index import index_file
from biopsy.processes.writing import as_private_as
from biopsy.records import plain
from biopsy.session.workspace import sources


def diagnose(question: DiagnosisQuestion, listener: events.Listener = events.ignore) -> Diagnosis:
    """Ask one question after the other, until the cause is known or the time is over.

    The caller holds ``question.folder`` (``held_folder``), which keeps the evidence: questions that it answers are not
    asked again. Ctrl-C ends a diagnosis with what is known by then. Raises UsageError if the folder cannot be used,
    CheckError if nothing can be said of the model, EngineMissing.
    """
    if question.check is None:
        require_no_placeholder(
            [*question.samples.files, *filter(None, [question.weights_folder])], "give it another name"
        )
    with as_private_as(sources(question.index)):
        words = question.check if question.check is not None else question.original_words(question.rivals[0])
        check = CommandCheck(words, str(question.candidate))
        evidence = EvidenceFile(
            question.folder,
            identity_of(question, check),
            question.line,
            fresh=question.fresh,
            answered=question.effort.answered,
        )
        if evidence.resumed:
            listener(events.Resumed(str(evidence.path), len(evidence.known.steps)))
        else:  # an older journal there belongs to another question
            question = replace(question, fresh=True)
        with StepContext(question, listener) as context:
            known, stopped = _PlanRun(context, evidence, listener).run()
        verdict = verdict_of(known.facts, known.steps, question)
        if not question.effort.answered:  # nothing new is known then
            evidence.save(known, complete=stopped is None)
    return Diagnosis(
        verdict=verdict,
        steps=known.steps,
        facts=known.facts,
        folder=str(question.folder),
        seconds=sum(step.seconds for step in known.steps),
        stopped=stopped,
    )


class _PlanRun:
    """Asks the questions of the plan one after the other."""

    def __init__(self, context: StepContext, evidence: EvidenceFile, listener: events.Listener) -> None:
        self._context = context
        self._evidence = evidence
        self._listener = listener
        self._facts = evidence.known.facts
        self._stopped: str | None = None

    def run(self) -> tuple[KnownSteps, str | None]:
        """Returns what is known at the end, and what cut the diagnosis short, if anything."""
        before = {report.name: report for report in self._evidence.known.steps}
        reports: list[StepReport] = []
        for number, step in enumerate(PLAN, 1):
            report = before.get(step.name) or self._report(step, number)
            reports.append(report)
            shown = {key: getattr(report, key) for key in ("name", "outcome", "answer", "seconds", "checks")}
            self._listener(events.StepDone(**shown))
            if report.outcome in ("done", "failed") and step.name not in before:
                self._evidence.save(KnownSteps(self._facts, tuple(reports)), complete=False)
        return KnownSteps(self._facts, tuple(reports)), self._stopped

    def _report(self, step: DiagnosisStep, number: int) -> StepReport:
        report = StepReport(name=step.name, question=step.question, outcome="skipped", answer="")
        if self._stopped is not None:
            return replace(report, outcome="stopped", answer=f"{NOT_ASKED}{self._stopped} came before")
        why_not = step.reason_to_skip(self._facts, self._context)
        if why_not is not None:
            return replace(report, answer=why_not)
        if self._context.question.effort.answered:
            return replace(report, outcome="stopped", answer=f"{NOT_ASKED}only what is answered is shown")
        self._listener(events.StepStarted(step.name, step.question, number, len(PLAN)))
        started, checks = time.monotonic(), self._context.checks
        outcome, answer = self._answer(step)
        return replace(
            report,
            outcome=outcome,
            answer=answer,
            seconds=time.monotonic() - started,
            checks=self._context.checks - checks,
            evidence=step.evidence if outcome == "done" else None,
        )

    def _answer(self, step: DiagnosisStep) -> tuple[Outcome, str]:
        """The outcome of a step and its line; its facts are kept."""
        try:
            self._context.begin_step(step.share)
            if not step.warm:
                self._context.close_warm_check()
            answered = step.answer(self._facts, self._context)
        except TimeUpError as error:
            self._stopped = TIME if self._context.is_over else self._stopped
            return "stopped", str(error) or "not answered in time"
        except (KeyboardInterrupt, errors.Interrupted) as stop:
            if not is_user_interrupt(stop):
                raise
            self._stopped = PERSON
            kept = f": {stop.message}; kept {stop.kept}" if isinstance(stop, errors.Interrupted) and stop.kept else ""
            return "stopped", f"interrupted{kept}"
        except errors.VacuousCheck as error:
            raise _vacuous(error, self._context.question) from error
        except errors.BiopsyError as error:
            if self._facts == KnownFacts():
                raise
            self._facts = self._context.with_passes(self._facts, error)
            return "failed", error.summary
        self._facts = self._context.counted(answered.facts, step.question)
        if answered.ended is None:
            return "done", answered.line
        if answered.ended == PERSON or self._context.is_over:
            self._stopped = answered.ended
        return "stopped", f"not finished: {answered.line}"


def diagnosis_sections(diagnosis: Diagnosis, question: DiagnosisQuestion, folder: Path) -> dict[str, Any]:
    """The sections of a report (docs/reference/report.md), with paths relative to ``folder``."""
    facts, piece = diagnosis.facts, diagnosis.facts.piece
    small, numbers = None, list[int | None]()
    if piece is not None:
        with contextlib.suppress(errors.BiopsyError):  # the file may be gone or changed
            small = index_file(Path(piece.path))
            numbers = numbers_in(small, question.index, piece.kept)

    def kept(report: str, fact: object) -> Tree | None:
        """The report that a step left in the folder, if it has an answer."""
        return None if fact is None else read_tree(question.folder / report) or None

    of_piece = facts.layers is not None and facts.layers.of_piece
    is_of_whole = (facts.failure is None or facts.is_masked) and not of_piece
    examined = kept(layers.MASKED_REPORT if is_of_whole else layers.LAYERS_REPORT, facts.layers)
    judged = examined if facts.failure is None or facts.failure.is_of_values else None  # of layers that did run
    measured = _measured(judged or {}, numbers if of_piece else range(len(question.index.nodes)))
    is_broken = facts.transformation is not None and facts.transformation.breaks
    sections: dict[str, Any] = {
        "verdict": diagnosis.verdict,
        "model": model_tree(question.index, question.model),
        "versions": versions_tree(facts.versions),
        "steps": diagnosis.steps,
        "failure": None if facts.failure is None else _failure(facts.failure, facts.rounding),
        "piece": None,
        "whole": None,
        "search": kept(parts.SEARCH_REPORT, piece),
        "run": read_run(question.folder) or None,
        "layers": examined,
        "rest": facts.rest,
        "narrower": facts.rounding and facts.rounding.narrower,
        "settings": kept(causes.SETTINGS_REPORT, facts.settings),
        "transformation": kept(causes.TRANSFORMATION_REPORT, facts.transformation) if is_broken else None,
        "workaround": kept(causes.CHANGES_REPORT, facts.changes),
        "releases": kept(causes.RELEASES_REPORT, facts.releases),
        "precision": kept(parts.PRECISION_REPORT, facts.precision),
        "variation": kept(parts.VARIATION_REPORT, piece and piece.variation),
        "known": kept(parts.KNOWN_REPORT, facts.known_bug),
        "other_failures": None,
        "next": [{"line": text, "why": why} for text, why in next_lines(facts, question)],
    }
    if facts.failure is not None:
        sections["whole"] = map_tree(question.index, [number for number in numbers if number is not None], measured)
    if piece is not None:
        others = piece.other_failures
        sections["other_failures"] = [{"reason": reason, "times": times, "model": None} for reason, times in others]
    if piece is not None and small is not None:
        report = judged or {} if of_piece else {}  # errors of outputs are those without marked tensors
        of_layers = (layer.get("propagated") or layer.get("introduced") for layer in report.get("layers", ()))
        of_outputs = report.get("outputs", ())
        tensor_errors = {error["tensor"]: error for error in (*of_layers, *of_outputs) if error is not None}
        reason = piece.signature if piece.error is None else error_text(piece.error)
        sections["piece"] = {
            **file_tree(Path(piece.path), path_of(piece.inputs), folder),
            "failure": {"signature": piece.signature, "reason": reason},
            **graph_tree(small, original=question.index, kept=piece.kept, tensor_errors=tensor_errors),
        }
        at_fault, fault = nodes_at_fault(facts)
        sections["piece"]["fault"] = fault
        for node, label in zip(sections["piece"]["nodes"], piece.nodes, strict=False):
            node["at_fault"] = label in at_fault
    return {key: plain(section) for key, section in sections.items()}


def _failure(failure: ModelFailure, rounding: RoundingFacts | None) -> Tree:
    judged = None
    if rounding is not None and rounding.verdicts:
        worst = next((verdict for verdict in ("bug", "unknown") if verdict in rounding.verdicts), "rounding")
        judged = {"verdict": worst, "times": rounding.times, "reason": rounding.reason}
    reported, keys = plain(failure.report), ("status", "output", "trusted", "suspect", "check")
    head = {"signature": reported.pop("signature"), "reason": failure.error or failure.report.signature}
    return {**head, **reported, "rounding": judged, **{key: getattr(failure, key) for key in keys}}


def _measured(examined: Tree, numbers: Sequence[int | None]) -> MeasuredErrors:
    """The errors of layers by their node's number in the original; ``numbers`` maps from the examined model."""
    ratios: dict[str, dict[int, float]] = {"introduced": {}, "propagated": {}}
    for layer in examined.get("layers", ()):
        number = numbers[layer["number"]] if layer["number"] < len(numbers) else None
        for kind, of_kind in ratios.items():
            if number is not None and layer.get(kind) is not None:
                of_kind[number] = layer[kind]["tolerance_ratio"]
    return MeasuredErrors(**ratios)


def _vacuous(error: errors.VacuousCheck, question: DiagnosisQuestion) -> errors.VacuousCheck:
    """The error of a check that fails on anything; without a check of the user's, engines or inputs are the reason."""
    if question.check is not None:
        message = "the check fails on anything, and nothing can be said of the model."
        next_steps = list(error.next_steps[:1])
    else:
        message = "an engine is wrong whatever a model computes, or the inputs hold what never passes, such as NaN."
        look = [
            f"biopsy inspect data {as_word(path)} --show-values    the inputs" for path in question.samples.files[:1]
        ]
        next_steps = ["biopsy doctor    whether an engine works at all", *look]
    return errors.VacuousCheck(
        f"a model of one Identity node fails this check in the same way: {message}",
        details=error.details,
        kept=f"{question.folder}, with what the check printed",
        next_steps=next_steps,
    )
