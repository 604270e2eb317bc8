"""What the failure comes from, and what avoids it: settings of the engine, another spelling of the model, a tool that
transforms it, a release of the engine.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from biopsy import errors, events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import interval, runs_needed
from biopsy.diagnosis.context import (
    NO_DOWNLOAD,
    NO_PLACE,
    NOT_THOROUGH,
    PERSON,
    TIME,
    UNKNOWN_ENGINE,
    StepAnswer,
    StepContext,
    TimeUpError,
    asked,
    passes,
)
from biopsy.diagnosis.facts import (
    ChangeFacts,
    KnownFacts,
    MendingSwitch,
    ReleaseChange,
    ReleaseFacts,
    RightChange,
    SettingFacts,
    TransformationFacts,
)
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    feeds_in,
    feeds_of,
    path_of,
    with_engine_place,
    with_inputs,
    without_weights_folder,
)
from biopsy.diagnosis.steps.rounding import noise_words
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import PLAIN, EngineSpec, create, parse_spec
from biopsy.findings.answers import settings_tree, workarounds_tree
from biopsy.model.index import index_file
from biopsy.processes.watch import Limits
from biopsy.questions.builds.flags import Switch, find_switches
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.questions.releases.find import FailingModel, search_of_engine
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import SameEngine, TransformationQuestion, parse_tool
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_results
from biopsy.tensors.results import Feed
from biopsy.text import count, first_of

# Where a check says which engine it runs, for questions that are asked with other settings or releases of it.


def reasons_against(facts: KnownFacts, question: DiagnosisQuestion, what: str = "") -> dict[str, object]:
    """Reasons not to ask which ``what`` of the engine is at fault, such as a setting, each with whether it holds."""
    return {
        "nothing fails": facts.failure is None,
        "no engine is at fault": facts.fault not in (None, "refused"),
        f"it is rounding: no {what} is at fault": facts.is_rounding,
        "a failure that the outputs do not show": facts.is_masked,
        UNKNOWN_ENGINE: facts.suspect is None,
        NO_PLACE: facts.suspect is not None and _placed(facts, question) is None,
    }


def template_of(facts: KnownFacts, question: DiagnosisQuestion, *, of_piece: bool = False) -> CheckTemplate:
    """The check of the original, or of the piece, with a place for the engine, where ``reasons_against`` has none."""
    template = _placed(facts, question, of_piece=of_piece)
    assert template is not None
    return template


def _placed(facts: KnownFacts, question: DiagnosisQuestion, *, of_piece: bool = False) -> CheckTemplate | None:
    suspect, words, given = facts.failed.suspect, facts.failed.check, question.template
    if suspect is None:
        return None
    if of_piece and facts.piece is not None:
        words = with_inputs(without_weights_folder(words), path_of(facts.piece.inputs))
    placed = with_engine_place(words, suspect) if given is None else given
    return None if placed is None else CheckTemplate(placed, parse_spec(suspect), is_own_run=given is None)


# The fewest settings of the engine, or optimizers of ONNX Runtime, with which the check passes.

SETTINGS_REPORT = "settings.json"
"""What was tried, as ``debug flags`` has it, in the folder of the evidence."""

_MOST_SWITCHES = 4
_RUNS = 3
"""Runs of the original that must pass with a switch, if it fails each time without."""

_CONFIDENCE = 0.99


@asked(
    "setting",
    "which setting or optimizer switches it off?",
    unless=lambda facts, context: reasons_against(facts, context.question, "setting"),
    evidence="settings",
    files=(SETTINGS_REPORT,),
    share=0.7,
)
def settings(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """The smallest changes of settings, sought in the piece if there is one, each tried on the original."""
    seen = _with_switches(facts, context, of_piece=facts.piece is not None)
    if facts.piece is not None and seen.switches and not any(switch.mends_original for switch in seen.switches):
        whole = _with_switches(facts, context, of_piece=False)
        seen = replace(seen, switches=(*whole.switches, *seen.switches))
    line = f"no setting switches it off ({seen.tried} tried)" if seen.tried else "this engine has no settings to try"
    if seen.switches:
        where = {True: "", False: " (not the whole model)"}
        line = "; ".join(f"it goes away {switch.text}{where[switch.mends_original]}" for switch in seen.switches)
    return StepAnswer(replace(facts, settings=seen), line)


def _with_switches(facts: KnownFacts, context: StepContext, *, of_piece: bool) -> SettingFacts:
    """What ``debug flags`` finds of a model, each switch tried on the original."""
    question, template = context.question, template_of(facts, context.question, of_piece=of_piece)
    model, weights = question.model, question.weights_folder
    if of_piece and facts.piece is not None:
        model, weights = Path(facts.piece.path), None
    with contextlib.closing(varied_check(template, str(context.candidate))) as varied:
        flags = find_switches(varied, model, question.judging.rules, context.bounded, weights)
    context.keep(SETTINGS_REPORT, settings_tree(flags, template.spec.text, create(template.spec).version()))
    return SettingFacts(
        tried=len(flags.tried),
        switches=tuple(_tried(switch, facts, context) for switch in flags.switches[:_MOST_SWITCHES]),
        complete=flags.complete and len(flags.switches) <= _MOST_SWITCHES,
    )


def _tried(switch: Switch, facts: KnownFacts, context: StepContext) -> MendingSwitch:
    """A switch, tried on the original in fresh processes, and held against float64 where values are compared.

    Of a flaky failure so many runs must pass that all of them do by luck in less than one case in a hundred.
    """
    template, failure, steadiness, runs = template_of(facts, context.question), facts.failed, facts.steadiness, _RUNS
    if steadiness is not None and steadiness.is_flaky:
        runs = runs_needed(interval(steadiness.failed, steadiness.runs, 1.0)[0], _CONFIDENCE)
    changed = template.changed(switch.change).text
    mends = changed != failure.trusted and _passes(switch.change, template, context, runs)
    exact = False
    if failure.is_of_values and context.question.check is None:
        exact = _passes(switch.change, CheckTemplate(noise_words(changed, context), template.spec), context, 1)
    mends = mends or (exact and changed == failure.trusted)
    return MendingSwitch(**vars(switch), engine=changed, mends_original=mends, right_by_float64=exact)


def _passes(change: SettingChange, template: CheckTemplate, context: StepContext, runs: int) -> bool:
    description, made = f"the original with {change.text}", varied_check(template, str(context.candidate))
    with contextlib.closing(made) as varied, template.environment(change):
        check = varied.with_change(change, cold=True)
        model = context.question.model
        return all(passes(context.run_check(check, model, description=description)) for _ in range(runs))


# Which changes make the whole model right: settings of the engine, and the model written in another way.

PATCHED = "workaround.onnx"
CHANGES_REPORT = "workaround.json"
"""The best changed model, and what was tried, as ``debug workaround`` has it, in the folder of the evidence."""

_SHARE_BEFORE_RELEASES = 0.6
"""Of the time that is left, if releases are asked about after it."""

_KINDS: tuple[Kind, ...] = ("setting", "mark", "barrier", "precision", "spelling")
"""Releases are asked about by a step of their own."""

_MOST_INSIDE = 512 << 20
"""Bytes of weights that are written into the model; more stand in a file beside it."""


@asked(
    "workaround",
    "which change makes the whole model right, and what does it cost?",
    unless=lambda facts, context: {
        **reasons_against(facts, context.question, "workaround"),
        "no engine can tell what is right": facts.fault is not None,
        NOT_THOROUGH: not context.question.effort.thorough,
    },
    evidence="workaround",
    files=(CHANGES_REPORT, PATCHED),
)
def changes(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Each change is verified on the whole model, as ``debug workaround`` does."""
    question = context.question
    if question.effort.downloads:
        context.begin_step(_SHARE_BEFORE_RELEASES)
    engines = {switch.change.text: switch.engine for switch in facts.mending_switches}
    known = [switch.change for switch in facts.mending_switches]
    result = find_workarounds(_workaround_question(facts, context), context.listener, known)
    context.keep(CHANGES_REPORT, workarounds_tree(result, question.index))
    rejected = {each.text: each.reason for each in result.tried if each.kind == "setting" and not each.right}
    seen = ChangeFacts(
        best=tuple(
            RightChange(
                kind=change.kind,
                text=change.text,
                engine=change.engine,
                nodes=len(change.nodes),
                latency="" if change.latency is None else change.latency.text,
                path=str(result.output) if result.output is not None and change is result.patched else None,
            )
            for change in result.best
        ),
        rejected=tuple((engines[text], reason) for text, reason in rejected.items() if text in engines),
        doubt="" if result.trust.confirmed_by else f"what is right is what {result.trust.reference} gives",
    )
    best = "; ".join(each.text for each in seen.best)
    line = f"{best} · {count(len(result.tried), 'change')} tried"
    if not best:
        line = f"no change makes the model right ({len(result.tried)} tried)"
    ended = PERSON if result.interrupted else TIME if result.stopped is not None else None
    return StepAnswer(replace(facts, changes=seen), line, ended)


