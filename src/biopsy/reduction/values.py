"""Whether candidates may compute other values than the original did: asked of the check by models of changed and of
constant outputs.
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
    element_count,
    fresh,
    names_in,
    opsets_of,
    rename,
)
from biopsy.reduction.problem import Candidate
from biopsy.session.trial import VALUES, Trial

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx

Values = Literal["auto", "keep", "free"]
"""``keep`` the recorded values, be ``free`` to change them, or find out."""

_MOST_CANDIDATES = 5


def may_change_values(driver: Driver, values: Values, compares_recorded: bool | None) -> bool:
    """Whether candidates may compute other values; the original has been checked.

    ``compares_recorded`` is what the check's own words tell: True if it loads golden values, False if it computes its
    reference anew for each candidate or looks at no values at all, None if its words tell nothing. Then a failure that
    is no comparison (a signal; a load, build or run error) is free. Last, a passing candidate that computes the outputs
    of the original is checked with those outputs changed in several ways, and models that give constants for whatever
    the nodes that are left compute: only if the check passes all of them, it does not compare with recorded values. If
    any cannot be tried, values are kept.
    """
    if values != "auto":
        return values == "free"
    if compares_recorded is not None:
        return not compares_recorded
    reference = driver.oracle.failure.reference
    if reference is not None and is_no_comparison(reference):
        return True
    try:
        for candidate in islice(_candidates(driver), _MOST_CANDIDATES):
            model = parse(b"".join(driver.parts(candidate)), None)
            changed = {kind: with_changed_outputs(model, kind) for kind in KINDS}
            if None in changed.values():
                continue
            description = "a part of the model that computes its outputs"
            judged = driver.judge_candidate(candidate, VALUES, description)
            if judged.outcome is Outcome.PASSES:
                return _passes_all(driver, candidate, changed, judged.evidence.status)
        why = "no passing candidate had all outputs of the original, to change their values"
    except errors.ModelError as error:  # a protobuf object cannot hold every model that bytes can
        why = error.summary
    driver.listener(events.Remark(f"values     kept: {why}"))
    return False


def is_no_comparison(failure: Signature) -> bool:
    """Whether a failure is one that no values decide: a signal, or an error in the stages load, build or run."""
    return failure.status < 0 or failure.stage in {"load", "build", "run"}


def asks_whether_values_may_change(model: onnx.ModelProto) -> ChangeSearch:
    """A pass that proposes nothing. Since it may change values, the driver finds out whether that is allowed."""
    yield []


FOUND_OUT = NamedModelPass(
    name="values", summary="whether values may change, for who wants to know it", search=asks_whether_values_may_change
)


def _passes_all(
    driver: Driver, candidate: Candidate, changed: Mapping[str, onnx.ModelProto | None], status: int
) -> bool:
    """Whether the check passes the candidate with its outputs changed in every way, with this exit status.

    It must also pass constants for what the nodes that are left compute: it may compare tensors inside the model with
    golden values, and not the original's outputs. If it does not, a remark says what happened instead.
    """
    best = driver.best
    assert best is not None
    obstacles, descriptions = list[str](), deque[str]()

    def trials() -> Iterator[Trial]:
        for kind, made in changed.items():
            if made is not None:
                descriptions.append(f"a passing candidate, its outputs {kind}")
                description = f"the same, its outputs {kind}"
                data = made.SerializeToString()
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
                said = judged.outcome.value if judged.outcome is not Outcome.PASSES else judged.reason
                obstacles.insert(0, f"{description}: {said}")
                break
    for obstacle in obstacles[:1]:
        driver.listener(events.Remark(f"values     kept: {obstacle}"))
    return not obstacles


def _candidates(driver: Driver) -> Iterator[Candidate]:
    """Candidates that compute the outputs of the original: those known to pass, the nodes of the outputs, the last.

    A check may look at the original's outputs alone, or at one of them, so what does not compute all of them may pass
    whatever its values are.
    """
    problem = driver.problem
    outputs = [tensor for tensor in problem.index.outputs if tensor in problem.index.producer]
    order = neighbourhood_order(problem.index, problem.whole.nodes)
    tries = [sorted({problem.index.producer[tensor] for tensor in outputs})]
    tries += [order[-count:] for count in (2, 4, 8) if count < len(order)]
    closed = (problem.closed(Candidate(tuple(sorted(nodes)))) for nodes in tries if nodes)
    known = sorted(driver.passing, key=lambda passing: passing.size)
    for candidate in chain(known, filter(None, closed)):
        if problem.subset(candidate).written.issuperset(outputs):
            yield candidate


# A model whose outputs are others: one change of each kind that a check which compares values could pass over.
#
# A monotone change keeps every top-1, a change of the sign every magnitude, another order every sum, another scale
# every direction, and one other element nearly every mean. No comparison of values that is of any use passes all of
# them.

_FLOATS = frozenset({1, 10, 11})
_SIGNED = frozenset({6, 7})
_BOOL = 9

_EARLIEST = 7
"""The first opset whose arithmetic broadcasts by itself."""

_STEPS_SINCE = 10
"""The first opset whose Slice has steps, and its borders as inputs."""

_END = (1 << 31) - 1
_MOST_PLACES = 1 << 20


@dataclass(kw_only=True)
class _ChangeWriter:
    """Writes nodes that compute something from an output: of the type ``elem``, with ``count`` elements if known.

    ``taken`` are names that are not free, ``used`` the operators of the model.
    """

    graph: onnx.GraphProto
    opset: int
    taken: set[str]
    used: Collection[str]
    elem: int = 0
    count: int | None = None

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output, a new one if none is given."""
        from onnx import helper

        result = output or fresh("changed", self.taken)
        name = fresh(f"{operator}_of_change", self.taken)
        self.graph.node.append(helper.make_node(operator, list(inputs), [result], name=name, **attributes))
        return result

    def constant(self, values: Sequence[int], elem: int = 7, dims: Sequence[int] | None = None) -> str:
        """A tensor of these values, as a Constant node: an initializer would be an input before IR 4."""
        from onnx import helper

        shape = [len(values)] if dims is None else list(dims)
        return self.node("Constant", [], value=helper.make_tensor("", elem, shape, list(values)))

    def part(self, flat: str, start: int, end: int) -> str:
        """The elements of a list from one place to another."""
        if self.opset < _STEPS_SINCE:
            return self.node("Slice", [flat], axes=[0], starts=[start], ends=[end])
        return self.node("Slice", [flat, self.constant([start]), self.constant([end])])

    def turned(self, flat: str) -> str:
        """A list from its end."""
        if self.opset < _STEPS_SINCE:
            return self.node("Gather", [flat, self.constant(list(reversed(range(self.count or 0))))])
        return self.node("Slice", [flat, *(self.constant([value]) for value in (-1, -_END, 0, -1))])

    def lacking(self, *operators: str) -> str:
        """The first of some operators that the model lacks, so that a check that looks for operators sees none anew."""
        return next((name for name in operators if name not in self.used), operators[0])


