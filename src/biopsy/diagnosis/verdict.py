"""From what is known to words: what fails, whose failure it is, how sure that is, what avoids it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from biopsy.diagnosis.context import UNABLE
from biopsy.diagnosis.facts import DiagnosisVerdict, FailureSeen, KnownFacts, PrecisionSeen, StepReport, SwitchSeen
from biopsy.diagnosis.question import DiagnosisQuestion, fixed_and_tiny
from biopsy.diagnosis.steps.origin import RELEASES, operators_of
from biopsy.diagnosis.steps.piece import joined
from biopsy.diagnosis.workarounds import workarounds_of
from biopsy.engines import registry
from biopsy.engines.registry import parse_spec
from biopsy.text import count, first_line, first_of, series

_MOST_NODES = 8
_MOST_PLACES = 2
_LONGEST_MESSAGE = 300
_WHOLE = "the model"

_OTHER_KINDS = {
    "not-finite-mismatch": "differs from {}, only one of them gives NaN or infinity,",
    "shape-mismatch": "gives another shape than {}",
    "type-mismatch": "gives another type than {}",
    "missing-output": "lacks an output of {}",
}
"""What differs, of ``comparison.mismatch``, besides numbers; in braces what it is held against."""


def verdict_of(facts: KnownFacts, steps: Sequence[StepReport], question: DiagnosisQuestion) -> DiagnosisVerdict:
    """The verdict on what is known, and what was left open."""
    kind, text = _kind_and_text(facts, question)
    certainty = " ".join(_certainty(facts)) or None
    return DiagnosisVerdict(
        kind=kind,
        text=text,
        certainty=certainty if kind not in ("passes", "unknown") else None,
        workarounds=tuple(workarounds_of(facts, question)),
        not_tried=tuple(_left_open(facts, steps)),
    )


def _kind_and_text(facts: KnownFacts, question: DiagnosisQuestion) -> tuple[str, str]:
    failure, fault = facts.failure, facts.fault_before
    if failure is None:
        return _without_failure(facts, question)
    if fault is not None and fault.kind == "input":
        return "input", (
            f"The size of the inputs is at fault, and no engine: {series(fault.every)} fail with "
            f"{' '.join(fault.shapes)}, and none of them with {' '.join(fault.passes_with)}." + _engine_says(failure)
        )
    if fault is not None and fault.kind == "random":
        return "random", f"Nothing can be said of an engine: {fault.text}."
    if facts.rounding is not None and facts.rounding.is_rounding:
        return "rounding", _rounding_text(facts, failure)
    piece = _of_piece(facts)
    precision = facts.precision
    if precision is not None and precision.passes and precision.high:
        return "precision", _precision_text(precision, facts, failure)
    if fault is not None and fault.kind == "not-finite":
        return "not-finite", f"The model or its inputs make NaN, not one engine: {fault.text}.{piece}"
    if fault is not None:
        wrong = "either none of them supports it, or the model or its inputs are wrong"
        tiny = fixed_and_tiny(question.index)
        small = f" Its input may be too small: {', '.join(tiny)}, and the model fixes that." if tiny else ""
        return "refused", f"{_begun(fault.text)}: {wrong}.{small}{piece}{_engine_says(failure)}"
    kind = "masked" if failure.masked else "flaky" if _is_flaky(facts) else "reduced" if facts.piece else "fails"
    sentences = [
        _begun(_subject(facts, failure, question)),
        *_written(facts),
        *_how_often(facts),
        *_together(facts),
        *_switched(facts),
        *_sizes(failure),
        *_known(facts),
        *_transformed(facts),
        *_released(facts),
    ]
    return kind, " ".join(sentences)


# Nothing fails


def _without_failure(facts: KnownFacts, question: DiagnosisQuestion) -> tuple[str, str]:
    compared = facts.compared
    if compared is None:
        return "unknown", "Whether the model fails is not known: the first question has no answer yet."
    if question.check is None and not compared.rows:
        ran = ", ".join(question.engines)
        return "unknown", f"{ran} runs the model, but nothing could be compared: {'; '.join(compared.not_compared)}."
    passes = f"The model does not fail: {'; '.join(compared.passed)}, with {_inputs(question)}{_inside(facts)}."
    if facts.further.transformation is not None and facts.further.transformation.breaks:
        return "fails", f"{facts.further.transformation.sentence} {_before_it(passes)}"
    return "passes", passes


def _inputs(question: DiagnosisQuestion) -> str:
    samples = question.samples
    if question.check is not None and not samples.files:
        return "the inputs of the check"
    if not samples.files:
        return "no inputs, which it does not take"
    if not samples.made_up:
        return "the inputs that were given"
    given = samples.inputs
    return f"{count(given.iterations, 'random sample')} of seed {given.seed}"


def _inside(facts: KnownFacts) -> str:
    layers = facts.layers
    if layers is None or not layers.complete:
        return ""
    return f"; in {layers.suspect}, none of its {count(layers.layers, 'layer')} is wrong by more than rounding"


# Rounding


def _rounding_text(facts: KnownFacts, failure: FailureSeen) -> str:
    rounding = facts.rounding
    assert rounding is not None
    times = ""
    if rounding.times is not None:
        times = f", at most {rounding.times:.3g} times the error of plain float32"
    ratio = failure.tolerance_ratio
    beyond = "" if ratio is None else f" by {ratio:.3g} times what the tolerances allow"
    inputs = f"{len(rounding.verdicts)} of {count(rounding.inputs, 'set of inputs', 'sets of inputs')} differ"
    inputs += "s" if len(rounding.verdicts) == 1 else ""
    head, end = "It is rounding, and no bug", ""
    if rounding.reason:  # both may have the same bug
        head, end = "The difference is rounding", f" But {rounding.reason}."
    sides = f"{_suspect(facts, failure)} differs from {_trusted(failure)}"
    return f"{head}: {sides}{beyond}; held against float64, that is rounding{times} ({inputs}).{end}"


def _precision_text(precision: PrecisionSeen, facts: KnownFacts, failure: FailureSeen) -> str:
    high = first_of(precision.high, _MOST_NODES)
    return (
        f"It is a matter of precision: {_suspect(facts, failure)} and {_trusted(failure)} differ, and agree with "
        f"{high} in float32, {len(precision.high)} of {count(precision.layers, 'layer')}. Either {precision.low} "
        f"is not enough there, or the {precision.low} arithmetic of one of them is wrong.{_of_piece(facts)}"
    )


# A failure


def _subject(facts: KnownFacts, failure: FailureSeen, question: DiagnosisQuestion) -> str:
    """What fails, in the model's smallest part."""
    where = _where(facts)
    on = f"{'on' if where == _WHOLE else 'for'} {where}"
    optimizer = sole_optimizer(facts)
    engine = _suspect(facts, failure)
    who = engine if optimizer is None else f"{engine}'s optimizer {optimizer}"
    said = failure.said
    if failure.masked:
        return f"{engine} computes an inner tensor wrongly, which the outputs do not show: {where}."
    if failure.suspect is None:
        asked = "The check" if question.check is not None else f"A run of {series(question.rivals[0])}"
        return f"{asked} fails {on}: {said.signature}."
    if said.stage == "compare" and said.kind == "not-finite":
        return f"{engine} gives NaN or infinity {on}."
    if said.stage == "compare":
        return f"{who} {_differs(facts, failure)} {on}."
    if not said.stage:
        return f"{who} fails {on}: {said.signature}."
    message = first_line(said.message)[:_LONGEST_MESSAGE]
    detail = f": {message}" if message else f" ({said.signature})"
    if optimizer is not None:
        return f"With its optimizer {optimizer}, {engine} cannot {said.stage} {where}{detail}."
    return f"{engine} cannot {said.stage} {where}{detail}."


