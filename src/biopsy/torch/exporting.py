"""A module captured and exported to ONNX as ``torch.onnx.export`` does it, with sizes that stay open."""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.load import require_file
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import cannot_write, make_folders_of
from biopsy.text import line_of
from biopsy.torch.arrays import imported
from biopsy.torch.calls import Arguments, ModuleState, kept, persons_code, said

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
    except (CannotCaptureError, CannotTranslateError) as error:
        is_capture = isinstance(error, CannotCaptureError)
        does = "torch.export cannot capture" if is_capture else "torch.onnx.export cannot translate"
        raise errors.EngineFailure(
            f"{does} the module: {error}",
            engine="torch",
            stage="build",
            kind="CannotCapture" if is_capture else "CannotTranslate",
            next_steps=["biopsy.torch.record_hooks(module, model, args, path)    needs no capture"],
        ) from error


def save(onnx_program: Any, path: Path) -> None:
    """Write the model, and large weights in a file beside it, one after the other: they are never in memory twice.

    Raises UsageError if it cannot.
    """
    weights = (value.const_value for value in onnx_program.model.graph.initializers.values())
    size = sum(weight.nbytes for weight in weights if weight is not None)
    try:
        make_folders_of(path)
        with temporary_folder(f".{path.name}.", path.parent) as folder:
            onnx_program.save(str(folder / path.name), external_data=size > _MOST_INSIDE)
            # The weights first: a model never stands there without them.
            for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
                file.replace(path.parent / file.name)
    except OSError as error:
        raise cannot_write(path, error) from error


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


# A module as an exported program, in the way in which ``torch.onnx.export`` gets one.


class CannotCaptureError(Exception):
    """``torch.export`` raises; the message says what, in one line."""


class CannotTranslateError(Exception):
    """``torch.onnx.export`` raises for an exported program; the message says what, in one line.

    ``cause`` is the last part of it: what went wrong at first, without the errors that the exporter wraps it into.
    """

    def __init__(self, causes: Sequence[str]) -> None:
        super().__init__(": ".join(causes))
        self.cause = causes[-1]


def captured(module: Any, state: ModuleState, given: Arguments, dynamic_shapes: Any) -> Any:
    """The ``ExportedProgram`` of a module: traced without a Python compiler, and with it where that fails.

    Raises CannotCaptureError with what the first of the two says.
    """
    export, config = imported("torch.export"), imported("torch.fx.experimental._config")

    def as_dimension(size: Any) -> Any:
        """An open size as ``torch.export`` takes it: the exporter to ONNX also takes a name for it."""
        return export.Dim.DYNAMIC if isinstance(size, str) else size

    shapes = imported("torch.utils._pytree").tree_map(as_dimension, dynamic_shapes)
    first: Exception | None = None
    for strict in (False, True):
        fresh = given.copied()
        try:
            with _quiet(), persons_code(), config.patch(backed_size_oblivious=True):
                return export.export(module, fresh.args, dict(fresh.kwargs), dynamic_shapes=shapes, strict=strict)
        except Exception as error:
            first = first or error
        finally:
            state.restore()
    assert first is not None
    raise CannotCaptureError(said(first)) from first


def translated(program: Any, given: Arguments, dynamic_shapes: Any, **options: Any) -> Any:
    """The ``ONNXProgram`` of an exported program; ``options`` are those of ``torch.onnx.export``.

    Raises CannotTranslateError.
    """
    onnx = imported("torch.onnx")
    fresh = given.copied()
    try:
        with _quiet(), persons_code():
            return onnx.export(
                program,
                fresh.args,
                kwargs=dict(fresh.kwargs),
                dynamic_shapes=dynamic_shapes,
                **{"verbose": False, **options},
            )
    except Exception as error:
        # An exporter wraps what went wrong into errors of its own, of which the first says nothing.
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        raise CannotTranslateError([said(one) for one in (chain[1:] or chain)]) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch prints on the way, which nobody has asked for."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.export", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        printed = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(printed), redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# Sizes that are exported as open ones, from how a person names them to how ``torch.export`` does.


def dynamic_shapes_of(module: Any, given: Arguments, shapes: Mapping[str, tuple[int | str | None, ...]]) -> Any:
    """What ``torch.export`` takes as ``dynamic_shapes``; None if no shape is named.

    ``shapes`` has, by parameter of ``forward``, a size for each dimension: a name or None for an open one, and for one
    that is not, its number. Raises UsageError for what is no tensor that the module is called with, and for a shape
    that is not the tensor's.
    """
    if not shapes:
        return None
    try:
        bound = inspect.signature(module.forward).bind(*given.args, **given.kwargs).arguments
    except TypeError as error:
        raise errors.UsageError(f"the arguments are not those of {type(module).__name__}.forward: {error}") from error
    for name, shape in shapes.items():
        _require_fit(name, shape, bound)
    tree_map, dynamic = imported("torch.utils._pytree").tree_map, imported("torch.export").Dim.DYNAMIC
    opened = {
        name: {place: size or dynamic for place, size in enumerate(shape) if not isinstance(size, int)}
        for name, shape in shapes.items()
    }
    return {name: opened[name] if name in opened else tree_map(lambda _: None, bound[name]) for name in bound}


def _require_fit(name: str, shape: tuple[int | str | None, ...], bound: Mapping[str, Any]) -> None:
    tensor = bound.get(name)
    if not isinstance(tensor, imported().Tensor):
        tensors = [other for other, value in bound.items() if isinstance(value, imported().Tensor)]
        kind = "a parameter of forward that is given" if name not in bound else "a tensor"
        raise errors.UsageError(
            f"--dynamic-shapes {name}: that is not {kind}; the tensors are {', '.join(tensors) or 'none'}",
            next_steps=["biopsy.torch.diagnose(..., dynamic_shapes=...)    for tensors in lists and dictionaries"],
        )
    sizes = tuple(tensor.shape)
    if len(shape) != len(sizes) or any(
        isinstance(one, int) and one != size for one, size in zip(shape, sizes, strict=True)
    ):
        told = ",".join("-1" if one is None else str(one) for one in shape)
        raise errors.UsageError(
            f"--dynamic-shapes {name}:[{told}]: the module is called with a tensor of shape {list(sizes)}",
            next_steps=[f"--dynamic-shapes '{name}:[{','.join(['batch', *map(str, sizes[1:])])}]'"],
        )
