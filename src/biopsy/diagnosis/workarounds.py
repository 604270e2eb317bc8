"""What avoids a failure: only what was tried and passed, each with the line that shows it; and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import as_word
from biopsy.diagnosis.context import NO_PLACE, UNKNOWN_ENGINE
from biopsy.diagnosis.facts import FailureSeen, KnownFacts, PieceFound, SwitchSeen
from biopsy.diagnosis.question import (
    DiagnosisQuestion,
    Words,
    shape_words,
    with_engine,
    with_engine_place,
    with_inputs,
    without_weights_folder,
)
from biopsy.engines.registry import find_class, parse_spec
from biopsy.findings.verdict import Workaround
from biopsy.questions.builds.settings import CheckTemplate
from biopsy.text import can_be_typed, count, first_of, line_of, series

_MOST_NAMED = 5


def workarounds_of(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[Workaround]:
    """Those that were tried on the original and passed."""
    failure, precision = facts.failure, facts.precision
    if failure is None:
        return
    yield from _of_rounding(facts, question)
    if failure.passes_with:
        words = with_inputs(failure.check, None if failure.passing_inputs is None else Path(failure.passing_inputs))
        text = f"With inputs of {' '.join(failure.passes_with)} it does not fail."
        yield Workaround(text=text, line=_line(words, question.model))
    for switch in facts.mending_switches:
        yield _of_switch(switch, facts, question)
    yield from _of_changes(facts, question)
    if precision is not None and precision.passes and precision.high and precision.output is not None:
        path = Path(precision.output)
        text = f"{as_word(path)}, the model with {first_of(precision.high, _MOST_NAMED)} in float32, passes."
        yield Workaround(text=text, line=_line(without_weights_folder(failure.check), path))
    # An engine cannot load, build or run the model, or dies of it, and not only now and then.
    is_refused = failure.said.stage != "compare" and not facts.is_flaky
    if failure.trusted is not None and question.check is None and is_refused:
        words = question.original_words([failure.trusted])
        yield Workaround(text=f"Another engine: {failure.trusted} runs it.", line=_line(words, question.model))


def _of_rounding(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[Workaround]:
    rounding, failure = facts.rounding, facts.failure
    if rounding is None or failure is None or not rounding.is_rounding:
        return
    if rounding.passes_noise and failure.suspect is not None:
        words = (*question.without_limits.original_words([failure.suspect]), "--compare-with", "noise")
        yield Workaround(text="A check that allows what rounding explains passes.", line=_line(words, question.model))
    if rounding.passing_limits:
        command = parse(failure.check)
        assert isinstance(command, OwnRun)
        words = with_limits(command, rounding.passing_limits)
        yield Workaround(text=f"With {' '.join(rounding.passing_limits)} it passes.", line=_line(words, question.model))


_TOLERANCES = (
    "--atol", "--abs-tol", "--absolute-tolerance", "--rtol", "--rel-tol", "--relative-tolerance",
)  # fmt: skip


def with_limits(command: OwnRun, limits: Words) -> Words:
    """The words of a run with other tolerances than it has."""
    return command.without_option(_TOLERANCES).with_options(*limits).words


def _of_switch(switch: SwitchSeen, facts: KnownFacts, question: DiagnosisQuestion) -> Workaround:
    """A switch, with what a closer look has said: how much slower the model is with it, or that it is not right."""
    exact = ", and errs no more than by rounding" if switch.right_by_float64 else ""
    more, changes = "", facts.further.changes
    if changes is not None:
        rejected = dict(changes.rejected).get(switch.engine)
        same = [each for each in changes.best if each.engine == switch.engine and each.kind == "setting"]
        if rejected is not None:
            more = f"; but it is not shown to be right on other inputs: {rejected}"
        elif same and same[0].latency:
            more = f"; it takes {same[0].latency}"
    what = f"{series(switch.optimizers)} off" if switch.optimizers else switch.text.removeprefix("with ")
    assigned = [f"{name}={value}" for name, value in switch.environment if can_be_typed(value)]
    prefix = f"{line_of(['env', *assigned])} " if assigned else ""
    line = _line(_with_engine(switch.engine, facts, question), question.model)
    return Workaround(text=f"{what}: the model passes{exact}{more}.", line=f"{prefix}{line}")


def _with_engine(engine: str, facts: KnownFacts, question: DiagnosisQuestion) -> Words:
    """The words of the check with another engine in the place of the one that fails; none if they have no place."""
    failure = facts.failure
    assert failure is not None and failure.suspect is not None
    template = question.template or with_engine_place(failure.check, failure.suspect) or ()
    return with_engine(template, engine)


def _of_changes(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[Workaround]:
    """The best changes of the model, and the last release that the original was asked with.

    Changes of settings are told with what has found them.
    """
    failure, changes, releases = facts.failure, facts.further.changes, facts.further.releases
    assert failure is not None
    for change in changes.best if changes is not None else ():
        if change.kind == "setting":
            continue
        cost = f", {count(change.nodes, 'node')} changed" if change.nodes else ""
        cost += f"; it takes {change.latency}" if change.latency else ""
        text = f"{change.text[:1].upper()}{change.text[1:]}"
        if change.path is None:
            yield Workaround(text=f"{text}: the model is right{cost}.")
            continue
        path = Path(change.path)
        line = _line(without_weights_folder(failure.check), path)
        yield Workaround(text=f"{text}: {as_word(path)}, the model with that, is right{cost}.", line=line)
    if releases is not None and not releases.doubt and releases.changes and releases.changes[-1].verified:
        last = releases.changes[-1]
        line = _line(_with_engine(last.engine, facts, question), question.model)
        yield Workaround(text=f"{releases.package} {last.right}: the model passes.", line=line)


def _line(words: Words, model: Path) -> str:
    """A line to paste: the words of a check on a model."""
    return line_of([as_word(model) if word == "{}" else word for word in words])


def next_lines(facts: KnownFacts, question: DiagnosisQuestion) -> Iterator[tuple[str, str]]:
    """What to do next: a line to paste, and why."""
    failure, piece = facts.failure, facts.piece
    if failure is None:
        has_passed = facts.compared is not None and bool(facts.compared.rows)
        if has_passed and question.samples.made_up and question.engines and question.check is None:
            inputs = question.samples.inputs
            engines = [word for engine in question.engines for word in ("--engine", engine)]
            ranges = {name: f"[{least!r},{greatest!r}]" for name, (least, greatest) in inputs.val_range.items()}
            making = {
                "--input-shapes": shape_words(inputs.shapes),
                "--input-symbols": [f"{name}={size}" for name, size in inputs.symbols.items()],
                "--val-range": [f"{name}:{ends}" if name else ends for name, ends in ranges.items()],
            }
            words = ["biopsy", "diagnose", as_word(question.model), *engines, "--seed", str(inputs.seed + 1)]
            words += [
                "--iterations",
                "8",
                *(word for option, said in making.items() if said for word in (option, *said)),
            ]
            yield line_of([*words, *question.judging.limits]), "other random inputs"
        return
    if piece is not None:
        path = Path(piece.path)
        check = without_weights_folder(failure.check)
        repeated = with_inputs(check, None if piece.inputs is None else Path(piece.inputs))
        if not piece.masked:
            yield _line(repeated, path), "the failure, in the piece"
        yield line_of(["biopsy", "inspect", "model", as_word(path), "--mode=full"]), "what the piece computes"
        yield from _deeper(facts, question, repeated)
    elif facts.fault_before is not None and facts.fault_before.kind == "refused":
        yield line_of(["biopsy", "check", "lint", as_word(question.model)]), "what is wrong with the model"


def _deeper(facts: KnownFacts, question: DiagnosisQuestion, of_piece: Words) -> Iterator[tuple[str, str]]:
    """What takes minutes, and was not asked: which release it was, and which change of the model avoids it."""
    failure, piece = facts.failure, facts.piece
    if question.effort.thorough or why_not_varied(facts, question, "") or failure is None or piece is None:
        return
    assert failure.suspect is not None
    spec = parse_spec(failure.suspect)
    packages = find_class(spec.name).distributions
    engine, check = [], failure.check
    if question.template is not None:
        engine, check, of_piece = ["--engine", failure.suspect], question.template, question.template
    elif not isinstance(parse(check), OwnRun):
        return
    path = as_word(Path(piece.path))
    if packages:
        words = ["biopsy", "debug", "version", path, "--package", packages[0], *engine, "--check", *of_piece]
        yield line_of(words), f"which release of {packages[0]} broke it (installs releases)"
    weights = [] if question.weights_folder is None else ["--external-data-dir", as_word(question.weights_folder)]
    words = ["biopsy", "debug", "workaround", as_word(question.model), "--piece", path, *weights, *engine, "--check"]
    yield line_of([*words, *check]), "which change of the model avoids it, and what that costs"


# Where a check says which engine it runs, for questions that are asked with other settings or releases of it.


def why_not_varied(facts: KnownFacts, question: DiagnosisQuestion, what: str) -> str | None:
    """Why it is not asked which ``what`` of the engine is at fault, such as a setting; None if it is."""
    failure = facts.failure
    if failure is None:
        return "nothing fails"
    if facts.fault not in (None, "refused"):
        return "no engine is at fault"
    if facts.is_rounding:
        return f"it is rounding: no {what} is at fault"
    if failure.masked:
        return "a failure that the outputs do not show"
    if failure.suspect is None:
        return UNKNOWN_ENGINE
    return NO_PLACE if _template(failure.check, failure, question) is None else None


def original_template(failure: FailureSeen, question: DiagnosisQuestion) -> CheckTemplate:
    """The check of the original with a place for the engine, where ``why_not_varied`` has no objection."""
    template = _template(failure.check, failure, question)
    assert template is not None
    return template


def piece_template(failure: FailureSeen, piece: PieceFound, question: DiagnosisQuestion) -> CheckTemplate:
    """The same for the piece, with the inputs that it is fed."""
    inputs = None if piece.inputs is None else Path(piece.inputs)
    template = _template(with_inputs(without_weights_folder(failure.check), inputs), failure, question)
    assert template is not None
    return template


def _template(words: Words, failure: FailureSeen, question: DiagnosisQuestion) -> CheckTemplate | None:
    """The words with a place for the engine; None if they have none."""
    if failure.suspect is None:
        return None
    given = question.template
    placed = with_engine_place(words, failure.suspect) if given is None else given
    return None if placed is None else CheckTemplate(placed, parse_spec(failure.suspect), is_own_run=given is None)