def _engine_says(failure: FailureSeen) -> str:
    """A sentence with the message of the engine that fails; "" where it gave none."""
    message = first_line(failure.said.message)[:_LONGEST_MESSAGE]
    return f" {title_of(failure.suspect)} says: {message}" if message and failure.suspect else ""


def _differs(facts: KnownFacts, failure: FailureSeen) -> str:
    rounding = facts.rounding
    if failure.is_of_not_finite and rounding is not None and rounding.blames(failure.suspect, failure.trusted):
        return "gives NaN or infinity where float64 does not, or the other way round,"
    if failure.said.kind != "mismatch":
        return _OTHER_KINDS.get(failure.said.kind, "differs from {}").format(_trusted(failure))
    if rounding is None or not rounding.is_more:
        return f"differs from {_trusted(failure)}"
    if failure.suspect in rounding.wrong and failure.trusted not in rounding.wrong:
        return "computes something else, by more than rounding,"
    both = "both are wrong by float64" if len(rounding.wrong) > 1 else "which of the two is wrong is not known"
    return f"differs from {_trusted(failure)} by more than rounding ({both})"


def _suspect(facts: KnownFacts, failure: FailureSeen) -> str:
    if failure.suspect is None:
        return "the check"
    versions = dict(facts.compared.engines) if facts.compared is not None else {}
    return full_title(failure.suspect, versions.get(failure.suspect, ""))


