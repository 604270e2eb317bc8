"""Questions about causes and workarounds: settings of the engine, changes of the model, tools that transform it, and
releases of the engine.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import CONFIDENCE, RUNS_TO_TELL_APART, MeasuredRate, runs_needed
from biopsy.checks.outcome import Judged
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
    diagnosis_step,
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
    WayOutRuns,
)
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    feeds_of,
    path_of,
    with_engine_place,
    with_inputs,
    without_weights_folder,
)
from biopsy.diagnosis.steps.rest import is_same_failure
from biopsy.diagnosis.steps.rounding import noise_words
from biopsy.diagnosis.ways_out import ELSEWHERE, products, ways_out
from biopsy.engines.other_release.classes import RELEASE
from biopsy.engines.registry import PLAIN, EngineSpec, create, parse_spec
from biopsy.findings.answers import settings_tree, workarounds_tree
from biopsy.model.index import index_file
from biopsy.processes import own_process
from biopsy.processes.watch import Limits
from biopsy.questions.builds.flags import Switch, find_switches
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.questions.releases.find import FailingModel, search_of_engine
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import SameEngine, TransformationQuestion, parse_tool
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.tensors.files import read_results
from biopsy.text import count, first_of, series


def reasons_against(facts: KnownFacts, question: DiagnosisQuestion, what: str = "") -> dict[str, object]:
    """Reasons not to ask which ``what`` of the engine is at fault, such as "setting", each with whether it holds."""
    return {
        "nothing fails": facts.failure is None,
        "no engine is at fault": facts.fault not in (None, "refused"),
        f"it is rounding: no {what} is asked for": facts.is_rounding,
        "a failure that the outputs do not show": facts.is_masked,
        UNKNOWN_ENGINE: facts.suspect is None,
        NO_PLACE: facts.suspect is not None and _find_template(facts, question) is None,
    }


def template_of(facts: KnownFacts, question: DiagnosisQuestion, *, of_piece: bool = False) -> CheckTemplate:
    """The check of the original, or of the piece, with a place for the engine. ``reasons_against`` must not hold."""
    template = _find_template(facts, question, of_piece=of_piece)
    assert template is not None
    return template


def _find_template(facts: KnownFacts, question: DiagnosisQuestion, *, of_piece: bool = False) -> CheckTemplate | None:
    suspect, words = facts.known_failure.suspect, facts.known_failure.check
    if suspect is None:
        return None
    if of_piece and facts.piece is not None:
        words = with_inputs(without_weights_folder(words), path_of(facts.piece.inputs))
    is_own_run = question.template is None
    template = with_engine_place(words, suspect) if is_own_run else question.template
    return None if template is None else CheckTemplate(template, parse_spec(suspect), is_own_run=is_own_run)


SETTINGS_REPORT = "settings.json"
"""The report of ``debug flags``, in the folder of the evidence."""

_MOST_SWITCHES = 4


@diagnosis_step(
    "setting",
    "which setting or optimizer switches it off?",
    unless=lambda facts, context: reasons_against(facts, context.question, "setting"),
    evidence="settings",
    files=(SETTINGS_REPORT,),
    share=0.7,
)
def settings(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Find the smallest changes of settings, in the piece if there is one, and try each on the original."""
    tried = _try_settings(facts, context, of_piece=facts.piece is not None)
    if facts.piece is not None and tried.switches and not any(switch.mends_original for switch in tried.switches):
        of_original = _try_settings(facts, context, of_piece=False)
        failing = {switch.engine for switch in tried.switches}  # with the original, as was seen
        more = (switch for switch in of_original.switches if switch.engine not in failing)
        tried = replace(tried, switches=(*more, *tried.switches))
    line = f"no setting switches it off ({tried.tried} tried)" if tried.tried else "this engine has no settings to try"
    if tried.switches:
        where = {True: "", False: " (not the whole model)"}
        line = "; ".join(f"it goes away {switch.text}{where[switch.mends_original]}" for switch in tried.switches)
    return StepAnswer(replace(facts, settings=tried), line)


