"""Which changes make the whole model right: the settings that were found, and the model written in another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison.json_report import plain
from biopsy.diagnosis.context import StepContext
from biopsy.diagnosis.engine_place import original_template, why_not_varied
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, SwitchSeen
from biopsy.diagnosis.further_facts import ChangeSeen, ChangesSeen
from biopsy.diagnosis.question import DiagnosisQuestion
from biopsy.diagnosis.reasons import NOT_THOROUGH
from biopsy.diagnosis.samples import feeds_of
from biopsy.diagnosis.step import PERSON, TIME, DiagnosisStep, StepAnswer
from biopsy.engines.registry import parse_spec
from biopsy.engines.yardsticks import PLAIN
from biopsy.filesystem.write import write_whole
from biopsy.quantities import count
from biopsy.report.envelope import as_json
from biopsy.report.workarounds import workarounds_tree
from biopsy.session.budget import Budget
from biopsy.tactics.setting_changes import SettingChange
from biopsy.tensors.files import read_results
from biopsy.tensors.results import RunnerResult
from biopsy.workarounds.find import find_workarounds
from biopsy.workarounds.question import Kind, PatchedFile, WhatIsRight, WorkaroundQuestion, golden_of
from biopsy.workarounds.result import VerifiedChange, Workarounds

PATCHED = "workaround.onnx"
REPORT = "workaround.json"
"""The best changed model, and what was tried, as ``debug workaround`` has it, in the folder of the evidence."""

_SHARE = 0.6
"""Of the time that is left, if releases are asked about after it."""

_KINDS: tuple[Kind, ...] = ("setting", "mark", "barrier", "precision", "spelling")
"""Releases are asked about by a step of their own."""

_MOST_INSIDE = 512 << 20
"""Bytes of weights that are written into the model; more stand in a file beside it."""


def _not_asked(facts: KnownFacts, context: StepContext) -> str | None:
    why = why_not_varied(facts, context.question, "workaround")
    if why is not None:
        return why
    if facts.fault_before is not None:
        return "no engine can tell what is right"
    return None if context.question.effort.thorough else NOT_THOROUGH


def _answer(facts: KnownFacts, context: StepContext) -> StepAnswer:
    question, failure = context.question, facts.failure
    assert failure is not None
    context.begin_step(_SHARE if question.effort.downloads else 1.0)
    context.cool()
    switches = [switch for switch in facts.settings.switches if switch.mends_original] if facts.settings else []
    settings = [_change(switch, failure) for switch in switches]
    found = find_workarounds(_question(facts, failure, context), context.listener, settings)
    write_whole(question.folder / REPORT, [as_json(plain(workarounds_tree(found, question.index)))])
    engines = {change.text: switch.engine for change, switch in zip(settings, switches, strict=True)}
    seen = _record(found, engines)
    ended = PERSON if found.interrupted else TIME if found.stopped is not None else None
    return StepAnswer(replace(facts, further=replace(facts.further, changes=seen)), _line(seen), ended)


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


def _record(found: Workarounds, engines: Mapping[str, str]) -> ChangesSeen:
    rejected = {one.text: one.reason for one in found.tried if one.kind == "setting" and not one.right}
    return ChangesSeen(
        best=tuple(_seen(one, found) for one in found.best),
        rejected=tuple((engines[text], reason) for text, reason in rejected.items() if text in engines),
        tried=len(found.tried),
        complete=found.stopped is None,
        doubt="" if found.trust.confirmed_by else f"what is right is what {found.trust.reference} gives",
    )


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


def _line(seen: ChangesSeen) -> str:
    if not seen.best:
        return f"no change makes the model right ({seen.tried} tried)"
    told = "; ".join(one.text for one in seen.best)
    return f"{told} · {count(seen.tried, 'change')} tried"


CHANGES = DiagnosisStep(
    name="workaround",
    question="which change makes the whole model right, and what does it cost?",
    not_asked=_not_asked,
    answer=_answer,
    evidence="workaround",
    files=(REPORT, PATCHED),
)
"""Each change is verified on the whole model, as ``debug workaround`` does."""
