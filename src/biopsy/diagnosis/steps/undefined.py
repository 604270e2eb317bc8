"""What the ONNX standard says of a result that the model does not declare.

It defines none for some values, so that no engine is wrong about these; and which of two shapes is right may be clear
only in a later opset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx.reference
from onnx import numpy_helper

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison import metrics
from biopsy.comparison.mismatch import COSTS, ONE_SIDED
from biopsy.comparison.noise import judge_noise
from biopsy.diagnosis.context import (
    NO_PIECE,
    TWO_ENGINES,
    StepAnswer,
    StepContext,
    TimeUpError,
    diagnosis_step,
    passes,
)
from biopsy.diagnosis.facts import (
    DefinitionFacts,
    FailingPiece,
    FaultBeforeEngines,
    KnownFacts,
    ModelFailure,
    UndefinedFacts,
)
from biopsy.diagnosis.question import feeds_in, feeds_of, path_of, with_inputs, without_weights_folder
from biopsy.diagnosis.steps.rounding import OutputsIn, outputs_agree, outputs_of
from biopsy.engines.reference_undefined import AMBIGUITIES, RULES, UNDEFINED, UndefinedResultError, rule_of
from biopsy.engines.registry import EXACT, PLAIN, full_title, parse_spec
from biopsy.engines.worker import CANNOT_RUN
from biopsy.model.external import is_external
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.infer import inferred_outputs
from biopsy.model.load import parse as parse_model
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import FLOATS
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.recording.types import CutTypes
from biopsy.reduction.passes.common import opsets_of, schema_of
from biopsy.reduction.result import inputs_file
from biopsy.session.trial import until_no_pass
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import is_text


@diagnosis_step(
    "defined",
    "does the ONNX standard define the result?",
    unless=lambda facts, context: {
        "nothing fails": facts.failure is None or facts.is_masked,
        "no engine is at fault": facts.fault is not None,
        "it does not depend on values": facts.failure and not _may_be_of_values(facts.failure),
        "with a check of the user's, it is asked of the piece": context.question.check is not None,
        "it has no operator with results that may be undefined": facts.failure
        and not has_rules(context.question.index),
    },
    evidence="failure",
    share=0.3,
    warm=True,
)
def defined(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Look for values for which an operator has no defined result; no engine is wrong about these."""
    failure, question = facts.known_failure, context.question
    undefined = undefined_results(question.index, feeds_of(question.index, question.samples), failure, context)
    line = "yes, on these inputs"
    if undefined is not None:
        failure = excused(failure, undefined)
        not_known = "; whether all that differs comes of that is not known"
        extents = {True: undefined.extent, False: "; other elements differ too", None: not_known}
        line = f"no: {undefined.text}{extents[undefined.explains]}"
    return StepAnswer(replace(facts, undefined=undefined, failure=failure), line)


def excused(failure: ModelFailure, undefined: UndefinedFacts) -> ModelFailure:
    """The failure, which no engine causes if what is undefined explains it."""
    fault = FaultBeforeEngines(kind="undefined", every=(), text=f"{undefined.text}{undefined.extent}")
    return replace(failure, fault=fault) if undefined.explains else failure


def _may_be_of_values(failure: ModelFailure) -> bool:
    """Whether undefined values may cause it: they excuse no crash, and no engine that is slow."""
    stage, kind = failure.report.stage, failure.report.kind
    return stage in ("run", "compare") and kind not in COSTS and not errors.is_crash(stage, kind)


_OF_INTEGERS = frozenset({"Abs", "Add", "Div", "Mod", "Mul", "Neg", "Pow", "Sub"})
"""Operators whose results are defined for all floating-point numbers."""


