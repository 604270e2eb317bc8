"""The only callers of onnx's shape inference and checker, native code that a model can crash or make fill the memory.

What fills the memory is *data propagation*: it follows the values of one-dimensional tensors, since shapes may be
computed from them, and makes a message for each element of every tensor whose length is known. So each model is first
inferred without it. Then the lengths are known, and nodes that would propagate a long tensor are hidden from it; they
keep the types inferred before.

- A model is inferred in a fork if it has an operator that is new to this process, since onnx may crash on it; if only
  data propagation can find a length; or if the bytes of a tensor do not fit its shape. Other models, such as the
  candidates of a reduction, are inferred in this process.
- A fork may take ``MOST_SECONDS``, and a tenth of a millisecond for each node, and allocate ``MOST_MEMORY``.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from biopsy.model import walk
from biopsy.model.tensor_type import raw_size
from biopsy.model.walk import unbounded
from biopsy.processes import own_process, supervised
from biopsy.processes.watch import Limits, signal_name
from biopsy.slow_imports import onnx
from biopsy.text import count, size_text

LONGEST = 4096
"""Elements of the longest tensor that is propagated."""

MOST_ELEMENTS = 1 << 20
"""Elements of all propagated tensors together; each is a message of some hundred bytes."""

MOST_SECONDS = 10.0
"""Seconds that a fork may take, besides those for each node."""

MOST_MEMORY = 500_000_000
"""Bytes that a fork may allocate, besides eight times the size of the model."""

_SECONDS_OF_A_NODE = 0.0001
_SECONDS_OF_A_SLOW_JUDGE = 2.0  # in place of MOST_SECONDS, once a model of this process has reached the limit

survived: dict[str, set[tuple[str, str]]] = {"inference": set(), "checker": set()}
"""Operators, by domain and name, on which neither crashed in a fork of this process."""

_slow_judges: set[str] = set()


Answer: TypeAlias = "tuple[str, Any]"
"""One result of a call: its kind, and a model or a text."""


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """The result of shape inference. ``model`` is a copy with all types that could be inferred, also in bodies.

    ``objection`` is that of strict inference to the model, if it was asked for. ``left_out`` says in a sentence what
    was not inferred because of the limits; "" if everything was.
    """

    model: onnx.ModelProto
    objection: str | None = None
    left_out: str = ""


def inferred(model: onnx.ModelProto, *, strict: bool = False) -> Inferred:
    """Infer the types of a model. Pass one without its large weights (``infer.without_weights``).

    ``strict``: types are compared with the declared ones, and the first contradiction is the ``objection``; so is a
    crash of onnx. Functions that are too large to inline are unknown operators. Never raises: what cannot be inferred
    is missing.
    """
    given, kept = model, bounded_functions(model)
    if len(kept) < len(model.functions):
        given = type(model)()
        given.CopyFrom(model)
        del given.functions[:]
        given.functions.extend(kept)
    answers = _answers("inference", given, lambda: _inference(given, strict))
    left_out = answers.get("left_out", "")
    if left_out:
        own_process.warn_at_end(left_out)
    return Inferred(model=answers.get("model", given), objection=answers.get("objection"), left_out=left_out)


def made_in_fork(model: onnx.ModelProto, make: Callable[[], onnx.ModelProto | None]) -> onnx.ModelProto | None:
    """A model made of another one by calls of ``outputs_of``; None also if these crash, or if no fork is possible."""
    if not supervised.can_call_in_fork():
        return None

    def call() -> Iterator[Answer]:
        made = make()
        if made is not None:
            yield "model", made

    counted = Counter((node.domain, node.op_type) for node in walk.nodes(model))
    made: onnx.ModelProto | None = _answers_of_fork("inference", counted, model, call).get("model")
    return made


def outputs_of(
    schema: onnx.defs.OpSchema,
    node: onnx.NodeProto,
    types: dict[str, onnx.TypeProto],
    values: dict[str, onnx.TensorProto],
    opsets: Iterable[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto] | None:
    """The types of a node's outputs for these types of its inputs; None if the operator refuses them."""
    try:
        return onnx.shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=list(opsets))
    except Exception:  # onnx raises whatever a schema's function raises
        return None


def checker_objection(model: onnx.ModelProto) -> str | None:
    """Why onnx.checker refuses a model, in its words; None if it accepts it or gives no answer in time."""
    return _answers("checker", model, lambda: _check(model)).get("objection")


