"""Values for which the ONNX standard defines no result: no engine is wrong about what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from biopsy import events
from biopsy.checks.command_line import OwnRun, parse
from biopsy.diagnosis.context import StepContext, passes
from biopsy.diagnosis.facts import FailingPiece, FaultBeforeEngines, KnownFacts
from biopsy.diagnosis.question import feeds_in, path_of, with_inputs, without_weights_folder
from biopsy.model.index import index_file
from biopsy.model.load import parse as parse_model
from biopsy.model.load import read_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import write_whole
from biopsy.questions.workarounds.question import patched
from biopsy.questions.workarounds.spellings.table import GUARDS, respellings
from biopsy.recording.reference_run import Recording
from biopsy.session.trial import until_no_pass
from biopsy.tensors.results import Array
from biopsy.tensors.types import is_float


def undefined_in(piece: FailingPiece, facts: KnownFacts, context: StepContext) -> FaultBeforeEngines | None:
    """The fault of the inputs if a node of a piece is given what ONNX defines no result for; None if there is none.

    Where a guard can keep the nodes from such values, the piece must pass with it: else they are not what makes it
    fail. None for a check of the user's, whose inputs are not known. Raises TimeUpError.
    """
    path, question = Path(piece.path), context.question
    words = with_inputs(without_weights_folder(facts.known_failure.check), path_of(piece.inputs))
    command, model = parse(words), parse_model(read_bytes(path), path)
    if not isinstance(command, OwnRun):
        return None
    with temporary_folder("biopsy-") as scratch:
        samples = feeds_in(command.input_files) or [{}]
        given = Recording(index_file(path), lambda: samples, scratch, events.ignore, every_tensor=True)
        text = undefined_by_standard(model, piece.nodes, given.values)
    if not text:
        return None
    guards = [*respellings(model, range(len(model.graph.node)), GUARDS)]
    guarded = patched(model, guards) if guards else None
    if guarded is None:
        return FaultBeforeEngines(kind="undefined", every=(), text=text)
    write_whole(question.candidate, [guarded.SerializeToString()])
    run = partial(context.run, words, question.candidate, description="the piece, kept from what ONNX leaves undefined")
    try:
        judged, _ = until_no_pass(run, facts.rate.proof)
    finally:
        question.candidate.unlink(missing_ok=True)
    shown = " Guarded against that by Where, it does not fail."
    return FaultBeforeEngines(kind="undefined", every=(), text=text, origin=shown) if passes(judged) else None


def undefined_by_standard(
    model: onnx.ModelProto, labels: Sequence[str], values: Callable[[str], Sequence[Array] | None]
) -> str:
    """The first node that reads values for which the ONNX standard defines no result, in words; "" if there is none.

    ``labels`` are those of the nodes of the main graph; ``values`` gives a tensor's value in each sample, None if they
    are not known. No engine is wrong about such values: NumPy, and so float64, gives there what the processor gives.
    """
    weights = {each.name: each for each in model.graph.initializer}
    for label, node in zip(labels, model.graph.node, strict=True):
        find = _UNDEFINED.get(node.op_type) if node.domain == "" else None
        if find is None:
            continue
        read = [[numpy_helper.to_array(weights[name])] if name in weights else values(name) for name in node.input]
        known = [each for each in read if each]
        if len(known) < len(read):
            continue
        for number in range(max(map(len, known))):
            reason = find(node, *(np.asarray(each[number if len(each) > 1 else 0]) for each in known))
            if reason:
                return f"{label} {reason}"
    return ""


def _of_cast(node: onnx.NodeProto, value: Array) -> str:
    dtype = next((DTYPE_OF_ELEM.get(each.i, "") for each in node.attribute if each.name == "to"), "")
    if not is_float(value.dtype) or not dtype.startswith(("int", "uint")):
        return ""
    signed, bits = not dtype.startswith("u"), int(dtype.removeprefix("u").removeprefix("int"))
    top = 2.0 ** (bits - signed)
    whole = np.trunc(value.astype(np.float64))
    is_held = (whole >= (-top if signed else 0)) & (whole < top)
    return "" if is_held.all() else f"casts NaN or a value out of range to {dtype}"


def _of_divisor(node: onnx.NodeProto, value: Array, divisor: Array) -> str:
    is_undefined = divisor.dtype.kind in "iu" and bool((divisor == 0).any())
    return "divides an integer by zero" if is_undefined else ""


def _of_index(node: onnx.NodeProto, value: Array, index: Array) -> str:
    axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
    size = value.shape[axis]
    return "reads at an index out of bounds" if ((index < -size) | (index >= size)).any() else ""


def _of_least(node: onnx.NodeProto, value: Array) -> str:
    is_least = value.dtype.kind == "i" and bool((value == np.iinfo(value.dtype).min).any())
    return "overflows: the type has no such positive number" if is_least else ""


def _of_shift(node: onnx.NodeProto, value: Array, by: Array) -> str:
    return "shifts by as many bits as the type has, or more" if (by >= 8 * value.dtype.itemsize).any() else ""


_UNDEFINED: Mapping[str, Callable[..., str]] = {
    "Abs": _of_least,
    "BitShift": _of_shift,
    "Cast": _of_cast,
    "Div": _of_divisor,
    "Gather": _of_index,
    "GatherElements": _of_index,
    "Mod": _of_divisor,
    "Neg": _of_least,
}
