"""Marking tensors as outputs of a model, so that an engine returns them too.

Works on the bytes of the model: weights are copied as they are, never parsed, and external ones are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from biopsy import errors
from biopsy.model import infer, load, value_info
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.known_names import listed, may_lack_names
from biopsy.model.wire import fields, string_field
from biopsy.similar_names import did_you_mean

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


@dataclass(frozen=True, kw_only=True)
class OutputChoice:
    """Which outputs a model is to have: those of ``names`` and of ``operators`` (None and none: its own), of which
    those that match ``without`` are left out. The case of operators does not matter.
    """

    names: MarkedOutputs | None = None
    operators: Sequence[str] = ()
    without: Sequence[str] = ()

    @property
    def changes_nothing(self) -> bool:
        """Whether the outputs stay as they are."""
        return self.names is None and not self.operators and not self.without


def choose_outputs(data: bytes, choice: OutputChoice) -> bytes:
    """The serialized model ``data`` with the outputs chosen.

    Raises DoesNotFit for a name, pattern or operator that means nothing in the model, and if no output is left;
    ModelError if the bytes are no model.
    """
    index = index_bytes(data)
    names: list[str] = [*_written_by(index, choice.operators)]
    if choice.names is not None:
        names = [*(_every_tensor(index, data) if choice.names == ALL else _chosen(index, choice.names)), *names]
    elif not choice.operators:
        names = [index.names[tensor] for tensor in index.outputs]
    excluded = _excluded(index, choice.without, names)
    left = [name for name in dict.fromkeys(names) if name not in excluded]
    if not left:
        raise errors.DoesNotFit("no output is left", next_steps=[f"exclude fewer of them: {listed(names)}"])
    return mark_outputs(data, left)


def _written_by(index: ModelIndex, operators: Sequence[str]) -> list[str]:
    found: list[str] = []
    for operator in operators:
        written = [
            index.names[tensor]
            for node in index.nodes
            if node.op_type.lower() == operator.lower()
            for tensor in node.writes
        ]
        if not written:
            raise errors.DoesNotFit(
                f"the model has no {operator!r} whose outputs could be marked",
                next_steps=did_you_mean(operator, sorted({node.op_type for node in index.nodes})),
            )
        found += written
    return found


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
        matches = _meant(index, word, known)
        if not matches:
            raise _unknown(word, known)
        found.update(dict.fromkeys(matches))
    return list(found)


def _meant(index: ModelIndex, word: str, known: Iterable[str]) -> list[str]:
    """The tensors of these that a name or pattern means."""
    return [word] if word in index.ids and word else [name for name in known if fnmatchcase(name, word)]


def _excluded(index: ModelIndex, words: Sequence[str], outputs: Sequence[str]) -> set[str]:
    """The tensors that are not to be among the outputs, whether they are or not."""
    known = [name for name in dict.fromkeys(index.names) if name]
    found: set[str] = set()
    for word in words:
        matches = _meant(index, word, known)
        if not matches and not may_lack_names():
            steps = [*did_you_mean(word, outputs), f"the outputs are: {listed(outputs)}"]
            raise errors.DoesNotFit(f"the model has no tensor {word!r} to leave out of its outputs", next_steps=steps)
        found.update(matches)
    return found


def _unknown(word: str, known: Sequence[str]) -> errors.DoesNotFit:
    return errors.DoesNotFit(
        f"the model has no tensor {word!r} to mark as an output",
        next_steps=[*did_you_mean(word, known), "biopsy inspect model MODEL --show layers    names its tensors"],
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
