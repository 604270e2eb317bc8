"""What follows from a diagnosis: the lines to type next, the issue for the engine's tracker, and its bundle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import as_word
from biopsy.comparison.mismatch import COSTS, ONE_SIDED
from biopsy.diagnosis.facts import Diagnosis, KnownFacts
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    path_of,
    shape_words,
    with_inputs,
    without_weights_folder,
)
from biopsy.diagnosis.steps.causes import reasons_against
from biopsy.diagnosis.verdict import (
    AVOIDS,
    FROM_PLACES,
    is_decided,
    measure,
    nodes_reason,
    sentence,
    sole_optimizer,
    subject,
    worst_mismatch,
)
from biopsy.diagnosis.ways_out import ELSEWHERE, check_line, trusted_is_right
from biopsy.engines.registry import create, full_title, is_reference
from biopsy.findings.bundle.job import BundleJob, EarlierFindings, RunQuestion
from biopsy.findings.bundle.make import ISSUE, make_bundle
from biopsy.findings.page.document import reports_of
from biopsy.findings.report import Tree, as_json
from biopsy.findings.verdict import Note, Verdict, notes_of
from biopsy.model.extract import OutputChoice
from biopsy.model.tensor_type import FLOATS, TensorType
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.own_process import install_line
from biopsy.processes.reading import read_plain
from biopsy.questions.known_failures.lookup import UNREPORTED
from biopsy.reduction.result import inputs_file
from biopsy.text import line_of, series

_WIDER = "[-4,4]"
"""A range with negative numbers and greater ones than random inputs have by default."""


def next_lines(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[tuple[str, str]]:
    """What to do next: lines to paste, each with its purpose."""
    failure, piece, inputs, made_up = facts.failure, facts.piece, question.samples.inputs, question.samples.made_up
    if failure is None and facts.agreeing and made_up and question.engines and question.check is None:
        kinds = question.index.fed_types()
        floats = [name for name, kind in kinds.items() if isinstance(kind, TensorType) and kind.elem in FLOATS]
        ranges = {name: f"[{least!r},{greatest!r}]" for name, (least, greatest) in inputs.val_range.items()}
        making = {
            "--input-shapes": shape_words(inputs.shapes),
            "--input-symbols": [f"{name}={size}" for name, size in inputs.symbols.items()],
            "--val-range": [f"{name}:{ends}" if name else ends for name, ends in ranges.items()]
            or [f"{name}:{_WIDER}" for name in floats],
        }
        words = ["biopsy", "diagnose", as_word(question.model)]
        words += [word for engine in question.engines for word in ("--engine", engine)]
        words += ["--seed", str(inputs.seed + 1), "--iterations", "8"]
        words += [word for option, values in making.items() if values for word in (option, *values)]
        why = "other random inputs, of a wider range" if floats and not ranges else "other random inputs"
        yield line_of([*words, *question.judging.limits]), why
    if failure is not None and piece is not None:
        path = Path(piece.path)
        repeated = with_inputs(without_weights_folder(failure.check), path_of(piece.inputs))
        if not failure.masked:
            yield check_line(repeated, path), "the failure, in the piece"
        if question.line:
            yield line_of(["biopsy", "report", as_word(question.folder)]), "a page to read, and a bundle to send"
        yield line_of(["biopsy", "inspect", "model", as_word(path), "--mode=full"]), "what the piece computes"
        is_asked = question.effort.thorough or any(reasons_against(facts, question).values())
        if question.line and not is_asked:
            place = question.line.index("diagnose") + 1
            words = ["biopsy", *question.line[:place], "--thorough", *question.line[place:]]
            releases = "which release broke it (minutes; installs releases)"
            if question.effort.downloads and find_spec("pypi_simple") is None:
                releases = f"after {install_line('biopsy[releases]')} {releases}"
            yield line_of(words), f"which change avoids it, and {releases}"
    elif facts.fault in ("refused", "invalid"):
        yield line_of(["biopsy", "check", "lint", as_word(question.model)]), "what is wrong with the model"


def bundle_job(target: Path, question: DiagnosisQuestion, diagnosis: Diagnosis, report: bytes) -> BundleJob | None:
    """The job that packs the piece, or the whole model if there is none, with the check that it fails.

    None if nothing fails.
    """
    facts, verdict = diagnosis.facts, diagnosis.verdict
    failure, piece, known = facts.failure, facts.piece, facts.known_bug
    if failure is None:
        return None
    links = {known.reference: known.issue} if known is not None and known.reference and known.issue else {}
    no_issue = ""
    if facts.fault == "random":
        no_issue = "no engine was judged: the model is random"
    elif verdict.kind == "unknown":
        no_issue = "what fails is only partly known"
    elif facts.definition is not None and facts.definition.right == "suspect":
        no_issue = f"the shape that {full_title(failure.suspect or '', '')} gives is right"
    elif _is_of_reference_alone(facts):
        no_issue = "only the reference evaluator differs, and which of the two is wrong is not known"
    elif verdict.kind == "rounding":
        no_issue = "the verdict is rounding, as far as the outputs show"
    elif facts.fault is not None or verdict.kind == "precision":
        no_issue = f"the verdict is that no engine is at fault ({verdict.kind})"
    model, worst = question.model if piece is None else Path(piece.plain or piece.path), worst_mismatch(facts)
    trusted = full_title(failure.trusted, "") if failure.trusted else ""
    doubt = ""
    if facts.rounding is not None and failure.trusted in facts.rounding.wrong:
        doubt = "gives other values than float64, too"
    elif trusted and failure.report.kind == "mismatch" and not is_decided(facts):
        doubt = "gives the other values, and which are wrong is not known"
    given = None if piece is None else inputs_file(model) if piece.plain else path_of(piece.inputs)
    return BundleJob(
        target=target,
        original=question.model,
        model=model,
        folder=(question.weights_folder if piece is None else None) or model.parent,
        check=CommandCheck(without_weights_folder(failure.check), "{}"),
        rules=question.judging.rules,
        inputs=given if given is not None and given.exists() else None,
        reports=reports_of(report),
        earlier=EarlierFindings(
            title=verdict.text.rstrip(".") if no_issue else _title(facts, question),
            notes=list(_notes(facts, question, verdict)),
            how_often=facts.steadiness.how_often if facts.steadiness else "how often it fails was not measured",
            doubt=doubt,
            is_confirmed=facts.rounding is not None and facts.rounding.blames(failure.suspect, failure.trusted),
            links=links,
            mismatch=failure.by_suspect(worst) if worst is not None and worst.is_of_form else None,
            against=trusted,
        ),
        no_issue=no_issue,
        # Float64 with the rounding of Casts is no judge of an engine that leaves it out.
        measures_rounding=facts.rounding is None or not facts.rounding.leaves_out,
    )


def _is_of_reference_alone(facts: KnownFacts) -> bool:
    """Whether other values than those of the reference evaluator are all that is known against an engine."""
    failure = facts.known_failure
    if not failure.trusted or not is_reference(failure.trusted):
        return False
    if failure.report.stage != "compare" or failure.report.kind in COSTS:
        return False
    is_defined = facts.definition is not None and failure.report.kind in ONE_SIDED
    return not (is_defined or trusted_is_right(facts))


_MOST_BYTES = 1 << 20


def issue_of(question: DiagnosisQuestion, diagnosis: Diagnosis, report: Tree) -> str:
    """The text of ``ISSUE.md``, whose script is run for it.

    Raises CheckError if nothing is to be filed, because nothing fails or no engine is at fault, and the errors of
    ``make_bundle``.
    """
    with temporary_folder("biopsy-issue-") as folder:
        job = bundle_job(folder / "bundle", question, diagnosis, as_json(report))
        if job is None or job.no_issue:
            raise errors.CheckError(f"there is nothing to file: {job.no_issue if job else 'no failure was found'}")
        own = parse(job.check.command.words)
        if question.check is None and isinstance(own, OwnRun):
            engines = [create(spec) for spec in own.engines]
            run = RunQuestion(engines=engines, outputs=OutputChoice(), judge=question.judging.judge)
            job = replace(job, run=run)
        return read_plain(make_bundle(job).path / ISSUE, _MOST_BYTES).decode("utf-8")


def _title(facts: KnownFacts, question: DiagnosisQuestion) -> str:
    """The failure in a line for a tracker: what the verdict says first, and what switches it off."""
    if facts.known_failure.suspect is None or facts.piece is None:
        return ""
    full, brief = (sentence(subject(facts, question, brief=brief)).rstrip(".") for brief in (False, True))
    types = ""
    if len(facts.piece.nodes) == 1 and facts.piece.nodes[0].startswith("Cast ") and facts.piece.types:
        read, given = (facts.piece.types[end][1].partition(" ")[0] for end in (0, -1))
        types = f" ({read} to {given})"
    tried = facts.settings.switches if facts.settings is not None else ()
    of_piece = [switch for switch in tried if switch.verified and not switch.mends_original]
    switches = [
        " + ".join(switch.optimizers) for switch in of_piece or facts.mending_switches if switch.optimizers
    ]  # the title is about the piece
    unless = f", unless {series(switches, 'or')} is disabled" if switches and not sole_optimizer(facts) else ""
    titles = [_in_bundle(title, question) for title in (f"{full}{types}{unless}", f"{brief}{types}{unless}")]
    return next((title for title in titles if len(title) <= _LONGEST_TITLE), _in_bundle(f"{brief}{types}", question))


_LONGEST_TITLE = 120


def _in_bundle(text: str, question: DiagnosisQuestion) -> str:
    """The text with the model under its name in a bundle: messages of engines name its file."""
    return text.replace(str(question.model), "model.onnx") if question.model.suffix else text


def _notes(facts: KnownFacts, question: DiagnosisQuestion, verdict: Verdict) -> Iterator[Note]:
    """What an issue says beside the failure: what fails, what it depends on, and what avoids it."""
    size = measure(replace(facts, piece=None, layers=None), question)
    yield Note(label="found", text=_in_bundle(f"{sentence(subject(facts, question))}{size}", question))
    known, varies = facts.known_bug, None if facts.piece is None else facts.piece.variation
    if varies:
        yield Note(label="found", text=f"As far as was tried, the attached model {varies}.")
    nodes = next(nodes_reason(facts), "")  # the script shows them
    unpublished = (f"It {known.sentence}.", AVOIDS) if known is not None and not known.issue else ()
    untold = (FROM_PLACES, *unpublished)  # the user's own code, and entries of the catalogue without an address
    if known is not None:
        looks_like, _, wrong = known.sentence.partition(f"{known.reference} {UNREPORTED}")
        if wrong:
            yield Note(label="cause", text=f"It {looks_like}a bug of which no public report is known{wrong}.")
    yield from (
        Note(label="cause", text=text) for text in verdict.reasons if text != nodes and not text.startswith(untold)
    )
    yield from (
        note for note in notes_of(verdict) if note.label == "workaround" and not note.text.startswith(ELSEWHERE)
    )
