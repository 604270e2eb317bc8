"""The execution providers of ONNX Runtime: which ones options ask for, and what each really ran, in which layers and
types.

ONNX Runtime falls back to other providers and types silently. This reports only what it says itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.engines.base import LayerRecord, ModelInput
from biopsy.model import infer, load
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.slice import identity_bytes
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.model.walk import reached
from biopsy.slow_imports import np, onnx
from biopsy.text import did_you_mean, first_line


class Providers:
    """The execution providers that an engine's options ask for, and the options of each."""

    def __init__(self, ort: Any, options: Mapping[str, Any]) -> None:
        self.names = list(dict.fromkeys(_find_provider(ort, word) for word in options["providers"]))
        self.options: dict[str, dict[str, str]] = {}
        self._option_words = [f"provider.{key}={value}" for key, value in options["provider"].items()]
        for key, value in options["provider"].items():
            word, _, own_key = key.partition(".")
            name = _best_match(word, self.names)
            if name is None or not own_key:
                raise errors.UsageError(
                    f"engine 'onnxrt': provider.{key}: the options of a provider in use are written "
                    f"provider.NAME.OPTION=VALUE; in use: {', '.join(self.names)}"
                )
            self.options.setdefault(name, {})[own_key] = value

    def load_libraries(self, ort: Any) -> None:
        """Load the CUDA libraries that pip installed: ONNX Runtime, from 1.21 on, finds them only if it is told to."""
        if not _ON_CUDA.isdisjoint(self.names) and hasattr(ort, "preload_dlls"):
            with redirect_stdout(StringIO()):  # it prints what is missing: require_active says what follows
                ort.preload_dlls()

    def require_startable(self, ort: Any) -> None:
        """After a failed build: raise EngineMissing if a model of one node fails too, so that no model is to blame."""
        if self.names == [CPU]:
            return
        try:
            ort.InferenceSession(identity_bytes(), providers=self.session_argument, enable_fallback=0)
        except Exception as error:
            told = _PLACE_IN_SOURCE.sub("", first_line(str(error)))
            of_cuda = _CUDA_FAILURE.search(told)
            with_options = f" with {', '.join(self._option_words)}" if self._option_words else ""
            raise errors.EngineMissing(
                f"onnxruntime cannot start {', '.join(self.names)} here{with_options}, whatever the model: "
                f"{of_cuda[0] if of_cuda else told}",
                next_steps=self._next_steps,
            ) from error

    def require_active(self, active: Sequence[str]) -> None:
        """Raise EngineMissing if a provider that was asked for is not active."""
        missing = [name for name in self.names if name not in active]
        if missing:
            unused, used = ", ".join(missing), ", ".join(active)
            raise errors.EngineMissing(
                f"onnxruntime could not start {unused} here and would have used {used} instead",
                next_steps=self._next_steps,
            )

    @property
    def _next_steps(self) -> list[str]:
        cuda = 'pip install "onnxruntime-gpu[cuda,cudnn]"    brings those of CUDA; the driver is the machine\'s own'
        needs = "check the driver and the libraries that this provider needs"
        return [needs, *([] if _ON_CUDA.isdisjoint(self.names) else [cuda])]

    @property
    def session_argument(self) -> list[str | tuple[str, dict[str, str]]]:
        """The argument ``providers`` of a session: names, or pairs of a name and its options."""
        return [(name, self.options[name]) if name in self.options else name for name in self.names]


def _find_provider(ort: Any, word: str) -> str:
    """The full name of a provider of this package, from its name, the beginning of it, or a part of it."""
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


CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_ON_CUDA = frozenset({_CUDA, "TensorrtExecutionProvider"})
_IN_TF32 = (b"MatMul", b"Gemm", b"Conv")
_SWITCHES = {"true": "1", "false": "0"}
_PLACE_IN_SOURCE = re.compile(r"^/\S+:\d+ .*\) (?=[A-Z])")
_CUDA_FAILURE = re.compile(r"CUDA failure \d+: [^;]*[^; ]")
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
"""The config entry that makes a session record which provider got which node."""

_CAST_PREFIX = "InsertedPrecisionFreeCast_"
_LAYOUTS = {"com.microsoft.nchwc": "NCHWc", "com.ms.internal.nhwc": "NHWC"}
_HALVES = {10: "float16", 16: "bfloat16"}
_TYPE_BYTES = (b"\x08%c\x12", b"\x10%c\x2a", b"\x10%c\x42", b"\x10%c\x4a", b"\x0a\x02to\x18%c")
"""Bytes around an element type in a serialized model: in a tensor type before its shape, in a tensor before its values
or name, in a Cast. A quick test that may be wrong about other models, since the index costs 10 ms."""