def undefined_in(piece: FailingPiece, facts: KnownFacts, context: StepContext) -> UndefinedFacts | None:
    """What ONNX defines no result for in a piece; None if there is nothing of that, or the failure is of no values.

    It explains the failure if the piece passes once only these elements of its inputs and weights have other values: an
    engine that is wrong about the others still fails. A check of the user's is not asked about, since its inputs are
    not known. Raises TimeUpError.
    """
    path, question, failure = Path(piece.path), context.question, facts.known_failure
    words = with_inputs(without_weights_folder(failure.check), path_of(piece.inputs))
    command = parse(words)
    if not isinstance(command, OwnRun) or not _may_be_of_values(failure):
        return None
    model = parse_model(read_bytes(path), path)
    feeds = feeds_in(command.input_files) or [{}]
    undefined = list(undefined_values(model, piece.nodes, feeds))
    if not undefined:  # a node of the piece may make such values, or give one of several results
        index = index_file(path)
        try:
            is_asked = facts.undefined is not None or has_rules(index)
            return undefined_results(index, feeds, failure, context) if is_asked else None
        except errors.CheckError:
            return facts.undefined and replace(facts.undefined, explains=None)
    defined = [dict(feed) for feed in feeds]
    for each in undefined:
        for feed in defined:
            if each.tensor in feed:
                feed[each.tensor] = each.replaced(feed[each.tensor])
        for weight in model.graph.initializer:
            if weight.name == each.tensor:
                value = each.replaced(numpy_helper.to_array(weight))
                weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    with temporary_folder("biopsy-") as scratch:
        inputs = scratch / "inputs.safetensors"
        write_feeds(inputs, defined)
        write_whole(question.candidate, [model.SerializeToString()])
        run = partial(
            context.run,
            with_inputs(words, inputs) if any(defined) else words,
            question.candidate,
            description="the piece, without the values for which ONNX defines no result",
        )
        try:
            judged, _ = until_no_pass(run, facts.rate.proof)
        finally:
            question.candidate.unlink(missing_ok=True)
    extent = "; with other values there, and all others as they are, it does not fail"
    return UndefinedFacts(text=undefined[0].text, explains=passes(judged), extent=extent)


def has_rules(index: ModelIndex) -> bool:
    """Whether a model has, in bodies and functions too, an operator whose results may be undefined."""
    types = CutTypes(index, ValuesInMemory())

    def is_always_defined(node: Node) -> bool:
        kind = types.tensor_type(node.inputs[0]) if node.inputs and node.inputs[0] >= 0 else None
        if node.op_type in _OF_INTEGERS:
            return kind is not None and kind.elem in FLOATS
        ambiguity = AMBIGUITIES.get(node.op_type)
        if ambiguity is None or (node.op_type in RULES and node.op_type != "TopK"):
            return False
        proto = onnx.NodeProto.FromString(index.node_payload(node.number))
        is_sorted = all(each.i for each in proto.attribute if each.name == "sorted")
        dtype, shape = ("", None) if kind is None else (kind.dtype, kind.shape)
        return is_sorted and not ambiguity.may_be(proto, dtype, shape)

    calls = (index.operators_run(node.calls) for node in index.nodes if not is_always_defined(node))
    names = RULES.keys() | AMBIGUITIES.keys()
    return any(not domain and name in names for called in calls for domain, name, *_ in called)


@dataclass(frozen=True, kw_only=True)
class UndefinedValues:
    """Values for which a node has no defined result: those elements of ``tensor`` for which ``is_undefined`` is True.

    ``text`` names the node and what it does with them; for ``instead`` the result is defined.
    """

    text: str
    tensor: str
    is_undefined: Callable[[Array], Any]
    instead: int

    def replaced(self, value: Array) -> Array:
        """The tensor with other values for these elements."""
        mask: Array = np.asarray(self.is_undefined(value))
        mask = np.asarray(mask.any(axis=tuple(range(mask.ndim - value.ndim))))
        shared = tuple(axis for axis, size in enumerate(value.shape) if size == 1)
        return np.where(mask.any(axis=shared, keepdims=True), value.dtype.type(self.instead), value)


def undefined_values(model: onnx.ModelProto, labels: Sequence[str], feeds: Sequence[Feed]) -> Iterator[UndefinedValues]:
    """The values in the inputs and the weights of a model for which the ONNX standard defines no result.

    ``labels`` are those of the nodes of the main graph.
    """
    opset = opsets_of(model).get("", 1)
    for label, node in zip(labels, model.graph.node, strict=True):
        if (rule := rule_of(node, opset)) is None:
            continue
        for feed in feeds:
            is_undefined = rule.elements(node, _values_read(model, node, feed))
            if is_undefined is not None and rule.instead is not None:
                text, tensor = f"{label} {rule.text}", node.input[rule.place]
                yield UndefinedValues(text=text, tensor=tensor, is_undefined=is_undefined, instead=rule.instead)
                break


def _values_read(model: onnx.ModelProto, node: onnx.NodeProto, feed: Feed) -> list[Array | None]:
    """The values of a node's inputs; None for one that is left out, computed, or stored in another file."""
    stored = {each.name: each for each in model.graph.initializer if each.name in node.input and not is_external(each)}
    values = {**{name: numpy_helper.to_array(each) for name, each in stored.items()}, **feed}
    return [np.asarray(values[name]) if name in values else None for name in node.input]


