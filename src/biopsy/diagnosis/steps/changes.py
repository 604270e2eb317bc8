"""Which changes make the whole model right: settings of the engine, and the model written in another way."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.judge import interval, runs_needed
from biopsy.diagnosis.context import NOT_THOROUGH, PERSON, TIME, DiagnosisStep, StepAnswer, StepContext
from biopsy.diagnosis.facts import ChangeSeen, ChangesSeen, FailureSeen, KnownFacts, SettingsSeen, SwitchSeen
from biopsy.diagnosis.question import feeds_of
from biopsy.diagnosis.steps.rounding import noise_words
from biopsy.diagnosis.workarounds import original_template, piece_template, why_not_varied
from biopsy.engines.registry import PLAIN, create, parse_spec
from biopsy.findings.answers import settings_tree, workarounds_tree
from biopsy.questions.builds.flags import Switch, find_switches
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_results
from biopsy.text import count

REPORT = "settings.json"
"""What was tried, as ``debug flags`` has it, in the folder of the evidence."""

_MOST_SWITCHES = 4
_RUNS = 3
"""Runs of the original that must pass with a switch, if it fails each time without."""

_CONFIDENCE = 0.99


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    return why_not_varied(facts, context.question, "setting")


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece, question = facts.failure, facts.piece, context.question
    assert failure is not None
    trial = _Trial(template=original_template(failure, question), failure=failure, runs=_runs_needed(facts))
    if piece is None:
        seen = _with_switches(trial.template, question.model, question.weights_folder, trial, context)
    else:
        seen = _with_switches(piece_template(failure, piece, question), Path(piece.path), None, trial, context)
        if seen.switches and not any(switch.mends_original for switch in seen.switches):
            whole = _with_switches(trial.template, question.model, question.weights_folder, trial, context)
            seen = replace(seen, switches=(*whole.switches, *seen.switches), checks=seen.checks + whole.checks)
    line = "this engine has no settings to try"
    if seen.switches:
        where = {True: "", False: " (not the whole model)"}
        line = "; ".join(f"it goes away {switch.text}{where[switch.mends_original]}" for switch in seen.switches)
    elif seen.tried:
        line = f"no setting switches it off ({len(seen.tried)} tried)"
    return StepAnswer(replace(facts, settings=seen), line)


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """How a switch is tried on the original: the check's words, its failure, how many runs must pass."""

    template: CheckTemplate
    failure: FailureSeen
    runs: int


def _runs_needed(facts: KnownFacts) -> int:
    """So many that all of them pass by luck in less than one case in a hundred."""
    steadiness = facts.steadiness
    if steadiness is None or not steadiness.is_flaky:
        return _RUNS
    return runs_needed(interval(steadiness.failed, steadiness.runs, 1.0)[0], _CONFIDENCE)


def _with_switches(
    template: CheckTemplate, model: Path, weights: Path | None, trial: _Trial, context: StepContext
) -> SettingsSeen:
    """What ``debug flags`` finds of a model, each switch tried on the original."""
    with contextlib.closing(varied_check(template, str(context.candidate))) as varied:
        flags = find_switches(varied, model, context.question.judging.rules, context.bounded, weights)
    context.keep(REPORT, settings_tree(flags, template.spec.text, create(template.spec).version()))
    return SettingsSeen(
        engine=trial.failure.suspect or "",
        tried=tuple((each.change.text, each.outcome.value, each.reason) for each in flags.tried),
        switches=tuple(_tried(switch, trial, context) for switch in flags.switches[:_MOST_SWITCHES]),
        complete=flags.complete and len(flags.switches) <= _MOST_SWITCHES,
        checks=flags.checks,
    )


def _tried(switch: Switch, trial: _Trial, context: StepContext) -> SwitchSeen:
    """A switch, tried on the original in fresh processes, and held against float64 where values are compared."""
    template, failure = trial.template, trial.failure
    changed = template.changed(switch.change).text
    mends = changed != failure.trusted and _passes(switch.change, template, context, trial.runs)
    exact = False
    if failure.is_of_values and context.question.check is None:
        exact = _passes(switch.change, CheckTemplate(noise_words(changed, context), template.spec), context, 1)
    return SwitchSeen(
        text=switch.text,
        engine=changed,
        environment=tuple(switch.change.environment.items()),
        optimizers=switch.optimizers,
        verified=switch.verified,
        mends_original=mends or (exact and changed == failure.trusted),
        right_by_float64=exact,
    )


