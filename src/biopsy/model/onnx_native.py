"""onnx's own shape inference and checker, which are native code that a model may crash, or have fill the memory.

All of biopsy calls them here. What fills the memory is their *propagation of values*:
it follows the values of one-dimensional tensors, since shapes are computed from them, and makes a message for each
element of every tensor whose length is known. So each model is inferred without it first. The lengths that this tells
decide what is handed to it: a node that would propagate a long tensor is taken out of its sight, with its types as they
were inferred.

- A model with an operator that is new to this process is inferred in a fork: onnx may crash on it. So is one whose
  lengths only propagation itself can tell, and one with a tensor whose bytes do not fit its shape. Others, such as the
  candidates of a reduction, are inferred here, and could crash this process.
- A fork may take ``MOST_SECONDS``, and a tenth of a millisecond for each node, and allocate ``MOST_MEMORY``.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from biopsy.model import walk
from biopsy.model.tensor_type import raw_size
from biopsy.model.walk import unbounded
from biopsy.processes import own_process, supervised
from biopsy.processes.watch import Limits, signal_name
from biopsy.text import count, size_text

if TYPE_CHECKING:
    import onnx

LONGEST = 4096
"""Elements of the longest tensor whose values are followed."""

MOST_ELEMENTS = 1 << 20
"""Elements of all tensors together whose values are followed; each is a message of some hundred bytes."""

MOST_SECONDS = 10.0
"""Seconds that a fork may take, besides what each node is given."""

MOST_MEMORY = 500_000_000
"""Bytes that a fork may allocate, besides eight times the size of the model."""

_SECONDS_OF_A_NODE = 0.0001
_SECONDS_OF_A_SLOW_JUDGE = 2.0  # besides those of the nodes, once a model of this process has reached the limit

survived: dict[str, set[tuple[str, str]]] = {"inference": set(), "checker": set()}
"""Operators, by domain and name, on which each of the two has not crashed in this process's forks."""


_slow_judges: set[str] = set()


Answer: TypeAlias = "tuple[str, Any]"
"""One thing that a call says: its kind, and a model or a text."""


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """What onnx infers of a model. ``model`` is a copy with all types that can be told, those in bodies too.

    ``objection`` is what strict inference says against the model, if it was asked; ``left_out`` says in a sentence what
    was not inferred so as to keep within the limits, "" if nothing was.
    """

    model: onnx.ModelProto
    objection: str | None = None
    left_out: str = ""


def inferred(model: onnx.ModelProto, *, strict: bool = False) -> Inferred:
    """The types of a model. Pass one without its large weights (``infer.without_weights``).

    ``strict``: types are compared with those declared, and the first contradiction is the ``objection``; a model on
    which onnx crashes is objected to as well. Functions that are too large to be written out stay unknown operators.
    Never raises: what cannot be inferred is missing.
    """
    given, kept = model, bounded_functions(model)
    if len(kept) < len(model.functions):
        given = type(model)()
        given.CopyFrom(model)
        del given.functions[:]
        given.functions.extend(kept)
    found = _asked("inference", given, lambda: _inference(given, strict))
    left_out = found.get("left_out", "")
    if left_out:
        own_process.warn_at_end(left_out)
    return Inferred(model=found.get("model", given), objection=found.get("objection"), left_out=left_out)


def checker_objection(model: onnx.ModelProto) -> str | None:
    """Why onnx.checker refuses a model, in its words; None if it accepts it, or takes too long to say."""
    return _asked("checker", model, lambda: _check(model)).get("objection")


