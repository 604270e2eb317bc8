"""What onnx itself says against a model, asked in a child process; and whether a model made of another one is still
accepted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.engines.worker import Worker
from biopsy.model import external, infer, load, onnx_native, walk
from biopsy.model.index import index_bytes
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.server import Note, Request, Server, ServerEndedError, Serving
from biopsy.processes.watch import Limits
from biopsy.questions.lint.rules import CHECKER, INFERENCE, Level, LintEntry, plain_message
from biopsy.recording.dependence import unknown_operators
from biopsy.text import printable

if TYPE_CHECKING:
    import onnx

_NODE_CONTEXT = "Bad node spec for node"
"""How the checker begins what it says of a node: such a node is asked about alone."""
_UNKNOWN_TYPE = "expected to have type but instead is null"
"""What shape inference says behind a node that it could not infer: no fault of the node."""


def entries(path: Path, *, whole: bool, timeout: float | None = None) -> Iterator[LintEntry]:
    """What onnx says of the model in a file. ``whole``: whether its weights stand beside it, for the checker.

    ``timeout`` is in seconds. If onnx ends the process, that is an entry: an exception.
    """
    server = Server(__name__)
    try:
        findings = server.ask({"model": str(path), "whole": whole}, Limits(seconds=timeout))["found"]
    except ServerEndedError as error:
        how = "takes too long" if error.ended.cause == "time" else "ends its process"
        yield LintEntry(level="exception", source=CHECKER, message=f"onnx {how} on this model")
        return
    finally:
        server.close()
    for source, level, message, nodes in findings:
        yield LintEntry(level=level, source=source, message=message, nodes=tuple(nodes))


# The child's side


def main() -> int:
    """Answer the requests."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    path = Path(request["model"])
    note("check")
    model = load.parse(load.read_bytes(path), path)
    light = infer.without_weights(model)
    nodes = list(_each_node(light))
    blames_nodes = any(source == CHECKER for source, *_ in nodes)
    return {"found": [*_whole(str(path) if request["whole"] else light, blames_nodes=blames_nodes), *nodes]}


def _found(source: str, message: str, nodes: Iterable[int] = (), level: Level = "exception") -> tuple[Any, ...]:
    return source, level, " ".join(message.split()), list(nodes)


def _whole(model: str | onnx.ModelProto, *, blames_nodes: bool) -> Iterator[tuple[Any, ...]]:
    """What the checker says of the whole model, in a file or ``light``; nothing if it is a node that it blames alone.

    Some nodes are at fault only beside others, such as one whose body computes what another has computed already.
    """
    import onnx

    if not isinstance(model, str):
        model = deepcopy(model)
        _empty_what_is_elsewhere(model)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # the checker raises whatever it finds in native code
        if _NODE_CONTEXT not in str(error) or not blames_nodes:
            yield _found(CHECKER, str(error).partition("==> Context:")[0])


def of_nodes(light: onnx.ModelProto) -> Iterator[tuple[int, str]]:
    """The places of nodes that are wrong alone, with the reason. ``light`` is a model without its large weights.

    Works in this process.
    """
    for _, _, message, nodes in _each_node(light):
        yield nodes[0], message


def _each_node(light: onnx.ModelProto) -> Iterator[tuple[Any, ...]]:
    """What is said of models of one node each; ``light`` is the model as ``infer.without_weights`` gives it."""
    frame = _Frame(light, infer.infer_value_infos(light.SerializeToString()))
    for number, node in enumerate(light.graph.node):
        refused = onnx_native.checker_objection(frame.model_of(node, typed=False))
        if refused is not None:
            yield _found(CHECKER, refused.partition("==> Context:")[0], [number])
            continue
        if not frame.knows_types_of(node):
            continue
        objection = onnx_native.inferred(frame.model_of(node, typed=True), strict=True).objection
        if objection is not None and _UNKNOWN_TYPE not in objection:
            yield _found(INFERENCE, objection.rpartition("InferenceError] ")[2] or objection, [number])


class _Frame:
    """Makes models of one node each, with what else such a model needs of the whole."""

    def __init__(self, light: onnx.ModelProto, infos: Mapping[str, bytes]) -> None:
        self._light = light
        self._infos = infos
        self._weights = {weight.name: weight for weight in light.graph.initializer}
        self._functions = {walk.function_key(function): function for function in light.functions}
        self._declared = {info.name for info in (*light.graph.output, *light.graph.value_info)}

    def knows_types_of(self, node: onnx.NodeProto) -> bool:
        """Whether the types of all that a node and its bodies read are declared or inferred."""
        return all(name in self._infos or name in self._weights for name in walk.reads(node))

    def model_of(self, node: onnx.NodeProto, *, typed: bool) -> onnx.ModelProto:
        """A model of this node. One that is not ``typed`` has types of no meaning: it is for the checker alone."""
        import onnx
        from onnx import helper

        light = self._light
        made = onnx.ModelProto(ir_version=light.ir_version)
        made.opset_import.extend(light.opset_import)
        made.functions.extend(self._functions[key] for key in sorted(walk.called_by([node], self._functions)))
        graph = made.graph
        graph.name = "node"
        graph.node.append(node)

        def info(name: str) -> onnx.ValueInfoProto:
            if typed:
                return onnx.ValueInfoProto.FromString(self._infos[name])
            return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ())

        reads = sorted(walk.reads(node))
        graph.initializer.extend(self._weights[name] for name in reads if name in self._weights)
        graph.input.extend(info(name) for name in reads if name not in self._weights)
        known = self._declared & self._infos.keys()
        graph.output.extend(info(name) for name in node.output if name and (not typed or name in known))
        if not typed:
            _empty_what_is_elsewhere(made)
        return made


