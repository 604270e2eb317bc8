"""The execution providers of ONNX Runtime that are asked for, and what it really did: which of them ran what, in
which layers and types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.model import infer, load
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.text import did_you_mean

if TYPE_CHECKING:
    import onnx


class Providers:
    """The execution providers that options ask for, with options of their own."""

    def __init__(self, ort: Any, options: Mapping[str, Any]) -> None:
        self.names = list(dict.fromkeys(_find_provider(ort, word) for word in options["providers"]))
        self.options: dict[str, dict[str, str]] = {}
        for key, value in options["provider"].items():
            word, _, own_key = key.partition(".")
            name = _best_match(word, self.names)
            if name is None or not own_key:
                raise errors.UsageError(
                    f"engine 'onnxrt': provider.{key}: the options of a provider in use are written "
                    f"provider.NAME.OPTION=VALUE; in use: {', '.join(self.names)}"
                )
            self.options.setdefault(name, {})[own_key] = value

    def require_active(self, active: Sequence[str]) -> None:
        """Raise EngineMissing if a provider that was asked for has not started."""
        missing = [name for name in self.names if name not in active]
        if missing:
            unused, used = ", ".join(missing), ", ".join(active)
            raise errors.EngineMissing(
                f"onnxruntime could not start {unused} here and would have used {used} instead",
                next_steps=["check the driver and the libraries that this provider needs"],
            )

    @property
    def asked(self) -> list[str | tuple[str, dict[str, str]]]:
        """What a session is told: names, those with options together with them."""
        return [(name, self.options[name]) if name in self.options else name for name in self.names]


def _find_provider(ort: Any, word: str) -> str:
    """The full name of a provider that is in this package: by its exact name, its beginning, or a part of it."""
    available = ort.get_available_providers()
    match = _best_match(word, available)
    if match is not None:
        return match
    known = _best_match(word, ort.get_all_providers())
    if known is None:
        names = [name.removesuffix("ExecutionProvider") for name in available]
        raise errors.UsageError(
            f"onnxruntime knows no execution provider {word!r}; here it has {', '.join(available)}",
            next_steps=did_you_mean(word, [name.lower() for name in names], most=1),
        )
    raise errors.EngineMissing(
        f"the installed onnxruntime {ort.__version__} has no {known}, only {', '.join(available)}",
        next_steps=["install the onnxruntime package that has it, such as onnxruntime-gpu for CUDA and TensorRT"],
    )


def _best_match(word: str, providers: Sequence[str]) -> str | None:
    wanted = word.lower()
    tests = (
        lambda name: name.lower() in (wanted, f"{wanted}executionprovider"),
        lambda name: name.lower().startswith(wanted),
        lambda name: wanted in name.lower(),
    )
    return next((name for test in tests for name in providers if test(name)), None)


# What ONNX Runtime really did: which provider ran what, which roundings it left out, which layers it made.
#
# It falls back to other providers and types without a word. Nothing is reported here that it did not say itself.

CPU = "CPUExecutionProvider"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
"""The config entry that makes a session remember which provider got which node."""

_CAST_PREFIX = "InsertedPrecisionFreeCast_"
_LAYOUTS = {"com.microsoft.nchwc": "NCHWc", "com.ms.internal.nhwc": "NHWC"}
_HALVES = {10: "float16", 16: "bfloat16"}
_TELLTALE = (b"\x08%c\x12", b"\x10%c\x2a", b"\x10%c\x42", b"\x10%c\x4a", b"\x0a\x02to\x18%c")
"""How an element type stands in a serialized model: in a tensor type before its shape, in a tensor before its values
or name, in a Cast. Looked for first, since the index costs 10 ms; what looks like it need not be it."""


def provider_remarks(session: Any, wanted: Sequence[str], options: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Where a session did not use a provider, or its options, as it was asked to."""
    used = session.get_provider_options()
    found = []
    for name, given in options.items():
        for key, value in given.items():
            now = used.get(name, {}).get(key)
            if now is None:
                found.append(f"{name} does not say whether it has an option {key!r}: it may have ignored it")
            elif now != value:
                found.append(f"{name} uses {key}={now} instead of {key}={value}")
    return found + _assignment_remarks(session, wanted)


def _assignment_remarks(session: Any, wanted: Sequence[str]) -> list[str]:
    if set(wanted) <= {CPU}:
        return []
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return [f"this version of ONNX Runtime does not tell which nodes {wanted[0]} really ran"]
    nodes: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    total = sum(map(len, nodes.values()))
    others = ", ".join(f"{name} runs {len(found)}" for name, found in nodes.items() if name != wanted[0])
    unused = [name for name in wanted if name not in nodes and name != CPU]
    if unused:
        return [f"{', '.join(unused)} runs none of the {total} nodes: {others or 'nothing was to be run'}"]
    refused = nodes.get(CPU, []) if CPU not in wanted else []
    if refused:
        return [f"{CPU} runs {len(refused)} of the {total} nodes instead ({', '.join(sorted(set(refused))[:5])})"]
    return []


