"""Which release of the engine broke the model, or mended it: asked of the piece, verified with the original."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from biopsy import events
from biopsy.blame.releases.engine_releases import FailingModel, search_of_engine
from biopsy.blame.releases.find import ReleaseSearch
from biopsy.blame.releases.findings import ReleaseBorder, ReleaseFindings
from biopsy.comparison.json_report import plain
from biopsy.diagnosis.context import StepContext, TimeUpError
from biopsy.diagnosis.engine_place import original_template, piece_template, why_not_varied
from biopsy.diagnosis.facts import FailureSeen, KnownFacts
from biopsy.diagnosis.further_facts import ReleaseChangeSeen, ReleasesSeen
from biopsy.diagnosis.reasons import NO_DOWNLOAD, NOT_THOROUGH
from biopsy.diagnosis.step import PERSON, TIME, DiagnosisStep, StepAnswer
from biopsy.engines.other_release.release import RELEASE
from biopsy.filesystem.write import write_whole
from biopsy.report.envelope import as_json
from biopsy.report.releases import releases_tree
from biopsy.tactics.setting_changes import CheckTemplate, SettingChange

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
