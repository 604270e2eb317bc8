"""Recording the values of a PyTorch module under the names of the exported model, as its golden values."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.model.sources import FX_NODE
from biopsy.tensors.recording import AppendableStore, results_of
from biopsy.tensors.results import Array, same_values
from biopsy.text import count
from biopsy.torch.arrays import as_array, imported, type_in_model
from biopsy.torch.calls import Arguments, arguments_of, exception_text, user_code

RUNNER = "torch"
"""The name of the runner in the file."""


@dataclass(frozen=True, kw_only=True)
class TorchRecording:
    """A file of golden values.

    ``path`` is the file, which holds the inputs of the model too. ``of`` is the number of tensors of the main graph
    that are computed and used, ``tensors`` the number of those that have a golden value in the file. ``refused`` are
    the others by name, each with the reason.
    """

    path: Path
    tensors: int
    of: int
    refused: Mapping[str, str] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.path}: golden values of {self.tensors} of {count(self.of, 'tensor')}"


def record(
    onnx_program: Any, args: Any, path: str | PathLike[str], kwargs: Mapping[str, Any] | None = None
) -> TorchRecording:
    """Write the values that a module computes for its arguments, under the names of the tensors in its ONNX model.

    ``onnx_program`` is what ``torch.onnx.export(module, ..., dynamo=True)`` returned; its own program is run
    (``biopsy.torch.recording.intermediate_values``), once and without gradients. ``args`` and ``kwargs`` are the
    arguments of the module. ``path`` ends in .safetensors; an existing file is replaced once everything is written.
    Each tensor is written as soon as it is computed, so that no more memory is needed than for the program itself. The
    file holds the inputs too, so that ``biopsy debug layers model.onnx --load-outputs PATH`` needs no other file.

    Raises UsageError if the path or the arguments cannot be used, CannotCompare if no tensor has a value, EngineFailure
    if PyTorch cannot run the program, EngineMissing without PyTorch. Nothing is written then.
    """
    imported()
    path = Path(path)
    require_safetensors(path)
    named = named_values(onnx_program)
    recording = TorchRecording(
        path=path, tensors=named.count, of=named.count + len(named.refused), refused=named.refused
    )
    require_some(recording)
    inputs = input_values(onnx_program, args, kwargs)
    names = [name for tensors in named.names.values() for name in tensors]
    values = intermediate_values(onnx_program, args, kwargs, copy=False)
    with RecordingFile(path, inputs, names) as file:
        for name, value in values:
            file.add(name, value)
        file.finish(names)
    return recording


def require_some(recording: TorchRecording) -> None:
    """Raise CannotCompare, with the reasons, if no tensor has a value."""
    if recording.tensors:
        return
    reasons = Counter(recording.refused.values()).most_common(3)
    raise errors.CannotCompare(
        f"none of {count(recording.of, 'tensor')} of the model can be recorded",
        details=[f"{number}: {reason}" for reason, number in reasons],
        next_steps=["pass what torch.onnx.export returned, as it is, or the very model that it wrote"],
    )


class RecordingFile:
    """A file of one sample to which tensors are written one by one, in a ``with`` statement.

    Without ``finish``, no file is left. ``inputs`` are those of the model, ``names`` the tensors that may be added.
    Raises UsageError if the file cannot be written.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Array], names: Iterable[str]) -> None:
        self._inputs = list(inputs)
        self._added: set[str] = set()
        self._store = AppendableStore(path, None, [(0, 0, name) for name in dict.fromkeys((*inputs, *names))])
        for name, value in inputs.items():
            self._store.append((0, 0, name), value)

    def __enter__(self) -> RecordingFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._store.close()

    def add(self, name: str, value: Array) -> None:
        """Write a tensor."""
        self._added.add(name)
        self._store.append((0, 0, name), value)

    def has(self, name: str, value: Array) -> bool:
        """Whether this is the value that was written for a tensor."""
        self._store.commit()
        written = self._store.array((0, 0, name))
        return written is not None and same_values(written, value)

    def finish(self, names: Iterable[str]) -> None:
        """Complete the file with the inputs and those tensors of ``names`` that were added; others get no name."""
        self._store.commit()
        named = [*self._inputs, *(name for name in names if name in self._added)]
        self._store.finish({0: results_of(self._store, named, 0, RUNNER, 1)})


def require_safetensors(path: Path) -> None:
    """Raise UsageError unless a recording can be written to a file of this name."""
    if path.suffix.lower() != ".safetensors":
        raise errors.UsageError(
            f"cannot write {path}: golden values of a module go into a file that ends in .safetensors"
        )


def intermediate_values(
    onnx_program: Any, args: Any, kwargs: Mapping[str, Any] | None = None, *, copy: bool = True
) -> Iterator[tuple[str, Array]]:
    """Run the exported program and yield the tensors of the model, by name, as soon as they are computed.

    Each is a copy; without ``copy``, it may change when the next tensor is taken.

    The program is the exporter's own (``onnx_program.exported_program``). It is run operator by operator without
    gradients, on the device of its parameters; values that are no longer needed are freed. ``args`` and ``kwargs`` are
    the arguments of the module. The tensors are named as in ``onnx_program.model``; ``named_values`` says which of them
    have a value, and why others have none. Tensors of subgraphs have none.

    Raises UsageError if the arguments are not of the form that was exported, EngineFailure if the program cannot be
    run, EngineMissing without PyTorch.
    """
    imported()
    names = named_values(onnx_program).names
    program = program_of(onnx_program)
    return _values(program, flat_inputs(program, args, kwargs), names, copy)


