"""Marking tensors as outputs of a model, so that an engine returns them too.

Works on the bytes of the model: weights are copied as they are, never parsed, and external ones are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from biopsy import errors
from biopsy.model import infer, load, value_info
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.known_names import nearest
from biopsy.model.wire import fields, string_field

ALL: Literal["all"] = "all"

MarkedOutputs = Literal["all"] | Sequence[str]
"""``"all"``, or names of tensors; a name may be a pattern such as ``conv_*``."""

_MODEL_GRAPH = 7  # field number in ModelProto
_GRAPH_OUTPUT = 12  # field number in GraphProto

_MAY_GIVE_NO_TENSOR = frozenset({
    "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence", "SequenceMap",
    "Optional", "OptionalGetElement", "ZipMap", "If", "Loop", "Scan", "Identity",
})  # fmt: skip
"""Operators whose outputs need not be plain tensors."""


def mark_outputs(data: bytes, wanted: MarkedOutputs) -> bytes:
    """The serialized model ``data`` with other outputs.

    ``"all"`` keeps the model's outputs, first and in their order, and adds every plain tensor that a node of the
    graph computes; not tensors inside subgraphs, sequences, optional values, maps, or outputs of Constant nodes. Names
    replace the outputs of the model by exactly those. An output gets the type that the model declares for it, or none.

    Raises DoesNotFit for a name that the model does not have, ModelError if the bytes are no model.
    """
    index = index_bytes(data)
    names = _every_tensor(index, data) if wanted == ALL else _chosen(index, wanted)
    declared = [_declaration(index, name) for name in names]
    return _with_outputs(data, b"".join(string_field(_GRAPH_OUTPUT, info) for info in declared))


def _every_tensor(index: ModelIndex, data: bytes) -> list[str]:
    own = [index.names[tensor] for tensor in index.outputs]
    computed = [index.names[tensor] for node in index.nodes if not _is_constant(node.op_type) for tensor in node.writes]
    no_tensors = _no_tensors(index, data)
    return list(dict.fromkeys([*own, *(name for name in computed if name not in no_tensors)]))


def _is_constant(op_type: str) -> bool:
    return op_type == "Constant"


def _no_tensors(index: ModelIndex, data: bytes) -> set[str]:
    """Names of sequences, optionals and maps. Types are inferred only if an operator that may give one is there."""
    infos = {index.names[tensor]: info for tensor, info in index.infos.items()}
    suspects = {
        index.names[tensor]
        for node in index.nodes
        if node.op_type in _MAY_GIVE_NO_TENSOR or node.calls
        for tensor in node.writes
    }
    if any(name not in infos for name in suspects):
        light = infer.without_weights(load.parse(data, None)).SerializeToString()
        infos = infer.infer_value_infos(light) | infos
    return {name for name, info in infos.items() if value_info.has_type(info) and value_info.tensor_type(info) is None}


def _chosen(index: ModelIndex, wanted: Sequence[str]) -> list[str]:
    known = [name for name in dict.fromkeys(index.names) if name]
    found: dict[str, None] = {}
    for word in wanted:
        matches = [word] if word in index.ids and word else [name for name in known if fnmatchcase(name, word)]
        if not matches:
            raise _unknown(word, known)
        found.update(dict.fromkeys(matches))
    return list(found)


def _unknown(word: str, known: Sequence[str]) -> errors.DoesNotFit:
    return errors.DoesNotFit(
        f"the model has no tensor {word!r} to mark as an output",
        next_steps=[*nearest(word, known), "biopsy inspect model MODEL --show layers    names its tensors"],
    )


def _declaration(index: ModelIndex, name: str) -> bytes:
    tensor = index.ids[name]
    return index.infos.get(tensor) or value_info.value_info(name, index.tensor_type(tensor))


def _with_outputs(data: bytes, outputs: bytes) -> bytes:
    """The model with all output fields of its graph replaced. The order of protobuf's fields has no meaning."""
    model: list[bytes] = []
    graph: list[bytes] = []
    for number, _, tag, start, end in fields(data):
        if number != _MODEL_GRAPH:
            model.append(data[tag:end])
            continue
        graph += [data[t:e] for inner, _, t, _, e in fields(data, start, end) if inner != _GRAPH_OUTPUT]
    return b"".join([*model, string_field(_MODEL_GRAPH, b"".join([*graph, outputs]))])