def precision_remarks(model: ModelInput, providers: Sequence[str]) -> list[str]:
    """Types of the model that ONNX Runtime replaces by float32 on the CPU."""
    if list(providers) != [CPU]:
        return []
    suspects = [elem for elem in _HALVES if any(text % elem in model.data for text in _TELLTALE)]
    if not suspects:
        return []

    index = index_bytes(model.data, model.folder)
    return [
        f"ONNX Runtime computes most {_HALVES[elem]} nodes in float32 on the CPU, without the roundings between them"
        for elem in suspects
        if _computes_in(index, elem)
    ]


def _computes_in(index: ModelIndex, elem: int) -> bool:
    """Whether a node other than a Cast reads or writes the type, as far as the model itself says."""
    typed = {tensor for tensor, weight in index.weights.items() if weight.kind.elem == elem}
    declared = {tensor: index.tensor_type(tensor) for tensor in index.infos}
    typed |= {tensor for tensor, kind in declared.items() if kind is not None and kind.elem == elem}
    for node in index.nodes:
        if node.op_type == "Cast" and bytes([0x18, elem]) in index.node_spans[node.number]:
            typed.update(index.node_writes[node.number])
    return any(
        node.op_type != "Cast"
        and not typed.isdisjoint((*index.node_reads[node.number], *index.node_writes[node.number]))
        for node in index.nodes
    )


def layer_records(
    index: ModelIndex, optimized: onnx.ModelProto, timed: Mapping[str, tuple[float, str]], providers: Sequence[str]
) -> list[LayerRecord]:
    """The layers of an optimized graph; ``index`` is that of the original.

    ``timed`` is what a profile says, empty if there is none; ``providers`` are those of the session.
    """
    origins = _Origins(index, optimized)
    # Element types of the optimized graph's tensors, as far as they can be known.
    types = infer.infer_types(load.parse(index.buffer[:], index.path))
    known = {name: type_.elem for name, type_ in types.items()}
    known |= {tensor.name: tensor.data_type for tensor in optimized.graph.initializer}
    for node in optimized.graph.node:
        if node.op_type == "Cast":
            known[node.output[0]] = next(attribute.i for attribute in node.attribute if attribute.name == "to")
        elif node.output[0].startswith(_CAST_PREFIX):
            known[node.output[0]] = 1  # where it puts casts around, it computes in float32
    alone = providers[0] if len(providers) == 1 else ""
    records = []
    for node in optimized.graph.node:
        duration, provider = timed.get(node.name, (None, alone))
        elem = next((known[name] for name in (*node.input, *node.output) if name in known), 0)
        records.append(
            LayerRecord(
                node.name or node.output[0],
                node.op_type,
                precision=DTYPE_OF_ELEM.get(elem, ""),
                layout=_LAYOUTS.get(node.domain, ""),
                nodes=origins.of(node),
                device=provider.removesuffix("ExecutionProvider"),
                time_us=duration,
            )
        )
    return records


def read_profile(path: Path) -> dict[str, tuple[float, str]]:
    """Mean microseconds and provider per name of a node, from a profile that ONNX Runtime has written."""
    durations: dict[str, list[float]] = {}
    providers: dict[str, str] = {}
    for event in json.loads(path.read_text(encoding="utf-8")):
        name, _, what = event["name"].rpartition("_kernel_")
        if event.get("cat") == "Node" and name and what == "time":
            durations.setdefault(name, []).append(event["dur"])
            providers[name] = event["args"].get("provider", "")
    return {name: (sum(each) / len(each), providers[name]) for name, each in durations.items()}


class _Origins:
    """Which nodes of the original a node of the optimized graph stands for: those between what it reads and gives."""

    def __init__(self, index: ModelIndex, optimized: onnx.ModelProto) -> None:
        self._index = index
        self._maker = {name: node for node in optimized.graph.node for name in node.output}

    def of(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Labels of the original nodes, in the original's order."""
        index = self._index
        stops = {tensor for name in node.input for tensor in self._known(name)}
        waiting = [tensor for name in node.output for tensor in self._known(name) if tensor not in stops]
        found: set[int] = set()
        while waiting:
            producer = index.producer.get(waiting.pop())
            if producer is None or producer in found:
                continue
            found.add(producer)
            waiting += [tensor for tensor in index.node_reads[producer] if tensor not in stops]
        return tuple(index.nodes[number].name or index.nodes[number].label for number in sorted(found))

    def _known(self, name: str) -> set[int]:
        """The original's tensors that a tensor of the optimized graph is, or is made from."""
        ids = self._index.ids
        maker = self._maker.get(name)
        for word in (name, name.removeprefix(_CAST_PREFIX), maker.name.removesuffix("_nchwc") if maker else ""):
            if word in ids:
                return {ids[word]}
        return set() if maker is None else {tensor for read in maker.input for tensor in self._known(read)}
