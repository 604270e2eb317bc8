"""What a tool makes of the model: ONNX Runtime's optimizer, where that is the cause, or a tool that a person names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.blame.transformations.find import find_transformation
from biopsy.blame.transformations.findings import TransformationFindings
from biopsy.blame.transformations.question import SameEngine, TransformationQuestion
from biopsy.blame.transformations.spec import parse_tool
from biopsy.comparison.json_report import plain
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.facts import KnownFacts, PieceFound
from biopsy.diagnosis.further_facts import TransformationSeen
from biopsy.diagnosis.samples import feeds_of
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.engines.registry import EngineSpec, parse_spec
from biopsy.filesystem.write import write_whole
from biopsy.isolation.watch import Limits
from biopsy.model.index import index_file
from biopsy.quantities import count
from biopsy.report.envelope import as_json
from biopsy.report.transformation import transformation_tree
from biopsy.session.budget import Budget
from biopsy.tensors.files import read_feeds
from biopsy.tensors.results import Feed
from biopsy.text import first_of

REPORT = "transformation.json"
"""What was found, as ``debug transform`` has it, in the folder of the evidence."""

_PIECE = "transformed.onnx"
_SHARE, _SHARE_OF_REDUCTION = 0.6, 0.6
_MOST_SHOWN = 4


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
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


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    context.begin_step(_SHARE)
    context.cool()
    tool = context.question.tool
    question = _of_optimizer(facts, context) if tool is None else _of_tool(tool, context)
    try:
        found = find_transformation(question, context.bounded)
    except errors.OriginalPasses as error:
        seen = TransformationSeen(tool=question.tool.text, sentence=error.message, breaks=False)
        return StepAnswer(replace(facts, further=replace(facts.further, transformation=seen)), f"no: {error.message}")
    write_whole(context.question.folder / REPORT, [as_json(plain(transformation_tree(found)))])
    seen = _record(found, of_piece=tool is None)
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


def _record(found: TransformationFindings, *, of_piece: bool) -> TransformationSeen:
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
    not_asked=_not_asked,
    answer=_answer,
    evidence="transformation",
    files=(REPORT, _PIECE),
)
"""The model before and after it."""
