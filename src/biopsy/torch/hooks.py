"""Recording the values that the parts (submodules) of a module return, for a module that cannot be captured.

A part is matched to a tensor by the scopes that the exporter wrote into nodes (``biopsy.model.sources``): the part
returns the one tensor that leaves its nodes. A part is refused if that is not certain:

* it is called more than once, or returns anything but one tensor;
* several tensors leave its nodes, or its tensor goes to a node of unknown scope, which may belong to the part;
* its weights differ in the model, because the exporter has fused it with what follows (Conv and BatchNorm);
* it returns something else in a second call, because it depends on random numbers;
* it returns an argument of its own, or elements in another order than its node, because exporters move a transposition
  into the next node;
* it is inside of ``torch.cond`` or a loop, where hooks see no values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.sources import source_of
from biopsy.tensors.results import Array, same_values
from biopsy.torch.arrays import as_array, imported, leaves_of, type_in_model
from biopsy.torch.calls import Arguments, arguments_of, exception_text, preserved, require_evaluation, user_code
from biopsy.torch.exporting import read_model
from biopsy.torch.facts import place_of_exception
from biopsy.torch.recording import RecordingFile, TorchRecording, require_safetensors, require_some

_KEEP_ORDER = frozenset(
    {"Transpose", "Einsum", "Slice", "Gather", "Split", "Squeeze", "Unsqueeze", "Identity", "Cast", "Expand"}
)
"""Operators whose output keeps the order of elements that PyTorch has: transpositions, and operators that exporters do
not move a transposition across."""

_FOLDED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators into whose weights an exporter may fold what follows them."""


def record_hooks(
    module: Any,
    model: str | PathLike[str],
    args: Any,
    path: str | PathLike[str],
    kwargs: Mapping[str, Any] | None = None,
) -> TorchRecording:
    """Write the values that the parts of a module return, under the names that these tensors have in ``model``.

    This is for a module that ``torch.export`` cannot capture, such as one that the older exporter (``dynamo=False``)
    has translated to the file ``model``. Otherwise prefer ``record``, which gives more values. The module is called
    twice, in evaluation mode and without gradients, and its state is restored. ``path`` ends in .safetensors; the file
    holds the inputs of the model too. The result's ``refused`` names every tensor without a value.

    Raises UsageError if module, model, path or arguments cannot be used, ModelError if the model cannot be read,
    CannotCompare if no tensor has a value, EngineFailure if the module raises, or EngineMissing without PyTorch.
    """
    require_evaluation(module)
    path, model = Path(path), Path(model)
    require_safetensors(path)
    given = arguments_of(args, kwargs)
    graph = read_model(model).graph
    part_of, of_part, doubts = _parts(graph, dict(module.named_modules()))
    inputs = _inputs(graph, given)
    chosen: dict[str, str] = {}  # of several parts that return the same tensor, the innermost
    for part in sorted(of_part, key=lambda part: -part.count(".")):
        name = str(of_part[part].name)
        if name not in chosen.values():
            chosen[part] = name
    with RecordingFile(path, inputs, part_of) as file:
        calls = _Calls(chosen, of_part, file)
        own = set(part_of) - set(chosen.values())
        with preserved(module) as state:
            first = _own_outputs(graph, _returned(module, given, calls), own)
            for name, value in first.items():
                file.add(name, value)
            state.restore()
            calls.check()
            again = _own_outputs(graph, _returned(module, given, calls), own)
        refusals = {**doubts, **calls.refusals()}
        named = [tensor for part, tensor in chosen.items() if part not in refusals]
        named += [name for name, value in first.items() if name in again and same_values(value, again[name])]
        reasons = dict.fromkeys(first, "the module returns something else each time: it depends on random numbers")
        reasons |= {tensor: refusals[part] for part, tensor in chosen.items() if part in refusals}
        refused = {}
        for name, part in part_of.items():
            if name not in named:
                step = f"it is a step within {f'the module {part}' if part else 'the model itself'}"
                refused[name] = reasons.get(name) or refusals.get(part) or step
        recording = TorchRecording(path=path, tensors=len(named), of=len(part_of), refused=refused)
        require_some(recording)
        file.finish(named)
    return recording