def bounded_functions(model: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The functions that are small enough to inline; without the others, inference takes their calls as unknown."""
    too_large = unbounded(model.functions)
    return [function for function in model.functions if walk.function_key(function) not in too_large]


def _answers(judge: str, model: onnx.ModelProto, call: Callable[[], Iterator[Answer]]) -> dict[str, Any]:
    """The last answer of each kind; the call is made in this process if onnx survives it for sure, else in a fork."""
    counted = Counter((node.domain, node.op_type) for node in walk.nodes(model))
    is_fork_possible = supervised.can_call_in_fork()
    # onnx 1.19 writes beyond its buffer for a tensor whose bytes do not fit its shape.
    raw = (tensor for tensor in walk.tensors(model) if tensor.HasField("raw_data"))
    is_familiar = survived[judge].issuperset(counted) and all(
        len(tensor.raw_data) == raw_size(tensor.data_type, tensor.dims) for tensor in raw
    )
    if is_familiar or not is_fork_possible:
        answers: dict[str, Any] = {}
        for kind, value in call():
            if kind == "doubt":
                break
            answers[kind] = value
        else:
            return answers
        if not is_fork_possible:
            return {
                **answers,
                "left_out": "shape inference follows no values, since their lengths are not known beforehand",
            }
    return _answers_of_fork(judge, counted, model, call)


def _answers_of_fork(
    judge: str, operators: Counter[tuple[str, str]], model: onnx.ModelProto, call: Callable[[], Iterator[Answer]]
) -> dict[str, Any]:
    seconds = _SECONDS_OF_A_SLOW_JUDGE if judge in _slow_judges else MOST_SECONDS
    seconds += _SECONDS_OF_A_NODE * operators.total()
    limits = Limits(seconds=seconds, memory=MOST_MEMORY + 8 * model.ByteSize())
    try:
        packed = supervised.call_in_fork(lambda: map(_packed, call()), limits)
        survived[judge].update(operators)
        return _unpacked(model, packed)
    except OSError as error:
        return {"left_out": f"onnx's {_NAMES[judge]} could not be started: {error.strerror}"}
    except supervised.ForkEndedError as ended:
        answers = _unpacked(model, ended.answers)
        what = "no further types are known" if "model" in answers else "only declared types are known"
        if ended.cause == "itself" and ended.status >= 0:  # such as an answer that is too large for a message
            return {**answers, "left_out": f"onnx's {_NAMES[judge]} gives no answer: {what}"}
        if ended.cause == "itself":
            answers["objection"] = f"onnx's {_NAMES[judge]} ends its process with {signal_name(-ended.status)}"
            return {**answers, "left_out": f"{answers['objection']}: {what}"}
        if ended.cause == "time":
            _slow_judges.add(judge)
        limit = f"{seconds:.0f} s" if ended.cause == "time" else size_text(limits.memory or 0)
        return {**answers, "left_out": f"onnx's {_NAMES[judge]} was ended when it had taken {limit}: {what}"}


_NAMES = {"inference": "shape inference", "checker": "checker"}


def _packed(answer: Answer) -> bytes:
    kind, value = answer
    return kind.encode() + b"\0" + (value.encode() if isinstance(value, str) else value.SerializeToString())


def _unpacked(model: onnx.ModelProto, packed: Iterable[bytes]) -> dict[str, Any]:
    """The last answer of each kind."""
    parts = [answer.partition(b"\0") for answer in packed]
    last = {kind.decode(): value for kind, _, value in parts}
    return {
        kind: type(model).FromString(value) if kind == "model" else value.decode("utf-8", "replace")
        for kind, value in last.items()
    }


def _check(model: onnx.ModelProto) -> Iterator[Answer]:
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, and other errors of the C++ code
        yield "objection", str(error)


def _inference(model: onnx.ModelProto, strict: bool) -> Iterator[Answer]:
    """Infer without data propagation, then with it; in between, a "doubt" says that lengths are unknown."""
    typed, _ = _infer_shapes(model, strict=False, propagates=False)
    typed = model if typed is None else typed
    yield "model", typed
    plan = _Propagation(typed)
    if plan.is_needed and plan.is_doubtful:
        yield "doubt", ""
    objection = None
    if strict and (plan.hidden or not plan.is_needed):
        objection = _infer_shapes(model, strict=True, propagates=False)[1]
    if plan.is_needed:
        given = model
        if plan.hidden:
            walk.hide(typed, plan.hidden)
            given = type(model)()
            given.CopyFrom(typed)
            walk.show_again(typed)
        propagated, second_objection = _infer_shapes(given, strict=strict, propagates=True)
        objection = objection or second_objection
        if propagated is not None:
            if plan.hidden:
                walk.show_again(propagated)
            yield "model", propagated
        if plan.hidden:
            yield "left_out", plan.left_out
    if objection is not None:
        yield "objection", objection


def _infer_shapes(
    model: onnx.ModelProto, *, strict: bool, propagates: bool
) -> tuple[onnx.ModelProto | None, str | None]:
    """The model with types and None, or None and the message of onnx's error."""
    try:
        typed = onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=propagates)
        return typed, None
    except Exception as error:  # onnx raises whatever a schema's function raises
        return None, str(error)


