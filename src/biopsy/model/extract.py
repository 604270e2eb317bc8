"""Extracts the part of a model between named tensors, and marks tensors as outputs so that an engine returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from biopsy import errors
from biopsy.model import infer, load, parts, walk
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.known_names import listed, may_lack_names
from biopsy.model.load import parse
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.model.wire import fields, string_field
from biopsy.slow_imports import onnx
from biopsy.text import did_you_mean, more_values, option_line

Auto = Literal["auto"]


@dataclass(frozen=True)
class Wanted:
    """A tensor to become an input or output. ``elem`` is an ONNX element type; "auto" is declared or inferred."""

    name: str
    shape: Shape | Auto = "auto"
    elem: int | Auto = "auto"


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The sources of "auto" types: onnx's inference if ``infers``, and ``run``, which runs the model.

    ``run`` returns the types of the tensors that it is given by name. It is called for element types that inference
    does not find, or for all if ``runs_always``.
    """

    infers: bool = True
    run: Callable[[Sequence[str]], Mapping[str, TensorType]] | None = None
    runs_always: bool = False


def extract(
    index: ModelIndex,
    inputs: Sequence[Wanted] | None = None,
    outputs: Sequence[Wanted] | None = None,
    inference: Inference = Inference(),
) -> onnx.ModelProto:
    """The part of a model that computes ``outputs`` from ``inputs``; None stands for those of the model.

    It has only the nodes, weights and local functions that are needed; references to external data stay as they are.
    Every requested input becomes one, needed or not.

    Raises UsageError for a name that is not a tensor of the model's graph, for an output that needs a tensor which is
    neither given nor computed, and for an "auto" type that cannot be inferred; and what ``inference.run`` raises.
    """
    given, ends = (
        of_model if named is None else list(dict.fromkeys(_number(index, wanted.name) for wanted in named))
        for of_model, named in ((index.inputs, inputs), (index.outputs, outputs))
    )
    nodes = _needed(index, ends, set(given))
    if inputs is None:
        read = {*ends, *(tensor for node in nodes for tensor in index.nodes[node].reads)}
        given = [tensor for tensor in given if tensor not in index.weights or tensor in read]
    types = _TypeInfos(index, inference, [*(inputs or ()), *(outputs or ())])
    infos = {_number(index, wanted.name): types.of(wanted, "inputs") for wanted in inputs or ()}
    for wanted in outputs or ():
        infos.setdefault(_number(index, wanted.name), types.of(wanted, "outputs"))
    subset = Subset(index, tuple(sorted(nodes)))
    model = parse(candidate_bytes(subset, Boundary(infos=infos, frozen={}, inputs=given, outputs=ends)), index.path)
    # Only an input gives its tensor: no initializer is its default, and no node writes it.
    cut = set() if inputs is None else {index.names[tensor] for tensor in given}
    walk.keep(model.graph.initializer, lambda weight: weight.name not in cut)
    for node in model.graph.node if cut else ():
        for place, name in enumerate(node.output):
            if name in cut:
                node.output[place] = f"{name}__not_used"
    return model


def _number(index: ModelIndex, name: str) -> int:
    number = index.ids.get(name)
    if number is not None and (number in index.producer or number in index.weights or number in index.inputs):
        return number
    raise errors.UsageError(
        f"the model has no tensor {name!r} in its graph",
        next_steps=[*did_you_mean(name, index.names), "biopsy inspect model MODEL --mode=basic    lists them"],
    )


def _needed(index: ModelIndex, ends: Iterable[int], given: set[int]) -> set[int]:
    """The nodes between the tensors ``given`` and ``ends``. Raises UsageError if more tensors must be given."""
    producer, reads = index.producer, index.node_reads
    computed = walk.reached(ends, lambda t: reads[producer[t]] if t in producer and t not in given else ()) - given
    missing = computed.difference(producer, index.weights)
    if missing:
        names = [index.names[tensor] for tensor in sorted(missing)]
        raise errors.UsageError(
            f"the outputs asked for also need {', '.join(map(repr, names))}, which the inputs given do not provide",
            next_steps=[f"add to --inputs    {more_values('--inputs', [f'{name}:auto:auto' for name in names])}"],
        )
    return {producer[tensor] for tensor in computed if tensor in producer}