def _empty_what_is_elsewhere(model: onnx.ModelProto) -> None:
    """Make tensors without elements of those whose values are not here: the checker would look for their files.

    It does that where this process stands, which need not be the model's folder; and what was left out has no file.
    """
    for tensor in external.external_tensors(model):
        external.clear_values(tensor)
        del tensor.dims[:]
        tensor.dims.append(0)


# Whether a model that was made of another one is still accepted by those who accept that one.

_ENGINE = "onnxrt:optimization=none"
_INFERENCE = "strict shape inference"
_LARGEST = 256 << 20
"""Bytes of a model, its weights included, that is loaded to see whether it can be."""
_SECONDS = 20.0
"""For loading it, optimization off. A model that takes longer, such as one of bodies in bodies, is not judged."""
_MOST_LOOKED_AT = 5000
"""Nodes of a model that are asked about one by one."""


@dataclass(frozen=True, kw_only=True)
class LostValidity:
    """Who refuses a model, ``judge``, and why; ``node`` is the first node to blame, "" if none is known.

    ``certain`` is False where it is not the model that is wrong: an engine lacks an implementation.
    """

    judge: str
    reason: str
    node: str = ""
    certain: bool = True

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        return f"{self.judge} refuses it{at}: {self.reason}"


def lost_validity(
    result: onnx.ModelProto, original: bytes, folder: Path, *, filled: Collection[str] = (), loads: bool = True
) -> LostValidity | None:
    """The first judge that accepts ``original`` and refuses ``result``, which was made of it; None if there is none.

    Asked are onnx's checker, its strict shape inference and, if it is installed and can know all operators, ONNX
    Runtime without optimizations. ``folder`` holds the external weights of both; ``filled`` names weights of ``result``
    that will get their values later. ``loads``: whether the engine may be asked; a model without values cannot be
    loaded. Raises ModelError if ``original`` is damaged.
    """
    lost = _by_onnx(result, original, filled)
    return _by_loading(result, original, folder) if lost is None and loads and not filled else lost


def _by_onnx(result: onnx.ModelProto, original: bytes, filled: Collection[str]) -> LostValidity | None:
    judges = {"onnx.checker": infer.checker_objection, _INFERENCE: infer.inference_objection}
    made = infer.judged_form(result, filled)
    refusals = {judge: reason for judge, objection in judges.items() if (reason := objection(made)) is not None}
    if not refusals and not infer.has_unknown(made):
        return None
    before = infer.judged_form(load.parse(original, None))
    nodes = _new_findings(made, before)  # inference stops at an unknown operator
    for judge, reason in refusals.items() or [(_INFERENCE, "")]:
        if nodes:
            return LostValidity(judge=judge, reason=nodes[0][1], node=nodes[0][0])
        if reason and judges[judge](before) is None:
            return LostValidity(judge=judge, reason=reason)
    return None


def _new_findings(made: onnx.ModelProto, before: onnx.ModelProto) -> list[tuple[str, str]]:
    """Nodes of ``made`` that are wrong alone, with the reason, but for those that were wrong ``before``."""
    if max(len(made.graph.node), len(before.graph.node)) > _MOST_LOOKED_AT:
        return []
    known = {tuple(before.graph.node[place].output) for place, _ in of_nodes(before)}
    fresh = []
    for place, reason in of_nodes(made):
        node = made.graph.node[place]
        if tuple(node.output) not in known:
            name = repr(node.name) if node.name else f"the {printable(node.op_type)} that computes {list(node.output)}"
            fresh.append((name, reason))
    return fresh


def _by_loading(result: onnx.ModelProto, original: bytes, folder: Path) -> LostValidity | None:
    if importlib.util.find_spec("onnxruntime") is None or max(result.ByteSize(), len(original)) > _LARGEST:
        return None
    if any(map(infer.is_unknown, walk.nodes(result))):
        return None
    try:
        models = []
        for data in (result.SerializeToString(), original):
            index = index_bytes(data, folder)
            if index.weight_bytes > _LARGEST or unknown_operators(index):
                return None
            models.append(ModelInput(data, folder.resolve()))
        with temporary_folder("biopsy-") as scratch, Worker(_ENGINE, scratch, _SECONDS) as worker:
            try:
                worker.build(models[0])
                return None
            except errors.EngineFailure as failure:
                refusal = failure
            if refusal.kind == "Timeout":
                return None
            worker.build(models[1])
    except errors.BiopsyError:  # weights are missing, the engine does not work here, or refuses the original too
        return None
    reason = plain_message(refusal.message)[:500]
    return LostValidity(judge="onnxruntime", reason=reason, certain=refusal.kind != "NotImplemented")