def undefined_results(
    index: ModelIndex, feeds: Sequence[Feed], failure: ModelFailure, context: StepContext
) -> UndefinedFacts | None:
    """What a run of a model, on these inputs, has no defined result for, in its bodies and functions too.

    It is found, and what depends on it, by running in float64 and giving several results there. None if there is none.
    Raises TimeUpError, and CheckError if the model cannot be run in float64.
    """
    refused, *choices = (f"{EXACT},undefined={choice}" for choice in UNDEFINED)
    with outputs_of(index, feeds, context) as outputs_in:
        try:
            outputs_in(refused)
            return None
        except CANNOT_RUN as error:
            if not isinstance(error, errors.EngineFailure) or error.kind != UndefinedResultError.__name__:
                raise errors.CheckError("it cannot be run in float64") from error
            known = UndefinedFacts(text=error.message, extent="; all elements that differ depend on that")
        if failure.report.stage != "compare" or failure.suspect is None or failure.trusted is None:
            return known
        try:
            actual, expected = outputs_in(failure.suspect), outputs_in(failure.trusted)
            exact = [outputs_in(choice) for choice in choices]
        except errors.Interrupted:
            raise
        except (TimeUpError, errors.BiopsyError):
            return known
    explains: bool | None = True
    for sample, outputs in enumerate(expected):
        for name, right in outputs.items():
            given, (wide, *others) = actual[sample].get(name), [each[sample][name] for each in exact]
            if given is None or is_text(right) or any(each.shape != right.shape for each in (given, wide, *others)):
                return known
            depends = np.logical_or.reduce([metrics.differing(wide, each) for each in others])
            actual_rest, right_rest, wide_rest = (
                np.where(depends, each.dtype.type(0), each) for each in (given, right, wide)
            )
            if judge_noise(name, sample, actual_rest, right_rest, wide_rest).verdict == "bug":
                return replace(known, explains=False)
            explains = explains and (outputs_agree(name, actual_rest, right_rest, context) or None)
    return replace(known, explains=explains)


_OF_SHAPE = "shape-mismatch"


def _is_of_definition(facts: KnownFacts) -> bool:
    """Whether definitions may say who is right: about shapes that the model does not declare, NaN and infinity."""
    worst = None if facts.piece is None or facts.piece.error is None else facts.piece.error.worst
    return worst is not None and (worst.kind in ONE_SIDED or (worst.kind == _OF_SHAPE and not worst.declared_form))


@diagnosis_step(
    "definition",
    "what do the definitions of its operators give?",
    unless=lambda facts, context: {
        NO_PIECE: facts.piece is None,
        "no engine is at fault": facts.fault is not None,
        TWO_ENGINES: facts.suspect is None or facts.known_failure.trusted is None,
        "neither NaN nor a shape that the model does not declare": not _is_of_definition(facts),
    },
    share=0.3,
)
def definition(facts: KnownFacts, context: StepContext) -> StepAnswer:
    """Ask onnx about the plain form of the piece: shape inference, evaluation, and the body of an ONNX function."""
    piece = facts.piece
    assert piece is not None and piece.error is not None
    path = Path(piece.plain or piece.path)
    inputs = inputs_file(path) if piece.plain else path_of(piece.inputs)
    feeds = feeds_in([inputs]) if inputs is not None and inputs.exists() else [{}]
    try:
        model = parse_model(read_bytes(path), path)
        is_of_shape = piece.error.worst.kind == _OF_SHAPE
        with outputs_of(index_file(path), feeds, context) as run:
            known = _shapes(facts, model, run) if is_of_shape else _special_values(facts, model, feeds[0], run)
    except CANNOT_RUN as error:
        raise errors.CheckError(f"that part could not be run: {error}") from error
    return StepAnswer(replace(facts, definition=known), known.sentence.rstrip("."))


