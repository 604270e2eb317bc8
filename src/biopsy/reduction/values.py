"""Finds out whether candidates may compute other values than the original: the check gets models with changed outputs
and with constant ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from biopsy import errors, events
from biopsy.checks.judge import Signature
from biopsy.checks.outcome import Outcome
from biopsy.model.load import parse
from biopsy.model.nodes import neighbourhood_order
from biopsy.model.tensor_type import DTYPE_OF_ELEM, STRING
from biopsy.recording.types import as_constant
from biopsy.reduction.driver import Driver
from biopsy.reduction.passes.common import (
    ChangeSearch,
    NamedModelPass,
    copied,
    element_count,
    fresh,
    names_in,
    opsets_of,
    rename,
)
from biopsy.reduction.problem import Candidate
from biopsy.session.trial import VALUES, Trial
from biopsy.slow_imports import np, onnx

if TYPE_CHECKING:
    import numpy.typing as npt

Values = Literal["auto", "keep", "free"]
"""Whether passes ``keep`` the recorded values or are ``free`` to change them; ``auto`` finds out which is right."""

_MOST_CANDIDATES = 5


def may_change_values(driver: Driver, values: Values, compares_recorded: bool | None) -> bool:
    """Whether candidates may compute other values; call it after the original was checked.

    ``compares_recorded`` is what the check's command line shows: True if it loads golden values, False if it computes
    its reference anew for each candidate or looks at no values, None if it shows neither. In that case, values may
    change if the failure is not from a comparison. If it may be, a passing candidate with all outputs of the original
    is checked with these outputs changed in several ways, and then models with constants in place of the remaining
    nodes. Values may change only if the check passes all of them.
    """
    if values != "auto":
        return values == "free"
    if compares_recorded is not None:
        return not compares_recorded
    reference = driver.oracle.failure.reference
    if reference is not None and is_no_comparison(reference):
        return True
    try:
        for candidate in islice(_with_all_outputs(driver), _MOST_CANDIDATES):
            model = parse(b"".join(driver.parts(candidate)), None)
            changed = {kind: with_changed_outputs(model, kind) for kind in KINDS}
            if None in changed.values():
                continue
            description = "a part of the model that computes its outputs"
            judged = driver.judge_candidate(candidate, VALUES, description)
            if judged.outcome is Outcome.PASSES:
                return _passes_all(driver, candidate, changed, judged.evidence.status)
        why = "no passing candidate had all outputs of the original, to change their values"
    except errors.ModelError as error:  # protobuf objects cannot hold every model that bytes can
        why = error.summary
    driver.listener(events.Remark(f"values     kept: {why}"))
    return False


def is_no_comparison(failure: Signature) -> bool:
    """Whether a failure does not depend on values: a signal, or an error in the stages load, build or run."""
    return failure.status < 0 or failure.stage in {"load", "build", "run"}


def no_change(model: onnx.ModelProto) -> ChangeSearch:
    """A pass without proposals."""
    yield []


FIND_OUT = NamedModelPass(name="values", summary="finds out whether values may change", search=no_change)
"""The driver finds out whether values may change before it runs this pass, since ``keeps_values`` is False."""


def _passes_all(
    driver: Driver, candidate: Candidate, changed: Mapping[str, onnx.ModelProto | None], status: int
) -> bool:
    """Whether the check passes the candidate with its outputs changed in every way, always with this exit status.

    It must also pass constants in place of the remaining nodes, since it may compare inner tensors with golden values.
    If it does not pass something, a remark says what happened.
    """
    best = driver.best
    assert best is not None
    obstacles, descriptions = list[str](), deque[str]()

    def trials() -> Iterator[Trial]:
        for kind, changed_model in changed.items():
            if changed_model is not None:
                descriptions.append(f"a passing candidate, its outputs {kind}")
                description = f"the same, its outputs {kind}"
                data = changed_model.SerializeToString()
                yield Trial(parts=[data], size=candidate.size, stage=VALUES, description=description)
        types, writes = driver.problem.types, driver.problem.index.node_writes
        written = (tensor for node in best.nodes for tensor in writes[node])
        infos = [info for tensor in written if types.is_sufficient(tensor) and (info := types.end(tensor)) is not None]
        model = parse(b"".join(driver.parts(best)), None)
        for kind, filling in FILLINGS.items():
            constants = constant_outputs(model, infos, filling)
            if constants is None:
                obstacles.append("of some tensors no values can be made to try the check with")
                return
            descriptions.append(f"constants, {kind}, for what is computed")
            description = f"constants, {kind}, for what its nodes compute"
            yield Trial(parts=[constants.SerializeToString()], size=best.size, stage=VALUES, description=description)

    with closing(driver.oracle.in_turn(trials())) as answers:
        for judged in answers:
            description = descriptions.popleft()
            if judged.outcome is not Outcome.PASSES or judged.evidence.status != status:
                answer = judged.outcome.value if judged.outcome is not Outcome.PASSES else judged.reason
                obstacles.insert(0, f"{description}: {answer}")
                break
    for obstacle in obstacles[:1]:
        driver.listener(events.Remark(f"values     kept: {obstacle}"))
    return not obstacles


def _with_all_outputs(driver: Driver) -> Iterator[Candidate]:
    """Candidates with all outputs of the original: passing ones, the nodes of the outputs, the last nodes.

    A check may look at a single output only, so a candidate without it may pass with any values.
    """
    problem = driver.problem
    outputs = [tensor for tensor in problem.index.outputs if tensor in problem.index.producer]
    order = neighbourhood_order(problem.index, problem.original.nodes)
    tries = [sorted({problem.index.producer[tensor] for tensor in outputs})]
    tries += [order[-count:] for count in (2, 4, 8) if count < len(order)]
    closed = (problem.closed(Candidate(tuple(sorted(nodes)))) for nodes in tries if nodes)
    known = sorted(driver.passing, key=lambda passing: passing.size)
    for candidate in chain(known, filter(None, closed)):
        if problem.subset(candidate).written.issuperset(outputs):
            yield candidate


_FLOATS = frozenset({1, 10, 11})
_SIGNED = frozenset({6, 7})
_BOOL = 9

_EARLIEST = 7
"""The first opset with implicit broadcasting."""

_STEPS_SINCE = 10
"""The first opset in which Slice has steps, and takes starts and ends as inputs."""

_END = (1 << 31) - 1
_MOST_PLACES = 1 << 20


@dataclass(kw_only=True)
class _ChangeWriter:
    """Adds nodes that compute a changed output of element type ``elem`` with ``count`` elements, if that is known.

    ``taken`` are the names in the model, ``used`` its operators.
    """

    graph: onnx.GraphProto
    opset: int
    taken: set[str]
    used: Collection[str]
    elem: int = 0
    count: int | None = None

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output, by default a new one."""
        result = output or fresh("changed", self.taken)
        name = fresh(f"{operator}_of_change", self.taken)
        self.graph.node.append(onnx.helper.make_node(operator, list(inputs), [result], name=name, **attributes))
        return result

    def constant(self, values: Sequence[int], elem: int = 7, dims: Sequence[int] | None = None) -> str:
        """Add a Constant node; returns its output. Before IR version 4, an initializer would have to be an input."""
        shape = [len(values)] if dims is None else list(dims)
        return self.node("Constant", [], value=onnx.helper.make_tensor("", elem, shape, list(values)))

    def part(self, flat: str, start: int, end: int) -> str:
        """Add the slice of a one-dimensional tensor from ``start`` to ``end``; returns it."""
        if self.opset < _STEPS_SINCE:
            return self.node("Slice", [flat], axes=[0], starts=[start], ends=[end])
        return self.node("Slice", [flat, self.constant([start]), self.constant([end])])

    def reversed(self, flat: str) -> str:
        """Add the reversal of a one-dimensional tensor; returns it."""
        if self.opset < _STEPS_SINCE:
            return self.node("Gather", [flat, self.constant(list(range(self.count or 0))[::-1])])
        return self.node("Slice", [flat, *(self.constant([value]) for value in (-1, -_END, 0, -1))])

    def unused(self, *operators: str) -> str:
        """The first operator that the model does not have, since the check may look for operators; else the first."""
        return next((name for name in operators if name not in self.used), operators[0])


