"""Cutting a subgraph out of a model, between tensors that a person names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from biopsy import errors
from biopsy.model import infer, value_info
from biopsy.model.index import ModelIndex
from biopsy.model.load import parse
from biopsy.model.slice import Boundary, Subset, candidate_bytes
from biopsy.model.tensor_type import Shape, TensorType
from biopsy.shell_words import more_values, option_line
from biopsy.similar_names import did_you_mean

if TYPE_CHECKING:
    import onnx

Auto = Literal["auto"]


@dataclass(frozen=True)
class Wanted:
    """A tensor asked for as an input or output. "auto" means: as the model declares it, or as it can be inferred.

    ``elem`` is an ONNX element type.
    """

    name: str
    shape: Shape | Auto = "auto"
    elem: int | Auto = "auto"


@dataclass(frozen=True, kw_only=True)
class Inference:
    """Where "auto" comes from: ``infers``, by onnx; ``run`` runs the model and returns the types of named tensors.

    The run is asked where inference does not tell an element type, or ``runs_always``. None: there is none.
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
    """The part of a model that computes ``outputs`` from ``inputs``; None keeps the model's own.

    Only the nodes, weights and local functions that are needed are in it; external data is still referred to where it
    stood. Every input asked for becomes one, needed or not.

    Raises UsageError for a name that is no tensor of the model's graph, an output that needs a tensor which is
    neither given nor computed, or a type that is "auto" and cannot be told; what the run of ``inference`` raises.
    """
    given = index.inputs if inputs is None else [_number(index, wanted.name) for wanted in _once(inputs)]
    ends = index.outputs if outputs is None else [_number(index, wanted.name) for wanted in _once(outputs)]
    nodes = _needed(index, ends, set(given))
    if inputs is None:
        given = [tensor for tensor in given if tensor not in index.weights or _is_read(index, tensor, nodes, ends)]
    types = _TypeInfos(index, inference, [*(inputs or ()), *(outputs or ())])
    infos = {_number(index, wanted.name): types.of(wanted, "inputs") for wanted in inputs or ()}
    for wanted in outputs or ():
        infos.setdefault(_number(index, wanted.name), types.of(wanted, "outputs"))
    subset = Subset(index, tuple(sorted(nodes)))
    model = parse(candidate_bytes(subset, Boundary(infos=infos, frozen={}, inputs=given, outputs=ends)), index.path)
    if inputs is not None:
        _cut_off(model, {index.names[tensor] for tensor in given})
    return model


def _once(wanted: Iterable[Wanted]) -> list[Wanted]:
    return list({entry.name: entry for entry in wanted}.values())


def _number(index: ModelIndex, name: str) -> int:
    number = index.ids.get(name)
    if number is not None and (number in index.producer or number in index.weights or number in index.inputs):
        return number
    raise errors.UsageError(
        f"the model has no tensor {name!r} in its graph",
        next_steps=[*did_you_mean(name, index.names), "biopsy inspect model MODEL --mode=basic    lists them"],
    )


def _needed(index: ModelIndex, ends: Iterable[int], given: set[int]) -> set[int]:
    """The nodes between ``given`` tensors and ``ends``. Raises UsageError if a tensor in between comes from nowhere."""
    nodes: set[int] = set()
    seen: set[int] = set()
    missing: dict[int, None] = {}
    waiting = list(ends)
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor in given:
            continue
        seen.add(tensor)
        producer = index.producer.get(tensor)
        if producer is None:
            if tensor not in index.weights:
                missing[tensor] = None
        elif producer not in nodes:
            nodes.add(producer)
            waiting += index.nodes[producer].reads
    if missing:
        names = [index.names[tensor] for tensor in sorted(missing)]
        raise errors.UsageError(
            f"the outputs asked for also need {', '.join(map(repr, names))}, which the inputs given do not provide",
            next_steps=[f"add to --inputs    {more_values('--inputs', [f'{name}:auto:auto' for name in names])}"],
        )
    return nodes


def _is_read(index: ModelIndex, tensor: int, nodes: set[int], ends: Iterable[int]) -> bool:
    return tensor in ends or any(number in nodes for number in index.consumers.get(tensor, ()))


class _TypeInfos:
    """Types of tensors as ValueInfoProto; inference runs when the first one is asked for that needs it."""

    def __init__(self, index: ModelIndex, inference: Inference, wanted: Sequence[Wanted]) -> None:
        self._index = index
        self._inference = inference
        self._wanted = [one for one in wanted if "auto" in (one.shape, one.elem)]

    @cached_property
    def _inferred(self) -> Mapping[str, bytes]:
        how, index = self._inference, self._index
        if how.infers:
            model = parse(bytes(index.buffer[:]), index.path)
            known = infer.infer_value_infos(infer.without_weights(model).SerializeToString())
        else:
            kinds = {name: index.tensor_type(tensor) for name, tensor in index.ids.items()}
            known = {name: value_info.value_info(name, kind) for name, kind in kinds.items() if kind is not None}
        missing = [one.name for one in self._wanted if how.runs_always or self._is_unknown(one, known)]
        if how.run is None or not missing:
            return known
        return {**known, **{name: value_info.value_info(name, kind) for name, kind in how.run(missing).items()}}

    def _is_unknown(self, wanted: Wanted, known: Mapping[str, bytes]) -> bool:
        info = known.get(wanted.name)
        return wanted.elem == "auto" and (info is None or not value_info.has_type(info))

    def of(self, wanted: Wanted, option: str) -> bytes:
        if wanted.shape != "auto" and wanted.elem != "auto":
            return value_info.value_info(wanted.name, TensorType(wanted.elem, wanted.shape))
        info = self._inferred.get(wanted.name)
        known = value_info.tensor_type(info) if info is not None else None
        if wanted.shape == "auto" and wanted.elem == "auto" and info is not None:
            return info
        elem = known.elem if wanted.elem == "auto" and known is not None else wanted.elem
        if elem == "auto":
            form = f"{wanted.name}:[1,3]:float32" if option == "inputs" else f"{wanted.name}:float32"
            raise errors.UsageError(
                f"the type of tensor {wanted.name!r} is neither declared nor can it be inferred",
                next_steps=[f"say it, as in {option_line(f'--{option}', form)}"],
            )
        shape = known.shape if wanted.shape == "auto" and known is not None else wanted.shape
        return value_info.value_info(wanted.name, TensorType(elem, None if shape == "auto" else shape))


def _cut_off(model: onnx.ModelProto, given: set[str]) -> None:
    """Let inputs be what feeds their tensors: no initializer is their default, and no kept node writes them."""
    weights = [weight for weight in model.graph.initializer if weight.name not in given]
    if len(weights) < len(model.graph.initializer):
        del model.graph.initializer[:]
        model.graph.initializer.extend(weights)
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name in given:
                node.output[place] = f"{name}__not_used"