def _shapes(facts: KnownFacts, model: onnx.ModelProto, outputs_in: OutputsIn) -> DefinitionFacts:
    """Whose shape shape inference and the reference evaluator give.

    ``model`` may be in a later opset than the piece, whose text is clearer.
    """
    piece, failure = facts.piece, facts.known_failure
    assert piece is not None and piece.error is not None
    suspect, trusted, worst = failure.suspect or "", failure.trusted or "", piece.error.worst
    own, witness, output = parse_model(read_bytes(Path(piece.path)), Path(piece.path)), PLAIN[-1], worst.output
    shapes: dict[str, object] = {each: outputs_in(each)[0][output].shape for each in (suspect, trusted)}
    witnessed: object = None
    if parse_spec(trusted).name != witness:
        with contextlib.suppress(*CANNOT_RUN):
            witnessed = outputs_in(witness)[0][output].shape

    def whose(shape: object) -> Literal["suspect", "trusted", ""]:
        return "suspect" if shape == shapes[suspect] else "trusted" if shape == shapes[trusted] else ""

    kinds = [inferred_outputs(each).get(output) for each in (model, own)]
    inferred = [kind.shape if kind is not None and kind.is_static else None for kind in kinds]
    # The piece itself may have other sizes than its plain form.
    form = "" if inferred[1] is None else str(list(inferred[1]))
    sides = {worst.form: "suspect", worst.expected_form: "trusted"}
    by_inference, by_witness, by_own = whose(inferred[0]), whose(witnessed), sides.get(form, "")

    titles = {"": "none" if inferred[0] is None else "another one"}
    titles |= {
        side: f"the shape of {full_title(engine, '')}" for side, engine in (("suspect", suspect), ("trusted", trusted))
    }
    opset, own_opset = (opsets_of(each).get("", 1) for each in (model, own))
    text = f"In opset {opset}, the shape inference of onnx gives {titles[by_inference]}"
    if by_witness and by_witness == by_inference:
        text += ", and so does its reference evaluator"
    elif by_witness:
        text += f", and its reference evaluator {titles[by_witness]}"
    if opset != own_opset:
        text = f"It fails in opset {opset} as in opset {own_opset}. {text}"
        if by_own and by_own != by_inference:
            text += f"; in opset {own_opset}, inference gives {titles[by_own]}"
    right = by_inference if by_witness in ("", by_inference) else ""
    text = text if right else f"Which of the two shapes is right is not decided. {text}"
    return DefinitionFacts(right=right, sentence=f"{text}.")


def _special_values(facts: KnownFacts, model: onnx.ModelProto, feed: Feed, outputs_in: OutputsIn) -> DefinitionFacts:
    """What float64, and the body of an ONNX function, give where one side is NaN or infinite. Raises CheckError."""
    assert facts.piece is not None and facts.piece.error is not None
    output = facts.piece.error.worst.output
    given, exact = (np.asarray(outputs_in(engine)[0][output]) for engine in (facts.suspect or "", EXACT))
    if given.shape != exact.shape or not (places := np.argwhere(np.isfinite(given) != np.isfinite(exact))).size:
        raise errors.CheckError("float64 gives NaN and infinity in the same places")
    at = tuple(map(int, places[0]))
    numbers = [np.ravel(value).astype(np.float64) for value in feed.values() if value.dtype.kind in "iuf"]
    fed = np.concatenate(numbers) if numbers else np.zeros(0)
    ends = [f"{end:.7g}" for end in (fed.min(), fed.max())] if fed.size else []
    text = ""
    if ends and np.isfinite(fed).all():
        text = f"With inputs {f'from {ends[0]} to {ends[1]}' if ends[0] != ends[1] else f'that are all {ends[0]}'}, "
    suspect = full_title(facts.suspect or "", "")
    text += f"float64 gives {exact[at]:.7g} at {list(at)}, where {suspect} gives {given[at]}."
    body = body_value(model, feed) if len(model.graph.node) == 1 else None
    if body is not None and body.shape == exact.shape and np.isfinite(body[at]) == np.isfinite(exact[at]):
        operator = model.graph.node[0].op_type
        text += f" ONNX defines {operator} as a function, and the body of that gives {body[at]:.7g} there."
    return DefinitionFacts(right="", sentence=f"{text[:1].upper()}{text[1:]}")


def body_value(model: onnx.ModelProto, feed: Feed) -> Array | None:
    """The first output of the only node of a model by the function body with which ONNX defines its operator.

    None if the operator is no function in the model's opset, or the body cannot be evaluated.
    """
    (node,) = model.graph.node
    schema: Any = schema_of(node, opsets_of(model))
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    try:
        values, body = _values_read(model, node, feed), schema.function_body
        if not schema.has_function:
            elem = onnx.helper.np_dtype_to_tensor_dtype
            types = [
                onnx.TypeProto() if each is None else onnx.helper.make_tensor_type_proto(elem(each.dtype), each.shape)
                for each in values
            ]
            of_types = [each.SerializeToString() for each in types]
            data = schema.get_context_dependent_function(node.SerializeToString(), of_types)
            body = onnx.FunctionProto.FromString(data)
        defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.name}
        given = {**defaults, **{each.name: each for each in node.attribute}}
        attributes = {name: onnx.helper.get_attribute_value(each) for name, each in given.items()}
        fed = {name: value for name, value in zip(body.input, values, strict=False) if value is not None}
        (first, *_) = onnx.reference.ReferenceEvaluator(body).run(None, fed, attributes=attributes)
        return np.asarray(first)
    except Exception:  # whatever an evaluator in Python raises about an odd model
        return None
