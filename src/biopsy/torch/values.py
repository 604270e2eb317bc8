"""The values that a module gives on its way, under the names that they have in the exported model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from biopsy import errors
from biopsy.tensors.results import Array
from biopsy.torch.arrays import as_array, type_in_model
from biopsy.torch.calls import arguments_of, persons_code, said
from biopsy.torch.installed import imported
from biopsy.torch.names import NamedValues, named_values, program_of


def intermediate_values(
    onnx_program: Any, args: Any, kwargs: Mapping[str, Any] | None = None, *, copy: bool = True
) -> Iterator[tuple[str, Array]]:
    """Run the program that was exported, and give the tensors of the model as they come, each one a copy.

    Without ``copy`` a tensor is what it was until the next one is asked for, and may have changed by then.

    It is the exporter's own program (``onnx_program.exported_program``), run operator by operator without gradients,
    where its parameters are. ``args`` and ``kwargs`` are what the module is called with. What later operators need no
    more is freed on the way. The tensors are named as in ``onnx_program.model``; which of them have a value, and why
    others have none, is told by ``biopsy.torch.names.named_values``. Those of subgraphs have none.

    Raises UsageError if the arguments are not of the form that was exported, EngineFailure if the program cannot be
    run, EngineMissing without PyTorch.
    """
    imported()
    named = named_values(onnx_program)
    program = program_of(onnx_program)
    return _values(program, _flat_inputs(program, args, kwargs), named, copy)


def input_values(onnx_program: Any, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """What the inputs of the model are for these arguments, under their names in ``onnx_program.model``.

    Raises UsageError if the arguments are not of the form that was exported.
    """
    imported()
    program = program_of(onnx_program)
    flat = _flat_inputs(program, args, kwargs)
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    given = flat[len(flat) - len(specs) :]
    fed = [value for value, spec in zip(given, specs, strict=True) if not hasattr(spec.arg, "value")]
    names = [str(value.name) for value in onnx_program.model.graph.inputs]
    if len(names) != len(fed):
        raise errors.UsageError(f"the model has {len(names)} inputs, and the program that it comes from {len(fed)}")
    for name, value in zip(names, fed, strict=True):
        if type_in_model(value) is None:
            raise errors.UsageError(f"input {name!r} is no tensor that a file can hold, but a {type(value).__name__}")
    return {name: as_array(value) for name, value in zip(names, fed, strict=True)}


def _flat_inputs(program: Any, args: Any, kwargs: Mapping[str, Any] | None) -> Sequence[Any]:
    """What the graph of the program takes: its parameters, buffers and constants, then what it is called with."""
    given = arguments_of(args, kwargs)
    try:
        found: Sequence[Any] = _taken(program, given.args, dict(given.kwargs))
    except Exception as error:
        raise errors.UsageError(
            f"the arguments are not of the form that was exported: {said(error)}",
            next_steps=["the module is called as module(*args, **kwargs), as in torch.onnx.export"],
        ) from error
    return found


def _taken(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    try:
        found: Sequence[Any] = program._graph_module_flat_inputs(args, kwargs)
        return found
    except TypeError as error:
        # PyTorch 2.13 stumbles over named tuples when it compares forms: their type is no class there.
        flat, form = program._get_flat_args_with_check(args, kwargs)
        if form != program.call_spec.in_spec:
            raise error
    kinds = [spec for spec in program.graph_signature.input_specs if spec.kind.name != "USER_INPUT"]
    held = {**program.constants, **program.state_dict}
    return (*(held[spec.target] for spec in kinds), *flat)


def _values(program: Any, inputs: Sequence[Any], named: NamedValues, copy: bool) -> Iterator[tuple[str, Array]]:
    torch, fx = imported(), imported("torch.fx")
    interpreter = fx.Interpreter(program.graph_module)
    interpreter.args_iter = iter(inputs)
    del inputs
    for node in program.graph.nodes:
        # Gradients are off for one operator at a time: between two, the caller's code runs.
        with torch.no_grad():
            result = _result(interpreter, node)
        names = named.names.get(node.name, ())
        for name in names:
            yield name, as_array(result, copy=copy)
        interpreter.env[node] = result
        del result
        for gone in interpreter.user_to_last_uses.get(node, ()):
            del interpreter.env[gone]


def _result(interpreter: Any, node: Any) -> Any:
    try:
        with persons_code():
            return interpreter.run_node(node)
    except Exception as error:
        raise errors.EngineFailure(
            f"PyTorch cannot run {node.format_node()}: {said(error)}",
            engine="torch",
            stage="run",
            kind=type(error).__name__,
        ) from error