class _TypeInfos:
    """Types of tensors as ValueInfoProto; inference runs when a type first needs it."""

    def __init__(self, index: ModelIndex, inference: Inference, wanted: Sequence[Wanted]) -> None:
        self._index = index
        self._inference = inference
        self._wanted = [tensor for tensor in wanted if "auto" in (tensor.shape, tensor.elem)]

    @cached_property
    def _inferred(self) -> Mapping[str, bytes]:
        inference, index = self._inference, self._index
        if inference.infers:
            model = parse(bytes(index.buffer[:]), index.path)
            known = infer.infer_value_infos(infer.without_weights(model).SerializeToString())
        else:
            kinds = {name: index.tensor_type(tensor) for name, tensor in index.ids.items()}
            known = {name: parts.value_info(name, kind) for name, kind in kinds.items() if kind is not None}
        missing = [
            wanted.name
            for wanted in self._wanted
            if inference.runs_always or (wanted.elem == "auto" and not parts.has_type(known.get(wanted.name, b"")))
        ]
        if inference.run is None or not missing:
            return known
        return {**known, **{name: parts.value_info(name, kind) for name, kind in inference.run(missing).items()}}

    def of(self, wanted: Wanted, option: str) -> bytes:
        shape: Shape | Auto | None = wanted.shape
        elem = wanted.elem
        info = self._inferred.get(wanted.name) if "auto" in (shape, elem) else None
        if shape == elem == "auto" and info is not None:
            return info
        known = parts.tensor_type(info) if info is not None else None
        if known is not None:
            shape, elem = known.shape if shape == "auto" else shape, known.elem if elem == "auto" else elem
        if elem == "auto":
            form = f"{wanted.name}:[1,3]:float32" if option == "inputs" else f"{wanted.name}:float32"
            raise errors.UsageError(
                f"the type of tensor {wanted.name!r} is neither declared nor can it be inferred",
                next_steps=[f"say it, as in {option_line(f'--{option}', form)}"],
            )
        return parts.value_info(wanted.name, TensorType(elem, None if shape == "auto" else shape))


ALL: Literal["all"] = "all"

MarkedOutputs = Literal["all"] | Sequence[str]
"""``"all"``, or names of tensors; a name may be a pattern such as ``conv_*``."""

_MODEL_GRAPH = 7  # field number in ModelProto
GRAPH_OUTPUT = 12  # field number in GraphProto

_MAY_GIVE_NO_TENSOR = frozenset({
    "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence", "SequenceMap",
    "Optional", "OptionalGetElement", "ZipMap", "If", "Loop", "Scan", "Identity",
})  # fmt: skip
"""Operators whose outputs need not be plain tensors."""


@dataclass(frozen=True, kw_only=True)
class OutputChoice:
    """The outputs that a model gets: the tensors ``names`` and all outputs of ``operators``, except ``without``.

    If neither names nor operators are given, the model's own are meant. The case of operators does not matter.
    """

    names: MarkedOutputs | None = None
    operators: Sequence[str] = ()
    without: Sequence[str] = ()

    @property
    def changes_nothing(self) -> bool:
        """Whether the outputs stay as they are."""
        return self.names is None and not self.operators and not self.without