def bounded_functions(model: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The functions that inference can follow in time; a call of another one is then an operator it does not know."""
    endless = unbounded(model.functions)
    return [function for function in model.functions if walk.function_key(function) not in endless]


# Where a call is made


def _asked(judge: str, model: onnx.ModelProto, call: Callable[[], Iterator[Answer]]) -> dict[str, Any]:
    """What a call says, by kind; it is made in this process if onnx is known to survive, and there is no doubt."""
    counted = Counter((node.domain, node.op_type) for node in walk.nodes(model))
    operators = set(counted)
    is_possible = supervised.can_call_in_fork()
    # onnx 1.19 writes beyond what it has made for a tensor that holds other bytes than its shape asks for.
    raw = (tensor for tensor in walk.tensors(model) if tensor.HasField("raw_data"))
    is_familiar = survived[judge].issuperset(operators) and all(
        len(tensor.raw_data) == raw_size(tensor.data_type, tensor.dims) for tensor in raw
    )
    if is_familiar or not is_possible:
        found: dict[str, Any] = {}
        for kind, value in call():
            if kind == "doubt":
                break
            found[kind] = value
        else:
            return found
        if not is_possible:
            return {
                **found,
                "left_out": "shape inference follows no values, since their lengths are not known beforehand",
            }
    return _asked_apart(judge, counted, model, call)


def _asked_apart(
    judge: str, operators: Counter[tuple[str, str]], model: onnx.ModelProto, call: Callable[[], Iterator[Answer]]
) -> dict[str, Any]:
    seconds = _SECONDS_OF_A_SLOW_JUDGE if judge in _slow_judges else MOST_SECONDS
    seconds += _SECONDS_OF_A_NODE * operators.total()
    limits = Limits(seconds=seconds, memory=MOST_MEMORY + 8 * model.ByteSize())
    try:
        answers = supervised.call_in_fork(lambda: map(_packed, call()), limits)
        survived[judge].update(operators)
        return _by_kind(model, answers)
    except OSError as error:
        return {"left_out": f"onnx's {_NAMES[judge]} could not be started: {error.strerror}"}
    except supervised.ForkEndedError as ended:
        found = _by_kind(model, ended.answers)
        what = "no further types are known" if "model" in found else "only declared types are known"
        if ended.cause == "itself" and ended.status >= 0:  # such as an answer that is too large for a message
            return {**found, "left_out": f"onnx's {_NAMES[judge]} gives no answer: {what}"}
        if ended.cause == "itself":
            found["objection"] = f"onnx's {_NAMES[judge]} ends its process with {signal_name(-ended.status)}"
            return {**found, "left_out": f"{found['objection']}: {what}"}
        if ended.cause == "time":
            _slow_judges.add(judge)
        reached = f"{seconds:.0f} s" if ended.cause == "time" else size_text(limits.memory or 0)
        return {**found, "left_out": f"onnx's {_NAMES[judge]} was ended when it had taken {reached}: {what}"}


_NAMES = {"inference": "shape inference", "checker": "checker"}


def _packed(answer: Answer) -> bytes:
    kind, value = answer
    return kind.encode() + b"\0" + (value.encode() if isinstance(value, str) else value.SerializeToString())


def _by_kind(model: onnx.ModelProto, answers: Iterable[bytes]) -> dict[str, Any]:
    """Answers by their kind, the last one of each."""
    parts = [answer.partition(b"\0") for answer in answers]
    last = {kind.decode(): value for kind, _, value in parts}
    return {
        kind: type(model).FromString(value) if kind == "model" else value.decode("utf-8", "replace")
        for kind, value in last.items()
    }


# What is called


def _check(model: onnx.ModelProto) -> Iterator[Answer]:
    import onnx

    try:
        onnx.checker.check_model(model)
    except Exception as error:  # ValidationError, and whatever else the C++ side raises
        yield "objection", str(error)


def _inference(model: onnx.ModelProto, strict: bool) -> Iterator[Answer]:
    """First without values; then with those that can be followed, after a doubt where lengths are not known."""
    told, _ = _called(model, strict=False, follows=False)
    told = model if told is None else told
    yield "model", told
    sight = _Propagation(told)
    if sight.is_needed and sight.is_doubtful:
        yield "doubt", ""
    objection = None
    if strict and (sight.unseen or not sight.is_needed):
        objection = _called(model, strict=True, follows=False)[1]
    if sight.is_needed:
        given = model
        if sight.unseen:
            walk.hide(told, sight.unseen)
            given = type(model)()
            given.CopyFrom(told)
            walk.show_again(told)
        followed, further = _called(given, strict=strict, follows=True)
        objection = objection or further
        if followed is not None:
            if sight.unseen:
                walk.show_again(followed)
            yield "model", followed
        if sight.unseen:
            yield "left_out", sight.left_out
    if objection is not None:
        yield "objection", objection


def _called(model: onnx.ModelProto, *, strict: bool, follows: bool) -> tuple[onnx.ModelProto | None, str | None]:
    """The model with types, or what onnx raises."""
    import onnx

    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=follows)
        return found, None
    except Exception as error:  # onnx raises whatever a schema's function raises
        return None, str(error)


# What propagation would see


@cache
def _propagating() -> frozenset[str]:
    """Operators that have a length of values in hand when they are propagated. Shape reads types alone."""
    from onnx import defs

    named = {schema.name for schema in defs.get_all_schemas() if schema.has_data_propagation_function}
    return frozenset(named - {"Shape"})


_FOLLOWED = frozenset({0, 6, 7})
"""TensorProto's INT32 and INT64, and what is not known: shapes are computed from values of these types alone."""

_UNKNOWN = (0, None)


class _Propagation:
    """What propagation would see of a model whose types are inferred as far as they are without it.

    ``is_needed``: it would follow integers at all, of which shapes may be computed; ``is_doubtful``: it may find
    lengths that are not known yet, as always inside functions; ``unseen`` are the nodes that must be hidden from it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        operators = {node.op_type for function in model.functions for node in walk.nodes_within(function.node)}
        self.is_needed = self.is_doubtful = not operators.isdisjoint(_propagating() | {"Shape"})
        self.unseen: list[onnx.NodeProto] = []
        self._longest = self._total = 0
        self._functions = {walk.function_key(function) for function in model.functions}
        self._look(model.graph, ChainMap())

    @property
    def left_out(self) -> str:
        """A sentence on what is hidden."""
        if self._longest > LONGEST:
            why = f"a tensor has {self._longest:,} elements, and at most {LONGEST:,} are followed"
        else:
            why = f"their tensors together have more than {MOST_ELEMENTS:,} elements"
        return f"shape inference does not follow the values of {count(len(self.unseen), 'node')}: {why}"

    def _look(self, graph: onnx.GraphProto, around: ChainMap[str, tuple[int, int | None]]) -> None:
        """Note what inference would follow in a graph and in the bodies of its nodes.

        ``around`` has the element types and lengths of tensors that are known outside of the graph.
        """
        known = around.new_child(dict(_lengths(graph)))
        for node in graph.node:
            for body in walk.bodies(node):
                self._look(body, known)
            if node.op_type not in _propagating() and walk.operator(node) not in self._functions:
                continue
            read = [known.get(name, _UNKNOWN) for name in node.input if name]
            made = [known.get(name, _UNKNOWN) for name in node.output if name]
            self.is_needed |= any(elem in _FOLLOWED and length != 0 for elem, length in made)
            lengths = [length for _, length in (*read, *made)]
            total, longest = sum(length or 0 for length in lengths), max((length or 0 for length in lengths), default=0)
            if longest > LONGEST or self._total + total > MOST_ELEMENTS:
                self.unseen.append(node)
                self._longest = max(self._longest, longest)
                continue
            self._total += total
            self.is_doubtful |= any(length is None for _, length in read)


def _lengths(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, int | None]]]:
    """The tensors of a graph whose types are told, with how many values would be followed: 0 where there is no list."""
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
