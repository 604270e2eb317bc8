"""What onnx objects to in a model, asked in a child process; and whether a changed model is still as valid."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.model import external, infer, load, onnx_native, walk
from biopsy.model.index import index_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits
from biopsy.questions.lint.rules import CHECKER, INFERENCE, LOADER, Level, LintEntry, plain_message
from biopsy.recording.dependence import unknown_operators
from biopsy.slow_imports import onnx
from biopsy.text import printable

_NODE_CONTEXT = "Bad node spec for node"
"""This is in the checker's objections to a node, which is then checked alone."""
_UNKNOWN_TYPE = "expected to have type but instead is null"
"""This is in objections of shape inference to a node after one that it could not infer: it is not at fault."""

Finding: TypeAlias = tuple[str, Level, str, Sequence[int]]
"""The source, level, message and nodes of an entry, as the child process sends them."""


def entries(path: Path, *, is_complete: bool, timeout: float | None = None) -> Iterator[LintEntry]:
    """The objections of onnx to the model in a file. ``is_complete``: the checker can read its external weights.

    ``timeout`` is in seconds. If onnx crashes, that is an exception among the entries.
    """
    server = Server(__name__)
    try:
        findings = server.ask({"model": str(path), "is_complete": is_complete}, Limits(seconds=timeout))["findings"]
    except ServerEndedError as error:
        how = "takes too long" if error.ended.cause == "time" else "ends its process"
        yield LintEntry(level="exception", source=LOADER, message=f"onnx {how} on this model")
        return
    finally:
        server.close()
    for source, level, message, nodes in findings:
        yield LintEntry(level=level, source=source, message=message, nodes=tuple(nodes))