def provider_remarks(session: Any, wanted: Sequence[str], options: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Remarks on providers and their options that a session did not use as it was asked to."""
    used_options = session.get_provider_options()
    remarks = []
    for name, requested in options.items():
        for key, value in requested.items():
            used = used_options.get(name, {}).get(key)
            if used is None:
                remarks.append(f"{name} does not say whether it has an option {key!r}: it may have ignored it")
            elif used not in (value, _SWITCHES.get(value.lower())):
                remarks.append(f"{name} uses {key}={used} instead of {key}={value}")
    return remarks + _assignment_remarks(session, wanted)


def _assignment_remarks(session: Any, wanted: Sequence[str]) -> list[str]:
    if set(wanted) <= {CPU}:
        return []
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return [f"this version of ONNX Runtime does not tell which nodes {wanted[0]} really ran"]
    nodes: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    total = sum(map(len, nodes.values()))
    others = ", ".join(f"{name} runs {len(op_types)}" for name, op_types in nodes.items() if name != wanted[0])
    unused = [name for name in wanted if name not in nodes and name != CPU]
    if unused:
        return [f"{', '.join(unused)} runs none of the {total} nodes: {others or 'nothing was to be run'}"]
    refused = nodes.get(CPU, []) if CPU not in wanted else []
    if refused:
        return [f"{CPU} runs {len(refused)} of the {total} nodes instead ({', '.join(sorted(set(refused))[:5])})"]
    return []


def precision_remarks(
    model: ModelInput, providers: Sequence[str], used_options: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Remarks on types of the model that ONNX Runtime replaces: by float32 on the CPU, and by TF32 with CUDA."""
    if used_options.get(_CUDA, {}).get("use_tf32") == "1" and any(op in model.data for op in _IN_TF32):
        return [
            f"{_CUDA} may compute float32 products and convolutions in TF32, with 10 bits of mantissa; "
            "provider.cuda.use_tf32=0 forbids it"
        ]
    if list(providers) != [CPU]:
        return []
    suspects = [elem for elem in _HALVES if any(text % elem in model.data for text in _TYPE_BYTES)]
    if not suspects:
        return []
    index = index_bytes(model.data, model.folder)
    return [
        f"ONNX Runtime computes most {_HALVES[elem]} nodes in float32 on the CPU, without the roundings between them"
        for elem in suspects
        if _computes_in(index, elem)
    ]


def _computes_in(index: ModelIndex, elem: int) -> bool:
    """Whether a node other than a Cast reads or writes the type, as far as the model declares types."""
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
    """The layers of an optimized graph; ``index`` is the index of the original model.

    ``timed`` has microseconds and provider by node name, from a profile; ``providers`` are those of the session.
    """
    origins = _Origins(index, optimized)
    types = infer.infer_types(load.parse(index.buffer[:], index.path))
    elems = {name: type_.elem for name, type_ in types.items()}
    elems |= {tensor.name: tensor.data_type for tensor in optimized.graph.initializer}
    for node in optimized.graph.node:
        if node.op_type == "Cast":
            elems[node.output[0]] = next(attribute.i for attribute in node.attribute if attribute.name == "to")
        elif node.output[0].startswith(_CAST_PREFIX):
            elems[node.output[0]] = 1  # between the casts that it adds, it computes in float32
    only_provider = providers[0] if len(providers) == 1 else ""
    nodes = [node for node in index.nodes if node.op_type != "Constant"]  # those are weights there
    places = {index.names[tensor]: place for place, node in enumerate(nodes) for tensor in node.writes}
    records = []
    for node in optimized.graph.node:
        place = places.get(node.output[0].removeprefix(_CAST_PREFIX))  # in the profile, the name of a node without one
        duration, provider = timed.get(node.name or f"{node.op_type}_{place}", (None, only_provider))
        elem = next((elems[name] for name in (*node.input, *node.output) if name in elems), 0)
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
    """Node name -> median microseconds and provider, from a profile that ONNX Runtime wrote.

    None are known if it is not JSON: ONNX Runtime 1.20.1 does not escape quotes in names.
    """
    durations: dict[str, list[float]] = {}
    providers: dict[str, str] = {}
    try:
        events = json.loads(path.read_bytes())
    except ValueError:
        return {}
    for event in events:
        name, _, what = event["name"].rpartition("_kernel_")
        if event.get("cat") == "Node" and name and what == "time":
            durations.setdefault(name, []).append(event["dur"])
            providers[name] = event["args"].get("provider", "")
    return {name: (float(np.median(each)), providers[name]) for name, each in durations.items()}


class _Origins:
    """Finds the original nodes that a node of the optimized graph replaces: those between its inputs and outputs."""

    def __init__(self, index: ModelIndex, optimized: onnx.ModelProto) -> None:
        self._index = index
        self._producer = {name: node for node in optimized.graph.node for name in node.output}

    def of(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Labels of the original nodes, in the original's order."""
        index = self._index
        stops = {tensor for name in node.input for tensor in self._original_tensors(name)}

        def computing(tensors: Iterable[int]) -> Iterator[int]:
            return (index.producer[tensor] for tensor in tensors if tensor in index.producer and tensor not in stops)

        ends = (tensor for name in node.output for tensor in self._original_tensors(name))
        numbers = reached(computing(ends), lambda number: computing(index.node_reads[number]))
        return tuple(index.nodes[number].name or index.nodes[number].label for number in sorted(numbers))

    def _original_tensors(self, name: str) -> set[int]:
        """The original's tensors that a tensor of the optimized graph equals, or is computed from."""
        ids = self._index.ids
        node = self._producer.get(name)
        for alias in (name, name.removeprefix(_CAST_PREFIX), node.name.removesuffix("_nchwc") if node else ""):
            if alias in ids:
                return {ids[alias]}
        return set() if node is None else {tensor for read in node.input for tensor in self._original_tensors(read)}