def _trusted(failure: FailureSeen) -> str:
    if failure.trusted is None:
        return "what is expected"
    return full_title(failure.trusted, "")


def _where(facts: KnownFacts) -> str:
    piece = facts.piece
    if piece is None:
        layers = facts.layers
        if layers is not None and layers.alone:
            return first_of(layers.alone, _MOST_NODES)
        if layers is not None and layers.together:
            return f"{first_of(layers.together[0], _MOST_NODES)} together"
        return _WHOLE
    if len(piece.nodes) == 1 and piece.is_one_minimal:
        return f"one node, {piece.nodes[0]}"
    if len(piece.nodes) > _MOST_NODES:
        return f"{len(piece.nodes)} nodes (piece.onnx)"
    operators = [node.partition(" ")[0] for node in piece.nodes]
    return (" -> " if joined(piece)[1] else ", ").join(operators)


def _of_piece(facts: KnownFacts) -> str:
    return "" if facts.piece is None else f" The smallest part that shows it: {_where(facts)}."


def _written(facts: KnownFacts) -> Iterator[str]:
    """Where in its author's code the piece was written."""
    places = () if facts.piece is None else facts.piece.places
    if places:
        yield f"It was written in {first_of(places, _MOST_PLACES)}."


def _is_flaky(facts: KnownFacts) -> bool:
    seen = facts.steadiness
    return seen is not None and (seen.is_flaky or bool(seen.itself))


def _how_often(facts: KnownFacts) -> Iterator[str]:
    seen = facts.steadiness
    if seen is None:
        return
    if seen.is_flaky:
        yield f"It is flaky: it fails in {seen.failed} of {seen.runs} runs."
    for told in filter(None, (seen.itself, seen.rows)):
        yield f"{_begun(told)}."


def _together(facts: KnownFacts) -> Iterator[str]:
    layers, piece = facts.layers, facts.piece
    if layers is None or piece is None or not layers.of_piece or not layers.complete or len(piece.nodes) < 2:
        return
    if layers.alone:
        yield f"Wrong by itself: {first_of(layers.alone, _MOST_NODES)}."
    elif any(len(group) == len(piece.nodes) for group in layers.together):
        fused = ", and not when the tensors between them are outputs: a fusion" if layers.hides else ""
        yield f"No node of these fails alone; they fail together{fused}."


def _switched(facts: KnownFacts) -> Iterator[str]:
    settings = facts.settings
    if settings is None:
        return
    sole = sole_optimizer(facts)
    if not settings.tried:
        return
    if not settings.switches:
        yield f"None of the {len(settings.tried)} settings that were tried switches it off."
        return
    mending = [switch for switch in settings.switches if switch.mends_original]
    if mending and not (sole and len(mending) == 1):
        yield f"It goes away {', or '.join(switch.text for switch in mending)}."
    for switch in settings.switches:
        if not switch.mends_original:
            yield f"In the piece it goes away {switch.text}; that does not mend the whole model."


def _sizes(failure: FailureSeen) -> Iterator[str]:
    if failure.passes_with:
        yield f"With larger inputs, {' '.join(failure.passes_with)}, it does not fail."


def _known(facts: KnownFacts) -> Iterator[str]:
    if facts.known is not None and facts.known.reference:
        yield f"It {facts.known.sentence}."


def _transformed(facts: KnownFacts) -> Iterator[str]:
    seen = facts.further.transformation
    if seen is not None and not seen.of_piece:
        yield seen.sentence if seen.breaks else f"{_begun(seen.sentence).rstrip('.')}."


def _before_it(passes: str) -> str:
    return passes.replace("The model does", "Before that, the model does", 1)


def _released(facts: KnownFacts) -> Iterator[str]:
    releases = facts.further.releases
    if releases is not None and releases.is_sure:
        yield f"{releases.text}."


