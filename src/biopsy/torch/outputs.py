"""What a module gives beside what its ONNX model gives: by place, for names may be changed.

The exporter flattens outputs as ``torch.utils._pytree`` does, and leaves out what is no tensor and cannot
vary. The order is that of the signature of the program that it translated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.tensors.results import Array
from biopsy.torch.arrays import as_array, type_in_model
from biopsy.torch.installed import imported


@dataclass(frozen=True)
class Leaf:
    """One value of nested arguments or outputs: where it stands, as Python writes it (``['logits'][0]``), and it."""

    path: str
    value: Any


def leaves_of(nested: Any) -> list[Leaf]:
    """The values of nested lists, tuples, dictionaries and registered classes, in the order of the exporter."""
    found, _ = imported("torch.utils._pytree").tree_flatten_with_path(nested)
    return [Leaf(imported("torch.utils._pytree").keystr(path), value) for path, value in found]


def array_of_leaf(value: Any) -> Array | None:
    """A value as an array: a tensor, or a number or text of Python; None for what is neither, or a quantized tensor."""
    if isinstance(value, str):
        return np.asarray(value)
    return None if type_in_model(value) is None else as_array(value)


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