def choose_outputs(data: bytes, choice: OutputChoice) -> bytes:
    """The serialized model ``data`` with the chosen outputs.

    Raises DoesNotFit for a name, pattern or operator that matches nothing in the model, and if no output is left;
    ModelError if the bytes are not a model.
    """
    index = index_bytes(data)
    names: list[str] = []
    for operator in choice.operators:
        nodes = [node for node in index.nodes if node.op_type.lower() == operator.lower()]
        written = [index.names[tensor] for node in nodes for tensor in node.writes]
        if not written:
            raise errors.DoesNotFit(
                f"the model has no {operator!r} whose outputs could be marked",
                next_steps=did_you_mean(operator, sorted({node.op_type for node in index.nodes})),
            )
        names += written
    if choice.names is not None:
        names = [*(_every_tensor(index, data) if choice.names == ALL else _chosen(index, choice.names)), *names]
    elif not choice.operators:
        names = [index.names[tensor] for tensor in index.outputs]
    known = [name for name in dict.fromkeys(index.names) if name]
    excluded: set[str] = set()
    for word in choice.without:
        matches = _matches(index, word, known)
        if not matches and not may_lack_names():
            steps = [*did_you_mean(word, names), f"the outputs are: {listed(names)}"]
            raise errors.DoesNotFit(f"the model has no tensor {word!r} to leave out of its outputs", next_steps=steps)
        excluded.update(matches)
    left = [name for name in dict.fromkeys(names) if name not in excluded]
    if not left:
        raise errors.DoesNotFit("no output is left", next_steps=[f"exclude fewer of them: {listed(names)}"])
    return mark_outputs(data, left)


def mark_outputs(data: bytes, wanted: MarkedOutputs) -> bytes:
    """The serialized model ``data`` with other outputs; weights are copied without being parsed.

    ``"all"`` keeps the model's outputs, first and in their order, and adds every plain tensor that a node of the
    graph computes; not tensors inside subgraphs, sequences, optional values, maps, or outputs of Constant nodes. Names
    replace the outputs of the model. An output gets the type that the model declares for it, or none.

    Raises DoesNotFit for a name that the model does not have, ModelError if the bytes are not a model.
    """
    index = index_bytes(data)
    names = _every_tensor(index, data) if wanted == ALL else _chosen(index, wanted)
    infos = [
        index.infos.get(tensor) or parts.value_info(index.names[tensor], index.tensor_type(tensor))
        for tensor in map(index.ids.__getitem__, names)
    ]
    return with_outputs(data, [string_field(GRAPH_OUTPUT, info) for info in infos])


def with_outputs(data: bytes, added: Iterable[bytes]) -> bytes:
    """A serialized model that has these fields of GraphProto in place of its outputs."""
    places = list(fields(data))
    graphs = [(start, end) for number, _, _, start, end in places if number == _MODEL_GRAPH]
    graph = [
        data[tag:end] for span in graphs for number, _, tag, _, end in fields(data, *span) if number != GRAPH_OUTPUT
    ]
    others = [data[tag:end] for number, _, tag, _, end in places if number != _MODEL_GRAPH]
    return b"".join([*others, string_field(_MODEL_GRAPH, b"".join([*graph, *added]))])


def _every_tensor(index: ModelIndex, data: bytes) -> list[str]:
    outputs = [index.names[tensor] for tensor in index.outputs]
    computed = [index.names[tensor] for node in index.nodes if node.op_type != "Constant" for tensor in node.writes]
    infos = {index.names[tensor]: info for tensor, info in index.infos.items()}
    suspects = [node for node in index.nodes if node.op_type in _MAY_GIVE_NO_TENSOR or node.calls]
    if any(index.names[tensor] not in infos for node in suspects for tensor in node.writes):
        light = infer.without_weights(load.parse(data, None)).SerializeToString()
        infos = infer.infer_value_infos(light) | infos
    no_tensors = {name for name, info in infos.items() if parts.has_type(info) and parts.tensor_type(info) is None}
    return list(dict.fromkeys([*outputs, *(name for name in computed if name not in no_tensors)]))


def _chosen(index: ModelIndex, wanted: Sequence[str]) -> list[str]:
    known = [name for name in dict.fromkeys(index.names) if name]
    chosen: dict[str, None] = {}
    for word in wanted:
        matches = _matches(index, word, known)
        if not matches:
            raise errors.DoesNotFit(
                f"the model has no tensor {word!r} to mark as an output",
                next_steps=[
                    *did_you_mean(word, known),
                    "biopsy inspect model MODEL --show layers    names its tensors",
                ],
            )
        chosen.update(dict.fromkeys(matches))
    return list(chosen)


def _matches(index: ModelIndex, word: str, known: Iterable[str]) -> list[str]:
    """The known tensors that a name or pattern matches."""
    return [word] if word in index.ids and word else [name for name in known if fnmatchcase(name, word)]