def _passes(change: SettingChange, template: CheckTemplate, context: StepContext, runs: int) -> bool:
    description = f"the original with {change.text}"
    made = varied_check(template, str(context.candidate))
    with contextlib.closing(made) as varied, template.environment(change):
        check = varied.with_change(change, cold=True)
        return all(
            context.run_check(check, context.question.model, description=description).passes for _ in range(runs)
        )


SETTINGS = DiagnosisStep(
    name="setting",
    question="which setting or optimizer switches it off?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="settings",
    files=(REPORT,),
    share=0.7,
)
"""The fewest settings, or optimizers of ONNX Runtime."""


PATCHED = "workaround.onnx"
CHANGES_REPORT = "workaround.json"
"""The best changed model, and what was tried, as ``debug workaround`` has it, in the folder of the evidence."""

_SHARE_BEFORE_RELEASES = 0.6
"""Of the time that is left, if releases are asked about after it."""

_KINDS: tuple[Kind, ...] = ("setting", "mark", "barrier", "precision", "spelling")
"""Releases are asked about by a step of their own."""

_MOST_INSIDE = 512 << 20
"""Bytes of weights that are written into the model; more stand in a file beside it."""


def _changes_not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    why = why_not_varied(facts, context.question, "workaround")
    if why is not None:
        return why
    if facts.fault_before is not None:
        return "no engine can tell what is right"
    return None if context.question.effort.thorough else NOT_THOROUGH


def _changes_answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    question, failure = context.question, facts.failure
    assert failure is not None
    if question.effort.downloads:
        context.begin_step(_SHARE_BEFORE_RELEASES)
    settings, engine_with = [], {}
    before = parse_spec(failure.suspect or "").settings
    for switch in facts.mending_switches:
        now = parse_spec(switch.engine).settings
        changed = {name: value or "" for name, value in now.items() if name not in before or before[name] != value}
        settings.append(SettingChange(changed, dict(switch.environment)))
        engine_with[settings[-1].text] = switch.engine
    result = find_workarounds(_workaround_question(facts, failure, context), context.listener, settings)
    context.keep(CHANGES_REPORT, workarounds_tree(result, question.index))
    rejected = {each.text: each.reason for each in result.tried if each.kind == "setting" and not each.right}
    seen = ChangesSeen(
        best=tuple(
            ChangeSeen(
                kind=change.kind,
                text=change.text,
                engine=change.engine,
                environment=tuple(change.environment.items()),
                nodes=len(change.nodes),
                latency="" if change.latency is None else change.latency.text,
                path=str(result.output) if result.output is not None and change is result.patched else None,
            )
            for change in result.best
        ),
        rejected=tuple((engine_with[text], reason) for text, reason in rejected.items() if text in engine_with),
        tried=len(result.tried),
        complete=result.stopped is None,
        doubt="" if result.trust.confirmed_by else f"what is right is what {result.trust.reference} gives",
    )
    best = "; ".join(each.text for each in seen.best)
    line = f"{best} · {count(seen.tried, 'change')} tried"
    if not best:
        line = f"no change makes the model right ({seen.tried} tried)"
    ended = PERSON if result.interrupted else TIME if result.stopped is not None else None
    return StepAnswer(facts.also(changes=seen), line, ended)


def _workaround_question(facts: KnownFacts, failure: FailureSeen, context: StepContext) -> WorkaroundQuestion:
    """The engine that a person named first is right, else whom we trust; golden values are those of the check."""
    question, trusted, command = context.question, failure.trusted, parse(failure.check)
    named = trusted is not None and len(question.engines) > 1 and trusted in question.engines
    files = command.golden_files if isinstance(command, OwnRun) else []
    golden = (result for path in files for result in read_results(path))
    large = question.index.weight_bytes > _MOST_INSIDE
    return WorkaroundQuestion(
        index=question.index,
        model=question.model,
        template=original_template(failure, question),
        right=WhatIsRight(
            samples=feeds_of(question.index, question.samples),
            drawn=question.samples.inputs,
            golden=golden_of(golden, question.index),
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


CHANGES = DiagnosisStep(
    name="workaround",
    question="which change makes the whole model right, and what does it cost?",
    not_asked=_changes_not_asked,
    answer=_changes_answer,
    evidence="workaround",
    files=(CHANGES_REPORT, PATCHED),
)
"""Each change is verified on the whole model, as ``debug workaround`` does."""
