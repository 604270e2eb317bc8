"""What the standard says against a model: onnx's own checker and shape inference, asked about each node alone.

Both are native code that a hostile model may bring down, so they work in a child process. Both stop at the first node
that they refuse; asked about models of one node each, they name every one. Nodes are told by their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy.isolation.server import Server, ServerEndedError
from biopsy.isolation.serving import Note, Request, Serving
from biopsy.isolation.watch import Limits
from biopsy.linting.report import CHECKER, INFERENCE, Level, LintEntry

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
        found = server.ask({"model": str(path), "whole": whole}, Limits(seconds=timeout))["found"]
    except ServerEndedError as error:
        how = "takes too long" if error.ended.cause == "time" else "ends its process"
        yield LintEntry(level="exception", source=CHECKER, message=f"onnx {how} on this model")
        return
    finally:
        server.close()
    for source, level, message, nodes in found:
        yield LintEntry(level=level, source=source, message=message, nodes=tuple(nodes))


# The child's side


def main() -> int:
    """Answer the requests."""
    return Serving().serve(_answer)


def _answer(request: Request, note: Note) -> dict[str, Any]:
    from biopsy.model import infer, load

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
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        _empty_what_is_elsewhere(copy)
        model = copy
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
    from biopsy.model import infer, onnx_native

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
            yield _found(INFERENCE, _without_head(objection), [number])


def _without_head(message: str) -> str:
    """What shape inference says, without where: that is known."""
    return message.rpartition("InferenceError] ")[2] or message


class _Frame:
    """Makes models of one node each, with what else such a model needs of the whole."""

    def __init__(self, light: onnx.ModelProto, infos: Mapping[str, bytes]) -> None:
        from biopsy.model import walk

        self._light = light
        self._infos = infos
        self._weights = {weight.name: weight for weight in light.graph.initializer}
        self._functions = {walk.function_key(function): function for function in light.functions}
        self._declared = {info.name for info in (*light.graph.output, *light.graph.value_info)}

    def knows_types_of(self, node: onnx.NodeProto) -> bool:
        """Whether the types of all that a node and its bodies read are declared or inferred."""
        from biopsy.model import walk

        return all(name in self._infos or name in self._weights for name in walk.reads(node))

    def model_of(self, node: onnx.NodeProto, *, typed: bool) -> onnx.ModelProto:
        """A model of this node. One that is not ``typed`` has types of no meaning: it is for the checker alone."""
        import onnx
        from onnx import helper

        from biopsy.model import walk

        light = self._light
        made = onnx.ModelProto(ir_version=light.ir_version)
        made.opset_import.extend(light.opset_import)
        made.functions.extend(self._functions[key] for key in sorted(walk.called_by([node], self._functions)))
        graph = made.graph
        graph.name = "node"
        graph.node.append(node)
        for name in sorted(walk.reads(node)):
            if name in self._weights:
                graph.initializer.append(self._weights[name])
            elif typed:
                graph.input.append(onnx.ValueInfoProto.FromString(self._infos[name]))
            else:
                graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()))
        for name in filter(None, node.output):
            info = self._infos.get(name) if typed else None
            if info is not None and name in self._declared:
                graph.output.append(onnx.ValueInfoProto.FromString(info))
            elif not typed:
                graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ()))
        if not typed:
            _empty_what_is_elsewhere(made)
        return made


def _empty_what_is_elsewhere(model: onnx.ModelProto) -> None:
    """Make tensors without elements of those whose values are not here: the checker would look for their files.

    It does that where this process stands, which need not be the model's folder; and what was left out has no file.
    """
    from biopsy.model import external

    for tensor in external.external_tensors(model):
        external.clear_values(tensor)
        del tensor.dims[:]
        tensor.dims.append(0)
