"""Which setting or optimizer of the engine switches the failure off: asked of the piece, tried on the original."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy.checks.repetition import interval, runs_needed
from biopsy.comparison.json_report import plain
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.engine_place import original_template, piece_template, why_not_varied
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, SettingsSeen, SwitchSeen
from biopsy.diagnosis.step import DiagnosisStep, StepAnswer
from biopsy.diagnosis.steps.rounding import noise_words
from biopsy.engines.registry import create
from biopsy.filesystem.write import write_whole
from biopsy.report.envelope import as_json
from biopsy.report.settings import settings_tree
from biopsy.tactics.flags import Flags, Switch
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange, varied_check
from biopsy.tactics.switch_search import find_switches

REPORT = "settings.json"
"""What was tried, as ``debug flags`` has it, in the folder of the evidence."""

_SHARE = 0.7
_MOST_SWITCHES = 4
_RUNS = 3
"""Runs of the original that must pass with a switch, if it fails each time without."""

_CONFIDENCE = 0.99


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    return why_not_varied(facts, context.question, "setting")


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    failure, piece = facts.failure, facts.piece
    assert failure is not None
    context.begin_step(_SHARE)
    context.cool()
    original = original_template(failure, context.question)
    if piece is None:
        seen = _of_original(_Trial(template=original, failure=failure, runs=_runs_needed(facts)), context)
        return StepAnswer(replace(facts, settings=seen), _line(seen))
    template = piece_template(failure, piece, context.question)
    found = _found(template, Path(piece.path), None, context)
    trial = _Trial(template=original, failure=failure, runs=_runs_needed(facts))
    switches = tuple(_tried(switch, trial, context) for switch in found.switches[:_MOST_SWITCHES])
    seen = _record(found, failure.suspect or "", switches)
    if seen.switches and not any(switch.mends_original for switch in seen.switches):
        whole = _of_original(trial, context)
        seen = replace(seen, switches=(*whole.switches, *seen.switches), checks=seen.checks + whole.checks)
    return StepAnswer(replace(facts, settings=seen), _line(seen))


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


def _of_original(trial: _Trial, context: StepContext) -> SettingsSeen:
    question = context.question
    found = _found(trial.template, question.model, question.weights_folder, context)
    switches = tuple(_tried(switch, trial, context) for switch in found.switches[:_MOST_SWITCHES])
    return _record(found, trial.failure.suspect or "", switches)


def _found(template: CheckTemplate, model: Path, weights: Path | None, context: StepContext) -> Flags:
    """What ``debug flags`` finds."""
    with contextlib.closing(varied_check(template, str(context.candidate))) as varied:
        found = find_switches(varied, model, context.question.judging.rules, context.bounded, weights)
    _write(found, template, context)
    return found


def _write(found: Flags, template: CheckTemplate, context: StepContext) -> None:
    version = create(template.spec).version()
    tree = settings_tree(found, template.spec.text, version)
    write_whole(context.question.folder / REPORT, [as_json(plain(tree))])


def _record(found: Flags, engine: str, switches: Sequence[SwitchSeen]) -> SettingsSeen:
    return SettingsSeen(
        engine=engine,
        tried=tuple((one.change.text, one.outcome.value, one.reason) for one in found.tried),
        switches=tuple(switches),
        complete=found.complete and len(found.switches) <= _MOST_SWITCHES,
        checks=found.checks,
    )


# The original with a switch


def _tried(switch: Switch, trial: _Trial, context: StepContext) -> SwitchSeen:
    """A switch, tried on the original in fresh processes, and held against float64 where values are compared."""
    template, failure = trial.template, trial.failure
    changed = template.changed(switch.change).text
    mends = changed != failure.trusted and _passes(switch.change, template, context, trial.runs)
    exact = failure.is_of_values and context.question.check is None and _is_right(switch, template, context)
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


def _is_right(switch: Switch, template: CheckTemplate, context: StepContext) -> bool:
    """Whether the original errs by no more than rounding with a switch."""
    words = noise_words(template.changed(switch.change).text, context)
    return _passes(switch.change, CheckTemplate(words, template.spec), context, 1)


def _line(seen: SettingsSeen) -> str:
    if not seen.tried and not seen.switches:
        return "this engine has no settings to try"
    if not seen.switches:
        return f"no setting switches it off ({len(seen.tried)} tried)"
    told = []
    for switch in seen.switches:
        where = "" if switch.mends_original else " (not the whole model)"
        told.append(f"it goes away {switch.text}{where}")
    return "; ".join(told)


SETTINGS = DiagnosisStep(
    name="setting",
    question="which setting or optimizer switches it off?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="settings",
    files=(REPORT,),
)
"""The fewest settings, or optimizers of ONNX Runtime."""