Change: TypeAlias = "Callable[[_ChangeWriter, str, str], None]"
"""Adds nodes that compute the second tensor from the first."""


def _negate(writer: _ChangeWriter, before: str, after: str) -> None:
    if writer.elem == _BOOL:
        writer.node("Not", [before], after)
    elif writer.unused("Neg", "Sub") == "Neg":
        writer.node("Neg", [before], after)
    else:
        writer.node("Sub", [writer.constant([0], writer.elem, []), before], after)


def _change_one_element(writer: _ChangeWriter, before: str, after: str) -> None:
    """Replace the first element, by a value that also differs from NaN."""
    flat = writer.node("Reshape", [before, writer.constant([-1])])
    is_bool = writer.elem == _BOOL
    first = writer.node("Not", [writer.part(flat, 0, 1)]) if is_bool else writer.constant([177], writer.elem)
    joined = writer.node("Concat", [first, writer.part(flat, 1, _END)], axis=0)
    writer.node("Reshape", [joined, writer.node("Shape", [before])], after)


def _reverse(writer: _ChangeWriter, before: str, after: str) -> None:
    flat = writer.node("Reshape", [before, writer.constant([-1])])
    writer.node("Reshape", [writer.reversed(flat), writer.node("Shape", [before])], after)


def _scale(writer: _ChangeWriter, before: str, after: str) -> None:
    if writer.elem == _BOOL:
        writer.node("Not", [before], after)
    elif writer.unused("Mul", "Add") == "Mul":
        writer.node("Mul", [before, writer.constant([3], writer.elem, [])], after)
    else:
        writer.node("Add", [before, writer.node("Add", [before, before])], after)


