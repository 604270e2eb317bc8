"""The verdict in words: what fails, which engine is at fault, how sure that is, what avoids it, what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison.mismatch import COSTS, FORMS, NOT_FINITE, Mismatch, form_text, special_of
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE, is_exact_by_default
from biopsy.diagnosis.context import LEAVES_OPEN, NOT_ASKED, essence
from biopsy.diagnosis.facts import KnownFacts, ModelFailure, StepReport
from biopsy.diagnosis.question import (
    TOLERANCES,
    DiagnosisQuestion,
    tiny_fixed_inputs,
)
from biopsy.diagnosis.steps.causes import releases as release_step
from biopsy.diagnosis.steps.rest import NOTHING_LEFT, grouped
from biopsy.diagnosis.steps.rounding import among_casts, narrowing_casts
from biopsy.diagnosis.ways_out import ways_out
from biopsy.engines import registry
from biopsy.engines.registry import full_title, parse_spec
from biopsy.engines.run_contract import MISSING_OUTPUT
from biopsy.findings.verdict import Verdict, Workaround
from biopsy.model.tensor_type import spaced
from biopsy.text import count, first_of, series

_MOST_NODES, _FEW_NODES = 8, 3
_MOST_PLACES = 2
_MOST_ENDS = 4
_MOST_NAMED_NODES = 2
_WHOLE = "the model"


def verdict_of(facts: KnownFacts, steps: Sequence[StepReport], question: DiagnosisQuestion) -> Verdict:
    """The verdict on the facts, with the questions that are still open."""
    kind, text = _without_failure(facts, question) if facts.failure is None else _of_failure(facts, question)
    is_of_engine = kind in ("masked", "flaky", "reduced", "fails") and facts.failure is not None
    times = {each.line: f" (in {each.runs} of {each.runs} further runs)" for each in facts.ways_out if each.runs}
    certainty = None if kind in ("passes", "unknown") else " ".join(_certainty(facts)) or None
    return Verdict(
        kind=kind,
        text=text,
        reasons=tuple(_reasons(facts)) if is_of_engine else (),
        certainty=certainty,
        workarounds=tuple(
            Workaround(
                text=f"{way.text[:-1]}{times.get(way.line, '')}.",
                line=way.line or None,
                engine=None if way.environment else way.engine or None,
                code=way.code,
            )
            for way in ways_out(facts, question)
            if not any(each.line == way.line and each.failed for each in facts.ways_out)
        ),
        not_tried=tuple(_left_open(facts, steps)),
    )


def _without_failure(facts: KnownFacts, question: DiagnosisQuestion) -> tuple[str, str]:
    compared, layers, tool, samples = facts.compared, facts.layers, facts.transformation, question.samples
    if compared is None:
        return "unknown", "Whether the model fails is not known: the first question has no answer yet."
    if question.check is None and not compared.rows:
        ran, why = ", ".join(question.engines), "; ".join(compared.not_compared).rstrip(".")
        return "unknown", f"{ran} runs the model, but nothing could be compared: {why}."
    inputs = "no inputs (the model takes none)" if question.check is None else "the inputs of the check"
    if samples.files:
        drawn = f"{count(samples.inputs.iterations, 'random sample')} of seed {samples.inputs.seed}"
        inputs = drawn if samples.made_up else "the inputs that were given"
    inside = ""
    if layers is not None and layers.if_marked:
        inside = (
            f". {sentence(layers.suspect)} computes {first_of(layers.if_marked, _MOST_NODES)} wrongly only if it is an "
            "output of the model: marking changes what the engine does, or only the copy that it returns is wrong, "
            "which is not a failure of your model"
        )
    elif layers is not None and (layers.alone or layers.together):
        names = [*layers.alone, *(" -> ".join(group) for group in layers.together)]
        inside = (
            f". By itself, {first_of(names, _MOST_NODES)} is wrong in {layers.suspect}; whether it is wrong in the "
            "model too is not known"
        )
    elif layers is not None and layers.complete:
        inside = (
            f"; with its inner tensors as outputs too, none of {count(layers.layers, 'layer')} in {layers.suspect} "
            f"differs from {compared.rows[0][0]} by more than the tolerances and rounding allow"
        )
    passes = f"the model does not fail: {'; '.join(compared.passed)}"
    if compared.contradicted:
        passes = (
            f"the engines agree, but float64 contradicts them: {series(compared.rows[0])} give other values, by more "
            "than the tolerances and rounding allow, and may have the same bug"
        )
    passes += f", with {inputs}{inside}."
    if tool is not None and tool.breaks:
        return "fails", f"{tool.sentence} Before that, {passes}"
    return "unknown" if compared.contradicted else "passes", sentence(passes)


def _of_failure(facts: KnownFacts, question: DiagnosisQuestion) -> tuple[str, str]:
    failure, precision = facts.known_failure, facts.precision
    fault = failure.fault
    message = essence(failure.report.message)
    says = f" {title_of(failure.suspect)} says: {message}" if message and failure.suspect else ""
    piece = "" if facts.piece is None else f" The smallest part that shows it: {_where(facts)}."
    if fault is not None and fault.kind == "input":
        return "input", (
            f"The size of the inputs is at fault, and no engine: {series(fault.every)} fail with "
            f"{' '.join(fault.shapes)}, and none of them with {' '.join(fault.passes_with)}.{says}"
        )
    if fault is not None and fault.kind == "invalid":
        return "invalid", (
            f"The model is invalid: {fault.text}. An engine may refuse it, and "
            f"{title_of(failure.suspect) if failure.suspect else 'one'} does.{says}"
        )
    if fault is not None and fault.kind == "undefined":
        return _undefined(fault.text, facts, question, piece)
    if fault is not None and fault.kind == "random":
        return "random", f"No engine was judged: {fault.text}."
    if facts.is_rounding:
        return "rounding", _rounding_text(facts, question)
    if undefined := facts.may_be_undefined:
        return "unknown", (
            f"Whether an engine is at fault is not known: the ONNX standard defines no result where {undefined.text}. "
            f"Keep the model from such values, and ask again.{piece}{says}"
        )
    if precision is not None and facts.is_precision:
        high, total = first_of(precision.high, _MOST_NODES), count(precision.layers, "layer")
        return "precision", (
            f"It is a matter of precision: {_suspect(facts)} and {_trusted(failure)} differ, and agree with "
            f"{high} in float32, {len(precision.high)} of {total}. Either {precision.low} "
            f"is not enough there, or the {precision.low} arithmetic of one of them is wrong.{piece}"
        )
    if fault is not None and fault.kind == "not-finite":
        return "not-finite", f"The model or its inputs make NaN, not one engine: {fault.text}.{piece}{fault.origin}"
    if fault is not None:
        tiny, wrong = tiny_fixed_inputs(question.index), "the model or its inputs are wrong"
        small = f" Its input may be too small: {', '.join(tiny)}, and the model fixes that." if tiny else ""
        return "refused", f"{sentence(fault.text)}: either none of them supports it, or {wrong}.{small}{piece}{says}"
    is_flaky = facts.is_flaky or facts.is_self_contradiction
    kind = "masked" if failure.masked else "flaky" if is_flaky else "reduced" if facts.piece else "fails"
    return kind, f"{sentence(subject(facts, question))}{measure(facts, question)}"


def _reasons(facts: KnownFacts) -> Iterator[str]:
    """What the failure depends on, and what else is known of it, the most useful first."""
    yield from nodes_reason(facts)
    if facts.definition is not None:
        yield facts.definition.sentence
    yield from _causes(facts)
    settings = {} if facts.settings is None else {each.engine: each.change.text for each in facts.settings.switches}
    for way in facts.ways_out:
        if way.failed and way.gives_other_values:  # what passed at first compared nothing
            values = f"the engine runs, but its values are not those of {_trusted(facts.known_failure)}"
            runs = f"{way.failed} of {count(way.runs, 'run')}"
            yield f"{settings.get(way.engine, way.line)} is no workaround: {values} ({runs})."
        elif way.failed:
            failed = f"it passed at first, but failed in {way.failed} of {count(way.runs, 'further run')}"
            yield f"{way.line} is no workaround: {failed} ({way.reason})."
    yield from _rest(facts)
    yield from _of_narrower_type(facts)
    yield from _circumstances(facts)


def nodes_reason(facts: KnownFacts) -> Iterator[str]:
    """The nodes of the piece, if there are several and not too many."""
    piece = facts.piece
    if piece is not None and 1 < len(piece.nodes) <= _MOST_NODES:
        yield f"Nodes ({len(piece.nodes)} of {piece.nodes_before}): {piece.joined(piece.nodes)}"


def _rounding_text(facts: KnownFacts, question: DiagnosisQuestion) -> str:
    failure, rounding = facts.known_failure, facts.rounding
    assert rounding is not None
    times = "" if rounding.times is None else f", at most {rounding.times:.3g} times the rounding error of a plain run"
    ratio = None if failure.mismatch is None else failure.mismatch.times_tolerance
    beyond = "" if ratio is None else f" by {ratio:.3g} times what the tolerances allow"
    verb = "differs" if len(rounding.verdicts) == 1 else "differ"
    inputs = f"{len(rounding.verdicts)} of {count(rounding.inputs, 'set of inputs', 'sets of inputs')} {verb}"
    head, end = "It is rounding, as far as the outputs show", ""
    if rounding.reason:  # both may have the same bug
        head, end = "The difference is rounding", f" But {rounding.reason}."
    if casts := list(narrowing_casts(question.index)):
        end += f" Float64 leaves out the rounding of {first_of(casts, _MOST_NAMED_NODES)}; the engine may do so too."
    sides = f"{_suspect(facts)} differs from {_trusted(failure)}"
    return f"{head}: {sides}{beyond}; measured against float64, the error is rounding{times} ({inputs}).{end}"


def subject(facts: KnownFacts, question: DiagnosisQuestion, *, brief: bool = False) -> str:
    """Which engine fails, how, and in which part of the model; if ``brief``, without messages, names and sizes."""
    failure, optimizer, engine = facts.known_failure, sole_optimizer(facts), _suspect(facts)
    where = _where(facts, brief=brief)
    report, on = failure.report, f"{'on' if where == _WHOLE else 'for'} {where}"
    who = engine if optimizer is None else f"{engine}'s optimizer {optimizer}"
    if failure.masked:
        return f"{engine} gives a wrong inner tensor if that is an output; the outputs of the model hide it: {where}."
    if failure.suspect is None:
        judge = "The check" if question.check is not None else f"A run of {series(question.rivals[0])}"
        return f"{judge} fails {on}: {report.signature}."
    if facts.is_self_contradiction:
        part = "" if where == _WHOLE else f" The smallest part that fails: {where}."
        return f"not deterministic: {engine} gives different outputs for the same input.{part}"
    if report.stage == "compare" and report.kind in NOT_FINITE:
        return f"{engine} gives {special_of(report.kind)} {on}."
    if report.stage == "compare":
        return f"{who} {_differs(facts, brief=brief)} {on}."
    if not (report.stage and report.kind):  # a signal without a stage, or no answer in time
        return f"{who} fails {on}: {report.signature}."
    message = essence(report.message)
    if report.kind == MISSING_OUTPUT:
        return f"{engine}, {on}: {message}."
    detail = f" ({report.kind})" if brief else f": {message}" if message else f" ({report.signature})"
    with_it = "" if optimizer is None else f"With its optimizer {optimizer}, "
    if errors.is_crash(report.stage, report.kind):
        return f"{with_it}{engine} crashes when it {errors.STAGE_VERBS[report.stage]} {where} ({report.kind})."
    return f"{with_it}{engine} cannot {report.stage} {where}{detail}."


def _differs(facts: KnownFacts, *, brief: bool) -> str:
    failure, rounding, trusted = facts.known_failure, facts.rounding, _trusted(facts.known_failure)
    if special := special_of(report_kind := failure.report.kind):
        is_sure = rounding is not None and rounding.blames(failure.suspect, failure.trusted)
        other = "float64" if is_sure else trusted
        gives = not report_kind.endswith("-expected")
        return f"gives {special} where {other} does not," if gives else f"does not give {special} where {other} does,"
    worst = worst_mismatch(facts)
    if report_kind in COSTS:
        return f"{COSTS[report_kind]} {trusted}"
    if report_kind in FORMS:
        known = (
            None if worst is None or brief else form_text(failure.by_suspect(worst), trusted if failure.trusted else "")
        )
        return f"gives {known or f'another {FORMS[report_kind]} than {trusted}'},"
    if report_kind == "missing-output":
        return f"does not give {repr(worst.output) if worst is not None else 'an output'}, which {trusted} gives,"
    if report_kind != "mismatch":
        return f"differs from {trusted}"
    if facts.known_bug is not None and facts.known_bug.is_of_reference:
        return f"differs from {trusted}, and a known bug of the reference evaluator may be the reason,"
    if rounding is None or not rounding.exceeds_rounding:
        return f"differs from {trusted}"
    if is_decided(facts):
        return "computes wrong values"
    both = "float64 agrees with neither" if len(rounding.wrong) > 1 else "which of the two is wrong is not known"
    return f"differs from {trusted} by more than rounding ({both})"


def is_decided(facts: KnownFacts) -> bool:
    """Whether float64 shows that the suspect is wrong, and does not show it of the trusted engine."""
    failure, rounding = facts.known_failure, facts.rounding
    if rounding is None or not rounding.exceeds_rounding:
        return False
    return failure.suspect in rounding.wrong and failure.trusted not in rounding.wrong


def _undefined(text: str, facts: KnownFacts, question: DiagnosisQuestion, piece: str) -> tuple[str, str]:
    """The kind and the text of a verdict on a piece that is given what ONNX defines no result for."""
    where = f"the ONNX standard defines no result where {text}"
    rest, part = facts.rest, facts.piece
    is_whole = part is None or len(part.kept) == len(question.index.nodes)
    if facts.undefined is not None and facts.undefined.explains is False:
        ask = "keep the model from such values, and ask again"
        where = f"the ONNX standard defines no result where {facts.undefined.text}"
        return "unknown", f"Only a part of the failure is explained: {where}. Other elements differ too: {ask}."
    if not is_whole and (rest is None or rest.answer not in ("passes", "rounding")):
        why = "" if rest is None else f" ({rest.reason})" if rest.reason else ""
        fails = rest is not None and rest.answer in ("fails", "another")
        more = "The rest of the model fails too" if fails else f"Whether the rest fails too is not known{why}"
        ask = "keep that part from such values, and ask again"
        return "unknown", f"Only a part of the failure is explained: {where}. {more}: {ask}."
    if question.samples.made_up:
        more = f"Give your own with --load-inputs.{piece}"
        return "undefined", f"No engine is at fault, but the inputs, which biopsy drew: {where}. {more}"
    return "undefined", f"The model or its inputs are at fault, and no engine: {where}.{piece}"


def measure(facts: KnownFacts, question: DiagnosisQuestion) -> str:
    """A sentence on the worst element and the tolerance, or on what the failing part reads; "" if nothing is known.

    It says whether it is about that part or the whole model.
    """
    failure, piece, worst = facts.known_failure, facts.piece, worst_mismatch(facts)
    kind = failure.report.kind
    types = dict(piece.types) if piece is not None else {}
    where = "In the whole model" if worst is failure.mismatch else "In that part"
    if not failure.is_of_values and failure.suspect is not None:
        read = [f"{name!r} {types[name]}" for name in list(types)[:_MOST_ENDS]]
        whose = "Inputs" if all(name in question.index.ids for name in types) else "In the piece's file, inputs"
        return f" {whose} and outputs: {series(read)}." if read else ""
    if worst is None or worst.kind != kind or failure.masked or facts.is_self_contradiction:
        return ""
    declared = question.index.declared_type(worst.output)
    form = types.get(worst.output) or (spaced(declared) if declared else "")
    output = f"{worst.output!r}{f' ({form})' if form else ''}"
    share = f"{worst.wrong} of {count(worst.elements, 'element')}"
    if special_of(kind) and worst.wrong:
        return f" {where}, this concerns {share} of {output}."
    worst = failure.by_suspect(worst)
    if kind != "mismatch" or worst.actual is None or worst.expected is None:
        return ""
    actual, expected = map(worst.value_text, (worst.actual, worst.expected))
    other = "expected" if failure.trusted is None or is_decided(facts) else f"and {_trusted(failure)} gives"
    values = f"{actual} at {list(worst.index)}, {other} {expected}"
    verb = "is" if worst.elements == 1 else "are"
    return (
        f" {where}, {output} is {values}; {share} {verb} off by more than the tolerance "
        f"({_tolerance(failure, question, form)})."
    )


def _tolerance(failure: ModelFailure, question: DiagnosisQuestion, form: str) -> str:
    """The tolerances of the check for an output of the type ``form``, and where they come from."""
    command = parse(failure.check)
    given = " ".join(command.words_of(TOLERANCES)) if isinstance(command, OwnRun) else ""
    if not isinstance(command, OwnRun):
        return "that of the check"
    source = "of your check" if question.check is not None else "as given"
    default = 0.0 if is_exact_by_default(form) else DEFAULT_TOLERANCE
    return f"{given}, {source}" if given else f"atol and rtol {default:g}, the default"


def worst_mismatch(facts: KnownFacts) -> Mismatch | None:
    """The worst mismatch of the piece, or of the model if that fails in another way."""
    of_piece = None if facts.piece is None else facts.piece.error
    is_same = of_piece is not None and of_piece.worst.kind == facts.known_failure.report.kind
    return of_piece.worst if of_piece is not None and is_same else facts.known_failure.mismatch


def _suspect(facts: KnownFacts) -> str:
    suspect = facts.suspect
    return "the check" if suspect is None else full_title(suspect, facts.versions.get(suspect, ""))


def _trusted(failure: ModelFailure) -> str:
    return "what is expected" if failure.trusted is None else full_title(failure.trusted, "")


def _where(facts: KnownFacts, *, brief: bool = False) -> str:
    piece, layers = facts.piece, facts.layers
    if piece is not None:
        if len(piece.nodes) == 1 and piece.stopped is None and not brief:
            return f"one node, {piece.nodes[0]}"
        operators, most = [node.partition(" ")[0] for node in piece.nodes], _FEW_NODES if brief else _MOST_NODES
        return piece.joined(operators) if len(operators) <= most else f"a part of {len(operators)} nodes"
    if facts.rounding is not None and facts.rounding.leaves_out:
        return among_casts(facts.rounding.leaves_out)
    if layers is not None and layers.alone:
        return first_of(layers.alone, _MOST_NODES)
    together = layers.together if layers is not None else ()
    return f"{first_of(together[0], _MOST_NODES)} together" if together else _WHOLE


def _circumstances(facts: KnownFacts) -> Iterator[str]:
    """Who agrees with the suspect, the lines of the piece, how often it fails, which nodes are wrong in isolation."""
    piece, layers, steadiness = facts.piece, facts.layers, facts.steadiness
    for row in facts.compared.rows if facts.compared is not None else ():
        is_of_values = facts.known_failure.report.stage == "compare" and not facts.is_masked
        if facts.suspect in row and is_of_values and not facts.is_flaky:  # one run of a flaky model shows nothing
            yield f"Compared directly, {series([full_title(each, '') for each in row])} agree on these inputs."
    if piece is not None and piece.places:
        yield f"{FROM_PLACES}{first_of(piece.places, _MOST_PLACES)}."
    if steadiness is not None:
        flaky = f"it is flaky: {steadiness.how_often}" if steadiness.is_flaky else ""
        others, runs = steadiness.others, steadiness.runs + steadiness.later.runs + len(steadiness.others)
        yield from (
            f"{sentence(text)}."
            for text in (
                flaky,
                f"in {len(others)} of {runs} runs it failed in another way ({others[-1]})" if others else "",
                steadiness.self_difference,
                steadiness.row_difference,
            )
            if text
        )
    if layers is None or piece is None or not layers.of_piece or not layers.complete or len(piece.nodes) < 2:
        return
    if alone := _wrong_alone(facts):
        how = "Wrong by itself, on the values that it gets there" if layers.of_values else "Fails by itself"
        yield f"{how}: {first_of(alone, _MOST_NODES)}."
    elif any(len(group) == len(piece.nodes) for group in layers.together):
        prevented = ", but not if the tensors between them are outputs" if layers.hides else ""
        yield f"None of these nodes fails alone, only all of them together{prevented}."


AVOIDS = "Known to avoid that bug: "
FROM_PLACES = "By their names or the notes of an exporter, its nodes come from "


def nodes_at_fault(facts: KnownFacts) -> tuple[Sequence[str], str]:
    """The nodes of the piece that fail by themselves, and what is known of which node is at fault."""
    piece, layers = facts.piece, facts.layers
    if piece is None:
        return (), ""
    if len(piece.nodes) == 1:
        return piece.nodes, ""
    alone = [node for node in piece.nodes if any(each.partition(",")[0] == node for each in _wrong_alone(facts))]
    if alone:
        return alone, f"Fails by itself: {first_of(alone, _MOST_NODES)}"
    of_piece = layers.together if layers is not None and layers.of_piece and layers.complete else ()
    number = len(piece.nodes)
    if any(len(group) == number for group in of_piece):
        return (), f"The {number} nodes fail only together"
    return (), f"Which of the {number} nodes is at fault is not known"


def _wrong_alone(facts: KnownFacts) -> Sequence[str]:
    """The layers of the piece that are wrong in isolation."""
    layers = facts.layers
    return layers.alone if layers is not None and layers.of_piece and layers.complete else ()


_ROUNDED = {
    "inputs": "the inputs of each node",
    "results": "the result of each node",
    "both": "inputs and result of each node",
}


def _of_narrower_type(facts: KnownFacts) -> Iterator[str]:
    """The narrower type whose error it is, or that is left out, as far as a simulation shows that."""
    if facts.rounding is not None and facts.rounding.leaves_out:
        yield (
            "It skips the rounding that Casts to a narrower type require: a float64 run without that rounding gives "
            f"its values, one with it gives those of {_trusted(facts.known_failure)}."
        )
    narrower = None if facts.rounding is None else facts.rounding.narrower
    if narrower is not None and narrower.types and narrower.left is not None:
        yield (
            f"The error is that of {' or '.join(narrower.types)} arithmetic: with {_ROUNDED[narrower.rounded]} rounded "
            f"to that, a run of that part in float64 gives the same values, up to {narrower.left:.1%} of the error."
        )


def _rest(facts: KnownFacts) -> Iterator[str]:
    """Which other parts of the model fail, and whether it passes without them all."""
    rest, piece = facts.rest, facts.piece
    if rest is None or piece is None:
        return
    parts = [(piece.nodes, piece.wrong), *((other.nodes, other.wrong) for other in rest.others)]
    engines = dict.fromkeys(engine for _, wrong in parts for engine in wrong)
    if rest.others:
        groups = grouped(nodes for nodes, _ in parts)
        yield f"That part is one of at least {1 + len(rest.others)} that fail in this way, each by itself ({groups})."
    if rest.others and len(engines) > 1:
        of_engine = {engine: [nodes for nodes, wrong in parts if engine in wrong] for engine in engines}
        (first, own), *more = of_engine.items()
        whose = [f"{full_title(first, '')} is wrong on {len(own)} of these parts ({grouped(own)})"]
        whose += [f"{full_title(each, '')} on {len(own)} ({grouped(own)})" for each, own in more]
        is_open = [nodes for nodes, wrong in parts if not wrong]
        others = f"the {'other' if len(is_open) == 1 else 'others'} ({grouped(is_open)})"
        unknown = f"; which engine is wrong on {others} is not known" if is_open else ""
        yield f"By float64, {series(whose)}{unknown}."
    them = "all of them" if rest.others else "that part"
    fed = f", and fed with what {full_title(rest.fed_by, '')} computes there" if rest.fed_by else ""
    condition, model = f"With {them} cut out{fed}", "the rest of the model"
    if rest.answer == "passes" and rest.reason == NOTHING_LEFT:
        yield "There is no other node in the model."
    elif rest.answer == "passes":
        wrong = f"; but float64 gives other values there than {series([full_title(each, '') for each in rest.wrong])}"
        both = "; float64 agrees with both" if len(rest.right) > 1 else ""
        yield f"{condition}, {_agreement(facts, model)}{wrong if rest.wrong else both}."
    elif rest.answer == "rounding":
        yield f"{condition}, {model} differs by rounding only."
    elif rest.answer == "fails":
        yield f"{condition}, {model} still fails in this way, so more is wrong."
    elif rest.answer == "another":
        yield f"{condition}, {model} fails in another way: {rest.reason}."


def _agreement(facts: KnownFacts, model: str) -> str:
    """What was seen where the check passes on a model: two engines that agree need not be right."""
    failure = facts.known_failure
    is_of_two = failure.report.stage == "compare" and failure.trusted is not None
    return f"{_suspect(facts)} and {_trusted(failure)} agree on {model}" if is_of_two else f"{model} passes the check"


def _causes(facts: KnownFacts) -> Iterator[str]:
    """What switches the failure off, which known bug it resembles, and which tool or release causes it."""
    settings, known, tool, releases = facts.settings, facts.known_bug, facts.transformation, facts.releases
    mending = facts.mending_switches
    if known is not None and known.reference:
        yield f"It {known.sentence}."
        if known.avoid:
            yield f"{AVOIDS}{'; or: '.join(each.rstrip('.') for each in known.avoid)}."
    if settings is not None and settings.tried and not settings.switches:
        yield f"None of the {settings.tried} settings that were tried makes it pass every time."
    if mending and not sole_optimizer(facts):
        yield f"It goes away {', or '.join(switch.text for switch in mending)}."
    for switch in settings.switches if settings is not None else ():
        if switch.verified and not switch.mends_original:
            yield f"The piece passes {switch.text}; the whole model does not."
    if facts.known_failure.passes_with:
        yield f"With larger inputs, {' '.join(facts.known_failure.passes_with)}, it does not fail."
    if tool is not None and not tool.of_piece:
        yield tool.sentence if tool.breaks else f"{sentence(tool.sentence).rstrip('.')}."
    if releases is not None and releases.is_sure:
        yield f"{releases.text}."


def sole_optimizer(facts: KnownFacts) -> str | None:
    """The optimizer at fault: switching it off mends the model, and no other equally small change does."""
    mending = facts.mending_switches
    if facts.settings is None or not facts.settings.complete or len(mending) != 1:
        return None
    return mending[0].optimizers[0] if len(mending[0].optimizers) == 1 and mending[0].verified else None


def _certainty(facts: KnownFacts) -> Iterator[str]:
    """The evidence for the failure, the piece and the causes, and doubts about them."""
    rounding, steadiness, piece = facts.rounding, facts.steadiness, facts.piece
    tool, releases, changes = facts.transformation, facts.releases, facts.changes
    if steadiness is not None and not steadiness.is_flaky:
        yield f"The model failed in {steadiness.failed} of {steadiness.runs} runs."
    if rounding is not None and rounding.exceeds_rounding:
        times = "" if rounding.times is None else f": {rounding.times:.3g} times the rounding error of a plain run"
        by_float64 = f"Its error is more than rounding, by a run in float64{times}."
        yield by_float64 if rounding.has_floats else "It is not rounding: the model has no floating-point numbers."
    elif rounding is not None and rounding.verdicts and not rounding.is_rounding:
        yield f"Whether it is rounding is not known: {rounding.reason or 'float64 gave no answer'}."
    if piece is not None:
        # A node may be wrong by itself without failing the check.
        needs_all = "without any one of its nodes, the check does not fail in the same way"
        complete = needs_all if _wrong_alone(facts) else "none of its nodes can be left out"
        minimality = complete if piece.stopped is None else "a smaller one may exist"
        yield f"The file of the piece was checked again, in a process of its own; {minimality}."
    if tool is not None and tool.of_piece and tool.operators:
        yield (
            f"The optimizer turns the piece into {tool.operators}, which gives the wrong result with the optimizer off "
            "too: either that rewriting is wrong, or the engine's computation of it."
        )
    if tool is not None and tool.engine_doubted:
        yield f"In the reference evaluator, what {tool.tool} makes is right: the engine may be wrong about it."
    if releases is not None and releases.complete:
        unsure = [change.text for change in releases.changes if not change.verified]
        yield from [f"{sentence(releases.doubt)}."] if releases.doubt else []
        yield from (f"Not confirmed with the whole model: {releases.package}, {text}." for text in unsure)
    if changes is not None and changes.best and changes.doubt:
        yield f"Of workarounds, {changes.doubt}; nothing else confirms it."
    failed = {way.engine for way in facts.ways_out if way.failed}
    if mending := [switch for switch in facts.mending_switches if switch.engine not in failed]:
        is_sure = all(switch.verified for switch in mending)
        confirmed = "With that setting, fresh processes pass; without it, they fail."
        yield confirmed if is_sure else "The setting was not confirmed by fresh processes."


def _left_open(facts: KnownFacts, steps: Sequence[StepReport]) -> Iterator[str]:
    unasked = [step for step in steps if step.outcome == "stopped" and step.answer.startswith(NOT_ASKED)]
    for step in steps:
        is_open = step.outcome in ("stopped", "failed") and step not in unasked
        if is_open or (step.outcome == "skipped" and step.answer in LEAVES_OPEN):
            yield f"{sentence(step.question)} ({step.answer})"
    if unasked:
        yield f"Not asked: {series([step.name for step in unasked])} ({unasked[0].answer.removeprefix(NOT_ASKED)})."
    rest = facts.rest if facts.fault != "undefined" else None  # else the verdict itself says it
    if rest is not None and rest.answer in ("fails", "unknown") and rest.reason:
        what = "Where else" if rest.answer == "fails" else "Whether more of"
        yield f"{what} the model fails is not known: {rest.reason}."
    if facts.compared is not None:
        yield from (f"{sentence(text).rstrip('.')}." for text in facts.compared.not_compared)
    is_of_engine = facts.fault is None and not facts.is_rounding and not facts.is_precision
    was_asked = any(step.name == release_step.name and step.seconds for step in steps)
    if facts.suspect is not None and is_of_engine and facts.releases is None and not was_asked:
        yield f"Other releases of {title_of(facts.suspect)} were not tried."


def sentence(text: str) -> str:
    """The text with a capital first letter, unless its first word is a spec or a quoted name."""
    first = text.partition(" ")[0]
    return text if ":" in first or "'" in first else text[:1].upper() + text[1:]


def title_of(spec: str) -> str:
    """The title of an engine, such as ``ONNX Runtime``."""
    return registry.title_of(parse_spec(spec).name)