def _inputs(graph: Any, given: Arguments) -> dict[str, Any]:
    """The inputs of the model by name: the tensors of the arguments in their order."""
    tensors = _tensors((given.args, dict(given.kwargs)))
    fed = [value for value in graph.inputs if value.name not in graph.initializers]
    if len(fed) != len(tensors):
        raise errors.UsageError(f"the model has {len(fed)} inputs, and the arguments are {len(tensors)} tensors")
    return {str(value.name): as_array(tensor) for value, tensor in zip(fed, tensors, strict=True)}


def _own_outputs(graph: Any, returned: Any, names: set[str]) -> dict[str, Array]:
    """The values returned for these outputs of the model, paired by position; none if their numbers differ."""
    tensors = _tensors(returned)
    if len(tensors) != len(graph.outputs):
        return {}
    pairs = zip(graph.outputs, tensors, strict=True)
    return {str(value.name): as_array(tensor) for value, tensor in pairs if value.name in names}


def _tensors(nested: Any) -> list[Any]:
    """The nested values that are tensors in an ONNX model, in order."""
    return [leaf.value for leaf in leaves_of(nested) if type_in_model(leaf.value) is not None]


def _parts(graph: Any, modules: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[str, str]]:
    """Match the parts of a module to the tensors of an ``onnx_ir`` graph by the scopes of the nodes.

    Returns the innermost part of each tensor that is computed and used in the main graph, the tensor that each part
    returns, and for each part without one the reason; all by name.
    """
    scopes: dict[Any, tuple[str, ...] | None] = {}
    for node in graph:
        source = source_of(imported("onnx_ir").serde.serialize_node(node).SerializeToString())
        scopes[node] = None if source is None else source.scopes
        if source is None and node.name and node.name.count("/") == 1:
            scopes[node] = ()  # the older exporter's name for a node of the module itself
    tensors = [
        value
        for node in graph
        if node.op_type != "Constant"
        for value in node.outputs
        if value.name and (value.is_graph_output() or value.uses())
    ]
    of_part: dict[str, Any] = {}
    doubts: dict[str, str] = {}
    for part, module in modules.items():
        leaving = _leaving(part, module, scopes)
        if leaving is not None:
            (doubts if isinstance(leaving, str) else of_part)[part] = leaving
    return {str(value.name): (scopes[value.producer()] or ("",))[-1] for value in tensors}, of_part, doubts


def _leaving(part: str, module: Any, scopes: Mapping[Any, tuple[str, ...] | None]) -> Any:
    """The tensor that leaves the nodes of a part, or the reason, as a text, why that is not certain.

    None for a part without nodes and for the module itself, whose outputs are recorded separately.
    """
    nodes = {node for node, scope in scopes.items() if scope is not None and part in scope}
    if not part or not nodes:
        return None
    leaving = [
        value
        for node in nodes
        for value in node.outputs
        if value.is_graph_output() or any(user not in nodes for user, _ in value.uses())
    ]
    if len(leaving) != 1:
        return f"{len(leaving)} tensors leave the module {part}"
    value = leaving[0]
    # Nodes of subgraphs are not in ``scopes``: they belong where the node with the subgraph does.
    if any(scopes[user] is None for user, _ in value.uses() if user in scopes):
        return f"what comes after the module {part} does not say where it belongs"
    if value.producer().op_type in _FOLDED:
        parameters = [as_array(parameter) for parameter in module.parameters(recurse=True)]
        weights = [*parameters, *(each.T for each in parameters if each.ndim == 2)]
        inputs = [each for each in value.producer().inputs if each is not None and each.const_value is not None]
        constants = [each.const_value.numpy() for each in inputs]
        if not all(any(np.array_equal(constant, weight) for weight in weights) for constant in constants):
            why = "are others in the model: the exporter has fused it with what follows"
            return f"the weights of the module {part} {why}"
    return value