def _try_settings(facts: KnownFacts, context: StepContext, *, of_piece: bool) -> SettingFacts:
    """What ``debug flags`` finds, with each switch tried on the original."""
    question, template = context.question, template_of(facts, context.question, of_piece=of_piece)
    model, weights = question.model, question.weights_folder
    if of_piece and facts.piece is not None:
        model, weights = Path(facts.piece.path), None
    with contextlib.closing(varied_check(template, str(context.question.candidate))) as varied:
        flags = find_switches(
            varied, model, question.judging.rules, context.limited_listener, weights, known=facts.flaky_rate
        )
    context.keep(SETTINGS_REPORT, settings_tree(flags, template.spec.text, create(template.spec).version()))
    rate = facts.rate if facts.rate.runs else MeasuredRate(failed=flags.failed, runs=flags.runs)
    return SettingFacts(
        tried=len(flags.tried),
        switches=tuple(_try_on_original(switch, rate, facts, context) for switch in flags.switches[:_MOST_SWITCHES]),
        complete=flags.complete and len(flags.switches) <= _MOST_SWITCHES,
    )


def _try_on_original(switch: Switch, rate: MeasuredRate, facts: KnownFacts, context: StepContext) -> MendingSwitch:
    """Try a switch on the original in fresh processes, and compare with float64 if the failure is a mismatch.

    So many runs must pass that the chance of luck is below 1%.
    """
    template, failure = template_of(facts, context.question), facts.known_failure
    changed = template.changed(switch.change).text
    mends = changed != failure.trusted and _passes(switch.change, template, context, rate.proof)
    exact = False
    if failure.is_mismatch and context.question.check is None:
        noise = CheckTemplate(noise_words(changed, context), template.spec)
        exact = _passes(switch.change, noise, context, rate.needed)
    mends = mends or (exact and changed == failure.trusted)
    return MendingSwitch(**vars(switch), engine=changed, mends_original=mends, right_by_float64=exact)


def _passes(change: SettingChange, template: CheckTemplate, context: StepContext, runs: int) -> bool:
    description, model = f"the original with {change.text}", context.question.model
    with (
        contextlib.closing(varied_check(template, str(context.question.candidate))) as varied,
        template.environment(change),
    ):
        check = varied.with_change(change, cold=True)
        return all(passes(context.run_check(check, model, description=description)) for _ in range(runs))


PATCHED = "workaround.onnx"
CHANGES_REPORT = "workaround.json"
"""The best changed model and the report of ``debug workaround``, in the folder of the evidence."""

_SHARE_BEFORE_RELEASES = 0.6
"""The share of the time left that a question may take if that about releases follows."""

_KINDS: tuple[Kind, ...] = ("setting", "mark", "barrier", "precision", "spelling")
"""Without releases, which have a step of their own."""

_MOST_INSIDE = 512 << 20
"""Bytes of weights up to which they are written into the model, not into a file beside it."""


@diagnosis_step(
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
    """Find changes as ``debug workaround`` does, and verify each with the whole model."""
    question = context.question
    if question.effort.downloads:
        context.begin_step(_SHARE_BEFORE_RELEASES)
    engines = {switch.change.text: switch.engine for switch in facts.mending_switches}
    known = [switch.change for switch in facts.mending_switches]
    result = find_workarounds(_workaround_question(facts, context), context.listener, known)
    context.keep(CHANGES_REPORT, workarounds_tree(result, question.index))
    rejected = {each.text: each.reason for each in result.tried if each.kind == "setting" and not each.right}
    change_facts = ChangeFacts(
        best=tuple(
            RightChange(
                kind=change.kind,
                text=change.text,
                engine=change.engine,
                nodes=len(change.nodes),
                latency="" if change.latency is None else change.latency.sentence,
                path=str(result.output) if result.output is not None and change is result.patched else None,
            )
            for change in result.best
        ),
        rejected=tuple((engines[text], reason) for text, reason in rejected.items() if text in engines),
        doubt="" if result.trust.confirmed_by else f"what is right is what {result.trust.reference} gives",
    )
    best = "; ".join(each.text for each in change_facts.best)
    line = f"{best} · {count(len(result.tried), 'change')} tried"
    if not best:
        line = f"no change makes the model right ({len(result.tried)} tried)"
    ended = PERSON if result.interrupted else TIME if result.stopped is not None else None
    return StepAnswer(replace(facts, changes=change_facts), line, ended)


def _workaround_question(facts: KnownFacts, context: StepContext) -> WorkaroundQuestion:
    """The question, with golden values from the check. The engine that the user named first defines what is right."""
    question, trusted, command = context.question, facts.known_failure.trusted, parse(facts.known_failure.check)
    is_named = trusted is not None and len(question.engines) > 1 and trusted in question.engines
    known = () if trusted is None else (trusted,)
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
            references=known if is_named else tuple(dict.fromkeys((*known, *PLAIN))),
            named=is_named,
        ),
        rules=question.judging.rules,
        kinds=_KINDS,
        piece=None if facts.piece is None else Path(facts.piece.path),
        default_name=str(context.question.candidate),
        target=PatchedFile(path=question.folder / PATCHED, external=f"{PATCHED}.data" if large else None),
        budget=context.budget(),
    )


