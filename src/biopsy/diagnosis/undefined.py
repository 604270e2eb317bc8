"""Values for which the ONNX standard defines no result: no engine is wrong about what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from biopsy.checks.command_line import OwnRun, parse
from biopsy.diagnosis.context import StepContext, passes
from biopsy.diagnosis.facts import FailingPiece, FaultBeforeEngines, KnownFacts
from biopsy.diagnosis.question import feeds_in, path_of, with_inputs, without_weights_folder
from biopsy.model.load import parse as parse_model
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.session.trial import until_no_pass
from biopsy.tensors.files import write_feeds
from biopsy.tensors.results import Array, Feed
from biopsy.tensors.types import is_float


def undefined_in(piece: FailingPiece, facts: KnownFacts, context: StepContext) -> FaultBeforeEngines | None:
    """The fault of the inputs if a node of a piece is given what ONNX defines no result for; None if there is none.

    The piece must pass once only these elements of its inputs and weights have other values: an engine that is wrong
    about the others still fails. None if the failure does not depend on values, or for a check of the user's, whose
    inputs are not known. Raises TimeUpError.
    """
    path, question, failure = Path(piece.path), context.question, facts.known_failure
    words = with_inputs(without_weights_folder(failure.check), path_of(piece.inputs))
    command = parse(words)
    if not isinstance(command, OwnRun) or failure.report.stage not in ("run", "compare"):
        return None
    model = parse_model(read_bytes(path), path)
    feeds = feeds_in(command.input_files) or [{}]
    undefined = list(undefined_values(model, piece.nodes, feeds))
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
    text = f"{undefined[0].text}; with other values there, and all others as they are, it does not fail"
    return FaultBeforeEngines(kind="undefined", every=(), text=text) if passes(judged) else None


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
        return np.where(self.is_undefined(value), value.dtype.type(self.instead), value)


def undefined_values(model: onnx.ModelProto, labels: Sequence[str], feeds: Sequence[Feed]) -> Iterator[UndefinedValues]:
    """The values in the inputs and the weights of a model for which the ONNX standard defines no result.

    ``labels`` are those of the nodes of the main graph. NumPy, and so float64, gives for such values what the processor
    gives, so it does not judge them.
    """
    inline = (each for each in model.graph.initializer if each.data_location != onnx.TensorProto.EXTERNAL)
    weights = {each.name: each for each in inline}

    def value_of(name: str, feed: Feed) -> Array | None:
        if name in feed:
            return np.asarray(feed[name])
        return numpy_helper.to_array(weights[name]) if name in weights else None

    opset = next((each.version for each in model.opset_import if each.domain in _ONNX), 1)
    for label, node in zip(labels, model.graph.node, strict=True):
        rule = _RULES.get(node.op_type) if node.domain in _ONNX else None
        if rule is None or opset >= rule.until or len(node.input) <= rule.place:
            continue
        tensor = node.input[rule.place]
        for feed in feeds:
            values = [value_of(name, feed) for name in node.input]
            read = values[rule.place]
            is_undefined = None if read is None else rule.of(node, values)
            if read is not None and is_undefined is not None and np.any(is_undefined(read)):
                text = f"{label} {rule.text}"
                yield UndefinedValues(text=text, tensor=tensor, is_undefined=is_undefined, instead=rule.instead)
                break


_ONNX = ("", "ai.onnx")


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((each.i for each in node.attribute if each.name == name), 0)


_Elements = Callable[[Array], Any]
"""Which elements of a value have no defined result."""


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """What an operator has no defined result for, in opsets before ``until``: elements of its input number ``place``.

    ``of`` gives these elements for a node and the values of its inputs, None for one that is not known; that of
    ``place`` is. It returns None if no element is known to be undefined.
    """

    text: str
    of: Callable[[onnx.NodeProto, Sequence[Any]], _Elements | None]
    place: int = 0
    instead: int = 0
    until: float = inf


def _outside(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    like = inputs[1].dtype if len(inputs) > 1 and inputs[1] is not None else ""
    dtype = str(like) or DTYPE_OF_ELEM.get(_attribute(node, "to"), "")
    if not is_float(inputs[0].dtype) or not dtype.startswith(("int", "uint")):
        return None
    signed, bits = not dtype.startswith("u"), int(dtype.removeprefix("u").removeprefix("int"))
    top = 2.0 ** (bits - signed)
    low = -top if signed else 0

    def is_outside(number: Array) -> Any:
        whole = np.trunc(number.astype(np.float64))
        return ~((whole >= low) & (whole < top))

    return is_outside


def _zero(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    return (lambda element: element == 0) if inputs[1].dtype.kind in "iu" else None


def _out_of_bounds(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    axis, data = _attribute(node, "axis"), inputs[0]
    if data is None or not -data.ndim <= axis < data.ndim:
        return None
    size = data.shape[axis]
    return lambda index: (index < -size) | (index >= size)


def _outside_of_all_axes(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    data, indices = inputs[:2]
    if data is None or indices.ndim == 0:
        return None
    first = _attribute(node, "batch_dims")
    sizes = np.array(data.shape[first : first + indices.shape[-1]])
    return lambda index: (index < -sizes) | (index >= sizes)


def _least(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    return (lambda number: number == np.iinfo(number.dtype).min) if inputs[0].dtype.kind == "i" else None


def _too_many_bits(node: onnx.NodeProto, inputs: Sequence[Any]) -> _Elements | None:
    return lambda bits: bits >= 8 * bits.dtype.itemsize


_CAST = _Rule(text="casts NaN or a value out of range to an integer type", of=_outside)
_DIVISOR = _Rule(text="divides an integer by zero", of=_zero, place=1, instead=1)
_INDEX = _Rule(text="has an index out of bounds", of=_out_of_bounds, place=1)
_INDICES = _Rule(text="has an index out of bounds", of=_outside_of_all_axes, place=1)
_OPPOSITE = _Rule(text="overflows: the type has no such positive number", of=_least)

_RULES: Mapping[str, _Rule] = {
    "Abs": _OPPOSITE,
    "BitShift": _Rule(text="shifts by as many bits as the type has, or more", of=_too_many_bits, place=1, until=28),
    "Cast": _CAST,
    "CastLike": _CAST,
    "Div": _DIVISOR,
    "Gather": _INDEX,
    "GatherElements": _INDEX,
    "GatherND": _INDICES,
    "Mod": _DIVISOR,
    "Neg": _OPPOSITE,
    "ScatterElements": _INDEX,
    "ScatterND": _INDICES,
}
