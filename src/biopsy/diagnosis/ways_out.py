"""What avoids a failure: settings, changes of the model, other releases and engines, each with a check that passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import as_word
from biopsy.diagnosis.facts import KnownFacts, MendingSwitch
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Words,
    path_of,
    with_engine,
    with_engine_place,
    with_inputs,
    with_limits,
    without_weights_folder,
)
from biopsy.engines.registry import full_title, is_reference, parse_spec
from biopsy.findings.bundle.engine_script import calls_of
from biopsy.text import can_be_typed, count, first_of, line_of, series

ELSEWHERE = "Another engine:"
"""The beginning of a way out that only another engine offers."""
_MOST_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class WayOut:
    """What avoids the failure, as a sentence, and the check that passes: ``words``, for a ``model`` and in an
    ``environment``; no words if there is none. ``engine`` is the spec of a switch or of another release, ``code`` lines
    for the application.
    """

    text: str
    words: Words = ()
    model: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    engine: str = ""
    code: Sequence[str] = ()

    @property
    def line(self) -> str:
        """The check as a line to paste; "" if there is none."""
        assigned = [f"{name}={value}" for name, value in self.environment.items() if can_be_typed(value)]
        prefix = f"{line_of(['env', *assigned])} " if assigned else ""
        return f"{prefix}{check_line(self.words, self.model)}" if self.words else ""


def ways_out(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[WayOut]:
    """What avoids the failure: only what was seen to pass with the original, each with a check that shows it."""
    failure, precision, rounding, model = facts.failure, facts.precision, facts.rounding, question.model
    if failure is None:
        return
    if rounding is not None and rounding.is_rounding and rounding.passes_noise and failure.suspect is not None:
        words = (*question.without_limits.original_words([failure.suspect]), "--compare-with", "noise")
        yield WayOut(text="A check that allows what rounding explains passes.", words=words, model=model)
    command = parse(failure.check)
    if rounding is not None and rounding.is_rounding and rounding.passing_limits and isinstance(command, OwnRun):
        words = with_limits(command, rounding.passing_limits)
        yield WayOut(text=f"With {' '.join(rounding.passing_limits)} it passes.", words=words, model=model)
    if failure.passes_with:
        words = with_inputs(failure.check, path_of(failure.passing_inputs))
        text = f"With inputs of {' '.join(failure.passes_with)} it does not fail."
        yield WayOut(text=text, words=words, model=model)
    rejected = dict(facts.changes.rejected) if facts.changes is not None else {}
    is_of_values = failure.report.stage == "compare"
    for switch in (each for each in facts.mending_switches if is_of_values or each.engine not in rejected):
        yield _of_switch(switch, facts, question)
    yield from _of_changes(facts, question)
    if precision is not None and precision.passes and precision.high and precision.output is not None:
        path = Path(precision.output)
        text = f"{as_word(path)}, the model with {first_of(precision.high, _MOST_SHOWN)} in float32, passes."
        yield WayOut(text=text, words=without_weights_folder(failure.check), model=path)
    # The engine always fails to load, build or run the model, or crashes; or another one is right.
    is_refused = failure.report.stage != "compare" and not facts.is_flaky
    is_blamed = trusted_is_right(facts)
    is_of_engine = facts.fault not in ("invalid", "undefined") and facts.may_be_undefined is None
    is_shown = question.check is None and is_of_engine and (is_refused or is_blamed)
    if failure.trusted is not None and failure.suspect is not None and is_shown:
        is_other = parse_spec(failure.trusted).name != parse_spec(failure.suspect).name
        if not is_other and (facts.mending_switches or is_blamed):
            return
        # Its usual settings, unless the user chose others, or they were seen to give something else.
        usual = failure.trusted if failure.trusted in question.engines else parse_spec(failure.trusted).name
        words = question.original_words(list(dict.fromkeys([failure.trusted, usual])))
        lost = any(each.failed and each.line == check_line(words, model) for each in facts.ways_out)
        other = failure.trusted if lost or usual == failure.suspect else usual
        words = words if other == usual else question.original_words([other])
        text = f"{ELSEWHERE if is_other else ''} {full_title(other, '')} runs the model.".strip()
        held = {each.line for each in facts.ways_out if each.runs and not each.failed}
        of_trusted_values = WayOut(text=text, words=words, model=model, code=_calls(other, question))
        yield next((way for way in products(facts, question) if way.line in held), of_trusted_values)


def trusted_is_right(facts: KnownFacts) -> bool:
    """Whether float64 shows that the trusted engine is right and the suspect wrong, or its shape or type does.

    That is then what the model declares, or what the definitions of its operators give.
    """
    failure = facts.known_failure
    if facts.rounding is not None and facts.rounding.blames(failure.suspect, failure.trusted):
        return True
    if facts.definition is not None and facts.definition.right == "trusted":
        return True
    return failure.mismatch is not None and failure.by_suspect(failure.mismatch).from_other_side.is_as_declared


_PRODUCTS = ("onnxrt", "openvino")


def products(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[WayOut]:
    """Engines for production that may give what the reference evaluator gives, if that is trusted; not yet run."""
    failure = facts.known_failure
    suspect = parse_spec(failure.suspect).name if failure.suspect else ""
    for engine in _PRODUCTS if failure.trusted and is_reference(failure.trusted) else ():
        if engine != suspect:
            text, words = f"{ELSEWHERE} {full_title(engine, '')} runs the model.", (failure.trusted or "", engine)
            code = _calls(engine, question)
            yield WayOut(text=text, words=question.original_words(words), model=question.model, code=code)


def _of_switch(switch: MendingSwitch, facts: KnownFacts, question: DiagnosisQuestion) -> WayOut:
    """A switch, with its cost or the doubts about it, if ``facts.changes`` has them."""
    exact = ", and errs no more than by rounding" if switch.right_by_float64 else ""
    more, changes = "", facts.changes
    if changes is not None:
        rejected = dict(changes.rejected).get(switch.engine)
        latencies = [each.latency for each in changes.best if (each.engine, each.kind) == (switch.engine, "setting")]
        if rejected is not None:
            more = f"; but it is not shown to be right: {rejected}"
        elif latencies and latencies[0]:
            more = f"; {latencies[0]}"
    what = f"{series(switch.optimizers)} off" if switch.optimizers else switch.text.removeprefix("with ")
    assigned = [f"{name}={value}" for name, value in switch.change.environment.items() if can_be_typed(value)]
    words, failure = with_engine_instead(switch.engine, facts, question), facts.known_failure
    if question.check is None and failure.report.stage != "compare" and failure.trusted is not None:
        words = question.original_words([failure.trusted, switch.engine])  # what does not crash may still be wrong
    return WayOut(
        text=f"{what}: the model passes{exact}{more}.",
        words=words,
        model=question.model,
        environment=switch.change.environment,
        engine=switch.engine,
        code=_calls(switch.engine, question, assigned),
    )


def _calls(engine: str, question: DiagnosisQuestion, environment: Sequence[str] = ()) -> Sequence[str]:
    """Lines of Python that run the model in an engine with these settings; none if there are none."""
    try:
        calls = calls_of(parse_spec(engine), question.index)
    except errors.BiopsyError:
        return ()
    return (*(f"# with {assignment} in the environment" for assignment in environment), *calls) if calls else ()


def with_engine_instead(engine: str, facts: KnownFacts, question: DiagnosisQuestion) -> Words:
    """The words of the check with another engine instead of the suspect; empty if the check names no engine."""
    template = question.template or with_engine_place(facts.known_failure.check, facts.suspect or "") or ()
    return with_engine(template, engine)


def _of_changes(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[WayOut]:
    """The best changes of the model, and the last release that is verified with the original.

    Changes of settings are left out: ``_of_switch`` describes them.
    """
    changes, releases = facts.changes, facts.releases
    for change in changes.best if changes is not None else ():
        if change.kind != "setting":
            cost = f", {count(change.nodes, 'node')} changed" if change.nodes else ""
            cost += f"; {change.latency}" if change.latency else ""
            path, text = path_of(change.path), f"{change.text[:1].upper()}{change.text[1:]}"
            what = "the model" if path is None else f"{as_word(path)}, the model with that,"
            words = () if path is None else without_weights_folder(facts.known_failure.check)
            yield WayOut(text=f"{text}: {what} is right{cost}.", words=words, model=path or question.model)
    if releases is not None and not releases.doubt and releases.changes and releases.changes[-1].verified:
        last = releases.changes[-1]
        words, calls = with_engine_instead(last.engine, facts, question), _calls(last.engine, question)
        text = f"{releases.package} {last.right}: the model passes."
        yield WayOut(text=text, words=words, model=question.model, engine=last.engine, code=calls)


def check_line(words: Words, model: Path) -> str:
    """The words of a check on a model as a line to paste."""
    return line_of([as_word(model) if word == "{}" else word for word in words])