def _workaround_question(facts: KnownFacts, context: StepContext) -> WorkaroundQuestion:
    """The engine that a person named first is right, else whom we trust; golden values are those of the check."""
    question, trusted, command = context.question, facts.failed.trusted, parse(facts.failed.check)
    named = trusted is not None and len(question.engines) > 1 and trusted in question.engines
    files = command.golden_files if isinstance(command, OwnRun) else []
    large = question.index.weight_bytes > _MOST_INSIDE
    return WorkaroundQuestion(
        index=question.index,
        model=question.model,
        template=template_of(facts, question),
        right=WhatIsRight(
            samples=feeds_of(question.index, question.samples),
            drawn=question.samples.inputs,
            golden=golden_of((result for path in files for result in read_results(path)), question.index),
            judge=question.judging.judge,
            references=(trusted,) if named and trusted is not None else PLAIN,
            named=named,
        ),
        rules=question.judging.rules,
        kinds=_KINDS,
        piece=None if facts.piece is None else Path(facts.piece.path),
        default_name=str(context.candidate),
        target=PatchedFile(path=question.folder / PATCHED, external=f"{PATCHED}.data" if large else None),
        budget=Budget(seconds=context.seconds_left),
    )


# What a tool makes of the model: ONNX Runtime's optimizer, where that is the cause, or a tool that a person names.

