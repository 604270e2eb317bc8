"""Where the failure comes from: which release of the engine, or which tool that transforms the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.comparison.describe import plain
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
    FailureSeen,
    KnownFacts,
    PieceFound,
    ReleaseChangeSeen,
    ReleasesSeen,
    TransformationSeen,
)
from biopsy.diagnosis.question import feeds_of
from biopsy.diagnosis.workarounds import original_template, piece_template, why_not_varied
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.findings.answers import releases_tree, transformation_tree
from biopsy.findings.envelope import as_json
from biopsy.model.index import index_file
from biopsy.processes.watch import Limits
from biopsy.processes.writing import write_whole
from biopsy.questions.builds.settings import CheckTemplate, SettingChange
from biopsy.questions.releases.find import FailingModel, ReleaseSearch, search_of_engine
from biopsy.questions.releases.findings import ReleaseBorder, ReleaseFindings
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.findings import TransformationFindings
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
    failure = facts.failure
    assert failure is not None
    context.begin_step()
    context.cool()
    template = original_template(failure, context.question)
    search = _search(facts, failure, template, context)
    ended = None
    try:
        search.run()
    except TimeUpError:
        ended = TIME
    except KeyboardInterrupt:
        ended = PERSON
    found = search.found
    if ended is not None and not found.tried:
        if ended is PERSON:
            raise KeyboardInterrupt
        raise TimeUpError
    write_whole(context.question.folder / REPORT, [as_json(plain(releases_tree(found)))])
    seen = _record(found, template, complete=ended is None)
    return StepAnswer(replace(facts, further=replace(facts.further, releases=seen)), found.text, ended)


def _search(facts: KnownFacts, failure: FailureSeen, template: CheckTemplate, context: StepContext) -> ReleaseSearch:
    """With the piece if there is one: each release takes a fresh process or more."""
    question, piece = context.question, facts.piece
    listener, rules = _until_over(context), question.judging.rules
    if piece is None:
        return search_of_engine(question.model, template.spec, template.words, listener, rules=rules)
    whole = FailingModel(model=question.model, check=template.words, weights_folder=question.weights_folder)
    words = piece_template(failure, piece, question).words
    return search_of_engine(Path(piece.path), template.spec, words, listener, rules=rules, whole=whole)


def _until_over(context: StepContext) -> events.Listener:
    """Raises TimeUpError once the time is over, also before packages are installed."""

    def listen(event: events.Event) -> None:
        context.bounded(event)
        if isinstance(event, events.InstallationStarted) and context.seconds_left == 0:
            raise TimeUpError

    return listen


def _record(found: ReleaseFindings, template: CheckTemplate, *, complete: bool) -> ReleasesSeen:
    return ReleasesSeen(
        package=found.package,
        text=found.text,
        changes=tuple(_change(border, template) for border in found.borders),
        tried=len(found.tried),
        doubt=found.doubt,
        complete=complete,
    )


def _change(border: ReleaseBorder, template: CheckTemplate) -> ReleaseChangeSeen:
    right = border.before if border.broke else border.after
    return ReleaseChangeSeen(
        text=border.text,
        broke=border.broke,
        right=right.version,
        engine=template.changed(SettingChange({RELEASE: right.version})).text,
        verified=border.verified,
    )


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
_SHARE, _SHARE_OF_REDUCTION = 0.6, 0.6
_MOST_SHOWN = 4


def _transformation_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    if context.question.tool is not None:
        return None
    if _optimizer(facts) is None:
        return "no optimizer that writes a model is known to be the cause"
    return None


def _optimizer(facts: KnownFacts) -> EngineSpec | None:
    """ONNX Runtime as it fails, if switching some of its optimizers off mends the piece of it."""
    failure, settings, piece = facts.failure, facts.settings, facts.piece
    if failure is None or failure.suspect is None or settings is None or piece is None or piece.masked:
        return None
    spec = parse_spec(failure.suspect)
    is_cause = any(switch.optimizers for switch in settings.switches)
    return spec if spec.name == "onnxrt" and is_cause and failure.said.stage == "compare" else None


def _transformation_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    context.begin_step(_SHARE)
    context.cool()
    tool = context.question.tool
    question = _of_optimizer(facts, context) if tool is None else _of_tool(tool, context)
    try:
        found = find_transformation(question, context.bounded)
    except errors.OriginalPasses as error:
        seen = TransformationSeen(tool=question.tool.text, sentence=error.message, breaks=False)
        return StepAnswer(replace(facts, further=replace(facts.further, transformation=seen)), f"no: {error.message}")
    write_whole(context.question.folder / TRANSFORMATION_REPORT, [as_json(plain(transformation_tree(found)))])
    seen = _transformation_record(found, of_piece=tool is None)
    return StepAnswer(replace(facts, further=replace(facts.further, transformation=seen)), _line(seen))


def _of_optimizer(facts: KnownFacts, context: StepContext) -> TransformationQuestion:
    """About the piece: what the optimizer writes to a file, in the engine without it. Its passes are known already."""
    piece, spec = facts.piece, _optimizer(facts)
    assert piece is not None and spec is not None
    level = spec.settings.get("optimization") or "all"
    tool = parse_tool(f"onnxruntime:level={level}" if level in ("basic", "extended", "layout") else "onnxruntime")
    return TransformationQuestion(
        index=index_file(Path(piece.path)),
        tool=tool,
        python=Path(sys.executable),
        decides=_same_engine(lambda: _feeds_of_piece(piece, context), context),
        reduces=False,
        finds_passes=False,
        limits=Limits(seconds=max(1.0, context.seconds_left)),
    )


def _feeds_of_piece(piece: PieceFound, context: StepContext) -> Sequence[Feed]:
    if piece.inputs is not None:
        return read_feeds(Path(piece.inputs))
    return feeds_of(index_file(Path(piece.path)), replace(context.question.samples, files=()))


def _of_tool(tool: str, context: StepContext) -> TransformationQuestion:
    """About the whole model."""
    question = context.question
    return TransformationQuestion(
        index=question.index,
        tool=parse_tool(tool),
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


def _transformation_record(found: TransformationFindings, *, of_piece: bool) -> TransformationSeen:
    return TransformationSeen(
        tool=f"{found.tool} {found.release}".strip(),
        sentence=found.sentence,
        breaks=True,
        of_piece=of_piece,
        nodes=found.piece.nodes,
        nodes_after=found.piece.made,
        passes=found.passes.alone,
        engine_doubted=found.where.second_opinion == "right",
    )


def _line(seen: TransformationSeen) -> str:
    if not seen.of_piece or not seen.nodes_after:
        return seen.sentence
    return f"the optimizer turns {count(len(seen.nodes), 'node')} into {operators_of(seen)}"


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
)
"""The model before and after it."""
