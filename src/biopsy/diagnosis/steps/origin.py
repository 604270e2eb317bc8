"""Where the failure comes from: which release of the engine, or which tool that transforms the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.diagnosis.context import (
    NO_DOWNLOAD,
    NOT_THOROUGH,
    PERSON,
    TIME,
    DiagnosisStep,
    StepAnswer,
    StepContext,
    TimeUpError,
)
from biopsy.diagnosis.facts import (
    KnownFacts,
    ReleaseChangeSeen,
    ReleasesSeen,
    TransformationSeen,
)
from biopsy.diagnosis.question import feeds_of
from biopsy.diagnosis.workarounds import original_template, piece_template, why_not_varied
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.model.index import index_file
from biopsy.processes.watch import Limits
from biopsy.questions.builds.settings import SettingChange
from biopsy.questions.releases.find import FailingModel, search_of_engine
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import SameEngine, TransformationQuestion, parse_tool
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

REPORT = "releases.json"
"""What each release answered, as ``debug version`` has it, in the folder of the evidence."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    why = why_not_varied(facts, context.question, "release")
    if why is not None:
        return why
    if not context.question.effort.thorough:
        return NOT_THOROUGH
    return None if context.question.effort.downloads else NO_DOWNLOAD


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece, question = facts.failure, facts.piece, context.question
    assert failure is not None

    def until_over(event: events.Event) -> None:  # also before packages are installed
        context.bounded(event)
        if isinstance(event, events.InstallationStarted) and context.seconds_left == 0:
            raise TimeUpError

    template = original_template(failure, question)
    model, words, whole = question.model, template.words, None
    if piece is not None:  # each release takes a fresh process or more
        model, words = Path(piece.path), piece_template(failure, piece, question).words
        whole = FailingModel(model=question.model, check=template.words, weights_folder=question.weights_folder)
    rules = question.judging.rules
    search = search_of_engine(model, template.spec, words, until_over, rules=rules, whole=whole)
    ended: str | None = None
    try:
        search.run()
    except TimeUpError:
        ended = TIME
        if not search.found.tried:
            raise
    except KeyboardInterrupt:
        ended = PERSON
        if not search.found.tried:
            raise
    findings = search.found
    context.keep(REPORT, findings.as_json())
    changes = []
    for border in findings.borders:
        right = border.before if border.broke else border.after
        changes.append(
            ReleaseChangeSeen(
                text=border.text,
                broke=border.broke,
                right=right.version,
                engine=template.changed(SettingChange({RELEASE: right.version})).text,
                verified=border.verified,
            )
        )
    seen = ReleasesSeen(
        package=findings.package,
        text=findings.text,
        changes=tuple(changes),
        tried=len(findings.tried),
        doubt=findings.doubt,
        complete=ended is None,
    )
    return StepAnswer(facts.also(releases=seen), findings.text, ended)


RELEASES = DiagnosisStep(
    name="release",
    question="which release of the engine broke it, or mended it?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="releases",
    files=(REPORT,),
)
"""Installs packages, so it is asked only if a person wants that."""


# What a tool makes of the model: ONNX Runtime's optimizer, where that is the cause, or a tool that a person names.

TRANSFORMATION_REPORT = "transformation.json"
"""What was found, as ``debug transform`` has it, in the folder of the evidence."""

_PIECE = "transformed.onnx"
_SHARE_OF_REDUCTION = 0.6
_MOST_SHOWN = 4


def _transformation_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if context.question.tool is not None or _optimizer(facts) is not None:
        return None
    return "no optimizer that writes a model is known to be the cause"


def _optimizer(facts: KnownFacts) -> EngineSpec | None:
    """ONNX Runtime as it fails, if switching some of its optimizers off mends the piece of it."""
    failure, settings, piece = facts.failure, facts.settings, facts.piece
    if failure is None or failure.suspect is None or settings is None or piece is None or piece.masked:
        return None
    spec = parse_spec(failure.suspect)
    is_cause = any(switch.optimizers for switch in settings.switches)
    return spec if spec.name == "onnxrt" and is_cause and failure.said.stage == "compare" else None


def _transformation_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    question = _of_optimizer(facts, context) if context.question.tool is None else _of_tool(context)
    try:
        findings = find_transformation(question, context.bounded)
    except errors.OriginalPasses as error:
        seen = TransformationSeen(tool=question.tool.text, sentence=error.message, breaks=False)
        return StepAnswer(facts.also(transformation=seen), f"no: {error.message}")
    context.keep(TRANSFORMATION_REPORT, findings.as_json())
    seen = TransformationSeen(
        tool=f"{findings.tool} {findings.release}".strip(),
        sentence=findings.sentence,
        breaks=True,
        of_piece=context.question.tool is None,
        nodes=findings.piece.nodes,
        nodes_after=findings.piece.made,
        passes=findings.passes.alone,
        engine_doubted=findings.where.second_opinion == "right",
    )
    line = seen.sentence
    if seen.of_piece and seen.nodes_after:
        line = f"the optimizer turns {count(len(seen.nodes), 'node')} into {operators_of(seen)}"
    return StepAnswer(facts.also(transformation=seen), line)


def _of_optimizer(facts: KnownFacts, context: StepContext) -> TransformationQuestion:
    """About the piece: what the optimizer writes to a file, in the engine without it. Its passes are known already."""
    piece, spec = facts.piece, _optimizer(facts)
    assert piece is not None and spec is not None
    level = spec.settings.get("optimization") or "all"
    path, inputs, samples = Path(piece.path), piece.inputs, context.question.samples

    def feeds() -> Sequence[Feed]:
        if inputs is not None:
            return read_feeds(Path(inputs))
        return feeds_of(index_file(path), replace(samples, files=()))

    return TransformationQuestion(
        index=index_file(path),
        tool=parse_tool(f"onnxruntime:level={level}" if level in ("basic", "extended", "layout") else "onnxruntime"),
        python=Path(sys.executable),
        decides=_same_engine(feeds, context),
        reduces=False,
        finds_passes=False,
        limits=Limits(seconds=max(1.0, context.seconds_left)),
    )


def _of_tool(context: StepContext) -> TransformationQuestion:
    """About the whole model."""
    question = context.question
    return TransformationQuestion(
        index=question.index,
        tool=parse_tool(question.tool or ""),
        python=Path(sys.executable),
        decides=_same_engine(lambda: feeds_of(question.index, question.samples), context),
        output=question.folder / _PIECE,
        budget=Budget(seconds=_SHARE_OF_REDUCTION * context.seconds_left),
        limits=Limits(seconds=max(1.0, context.seconds_left)),
    )


def _same_engine(feeds: Callable[[], Sequence[Feed]], context: StepContext) -> SameEngine:
    judging = context.question.judging
    return SameEngine(
        feeds=feeds,
        tolerances=judging.judge.tolerances,
        stats=judging.judge.stats,
        limits=judging.judge.limits,
        is_told=bool(judging.limits),
    )


def operators_of(seen: TransformationSeen) -> str:
    """The operators that were made, such as ``SimplifiedLayerNormalization``."""
    return first_of([node.partition(" ")[0] for node in seen.nodes_after], _MOST_SHOWN)


TRANSFORMATION = DiagnosisStep(
    name="transform",
    question="what does the optimizer, or the tool, make of it?",
    not_asked=_transformation_not_asked,
    answer=_transformation_answer,
    evidence="transformation",
    files=(TRANSFORMATION_REPORT, _PIECE),
    share=0.6,
)
"""The model before and after it."""