TRANSFORMATION_REPORT = "transformation.json"
"""What was found, as ``debug transform`` has it, in the folder of the evidence."""

_TRANSFORMED = "transformed.onnx"
_NO_OPTIMIZER = "no optimizer that writes a model is known to be the cause"
_SHARE_OF_REDUCTION = 0.6
_MOST_SHOWN = 4


def _optimizer(facts: KnownFacts) -> EngineSpec | None:
    """ONNX Runtime as it fails, if switching some of its optimizers off mends the piece of it."""
    if facts.suspect is None or facts.settings is None or facts.piece is None or facts.is_masked:
        return None
    spec, is_cause = parse_spec(facts.suspect), any(switch.optimizers for switch in facts.settings.switches)
    return spec if spec.name == "onnxrt" and is_cause and facts.failed.said.stage == "compare" else None


@asked(
    "transform",
    "what does the optimizer, or the tool, make of it?",
    unless=lambda facts, context: {_NO_OPTIMIZER: context.question.tool is None and _optimizer(facts) is None},
    evidence="transformation",
    files=(TRANSFORMATION_REPORT, _TRANSFORMED),
    share=0.6,
)
def transformation(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """The model before and after it."""
    question = _of_optimizer(facts, context) if context.question.tool is None else _of_tool(context)
    try:
        findings = find_transformation(question, context.bounded)
    except errors.OriginalPasses as error:
        seen = TransformationFacts(tool=question.tool.text, sentence=error.message, breaks=False)
        return StepAnswer(replace(facts, transformation=seen), f"no: {error.message}")
    context.keep(TRANSFORMATION_REPORT, findings.as_json())
    nodes, made = findings.piece.nodes, [node.partition(" ")[0] for node in findings.piece.nodes_after]
    seen = TransformationFacts(
        tool=f"{findings.tool} {findings.release}".strip(),
        sentence=findings.sentence,
        breaks=True,
        of_piece=context.question.tool is None,
        operators=first_of(made, _MOST_SHOWN),
        engine_doubted=findings.where.second_opinion == "right",
    )
    line = seen.sentence
    if seen.of_piece and made:
        line = f"the optimizer turns {count(len(nodes), 'node')} into {seen.operators}"
    return StepAnswer(replace(facts, transformation=seen), line)


def _of_optimizer(facts: KnownFacts, context: StepContext) -> TransformationQuestion:
    """About the piece: what the optimizer writes to a file, in the engine without it. Its passes are known already."""
    piece, spec = facts.piece, _optimizer(facts)
    assert piece is not None and spec is not None
    index, inputs, samples = index_file(Path(piece.path)), path_of(piece.inputs), context.question.samples

    def feeds() -> Sequence[Feed]:
        return feeds_of(index, replace(samples, files=())) if inputs is None else feeds_in([inputs])

    level = spec.settings.get("optimization")
    return TransformationQuestion(
        index=index,
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
        output=question.folder / _TRANSFORMED,
        budget=Budget(seconds=_SHARE_OF_REDUCTION * context.seconds_left),
        limits=Limits(seconds=max(1.0, context.seconds_left)),
    )


def _same_engine(feeds: Callable[[], Sequence[Feed]], context: StepContext) -> SameEngine:
    judge, tolerances_decide = context.question.judging.judge, bool(context.question.judging.limits)
    tolerances, stats, limits = judge.tolerances, judge.stats, judge.limits
    return SameEngine(
        feeds=feeds, tolerances=tolerances, stats=stats, limits=limits, tolerances_decide=tolerances_decide
    )


# Which release of the engine broke the model, or mended it.

RELEASES_REPORT = "releases.json"
"""What each release answered, as ``debug version`` has it, in the folder of the evidence."""


@asked(
    "release",
    "which release of the engine broke it, or mended it?",
    unless=lambda facts, context: {
        **reasons_against(facts, context.question, "release"),
        NOT_THOROUGH: not context.question.effort.thorough,
        NO_DOWNLOAD: not context.question.effort.downloads,
    },
    evidence="releases",
    files=(RELEASES_REPORT,),
)
def releases(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Installs packages, so it is asked only if a person wants that."""
    question, template = context.question, template_of(facts, context.question)

    def until_over(event: events.Event) -> None:  # also before packages are installed
        context.bounded(event)
        if isinstance(event, events.InstallationStarted) and context.seconds_left == 0:
            raise TimeUpError

    model, words, whole = question.model, template.words, None
    if facts.piece is not None:  # each release takes a fresh process or more
        model, words = Path(facts.piece.path), template_of(facts, question, of_piece=True).words
        whole = FailingModel(model=question.model, check=template.words, weights_folder=question.weights_folder)
    search = search_of_engine(model, template.spec, words, until_over, rules=question.judging.rules, whole_model=whole)
    ended: str | None = None
    try:
        search.run()
    except (TimeUpError, KeyboardInterrupt) as stop:
        ended = TIME if isinstance(stop, TimeUpError) else PERSON
        if not search.findings.tried:
            raise
    findings = search.findings
    context.keep(RELEASES_REPORT, findings.as_json())
    borders = [(border, border.before if border.broke else border.after) for border in findings.borders]
    seen = ReleaseFacts(
        package=findings.package,
        text=findings.text,
        changes=tuple(
            ReleaseChange(
                text=border.text,
                right=right.version,
                engine=template.changed(SettingChange({RELEASE: right.version})).text,
                verified=border.verified,
            )
            for border, right in borders
        ),
        doubt=findings.doubt,
        complete=ended is None,
    )
    return StepAnswer(replace(facts, releases=seen), findings.text, ended)