Change: TypeAlias = "Callable[[_ChangeWriter, str, str], None]"
"""Adds nodes that compute the second tensor from the first."""


def _sign(write: _ChangeWriter, before: str, after: str) -> None:
    if write.elem == _BOOL:
        write.node("Not", [before], after)
    elif write.lacking("Neg", "Sub") == "Neg":
        write.node("Neg", [before], after)
    else:
        write.node("Sub", [write.constant([0], write.elem, []), before], after)


def _one_element(write: _ChangeWriter, before: str, after: str) -> None:
    """The first element becomes another: also where it is not a number."""
    flat = write.node("Reshape", [before, write.constant([-1])])
    other = write.node("Not", [write.part(flat, 0, 1)]) if write.elem == _BOOL else write.constant([177], write.elem)
    whole = write.node("Concat", [other, write.part(flat, 1, _END)], axis=0)
    write.node("Reshape", [whole, write.node("Shape", [before])], after)


def _order(write: _ChangeWriter, before: str, after: str) -> None:
    flat = write.node("Reshape", [before, write.constant([-1])])
    write.node("Reshape", [write.turned(flat), write.node("Shape", [before])], after)


def _scale(write: _ChangeWriter, before: str, after: str) -> None:
    if write.elem == _BOOL:
        write.node("Not", [before], after)
    elif write.lacking("Mul", "Add") == "Mul":
        write.node("Mul", [before, write.constant([3], write.elem, [])], after)
    else:
        write.node("Add", [before, write.node("Add", [before, before])], after)


def _curve(write: _ChangeWriter, before: str, after: str) -> None:
    """Nearly every number becomes another, and none infinite, in no fixed proportion."""
    if write.elem in _FLOATS:
        write.node(write.lacking("Cos", "Atan", "Softplus", "Erf", "Tanh"), [before], after)
    else:
        _sign(write, before, after)


KINDS: Mapping[str, Change] = {
    "of the other sign": _sign,
    "one element of each changed": _one_element,
    "in reverse order": _order,
    "three times as large": _scale,
    "put through a function": _curve,
}
"""What can be done to outputs, in the order in which it is tried."""