@cache
def _propagating() -> frozenset[str]:
    """Operators that need the values of their inputs for data propagation; Shape only needs types."""
    named = {schema.name for schema in onnx.defs.get_all_schemas() if schema.has_data_propagation_function}
    return frozenset(named - {"Shape"})


_OF_SHAPES = frozenset({0, 6, 7})
"""TensorProto's INT32 and INT64, and 0 for unknown: only values of these types make shapes."""

_UNKNOWN = (0, None)


class _Propagation:
    """What data propagation would do with a model whose types are inferred without it.

    ``is_needed``: it would follow integers, of which shapes may be computed. ``is_doubtful``: it may find lengths that
    are not known yet, as always inside functions. ``hidden`` are the nodes that must be hidden from it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        operators = {node.op_type for function in model.functions for node in walk.nodes_within(function.node)}
        self.is_needed = self.is_doubtful = not operators.isdisjoint(_propagating() | {"Shape"})
        self.hidden: list[onnx.NodeProto] = []
        self._longest = self._total = 0
        self._functions = {walk.function_key(function) for function in model.functions}
        self._add(model.graph, ChainMap())

    @property
    def left_out(self) -> str:
        """A sentence on what is hidden."""
        if self._longest > LONGEST:
            why = f"a tensor has {self._longest:,} elements, and at most {LONGEST:,} are followed"
        else:
            why = f"their tensors together have more than {MOST_ELEMENTS:,} elements"
        return f"shape inference does not follow the values of {count(len(self.hidden), 'node')}: {why}"

    def _add(self, graph: onnx.GraphProto, around: ChainMap[str, tuple[int, int | None]]) -> None:
        """Add a graph and the bodies of its nodes; ``around`` has the element types and lengths of outer tensors."""
        known = around.new_child(dict(_lengths(graph)))
        for node in graph.node:
            for body in walk.bodies(node):
                self._add(body, known)
            if node.op_type not in _propagating() and walk.operator(node) not in self._functions:
                continue
            read = [known.get(name, _UNKNOWN) for name in node.input if name]
            written = [known.get(name, _UNKNOWN) for name in node.output if name]
            self.is_needed |= any(elem in _OF_SHAPES and length != 0 for elem, length in written)
            lengths = [length for _, length in (*read, *written)]
            total, longest = sum(length or 0 for length in lengths), max((length or 0 for length in lengths), default=0)
            if longest > LONGEST or self._total + total > MOST_ELEMENTS:
                self.hidden.append(node)
                self._longest = max(self._longest, longest)
                continue
            self._total += total
            self.is_doubtful |= any(length is None for _, length in read)


def _lengths(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, int | None]]]:
    """The tensors of a graph with known types: name, element type, and how many values inference would propagate.

    That is 0 for a tensor of two or more dimensions, and None if it is unknown.
    """
    for weight in graph.initializer:
        yield weight.name, (weight.data_type, weight.dims[0] if len(weight.dims) == 1 else not weight.dims)
    for info in (*graph.value_info, *graph.output, *graph.input):
        kind = info.type.tensor_type
        dims = kind.shape.dim
        if info.type.WhichOneof("value") != "tensor_type":
            yield info.name, (-1, 0)
        elif not kind.HasField("shape"):
            yield info.name, (kind.elem_type, None)
        elif len(dims) == 1:
            yield info.name, (kind.elem_type, dims[0].dim_value if dims[0].HasField("dim_value") else None)
        else:
            yield info.name, (kind.elem_type, int(not dims))
