"""``--bundle`` of ``diagnose``: the piece and the check that it fails, or the whole model where there is no piece."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.cli.debug import bundling, checking

if TYPE_CHECKING:
    from biopsy.cli.console import Console
    from biopsy.diagnosis.facts import Diagnosis, FailureSeen
    from biopsy.diagnosis.question import DiagnosisQuestion


def pack(
    args: argparse.Namespace, question: DiagnosisQuestion, found: Diagnosis, report: bytes, console: Console
) -> None:
    """Pack what fails, if anything does. Raises CheckError if the script of the bundle does not show it."""
    failure = found.facts.failure
    if failure is None:
        console.warn(f"{args.bundle} is not written: no failure was found that could be packed")
        return
    reports = bundling.reports_of(report, console)
    bundling.pack(_packing(args, question, found, failure, reports), console)


def _packing(
    args: argparse.Namespace,
    question: DiagnosisQuestion,
    found: Diagnosis,
    failure: FailureSeen,
    reports: Mapping[str, bytes],
) -> bundling.Packing:
    from biopsy.checks.command import CommandCheck
    from biopsy.diagnosis.question import without_weights_folder
    from biopsy.report.bundle.job import EarlierFindings

    words = list(without_weights_folder(failure.check))
    piece = found.facts.piece
    return bundling.Packing(
        target=args.bundle,
        original=question.model,
        model=question.model if piece is None else Path(piece.path),
        check=CommandCheck(words, "{}"),
        rules=question.judging.rules,
        own_run=checking.own_run(argparse.Namespace(check=words)),
        inputs=None if piece is None or piece.inputs is None else Path(piece.inputs),
        folder=question.weights_folder if piece is None else None,
        reports=reports,
        found=EarlierFindings(
            verdict=found.verdict.text,
            variation=_variation(found),
            known=_known(found),
            how_often=_how_often(found),
            workarounds=tuple((one.text, one.line or "") for one in found.verdict.workarounds),
            links=_links(found),
        ),
    )


def _how_often(found: Diagnosis) -> str:
    seen = found.facts.steadiness
    return f"it fails in {seen.failed} of {seen.runs} runs" if seen is not None and seen.is_flaky else ""


def _known(found: Diagnosis) -> str:
    seen = found.facts.known
    return f"{seen.reference}: {seen.evidence}" if seen is not None and seen.reference else ""


def _links(found: Diagnosis) -> dict[str, str]:
    seen = found.facts.known
    return {seen.reference: seen.issue} if seen is not None and seen.issue else {}


def _variation(found: Diagnosis) -> str:
    seen = found.facts.variation
    return "" if seen is None or seen.kept else seen.sentence