TRANSFORMATION_REPORT = "transformation.json"
"""The report of ``debug transform``, in the folder of the evidence."""

_TRANSFORMED = "transformed.onnx"
_NO_OPTIMIZER = "no optimizer that writes a model is known to be the cause"
_SHARE_OF_REDUCTION = 0.6
_MOST_SHOWN = 4


def _optimizer(facts: KnownFacts) -> EngineSpec | None:
    """The spec of ONNX Runtime that fails, if switching some of its optimizers off mends the piece."""
    if facts.suspect is None or facts.settings is None or facts.piece is None or facts.is_masked:
        return None
    spec, is_cause = parse_spec(facts.suspect), any(switch.optimizers for switch in facts.settings.switches)
    return spec if spec.name == "onnxrt" and is_cause and facts.known_failure.report.stage == "compare" else None


@diagnosis_step(
    "transform",
    "what does the optimizer, or the tool, make of it?",
    unless=lambda facts, context: {_NO_OPTIMIZER: context.question.tool is None and _optimizer(facts) is None},
    evidence="transformation",
    files=(TRANSFORMATION_REPORT, _TRANSFORMED),
    share=0.6,
)
def transformation(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Compare the model, or the piece, before and after the transformation."""
    question = _transformation_question(facts, context)
    try:
        findings = find_transformation(question, context.limited_listener)
    except errors.OriginalPasses as error:
        passing = TransformationFacts(tool=question.tool.text, sentence=error.message, breaks=False)
        return StepAnswer(replace(facts, transformation=passing), f"no: {error.message}")
    context.keep(TRANSFORMATION_REPORT, findings.as_json())
    nodes, operators = findings.piece.nodes, [node.partition(" ")[0] for node in findings.piece.nodes_after]
    broken = TransformationFacts(
        tool=f"{findings.tool} {findings.release}".strip(),
        sentence=findings.sentence,
        breaks=True,
        of_piece=context.question.tool is None,
        operators=first_of(operators, _MOST_SHOWN),
        engine_doubted=findings.where.second_opinion == "right",
    )
    line = broken.sentence
    if broken.of_piece and operators:
        line = f"the optimizer turns {count(len(nodes), 'node')} into {broken.operators}"
    return StepAnswer(replace(facts, transformation=broken), line)


def _transformation_question(facts: KnownFacts, context: StepContext) -> TransformationQuestion:
    """About the whole model and the user's tool; without one, about the piece and ONNX Runtime's optimizer.

    The optimizer's passes are known already; what it writes to a file is judged in the engine without it.
    """
    question, piece, spec = context.question, facts.piece, _optimizer(facts)
    judge, tolerances_decide = question.judging.judge, bool(question.judging.limits)
    index, samples, tool = question.index, question.samples, question.tool
    if tool is None:
        assert piece is not None and spec is not None
        index, inputs = index_file(Path(piece.path)), path_of(piece.inputs)
        samples = replace(samples, files=() if inputs is None else (inputs,))
        level = spec.settings.get("optimization")
        tool = f"onnxruntime:level={level}" if level in ("basic", "extended", "layout") else "onnxruntime"
    transformation_question = TransformationQuestion(
        index=index,
        tool=parse_tool(tool),
        python=Path(sys.executable),
        decides=SameEngine(
            feeds=lambda: feeds_of(index, samples),
            tolerances=judge.tolerances,
            stats=judge.stats,
            limits=judge.limits,
            tolerances_decide=tolerances_decide,
        ),
        limits=Limits(seconds=max(1.0, context.seconds_left)),
    )
    if question.tool is None:
        return replace(transformation_question, reduces=False, finds_passes=False)
    budget = context.budget(share=_SHARE_OF_REDUCTION)
    return replace(transformation_question, output=question.folder / _TRANSFORMED, budget=budget)


RELEASES_REPORT = "releases.json"
"""The report of ``debug version``, in the folder of the evidence."""


@diagnosis_step(
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
    """Install and check releases, which is done only on request."""
    question, template = context.question, template_of(facts, context.question)

    model, words, original = question.model, template.words, None
    if facts.piece is not None:  # checks of the original would take longer
        model, words = Path(facts.piece.path), template_of(facts, question, of_piece=True).words
        original = FailingModel(model=question.model, check=template.words, weights_folder=question.weights_folder)
    search = search_of_engine(
        model, template.spec, words, context.limited_listener, rules=question.judging.rules, whole_model=original
    )
    ended: str | None = None
    try:
        search.run()
    except (TimeUpError, KeyboardInterrupt) as stop:
        ended = TIME if isinstance(stop, TimeUpError) else PERSON
        if not search.findings.tried:
            raise
    findings = search.findings
    context.keep(RELEASES_REPORT, findings.as_json())
    unsure = [f"not confirmed: {each.text}" for each in findings.borders if not each.right and not each.verified]
    release_facts = ReleaseFacts(
        package=findings.package,
        text=findings.text,
        changes=tuple(
            ReleaseChange(
                text=border.text,
                right=border.right.version,
                engine=template.changed(SettingChange({RELEASE: border.right.version})).text,
                verified=border.verified,
            )
            for border in findings.borders
            if border.right is not None
        ),
        doubt="; ".join(filter(None, [*unsure, findings.doubt])),
        complete=ended is None,
    )
    return StepAnswer(replace(facts, releases=release_facts), findings.text, ended)


RUNS_OF_A_CLAIM = runs_needed(0.2, CONFIDENCE)
"""How often what avoids a failure must pass: any failure in a fifth of the runs is missed in 1 of 100 cases then."""


@diagnosis_step(
    "holds",
    "does what avoids it hold, run after run?",
    unless=lambda facts, context: {
        "it is rounding": facts.is_rounding,
        "nothing is known that avoids it": not any(each.words for each in ways_out(facts, context.question)),
    },
    share=0.1,
)
def holding(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Run each check that passes again: any failure counts, also one that shows in some runs only."""
    ways = [each for each in ways_out(facts, context.question) if each.words]
    is_elsewhere = bool(ways) and ways[-1].text.startswith(ELSEWHERE)  # the other engine comes last
    for product in products(facts, context.question) if is_elsewhere else ():
        with contextlib.suppress(errors.CheckError):  # it may not be installed
            if passes(context.run(product.words, product.model, description=product.text)):
                ways[-1] = product
                break
    seen: list[WayOutRuns] = []
    mended = facts.settings
    for place, way in enumerate(ways):
        until = context.seconds_left * (1 - 1 / (len(ways) - place))
        runs: list[Judged] = []
        context.close_warm_check()  # which keeps the environment that it was started in
        with own_process.variables(way.environment), contextlib.suppress(TimeUpError):
            while len(runs) < RUNS_OF_A_CLAIM and (len(runs) < RUNS_TO_TELL_APART or context.seconds_left > until):
                runs.append(context.run(way.words, way.model, description=f"again: {way.text}"))
        failed = [run for run in runs if not passes(run)]
        compared = [run for run in failed if run.evidence.verdict.stage == "compare"]
        outcome = WayOutRuns(line=way.line, engine=way.engine, runs=len(runs), failed=len(failed))
        if failed:
            changed = compared == failed and not facts.known_failure.is_of_values
            outcome = replace(outcome, reason=failed[0].reason, gives_other_values=changed)
        seen.append(outcome)
        if mended is not None and any(is_same_failure(run, facts.known_failure, context) for run in failed):
            engine, before = way.engine, mended.switches
            now = (replace(each, mends_original=each.mends_original and each.engine != engine) for each in before)
            mended = replace(mended, switches=tuple(now))
    context.close_warm_check()
    if not any(each.runs for each in seen):
        raise TimeUpError
    lines = [f"no, it fails in {each.failed} of {each.runs} further runs: {each.line}" for each in seen if each.failed]
    few = [each for each in seen if each.runs < RUNS_TO_TELL_APART and not each.failed]
    often = [f"run only {each.runs} more times" if each.runs else "not run again" for each in few]
    lines += [f"{text}, for lack of time: {each.line}" for text, each in zip(often, few, strict=True)]
    kept = [f"of {each.runs}" for each in seen if not each.failed and each not in few]
    lines += [f"yes: all {series(kept)} further runs pass"] if kept else []
    return StepAnswer(replace(facts, settings=mended, ways_out=tuple(seen)), " · ".join(lines), TIME if few else None)