def _apply_function(writer: _ChangeWriter, before: str, after: str) -> None:
    """Apply a function that changes nearly every number, in no fixed proportion, and makes none infinite."""
    if writer.elem in _FLOATS:
        writer.node(writer.unused("Cos", "Atan", "Softplus", "Erf", "Tanh"), [before], after)
    else:
        _negate(writer, before, after)


KINDS: Mapping[str, Change] = {
    "of the other sign": _negate,
    "one element of each changed": _change_one_element,
    "in reverse order": _reverse,
    "three times as large": _scale,
    "put through a function": _apply_function,
}
"""The ways to change outputs, in the order in which they are tried.

No useful comparison of values passes all of them. A monotone function keeps the top-1 index, the other sign all
magnitudes, another order the sum, another scale the direction, and one changed element nearly keeps the mean.
"""


def with_changed_outputs(model: onnx.ModelProto, kind: str) -> onnx.ModelProto | None:
    """A copy of the model with every output changed in one way; None if one of them cannot be changed."""
    changed = copied(model)
    written = {name for node in changed.graph.node for name in node.output}
    types = {info.name: info.type for info in changed.graph.output}
    opset = opsets_of(changed).get("", 0)
    if not types or not all(name in written and _can_change(types[name], opset) for name in types):
        return None
    taken, used = names_in(changed), {node.op_type for node in changed.graph.node}
    writer = _ChangeWriter(graph=changed.graph, opset=opset, taken=taken, used=used)
    for name, output_type in types.items():
        before = fresh(f"{name}_before_change", taken)
        rename(changed.graph.node, {name: before})
        writer.elem, writer.count = output_type.tensor_type.elem_type, element_count(output_type)
        KINDS[kind](writer, before, name)
    return changed


def _can_change(kind: onnx.TypeProto, opset: int) -> bool:
    is_known = kind.tensor_type.elem_type in _FLOATS | _SIGNED | {_BOOL}
    count = element_count(kind)
    return is_known and (opset >= _STEPS_SINCE or (opset >= _EARLIEST and count is not None and count <= _MOST_PLACES))


