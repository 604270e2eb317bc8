"""A module exported to ONNX, or a model that has been, as something that golden values can be recorded for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.filesystem.folders import make_folders_of
from biopsy.filesystem.write import cannot_write
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.load import require_file
from biopsy.shell_words import line_of
from biopsy.torch.calls import Arguments, said
from biopsy.torch.capture import CannotCaptureError, CannotTranslateError, captured, translated
from biopsy.torch.installed import imported
from biopsy.torch.module_state import kept

_MOST_INSIDE = 1 << 26
"""Bytes of weights that stand in the file of the model: they are serialized with it, as a whole."""

_CLOSE = 1e-3
"""How far weights may differ that one exporter has folded on two machines."""


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model and the program that it was translated from, named as in ``torch.onnx.ONNXProgram``."""

    model: Any
    exported_program: Any


def exported(module: Any, given: Arguments, *, dynamic_shapes: Any = None, optimize: bool = True) -> Any:
    """The ``torch.onnx.ONNXProgram`` of a module; the module stays as it was.

    ``dynamic_shapes`` are those of ``torch.onnx.export``; ``optimize``: whether the exporter's optimizer works on it,
    as it does by default. Raises EngineFailure if the module cannot be captured or translated.
    """
    imported()
    try:
        with kept(module) as state:
            return translated(captured(module, state, given, dynamic_shapes), given, dynamic_shapes, optimize=optimize)
    except CannotCaptureError as error:
        raise _failure(f"torch.export cannot capture the module: {error}", "CannotCapture") from error
    except CannotTranslateError as error:
        raise _failure(f"torch.onnx.export cannot translate the module: {error}", "CannotTranslate") from error


def _failure(message: str, kind: str) -> errors.EngineFailure:
    return errors.EngineFailure(
        message,
        engine="torch",
        stage="build",
        kind=kind,
        next_steps=["biopsy.torch.record_hooks(module, model, args, path)    needs no capture"],
    )


def save(onnx_program: Any, path: Path) -> None:
    """Write the model, and large weights in a file beside it, one after the other: they are never in memory twice.

    Raises UsageError if it cannot.
    """
    try:
        make_folders_of(path)
        with temporary_folder(f".{path.name}.", path.parent) as folder:
            onnx_program.save(str(folder / path.name), external_data=_weight_bytes(onnx_program) > _MOST_INSIDE)
            # The weights first: a model never stands there without them.
            for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
                file.replace(path.parent / file.name)
    except OSError as error:
        raise cannot_write(path, error) from error


def _weight_bytes(onnx_program: Any) -> int:
    weights = (value.const_value for value in onnx_program.model.graph.initializers.values())
    return sum(weight.nbytes for weight in weights if weight is not None)


def of_file(path: Path, onnx_program: Any) -> ExportedModel:
    """The model in a file, with the program of a module that it is said to have been exported from.

    Raises ModelError if it cannot be read, UsageError if there is no such file, CannotCompare if it has other weights
    than ``onnx_program``, which was exported from the module in the same way.
    """
    model = loaded(path)
    of_module = onnx_program.model.graph.initializers
    for name, weight in model.graph.initializers.items():
        if name in of_module and not _alike(weight.const_value, of_module[name].const_value):
            raise errors.CannotCompare(
                f"{path} has another {name!r} than the module: it was not exported from these weights, or not in this "
                "way",
                next_steps=["--no-optimize    if it was exported with optimize=False", *_with_open_sizes(model)],
            )
    return ExportedModel(model=model, exported_program=onnx_program.exported_program)


def _with_open_sizes(model: Any) -> list[str]:
    """What says the sizes that a model leaves open, for a module that may have been exported without."""
    shapes = []
    for value in model.graph.inputs:
        sizes = [size if isinstance(size, int) else str(size.value or -1) for size in value.shape or ()]
        if any(isinstance(size, str) for size in sizes):
            shapes.append(f"{value.name}:[{','.join(map(str, sizes))}]")
    return [f"{line_of(['--dynamic-shapes', *shapes])}    the sizes that the model leaves open"] if shapes else []


def loaded(path: Path) -> Any:
    """The ``onnx_ir.Model`` of a file. Raises UsageError if there is no such file, ModelError if it cannot be read."""
    ir = imported("onnx_ir")
    require_file(path, "model")
    try:
        return ir.load(str(path))
    except Exception as error:
        raise errors.ModelError(f"cannot read {path}: {said(error)}") from error


def _alike(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        return False
    one, other = left.numpy(), right.numpy()
    if one.dtype.kind in "fV":
        return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), _CLOSE, _CLOSE, equal_nan=True))
    return bool(np.array_equal(one, other))
