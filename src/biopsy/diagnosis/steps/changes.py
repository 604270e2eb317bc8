"""Which changes make the whole model right: settings of the engine, and the model written in another way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.repetition import interval, runs_needed
from biopsy.comparison.describe import plain
from biopsy.diagnosis.context import NOT_THOROUGH, PERSON, TIME, DiagnosisStep, StepAnswer, StepContext
from biopsy.diagnosis.facts import ChangeSeen, ChangesSeen, FailureSeen, KnownFacts, SettingsSeen, SwitchSeen
from biopsy.diagnosis.question import DiagnosisQuestion, feeds_of
from biopsy.diagnosis.steps.rounding import noise_words
from biopsy.diagnosis.workarounds import original_template, piece_template, why_not_varied
from biopsy.engines.registry import PLAIN, create, parse_spec
from biopsy.findings.answers import settings_tree, workarounds_tree
from biopsy.findings.envelope import as_json
from biopsy.processes.writing import write_whole
from biopsy.questions.builds.flags import Flags, Switch, find_switches
from biopsy.questions.builds.settings import CheckTemplate, SettingChange, varied_check
from biopsy.questions.workarounds.find import find_workarounds
from biopsy.questions.workarounds.question import Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.questions.workarounds.result import VerifiedChange, Workarounds
from biopsy.session.trial import Budget
from biopsy.tensors.files import read_results
from biopsy.tensors.results import RunnerResult
from biopsy.text import count

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
    version = create(template.spec).version()
    tree = settings_tree(found, template.spec.text, version)
    write_whole(context.question.folder / REPORT, [as_json(plain(tree))])
    return found


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


# Which changes make the whole model right: the settings that were found, and the model written in another way.

PATCHED = "workaround.onnx"
CHANGES_REPORT = "workaround.json"
"""The best changed model, and what was tried, as ``debug workaround`` has it, in the folder of the evidence."""

_CHANGES_SHARE = 0.6
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
    context.begin_step(_CHANGES_SHARE if question.effort.downloads else 1.0)
    context.cool()
    switches = [switch for switch in facts.settings.switches if switch.mends_original] if facts.settings else []
    settings = [_change(switch, failure) for switch in switches]
    found = find_workarounds(_question(facts, failure, context), context.listener, settings)
    write_whole(question.folder / CHANGES_REPORT, [as_json(plain(workarounds_tree(found, question.index)))])
    engines = {change.text: switch.engine for change, switch in zip(settings, switches, strict=True)}
    rejected = {one.text: one.reason for one in found.tried if one.kind == "setting" and not one.right}
    seen = ChangesSeen(
        best=tuple(_seen(one, found) for one in found.best),
        rejected=tuple((engines[text], reason) for text, reason in rejected.items() if text in engines),
        tried=len(found.tried),
        complete=found.stopped is None,
        doubt="" if found.trust.confirmed_by else f"what is right is what {found.trust.reference} gives",
    )
    ended = PERSON if found.interrupted else TIME if found.stopped is not None else None
    return StepAnswer(replace(facts, further=replace(facts.further, changes=seen)), _changes_line(seen), ended)


def _question(facts: KnownFacts, failure: FailureSeen, context: StepContext) -> WorkaroundQuestion:
    question = context.question
    template = original_template(failure, question)
    large = question.index.weight_bytes > _MOST_INSIDE
    return WorkaroundQuestion(
        index=question.index,
        model=question.model,
        template=template,
        right=_right(failure, question),
        rules=question.judging.rules,
        kinds=_KINDS,
        piece=None if facts.piece is None else Path(facts.piece.path),
        default_name=str(context.candidate),
        target=PatchedFile(path=question.folder / PATCHED, external=f"{PATCHED}.data" if large else None),
        budget=Budget(seconds=context.seconds_left),
    )


def _change(switch: SwitchSeen, failure: FailureSeen) -> SettingChange:
    """What a switch changes of the engine that fails."""
    before = parse_spec(failure.suspect or "").settings
    now = parse_spec(switch.engine).settings
    changed = {name: value or "" for name, value in now.items() if name not in before or before[name] != value}
    return SettingChange(changed, dict(switch.environment))


def _right(failure: FailureSeen, question: DiagnosisQuestion) -> WhatIsRight:
    """The engine that a person named first is right, else whom we trust."""
    trusted = failure.trusted
    named = trusted is not None and len(question.engines) > 1 and trusted in question.engines
    return WhatIsRight(
        samples=feeds_of(question.index, question.samples),
        drawn=question.samples.inputs,
        golden=golden_of(_golden_results(failure), question.index),
        judge=question.judging.judge,
        references=(trusted,) if named and trusted is not None else PLAIN,
        named=named,
    )


def _golden_results(failure: FailureSeen) -> Iterator[RunnerResult]:
    """What the check itself holds outputs against."""
    command = parse(failure.check)
    for path in command.golden_files if isinstance(command, OwnRun) else ():
        yield from read_results(path)


def _seen(change: VerifiedChange, found: Workarounds) -> ChangeSeen:
    is_written = found.output is not None and change is found.patched
    return ChangeSeen(
        kind=change.kind,
        text=change.text,
        engine=change.engine,
        environment=tuple(change.environment.items()),
        nodes=len(change.nodes),
        latency="" if change.latency is None else change.latency.text,
        path=str(found.output) if is_written else None,
    )


def _changes_line(seen: ChangesSeen) -> str:
    if not seen.best:
        return f"no change makes the model right ({seen.tried} tried)"
    told = "; ".join(one.text for one in seen.best)
    return f"{told} · {count(seen.tried, 'change')} tried"


CHANGES = DiagnosisStep(
    name="workaround",
    question="which change makes the whole model right, and what does it cost?",
    not_asked=_changes_not_asked,
    answer=_changes_answer,
    evidence="workaround",
    files=(CHANGES_REPORT, PATCHED),
)
"""Each change is verified on the whole model, as ``debug workaround`` does."""