def with_changed_outputs(model: onnx.ModelProto, kind: str) -> onnx.ModelProto | None:
    """A copy, every output changed in one way; None if one of them cannot be."""
    made = type(model)()
    made.CopyFrom(model)
    written = {name for node in made.graph.node for name in node.output}
    types = {info.name: info.type for info in made.graph.output}
    opset = opsets_of(made).get("", 0)
    if not types or not all(name in written and _can_change(types[name], opset) for name in types):
        return None
    taken = names_in(made)
    write = _ChangeWriter(graph=made.graph, opset=opset, taken=taken, used={node.op_type for node in made.graph.node})
    for name, told in types.items():
        before = fresh(f"{name}_before_change", taken)
        rename(made.graph.node, {name: before})
        write.elem, write.count = told.tensor_type.elem_type, element_count(told)
        KINDS[kind](write, before, name)
    return made


def _can_change(told: onnx.TypeProto, opset: int) -> bool:
    known = told.tensor_type.elem_type in _FLOATS | _SIGNED | {_BOOL}
    count = element_count(told)
    return known and (opset >= _STEPS_SINCE or (opset >= _EARLIEST and count is not None and count <= _MOST_PLACES))


# Models that compute nothing: their outputs are constants of the right type, named as the original's tensors.
#
# A check that compares any of these tensors with golden values fails on them; one that does not has nothing to find.

_MOST_ELEMENTS = 1 << 22
_OPEN_SIZE = 2
"""What stands for a dimension that is left open."""

Filling: TypeAlias = "Callable[[int], npt.NDArray[np.float64]]"
"""So many values, that agree with no other filling in order, sign, mean or greatest element."""


def _ascending(count: int) -> npt.NDArray[np.float64]:
    import numpy as np

    return np.linspace(1, 2, count)


def _peak(count: int) -> npt.NDArray[np.float64]:
    """One great value in the middle."""
    values = _ascending(count)
    values[count // 2 : count // 2 + 1] = 97
    return values


FILLINGS: Mapping[str, Filling] = {
    "ascending": _ascending,
    "descending": lambda count: -3 * _ascending(count),
    "with one peak": _peak,
}


def constant_outputs(model: onnx.ModelProto, infos: Iterable[bytes], filling: Filling) -> onnx.ModelProto | None:
    """A model with the inputs of ``model``, in which each tensor of some serialized ValueInfoProtos is a constant.

    They are its outputs. None if any is of a type for which no value can be made.
    """
    from onnx import ValueInfoProto

    wanted = list(map(ValueInfoProto.FromString, infos))
    outputs = [(info, value) for info in wanted if (value := _value(info.type, filling)) is not None]
    return _computing_nothing(model, outputs) if len(outputs) == len(wanted) else None


def recorded_outputs(
    model: onnx.ModelProto, recorded: Callable[[str], npt.NDArray[Any] | None]
) -> onnx.ModelProto | None:
    """A model with the inputs and outputs of ``model``, in which each output is a constant with its recorded value.

    ``recorded`` gives the value of a tensor by name. None if it knows none of an output, or one that cannot be stored.
    """
    from onnx import TensorProto

    inputs = {info.name for info in model.graph.input}
    outputs = []
    for info in model.graph.output:
        value = None if info.name in inputs else recorded(info.name)
        stored = None if value is None else as_constant(info.name, value)
        if stored is None:
            return None
        outputs.append((info, TensorProto.FromString(stored)))
    return _computing_nothing(model, outputs)


def _computing_nothing(
    model: onnx.ModelProto, outputs: Iterable[tuple[onnx.ValueInfoProto, onnx.TensorProto]]
) -> onnx.ModelProto:
    """A model with the inputs of ``model`` and these outputs, which are constants."""
    from onnx import helper

    made = type(model)()
    made.CopyFrom(model)
    graph = made.graph
    for field in ("node", "initializer", "sparse_initializer", "output", "value_info", "quantization_annotation"):
        graph.ClearField(field)
    del made.functions[:], made.training_info[:]
    initial = {weight.name for weight in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initial]
    del graph.input[:]
    graph.input.extend(inputs)
    for info, value in outputs:
        graph.node.append(helper.make_node("Constant", [], [info.name], name=f"constant {info.name}", value=value))
        graph.output.append(info)
    return made


def _value(kind: onnx.TypeProto, filling: Filling) -> onnx.TensorProto | None:
    """A tensor of a type; None for strings, for what is narrower than a byte, and for what has no known rank."""
    from onnx import helper, numpy_helper

    elem, shape = kind.tensor_type.elem_type, [dim.dim_value or _OPEN_SIZE for dim in kind.tensor_type.shape.dim]
    if not kind.tensor_type.HasField("shape") or elem == STRING or elem not in DTYPE_OF_ELEM:
        return None
    if DTYPE_OF_ELEM[elem].endswith(("int4", "int2", "e2m1fn")) or math.prod(shape) > _MOST_ELEMENTS:
        return None
    dtype, values = helper.tensor_dtype_to_np_dtype(elem), filling(math.prod(shape))
    return numpy_helper.from_array((values > 1.5 if dtype.kind == "b" else values).astype(dtype).reshape(shape))