def sole_optimizer(facts: KnownFacts) -> str | None:
    """The optimizer that is at fault: off alone it mends the model, and no other change of as few settings does."""
    settings = facts.settings
    if settings is None or not settings.complete:
        return None
    mending: list[SwitchSeen] = [switch for switch in settings.switches if switch.mends_original]
    if len(mending) != 1 or len(mending[0].optimizers) != 1 or not mending[0].verified:
        return None
    return mending[0].optimizers[0]


# How sure


def _certainty(facts: KnownFacts) -> Iterator[str]:
    rounding, steadiness, piece = facts.rounding, facts.steadiness, facts.piece
    if steadiness is not None and not steadiness.is_flaky:
        yield f"It failed in {steadiness.failed} of {steadiness.runs} runs."
    if rounding is not None and rounding.is_more:
        times = "" if rounding.times is None else f", {rounding.times:.3g} times what plain float32 errs by"
        yield f"Float64 says that it is more than rounding{times}."
    if rounding is not None and rounding.verdicts and not rounding.is_more and not rounding.is_rounding:
        yield f"Whether it is rounding is not known: {rounding.reason or 'float64 gave no answer'}."
    if piece is not None:
        how = "no single node of it can go" if piece.is_one_minimal else "a smaller one may exist"
        yield f"The piece was checked again as it was written, in a process of its own; {how}."
    yield from _made(facts)
    yield from _doubts_of_releases(facts)
    changes = facts.further.changes
    if changes is not None and changes.best and changes.doubt:
        yield f"Of workarounds, {changes.doubt}; nothing else confirms it."
    settings = facts.settings
    if settings is not None and settings.switches:
        sure = all(switch.verified for switch in settings.switches)
        yield (
            "With the switch, fresh processes pass; without it, they fail."
            if sure
            else "The switch was not confirmed by fresh processes."
        )


def _made(facts: KnownFacts) -> Iterator[str]:
    """What the optimizer has written, which is evidence of what it does."""
    seen = facts.further.transformation
    if seen is None or not seen.breaks:
        return
    if seen.of_piece and seen.nodes_after:
        yield f"The optimizer turns the piece into {operators_of(seen)}, which is wrong with no optimizer, too."
    if seen.engine_doubted:
        yield f"In the reference evaluator, what {seen.tool} makes is right: the engine may be wrong about it."


def _doubts_of_releases(facts: KnownFacts) -> Iterator[str]:
    releases = facts.further.releases
    if releases is None or not releases.complete:
        return
    if releases.doubt:
        yield f"{_begun(releases.doubt)}."
    for change in releases.changes:
        if not change.verified:
            yield f"Not confirmed with the whole model: {releases.package}, {change.text}."


def _left_open(facts: KnownFacts, steps: Sequence[StepReport]) -> Iterator[str]:
    for step in steps:
        if step.outcome in ("stopped", "failed") or (step.outcome == "skipped" and step.answer in UNABLE):
            yield f"{_begun(step.question)} ({step.answer})"
    if facts.compared is not None:
        yield from (f"{_begun(told)}." for told in facts.compared.not_compared)
    is_rounding = facts.rounding is not None and facts.rounding.is_rounding
    is_precision = facts.precision is not None and bool(facts.precision.high)
    is_of_engine = facts.fault_before is None and not is_rounding and not is_precision
    is_open = facts.further.releases is None and not any(step.name == RELEASES.name and step.seconds for step in steps)
    if facts.failure is not None and facts.failure.suspect is not None and is_of_engine and is_open:
        yield f"Other releases of {title_of(facts.failure.suspect)} were not tried."


def _begun(text: str) -> str:
    """A sentence begins with a capital letter, unless it begins with a name of its own."""
    first = text.partition(" ")[0]
    return text if ":" in first or "'" in first else text[:1].upper() + text[1:]


# Engines as a verdict names them: with their version and their settings.


def title_of(spec: str) -> str:
    """Such as ``ONNX Runtime``."""
    return registry.title_of(parse_spec(spec).name)


def full_title(spec: str, version: str) -> str:
    """Such as ``ONNX Runtime 1.31.1 (optimization=none)``."""
    settings = parse_spec(spec).text.partition(":")[2]
    named = " ".join(filter(None, (title_of(spec), version)))
    return f"{named} ({settings})" if settings else named
