"""What a module takes and gives beside what its ONNX model takes and gives: by place, for names may be changed.

The exporter flattens arguments and outputs as ``torch.utils._pytree`` does, and leaves out what is no tensor and cannot
vary. The order is that of the signature of the program that it translated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.results import Array
from biopsy.torch.arrays import array_of
from biopsy.torch.package import torch_package


@dataclass(frozen=True)
class Leaf:
    """One value of nested arguments or outputs: where it stands, as Python writes it (``['logits'][0]``), and it."""

    path: str
    value: Any


def leaves_of(nested: Any) -> list[Leaf]:
    """The values of nested lists, tuples, dictionaries and registered classes, in the order of the exporter."""
    from torch.utils import _pytree

    found, _ = _pytree.tree_flatten_with_path(nested)
    return [Leaf(_pytree.keystr(path), value) for path, value in found]


def array_of_leaf(value: Any) -> Array | None:
    """A value as an array: a tensor, or a number or text of Python; None for what is neither."""
    if isinstance(value, torch_package().Tensor):
        return array_of(value)
    if isinstance(value, bool | int | float | str):
        return np.asarray(value)
    return None


def feeds_of(onnx_program: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> dict[str, Array]:
    """What the ONNX model is fed for arguments of the module, by the names of its inputs.

    Raises CannotCompare if the arguments are not built as those that it was exported with.
    """
    program = onnx_program.exported_program
    values = _flat_arguments(program, args, dict(kwargs or {}))
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    names = [value.name for value in onnx_program.model.graph.inputs]
    if len(specs) != len(values):
        raise errors.CannotCompare(f"the module was exported with {len(specs)} values as arguments, not {len(values)}")
    fed = [value for spec, value in zip(specs, values, strict=True) if not _is_constant(spec)]
    if len(fed) != len(names):
        raise errors.CannotCompare(f"the ONNX model has {len(names)} inputs, and the module takes {len(fed)} tensors")
    arrays = [array_of_leaf(value) for value in fed]
    return {name: array for name, array in zip(names, arrays, strict=True) if array is not None}


def outputs_of(onnx_program: Any, leaves: Sequence[Leaf]) -> dict[str, Leaf]:
    """By the name of each output of the ONNX model the value of the module's output that it stands for.

    Raises CannotCompare if they are not as many.
    """
    program = onnx_program.exported_program
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    names = [value.name for value in onnx_program.model.graph.outputs]
    if len(specs) != len(leaves):
        raise errors.CannotCompare(f"the module gives {len(leaves)} values, and its exported program {len(specs)}")
    given = [leaf for spec, leaf in zip(specs, leaves, strict=True) if not _is_constant(spec)]
    if len(given) != len(names):
        raise errors.CannotCompare(
            f"the module gives {len(given)} tensors, and the ONNX model has {len(names)} outputs"
        )
    return dict(zip(names, given, strict=True))


def _is_constant(spec: Any) -> bool:
    return type(spec.arg).__name__ == "ConstantArgument"


def _flat_arguments(program: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The values of all arguments, keyword arguments in the order in which they were exported."""
    from torch.utils import _pytree

    names = program.call_spec.in_spec.children()[1].context
    if set(names) == set(kwargs):
        kwargs = {name: kwargs[name] for name in names}
    values, _ = _pytree.tree_flatten((tuple(args), kwargs))
    return list(values)