def main() -> int:
    """Answer requests, in the child process."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    path = Path(request["model"])
    note("check")
    model = load.parse(load.read_bytes(path), path)
    light = infer.without_weights(model)
    nodes = list(_each_node(light))
    blames_nodes = any(source == CHECKER for source, *_ in nodes)
    model_findings = _of_model(str(path) if request["is_complete"] else light, blames_nodes=blames_nodes)
    return {"findings": [*model_findings, *nodes]}


def _finding(source: str, message: str, nodes: Sequence[int] = ()) -> Finding:
    return source, "exception", " ".join(message.split()), nodes


def _of_model(model: str | onnx.ModelProto, *, blames_nodes: bool) -> Iterator[Finding]:
    """The checker's objection to the whole model, a file or ``light``; none if ``blames_nodes`` and it is to a node.

    Some nodes are wrong only beside others, such as one whose body computes what another node has computed already.
    """
    if not isinstance(model, str):
        model = deepcopy(model)
        _clear_external_values(model)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # native code raises exceptions of many types
        if _NODE_CONTEXT not in str(error) or not blames_nodes:
            yield _finding(CHECKER, str(error).partition("==> Context:")[0])


def of_nodes(light: onnx.ModelProto) -> Iterator[tuple[int, str]]:
    """The numbers of nodes that are wrong alone, with the reason. ``light`` is a model without its large weights.

    Works in this process.
    """
    for _, _, message, nodes in _each_node(light):
        yield nodes[0], message


def _each_node(light: onnx.ModelProto) -> Iterator[Finding]:
    """The objections to models of one node each; ``light`` is the model as ``infer.without_weights`` returns it."""
    single_nodes = _SingleNodes(light, infer.infer_value_infos(light.SerializeToString()))
    for number, node in enumerate(light.graph.node):
        objection = onnx_native.checker_objection(single_nodes.model_of(node, typed=False))
        if objection is not None:
            yield _finding(CHECKER, objection.partition("==> Context:")[0], [number])
            continue
        if not all(name in single_nodes.infos or name in single_nodes.weights for name in walk.reads(node)):
            continue  # the type of a tensor that the node or one of its bodies reads is not known
        objection = onnx_native.inferred(single_nodes.model_of(node, typed=True), strict=True).objection
        if objection is not None and _UNKNOWN_TYPE not in objection:
            yield _finding(INFERENCE, objection.rpartition("InferenceError] ")[2] or objection, [number])


class _SingleNodes:
    """Makes models of one node each, with the weights, types and functions that the node needs."""

    def __init__(self, light: onnx.ModelProto, infos: Mapping[str, bytes]) -> None:
        self._light = light
        self.infos = infos
        self.weights = {weight.name: weight for weight in light.graph.initializer}
        self._functions = {walk.function_key(function): function for function in light.functions}
        self._declared = {info.name for info in (*light.graph.output, *light.graph.value_info)}

    def model_of(self, node: onnx.NodeProto, *, typed: bool) -> onnx.ModelProto:
        """A model of this node. If it is not ``typed``, its types are arbitrary: the checker ignores them."""
        light = self._light
        model = onnx.ModelProto(ir_version=light.ir_version)
        model.opset_import.extend(light.opset_import)
        model.functions.extend(self._functions[key] for key in sorted(walk.called_by([node], self._functions)))
        graph = model.graph
        graph.name = "node"
        graph.node.append(node)

        def info(name: str) -> onnx.ValueInfoProto:
            if typed:
                return onnx.ValueInfoProto.FromString(self.infos[name])
            return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ())

        reads = sorted(walk.reads(node))
        graph.initializer.extend(self.weights[name] for name in reads if name in self.weights)
        graph.input.extend(info(name) for name in reads if name not in self.weights)
        known = self._declared & self.infos.keys()
        graph.output.extend(info(name) for name in node.output if name and (not typed or name in known))
        if not typed:
            _clear_external_values(model)
        return model


def _clear_external_values(model: onnx.ModelProto) -> None:
    """Replace external weights by tensors without elements.

    The checker would look for their files in the current folder, and weights that were left out have no file.
    """
    for tensor in external.external_tensors(model):
        external.clear_values(tensor)
        del tensor.dims[:]
        tensor.dims.append(0)


_ENGINE = "onnxrt:optimization=none"
_INFERENCE = "strict shape inference"
_LARGEST_MODEL = 256 << 20
"""Bytes, weights included, of a model that is loaded in the engine."""
_SECONDS_TO_LOAD = 20.0
"""A model that takes longer to load without optimization, such as one of nested bodies, is not judged."""
_MOST_NODES = 5000
"""The nodes of a larger model are not checked one by one."""


@dataclass(frozen=True, kw_only=True)
class LostValidity:
    """A refusal of a model: by which ``judge`` and why; ``node`` is the first node to blame, "" if none is known.

    ``certain`` is False if the model may be right, and the engine lacks an implementation.
    """

    judge: str
    reason: str
    node: str = ""
    certain: bool = True

    def __str__(self) -> str:
        place = f" at {self.node}" if self.node else ""
        return f"{self.judge} refuses it{place}: {self.reason}"


def lost_validity(
    result: onnx.ModelProto, original: bytes, folder: Path, *, filled: Collection[str] = (), loads: bool = True
) -> LostValidity | None:
    """The refusal of ``result`` by the first judge that accepts ``original``, from which it was made; None if none.

    The judges are onnx's checker, its strict shape inference and, if it is installed and may know all operators, ONNX
    Runtime without optimizations. ``folder`` holds the external weights of both; ``filled`` names weights of ``result``
    that will get their values later. ``loads``: whether the engine may judge; it cannot load a model without values.
    Raises ModelError if ``original`` is damaged.
    """
    lost = _by_onnx(result, original, filled)
    return _by_loading(result, original, folder) if lost is None and loads and not filled else lost


def _by_onnx(result: onnx.ModelProto, original: bytes, filled: Collection[str]) -> LostValidity | None:
    judges = {"onnx.checker": infer.checker_objection, _INFERENCE: infer.inference_objection}
    after = infer.judged_form(result, filled)
    refusals = {judge: reason for judge, objection in judges.items() if (reason := objection(after)) is not None}
    if not refusals and not infer.has_unknown(after):
        return None
    before = infer.judged_form(load.parse(original, None))
    nodes = _new_faults(before, after)  # inference stops at an unknown operator, so each node is judged alone
    for judge, reason in refusals.items() or [(_INFERENCE, "")]:
        if nodes:
            return LostValidity(judge=judge, reason=nodes[0][1], node=nodes[0][0])
        if reason and judges[judge](before) is None:
            return LostValidity(judge=judge, reason=reason)
    return None


def _new_faults(before: onnx.ModelProto, after: onnx.ModelProto) -> list[tuple[str, str]]:
    """Nodes that are wrong alone ``after`` and were not ``before``, with the reason."""
    if max(len(after.graph.node), len(before.graph.node)) > _MOST_NODES:
        return []
    known = {tuple(before.graph.node[number].output) for number, _ in of_nodes(before)}
    faults = []
    for number, reason in of_nodes(after):
        node = after.graph.node[number]
        if tuple(node.output) not in known:
            name = repr(node.name) if node.name else f"the {printable(node.op_type)} that computes {list(node.output)}"
            faults.append((name, reason))
    return faults


def _by_loading(result: onnx.ModelProto, original: bytes, folder: Path) -> LostValidity | None:
    if importlib.util.find_spec("onnxruntime") is None or max(result.ByteSize(), len(original)) > _LARGEST_MODEL:
        return None
    if any(map(infer.is_unknown, walk.nodes(result))):
        return None
    try:
        models = []
        for data in (result.SerializeToString(), original):
            index = index_bytes(data, folder)
            if index.weight_bytes > _LARGEST_MODEL or unknown_operators(index):
                return None
            models.append(ModelInput(data, folder.resolve()))
        with temporary_folder("biopsy-") as scratch, Worker(_ENGINE, scratch, _SECONDS_TO_LOAD) as worker:
            try:
                worker.build(models[0])
                return None
            except errors.EngineFailure as failure:
                refusal = failure
            if refusal.kind == "Timeout":
                return None
            worker.build(models[1])
    except errors.BiopsyError:  # weights are missing, the engine does not work here, or it refuses the original too
        return None
    reason = plain_message(refusal.message)[:500]
    return LostValidity(judge="onnxruntime", reason=reason, certain=refusal.kind != "NotImplemented")