class _Calls:
    """Hooks on the parts of a module, which write the values that they return."""

    def __init__(self, chosen: Mapping[str, str], values: Mapping[str, Any], file: RecordingFile) -> None:
        self._chosen = chosen
        self._values = values
        self._given: dict[str, dict[int, int | None]] = {}
        self._file = file
        self._times: Counter[str] = Counter()
        self._refusals: dict[str, str] = {}
        self._is_second_run = False
        self._is_compiling = imported("torch.compiler").is_compiling

    def check(self) -> None:
        """From now on compare values with those that were written, instead of writing them."""
        self._is_second_run = True

    def listen(self, module: Any) -> Iterator[Any]:
        """Register the hooks, and yield a handle of each, which removes it."""
        for name, part in module.named_modules():
            if name in self._chosen:
                yield part.register_forward_pre_hook(partial(self._entered, name), with_kwargs=True)
                yield part.register_forward_hook(partial(self._returned, name))

    def _entered(self, part: str, _: Any, args: Any, kwargs: Any) -> None:
        values = [leaf.value for leaf in leaves_of((args, kwargs))]
        self._given[part] = {id(value): _version(value) for value in values if isinstance(value, imported().Tensor)}

    def _returned(self, part: str, _: Any, __: Any, output: Any) -> None:
        if self._is_compiling():
            return  # inside of torch.cond there are no values
        name = self._chosen[part]
        self._times[part] += not self._is_second_run
        if not isinstance(output, imported().Tensor) or type_in_model(output) is None:
            self._refusals[part] = f"the module {part} returns no single tensor, but a {type(output).__name__}"
        elif (what := self._other_value(part, output)) is not None:
            self._refusals[part] = f"the module {part} returns {what}"
        elif self._times[part] == 1 and not self._is_second_run:
            self._file.add(name, as_array(output))
        elif self._times[part] == 1 and not self._file.has(name, as_array(output)):
            self._refusals[part] = f"the module {part} returns something else each time: it depends on random numbers"

    def _other_value(self, part: str, output: Any) -> str | None:
        """What a part may return instead of the tensor that leaves its nodes, in words; None if it returns that."""
        value = self._values[part]
        given = self._given.get(part, {})
        if id(output) in given and given[id(output)] == _version(output):
            return "what it is given, and something else leaves its nodes"
        declared, shape = value.shape, output.shape
        if declared is not None and (
            len(declared) != len(shape)
            or any(isinstance(size, int) and size != real for size, real in zip(declared, shape, strict=True))
        ):
            return "another shape than its nodes give: the exporter has put more into them"
        pairs = zip(shape, output.stride(), strict=True)
        strides = [stride for size, stride in pairs if size > 1 and stride > 0]
        if strides != sorted(strides, reverse=True) and value.producer().op_type not in _KEEP_ORDER:
            return "elements in another order: the exporter may have left that to what follows"
        return None

    def refusals(self) -> dict[str, str]:
        """The reasons why parts have no value, by part."""
        uncalled = {
            part: f"the module {part} was not called where a hook can look: not at all, or inside of torch.cond"
            for part in self._chosen
            if not self._times[part]
        }
        often = {part: f"the module {part} is called {times} times" for part, times in self._times.items() if times > 1}
        return {**uncalled, **often, **self._refusals}


def _version(tensor: Any) -> int | None:
    """The counter that in-place operators increase; None for a tensor without one."""
    return None if tensor.is_inference() else int(tensor._version)


def _returned(module: Any, given: Arguments, calls: _Calls) -> Any:
    """The values that the module returns, with the hooks. Raises EngineFailure if it raises."""
    torch = imported()
    hooks = list(calls.listen(module))
    try:
        fresh = given.copied()
        with torch.no_grad(), user_code():
            return module(*fresh.args, **fresh.kwargs)
    except errors.BiopsyError:
        raise
    except Exception as error:
        raise errors.EngineFailure(
            f"the module raises {exception_text(error)}",
            engine="torch",
            stage="run",
            kind=type(error).__name__,
            details=[f"at {place_of_exception(error, module).with_code}"],
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
