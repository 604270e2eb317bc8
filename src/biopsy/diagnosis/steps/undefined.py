"""Values for which the ONNX standard defines no result: no engine is wrong about what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.comparison import metrics
from biopsy.comparison.mismatch import COSTS
from biopsy.comparison.noise import judge_noise
from biopsy.diagnosis.context import StepAnswer, StepContext, TimeUpError, diagnosis_step, passes
from biopsy.diagnosis.facts import FailingPiece, FaultBeforeEngines, KnownFacts, ModelFailure, UndefinedFacts
from biopsy.diagnosis.question import feeds_in, feeds_of, path_of, with_inputs, without_weights_folder
from biopsy.diagnosis.steps.rounding import outputs_agree, outputs_of
from biopsy.engines.reference_undefined import RULES, UNDEFINED, UndefinedResultError, rule_of
from biopsy.engines.registry import EXACT
from biopsy.engines.worker import CANNOT_RUN
from biopsy.model.index import ModelIndex, Node, index_file
from biopsy.model.load import parse as parse_model
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import FLOATS
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.recording.reference_run import ValuesInMemory
from biopsy.recording.types import CutTypes
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
    if not undefined and facts.undefined is not None:  # a node of the piece may make such values
        try:
            return undefined_results(index_file(path), feeds, failure, context)
        except errors.CheckError:
            return replace(facts.undefined, explains=None)
    if not undefined:
        return None
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
        if node.op_type == "TopK":
            attributes = onnx.NodeProto.FromString(index.node_payload(node.number)).attribute
            return all(each.i for each in attributes if each.name == "sorted")
        kind = types.tensor_type(node.inputs[0]) if node.op_type in _OF_INTEGERS and node.inputs else None
        return kind is not None and kind.elem in FLOATS

    calls = (index.operators_run(node.calls) for node in index.nodes if not is_always_defined(node))
    return any(not domain and name in RULES for called in calls for domain, name, *_ in called)


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
    inline = (each for each in model.graph.initializer if each.data_location != onnx.TensorProto.EXTERNAL)
    weights = {each.name: each for each in inline}

    def value_of(name: str, feed: Feed) -> Array | None:
        if name in feed:
            return np.asarray(feed[name])
        return numpy_helper.to_array(weights[name]) if name in weights else None

    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    for label, node in zip(labels, model.graph.node, strict=True):
        if (rule := rule_of(node, opset)) is None:
            continue
        for feed in feeds:
            is_undefined = rule.elements(node, [value_of(name, feed) for name in node.input])
            if is_undefined is not None and rule.instead is not None:
                text, tensor = f"{label} {rule.text}", node.input[rule.place]
                yield UndefinedValues(text=text, tensor=tensor, is_undefined=is_undefined, instead=rule.instead)
                break


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