_MOST_ELEMENTS = 1 << 22
_OPEN_SIZE = 2
"""The size of a constant in a dimension that is left open."""

Filling: TypeAlias = "Callable[[int], npt.NDArray[np.float64]]"
"""Makes this many values; no two fillings agree in order, sign, mean or greatest element."""


def _ascending(count: int) -> npt.NDArray[np.float64]:
    return np.linspace(1, 2, count)


def _peak(count: int) -> npt.NDArray[np.float64]:
    """Ascending values with one great value in the middle."""
    values = _ascending(count)
    values[count // 2 : count // 2 + 1] = 97
    return values


FILLINGS: Mapping[str, Filling] = {
    "ascending": _ascending,
    "descending": lambda count: -3 * _ascending(count),
    "with one peak": _peak,
}


def constant_outputs(model: onnx.ModelProto, infos: Iterable[bytes], filling: Filling) -> onnx.ModelProto | None:
    """A model with the inputs of ``model`` and constant outputs with these serialized ValueInfoProtos.

    A check that compares one of these tensors with golden values fails on it; another check passes. None if no value
    can be made for one of the types.
    """
    wanted = list(map(onnx.ValueInfoProto.FromString, infos))
    outputs = [(info, value) for info in wanted if (value := _value(info.type, filling)) is not None]
    return _with_constant_outputs(model, outputs) if len(outputs) == len(wanted) else None


def recorded_outputs(
    model: onnx.ModelProto, recorded: Callable[[str], npt.NDArray[Any] | None]
) -> onnx.ModelProto | None:
    """A model with the inputs and outputs of ``model``; each output is a constant with its recorded value.

    ``recorded`` returns the value of a tensor by name. None if an output has no value, or one that cannot be stored.
    """
    inputs = {info.name for info in model.graph.input}
    outputs = []
    for info in model.graph.output:
        value = None if info.name in inputs else recorded(info.name)
        stored = None if value is None else as_constant(info.name, value)
        if stored is None:
            return None
        outputs.append((info, onnx.TensorProto.FromString(stored)))
    return _with_constant_outputs(model, outputs)


def _with_constant_outputs(
    model: onnx.ModelProto, outputs: Iterable[tuple[onnx.ValueInfoProto, onnx.TensorProto]]
) -> onnx.ModelProto:
    """A model with the inputs of ``model`` and these constants as outputs."""
    constant_model = copied(model)
    graph = constant_model.graph
    for field in ("node", "initializer", "sparse_initializer", "output", "value_info", "quantization_annotation"):
        graph.ClearField(field)
    del constant_model.functions[:], constant_model.training_info[:]
    initial = {weight.name for weight in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initial]
    del graph.input[:]
    graph.input.extend(inputs)
    for info, value in outputs:
        graph.node.append(onnx.helper.make_node("Constant", [], [info.name], name=f"constant {info.name}", value=value))
        graph.output.append(info)
    return constant_model


def _value(kind: onnx.TypeProto, filling: Filling) -> onnx.TensorProto | None:
    """A tensor of this type; None for strings, types narrower than a byte, unknown ranks and large tensors."""
    elem, shape = kind.tensor_type.elem_type, [dim.dim_value or _OPEN_SIZE for dim in kind.tensor_type.shape.dim]
    if not kind.tensor_type.HasField("shape") or elem == STRING or elem not in DTYPE_OF_ELEM:
        return None
    if DTYPE_OF_ELEM[elem].endswith(("int4", "int2", "e2m1fn")) or math.prod(shape) > _MOST_ELEMENTS:
        return None
    dtype, values = onnx.helper.tensor_dtype_to_np_dtype(elem), filling(math.prod(shape))
    return onnx.numpy_helper.from_array((values > 1.5 if dtype.kind == "b" else values).astype(dtype).reshape(shape))