def input_values(onnx_program: Any, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """The inputs of the model for these arguments, by their names in ``onnx_program.model``.

    Raises UsageError if the arguments are not of the form that was exported.
    """
    imported()
    program = program_of(onnx_program)
    flat = flat_inputs(program, args, kwargs)
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    arguments = flat[len(flat) - len(specs) :]
    values = [value for value, spec in zip(arguments, specs, strict=True) if not hasattr(spec.arg, "value")]
    names = [str(value.name) for value in onnx_program.model.graph.inputs]
    if len(names) != len(values):
        raise errors.UsageError(f"the model has {len(names)} inputs, and the program that it comes from {len(values)}")
    for name, value in zip(names, values, strict=True):
        if type_in_model(value) is None:
            raise errors.UsageError(
                f"input {name!r} is not a tensor that a file can hold, but a {type(value).__name__}"
            )
    return {name: as_array(value) for name, value in zip(names, values, strict=True)}


def values_of_nodes(program: Any, given: Arguments, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Array]]:
    """Run a program, and yield a copy of the value of each node that has ``names``, under each of its names.

    Raises what ``intermediate_values`` raises.
    """
    fresh = given.copied()
    return _values(program, flat_inputs(program, fresh.args, fresh.kwargs), names, copy=True)


def flat_inputs(program: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Sequence[Any]:
    """The inputs of a program's graph: its parameters, buffers and constants, then the arguments.

    Raises UsageError if the arguments are not of the form that was exported.
    """
    given = arguments_of(args, kwargs)
    called_with = given.args, dict(given.kwargs)
    try:
        try:
            return program._graph_module_flat_inputs(*called_with)  # type: ignore[no-any-return]
        except TypeError as error:
            # PyTorch 2.13 fails to compare forms with named tuples, whose type is not a class there.
            flat, form = program._get_flat_args_with_check(*called_with)
            if form != program.call_spec.in_spec:
                raise error
    except Exception as error:
        raise errors.UsageError(
            f"the arguments are not of the form that was exported: {exception_text(error)}",
            next_steps=["the module is called as module(*args, **kwargs), as in torch.onnx.export"],
        ) from error
    kinds = [spec for spec in program.graph_signature.input_specs if spec.kind.name != "USER_INPUT"]
    held = {**program.constants, **program.state_dict}
    return (*(held[spec.target] for spec in kinds), *flat)


def _values(
    program: Any, inputs: Sequence[Any], names: Mapping[str, Sequence[str]], copy: bool
) -> Iterator[tuple[str, Array]]:
    torch, fx = imported(), imported("torch.fx")
    interpreter = fx.Interpreter(program.graph_module)
    interpreter.args_iter = iter(inputs)
    del inputs
    for node in program.graph.nodes:
        # Gradients are switched off only while an operator runs, since the caller's code runs between two of them.
        with torch.no_grad():
            try:
                with user_code():
                    result = interpreter.run_node(node)
            except Exception as error:
                raise errors.EngineFailure(
                    f"PyTorch cannot run {node.format_node()}: {exception_text(error)}",
                    engine="torch",
                    stage="run",
                    kind=type(error).__name__,
                ) from error
        for name in names.get(node.name, ()):
            yield name, as_array(result, copy=copy)
        interpreter.env[node] = result
        del result
        for gone in interpreter.user_to_last_uses.get(node, ()):
            del interpreter.env[gone]


# How tensors of a model are matched to values of a program: the exporter names a tensor after the FX node that it was
# translated from, and writes that node, as FX prints it, into the metadata of the ONNX node. A name alone proves
# nothing, since every capture of a module numbers its nodes anew: ``add_3`` of one program is another value than
# ``add_3`` of the next. So a tensor has a value only if the program has a node with the same text. If any text is
# missing in the program, it is another program, in which the same text may mean another value; then all nodes that the
# node depends on must have their texts in it too.
#
# Not every tensor is a value of the program. An operator may be translated into several ONNX nodes, of which only the
# last gives the operator's result, and a node that the optimizer has fused keeps the last name.

_ORIGINAL_NAME = "pkg.torch.onnx.original_node_name"


@dataclass(frozen=True, kw_only=True)
class NamedValues:
    """The tensors of a model's main graph that are values of a program.

    ``names`` are the tensors of each FX node, by the node's name. ``refused`` are the other tensors, each with the
    reason. Unused tensors and those of Constant nodes are in neither.
    """

    names: Mapping[str, tuple[str, ...]] = field(repr=False)
    refused: Mapping[str, str] = field(repr=False)

    @property
    def count(self) -> int:
        """The number of tensors that have a value."""
        return sum(map(len, self.names.values()))


def named_values(onnx_program: Any) -> NamedValues:
    """The tensors of a ``torch.onnx.ONNXProgram`` that can be recorded; nothing is run.

    Raises UsageError if this is no such program.
    """
    program = program_of(onnx_program)
    graph = onnx_program.model.graph
    program_nodes = _ProgramNodes(program, {text for node in graph if (text := node.metadata_props.get(FX_NODE))})
    names: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    nodes = [node for node in graph if node.op_type != "Constant" or node.domain]
    for value in (value for node in nodes for value in node.outputs):
        if not value.name or not (value.uses() or value.is_graph_output()):
            continue
        fx_node = program_nodes.of(value)
        if isinstance(fx_node, str):
            refused[str(value.name)] = fx_node
        else:
            names.setdefault(fx_node.name, []).append(str(value.name))
    return NamedValues(names={node: tuple(tensors) for node, tensors in names.items()}, refused=refused)


def program_of(onnx_program: Any) -> Any:
    """The program that an ONNXProgram was translated from. Raises UsageError if it has none."""
    program = getattr(onnx_program, "exported_program", None)
    if program is None or not hasattr(onnx_program, "model"):
        raise errors.UsageError(
            f"this is not a program that was exported to ONNX, but a {type(onnx_program).__name__}",
            next_steps=["onnx_program = torch.onnx.export(module, args, dynamo=True)"],
        )
    return program


class _ProgramNodes:
    """The FX nodes of a program; ``texts`` are those that the nodes of a model were translated from."""

    def __init__(self, program: Any, texts: set[str]) -> None:
        nodes = list(program.graph.nodes)
        self._nodes = {node.name: node for node in nodes}
        self._inner = {
            str(node.format_node())
            for name, module in program.graph_module.named_modules()
            if name and hasattr(module, "graph")
            for node in module.graph.nodes
        }
        printed = {str(node.format_node()): node for node in nodes}
        certain: dict[Any, str] = {}  # nodes whose text and all that they depend on are in ``texts``
        for text, node in printed.items():
            is_translated = text in texts or node.target is operator.getitem
            if node.op in ("placeholder", "get_attr") or (
                is_translated and all(source in certain for source in node.all_input_nodes)
            ):
                certain[node] = text
        is_whole = texts - self._inner <= printed.keys()
        self._translated = printed if is_whole else {text: node for node, text in certain.items()}
        self._random = random_nodes(nodes)

    def of(self, value: Any) -> Any:
        """The FX node whose value a tensor is, or the reason, as a text, why it is none's."""
        producer = value.producer()
        text = producer.metadata_props.get(FX_NODE)
        if text is None:
            if producer.op_type == "Identity" and producer.inputs[0].producer() is not None:
                return self.of(producer.inputs[0])
            return "its node does not say what it was translated from: an optimizer has made it"
        source = self._translated.get(text)
        if source is None:
            inner = "it is a step within a subgraph" if text in self._inner else None
            return inner or f"it was translated from a node of another program: {text}"
        node = self._nodes.get(value.metadata_props.get(_ORIGINAL_NAME, value.name))
        if node is None or not (node is source or (node.target is operator.getitem and node.args[0] is source)):
            return f"it is a step within {source.target}, which has no such value"
        if node in self._random:
            return f"it depends on random numbers, of {self._random[node]}"
        return _mistyped(value, node) or node


def _mistyped(value: Any, node: Any) -> str | None:
    """Why the value of an FX node cannot be this tensor; None if it can."""
    if "val" not in node.meta:
        return "its program does not say of which type it is"
    dtype = type_in_model(node.meta["val"])
    if dtype is None:
        return f"it is not a tensor that a file can hold, but a {_kind(node.meta['val'])}"
    declared = value.dtype
    if declared is not None and declared.numpy() != dtype:
        return f"it is {declared.name} in the model, and {_kind(node.meta['val'])} in PyTorch"
    return None


def _kind(value: Any) -> str:
    return str(getattr(value, "dtype", type(value).__name__))


_SWITCHES = frozenset({"train", "training"})
_CHANCES = frozenset({"dropout_p", "dropout"})


def random_nodes(nodes: Iterable[Any]) -> dict[Any, str]:
    """The FX nodes, in order, that draw random numbers or depend on some, each with the operator that drew them."""
    drawn_by: dict[Any, str] = {}
    for node in nodes:
        operator_name = next((drawn_by[source] for source in node.all_input_nodes if source in drawn_by), None)
        if operator_name is None and _draws(node):
            operator_name = str(node.target)
        if operator_name is not None:
            drawn_by[node] = operator_name
    return drawn_by


def _draws(node: Any) -> bool:
    """Whether an operator draws random numbers. Dropout that is switched off does not."""
    torch = imported()
    if node.op == "get_attr":
        inner = getattr(node.graph.owning_module, node.target, None)
        return isinstance(inner, torch.fx.GraphModule) and any(map(_draws, inner.graph.nodes))
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        name, is_placed = argument.name, place < len(node.args)
        value = node.args[place] if is_placed else node.kwargs.get(name, argument.default_value)
        if (name in _SWITCHES and value is False) or (name in _CHANCES and value == 0):
            return False
    return True
