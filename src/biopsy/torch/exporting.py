"""Capturing a module and exporting it to ONNX in the way of ``torch.onnx.export``, with open sizes."""

from __future__ import annotations

import inspect
import io
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from traceback import StackSummary, walk_stack, walk_tb
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.model.load import require_file
from biopsy.model.sources import is_of_model
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import cannot_write, make_folders_of
from biopsy.text import did_you_mean, line_of
from biopsy.torch.arrays import imported
from biopsy.torch.calls import Arguments, ModuleState, exception_text, preserved, user_code
from biopsy.torch.facts import (
    ExporterPart,
    ModuleLine,
    first_within,
    node_of_exception,
    place_of_exception,
    place_of_node,
    place_of_stack,
)

_MOST_INSIDE = 1 << 26
"""The most bytes of weights in the file of the model itself, which is serialized as a whole."""

_CLOSE = 1e-3
"""The tolerance for weights that exporters have folded on different machines."""


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model and the program that it was translated from, named as in ``torch.onnx.ONNXProgram``."""

    model: Any
    exported_program: Any


def export(module: Any, given: Arguments, *, dynamic_shapes: Any = None, optimize: bool = True) -> Any:
    """The ``torch.onnx.ONNXProgram`` of a module, whose state is restored.

    ``dynamic_shapes`` and ``optimize`` are those of ``torch.onnx.export``. Raises EngineFailure if the module cannot be
    captured or translated.
    """
    imported()
    try:
        with preserved(module) as state:
            program = capture(module, state, given, dynamic_shapes)
            onnx_program, refusal = translate(program, given, dynamic_shapes, optimize=optimize)
            if refusal is not None:
                raise refusal.error
            return onnx_program
    except (CannotCaptureError, CannotTranslateError) as error:
        is_capture = isinstance(error, CannotCaptureError)
        failed = "torch.export cannot capture" if is_capture else "torch.onnx.export cannot translate"
        raise errors.EngineFailure(
            f"{failed} the module: {error}",
            engine="torch",
            stage="build",
            kind="CannotCapture" if is_capture else "CannotTranslate",
            details=[f"at {place.with_code}" for place in error.places],
            next_steps=["biopsy.torch.record_hooks(module, model, args, path)    needs no capture"],
        ) from error


def save(onnx_program: Any, path: Path, written: Mapping[object, Any] | None = None) -> None:
    """Write the model; large weights go into a file beside it, one by one, so that they are never in memory twice.

    ``written`` are the ``weights_beside`` of another model in the same folder: they are not written again, but named.
    Raises UsageError if it cannot be written.
    """
    weights = [value for value in onnx_program.model.graph.initializers.values() if value.const_value is not None]
    before = [value.const_value for value in weights]
    known = [(written or {}).get(_identity(value)) for value in weights]
    size = sum(weight.nbytes for weight, there in zip(before, known, strict=True) if there is None)
    try:
        make_folders_of(path)
        with temporary_folder(f".{path.name}.", path.parent) as folder:
            file = folder / path.name
            if size <= _MOST_INSIDE and any(known):
                for value, weight, there in zip(weights, before, known, strict=True):
                    value.const_value = there or weight
                imported("onnx_ir").save(onnx_program.model, str(file))
            else:
                onnx_program.save(str(file), external_data=size > _MOST_INSIDE)
            # The weights are moved first, so that the model is never there without them.
            for file in sorted(folder.iterdir(), key=lambda file: file.name == path.name):
                file.replace(path.parent / file.name)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        for value, weight in zip(weights, before, strict=True):
            value.const_value = weight


def weights_beside(onnx_program: Any, path: Path) -> dict[object, Any]:
    """The weights of a program that ``save`` has written into a file beside ``path``, as ``onnx_ir.ExternalTensor``."""
    ir = imported("onnx_ir")
    in_file = {name: value.const_value for name, value in ir.load(str(path)).graph.initializers.items()}
    return {
        _identity(value): in_file[name]
        for name, value in onnx_program.model.graph.initializers.items()
        if isinstance(in_file.get(name), ir.ExternalTensor)
    }


def _identity(value: Any) -> object:
    """What weights of one name that share their memory, type and form have in common."""
    raw = getattr(value.const_value, "raw", None)
    if not isinstance(raw, imported().Tensor):
        return value.name, id(value.const_value)
    return value.name, raw.data_ptr(), raw.dtype, tuple(raw.shape), raw.stride()


def read_exported(path: Path, onnx_program: Any) -> ExportedModel:
    """The model in a file, which the user has exported, with the program of ``onnx_program``, a new export.

    Raises ModelError if it cannot be read, UsageError if there is no such file, CannotCompare if its weights are not
    those of ``onnx_program``.
    """
    model = read_model(path)
    new_weights = onnx_program.model.graph.initializers
    for name, weight in model.graph.initializers.items():
        if name in new_weights and not _is_close(weight.const_value, new_weights[name].const_value):
            raise errors.CannotCompare(
                f"{path} has another {name!r} than the module: it was not exported from these weights, or not in this "
                "way",
                next_steps=["--no-optimize    if it was exported with optimize=False", *_with_open_sizes(model)],
            )
    return ExportedModel(model=model, exported_program=onnx_program.exported_program)


def _with_open_sizes(model: Any) -> list[str]:
    """The option to type for the open sizes of a model; none if it has no open sizes."""
    shapes = []
    for value in model.graph.inputs:
        sizes = [size if isinstance(size, int) else str(size.value or -1) for size in value.shape or ()]
        if any(isinstance(size, str) for size in sizes):
            shapes.append(f"{value.name}:[{','.join(map(str, sizes))}]")
    return [f"{line_of(['--dynamic-shapes', *shapes])}    the sizes that the model leaves open"] if shapes else []


def read_model(path: Path) -> Any:
    """The ``onnx_ir.Model`` of a file. Raises UsageError if there is no such file, ModelError if it cannot be read."""
    ir = imported("onnx_ir")
    require_file(path, "model")
    try:
        return ir.load(str(path))
    except Exception as error:
        raise errors.ModelError(f"cannot read {path}: {exception_text(error)}") from error


def _is_close(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        return False
    one, other = left.numpy(), right.numpy()
    if one.dtype.kind in "fV":
        return bool(np.allclose(one.astype(np.float64), other.astype(np.float64), _CLOSE, _CLOSE, equal_nan=True))
    return bool(np.array_equal(one, other))


class CannotCaptureError(Exception):
    """``torch.export`` has raised an exception; the message is that of the exception, in one line.

    ``places`` are where in the module's code it was raised: one, or the lines that fix sizes that are to be open.
    """

    def __init__(self, error: BaseException, places: tuple[ModuleLine, ...]) -> None:
        super().__init__(exception_text(error))
        self.places = places


_PARTS: Mapping[str, ExporterPart] = {
    "_prepare_exported_program_for_export": "decomposition",
    "_exported_program_to_onnx_program": "translation",
    "optimize": "optimizer",
}
"""The parts of ``torch.onnx``, by the functions that they begin with."""


class CannotTranslateError(Exception):
    """``torch.onnx.export`` has raised an exception for an exported program; the message has its causes in one line.

    ``cause`` is the first cause, without the exceptions that the exporter wraps it into. ``part`` is the part of the
    exporter that raised, None if that is unknown, and ``places`` has the line of the operator that it was working on.
    """

    def __init__(self, error: BaseException) -> None:
        # The exporter wraps the cause into exceptions of its own, of which the outermost says nothing.
        chain = [error]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        causes = [exception_text(each) for each in (chain[1:] or chain)]
        super().__init__(": ".join(causes))
        self.cause = causes[-1]
        functions = (frame.f_code.co_name for each in chain for frame, _ in walk_tb(each.__traceback__))
        self.part = next((_PARTS[function] for function in functions if function in _PARTS), None)
        node = node_of_exception(error)
        unknown = "torch.onnx does not say which operator it was working on"
        self.places = (ModuleLine(unknown=unknown) if node is None else place_of_node(node),)


def capture(module: Any, state: ModuleState, given: Arguments, dynamic_shapes: Any) -> Any:
    """The ``ExportedProgram`` of a module: captured in non-strict mode or, if that fails, in strict mode.

    Raises CannotCaptureError with the message and the place of the first failure.
    """
    export, config = imported("torch.export"), imported("torch.fx.experimental._config")

    def as_dimension(size: Any) -> Any:
        """An open size for ``torch.export``, which does not take names as ``torch.onnx.export`` does."""
        return export.Dim.DYNAMIC if isinstance(size, str) else size

    shapes = imported("torch.utils._pytree").tree_map(as_dimension, dynamic_shapes)
    first: CannotCaptureError | None = None
    for strict in (False, True):
        fresh = given.copied()
        try:
            with _quiet(), user_code(), config.patch(backed_size_oblivious=True), _whole_stacks(), _guards() as guards:
                return export.export(module, fresh.args, dict(fresh.kwargs), dynamic_shapes=shapes, strict=strict)
        except Exception as error:
            place = place_of_exception(error, module)
            is_of_sizes = place.file is None and "Constraints violated" in str(error)
            places = tuple(guards) if is_of_sizes and guards else (place,)
            first = first or CannotCaptureError(error, places)
        finally:
            state.restore()
    assert first is not None
    raise first


@contextmanager
def _guards() -> Iterator[Collection[ModuleLine]]:
    """The lines at which PyTorch concludes, while it captures, that an open size is not open.

    It raises only after it has run all of the module, and does not say where that was.
    """
    places: dict[ModuleLine, None] = {}

    def noting(log: Any) -> Any:
        def noted(self: Any, *guard: Any, **more: Any) -> Any:
            place = place_of_stack(walk_stack(sys._getframe(1)))
            if place is not None:
                places[place] = None
            return log(self, *guard, **more)

        return noted

    with _changed(imported("torch.fx.experimental.symbolic_shapes").ShapeEnv, "_log_guard", noting):
        yield places


@contextmanager
def _whole_stacks() -> Iterator[None]:
    """Have every frame of the module's code noted in a program's nodes: PyTorch notes those of ``forward`` alone."""

    def with_more(of_forward: Any) -> Any:
        def filtered(self: Any, stack: StackSummary) -> StackSummary:
            inside = stack[first_within([frame.filename for frame in stack]) :]
            forward = {id(frame) for frame in of_forward(self, stack)}
            kept = (frame for frame in inside if id(frame) in forward or is_of_model(frame.filename))
            return StackSummary.from_list(list(kept))

        return filtered

    with _changed(imported("torch.fx.proxy").TracerBase, "_filter_traceback_frames", with_more):
        yield


@contextmanager
def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Change a method of PyTorch's; nothing is changed if a release has no such method."""
    before = vars(owner).get(name)
    if before is not None:
        setattr(owner, name, change(before))
    try:
        yield
    finally:
        if before is not None:
            setattr(owner, name, before)


_GIVEN = ("model", "args", "kwargs", "f", "dynamic_shapes")
"""Arguments of ``torch.onnx.export`` that are no options here."""


def require_options(options: Mapping[str, Any]) -> None:
    """Raise UsageError unless these are options of ``torch.onnx.export`` that may be passed to ``translate``."""
    if not options.get("dynamo", True):
        raise errors.UsageError(
            "the older exporter (dynamo=False) is not examined: what is said of torch.onnx would not be true of it",
            next_steps=["biopsy.torch.record_hooks(module, model, args, path)    records for the model that it wrote"],
        )
    known = inspect.signature(imported("torch.onnx").export).parameters.keys() - _GIVEN
    for name in options.keys() - known:
        near = did_you_mean(name, known)
        raise errors.UsageError(f"export={{{name!r}: ...}}: torch.onnx.export has no such option", next_steps=near)


@dataclass(frozen=True, kw_only=True)
class RefusedOutputs:
    """What ``torch.onnx.export`` raises for a program, but not without some of its outputs, which are constants.

    ``outputs`` are their numbers among those of the module.
    """

    error: CannotTranslateError
    outputs: tuple[int, ...]


def translate(program: Any, given: Arguments, dynamic_shapes: Any, **options: Any) -> tuple[Any, RefusedOutputs | None]:
    """The ``ONNXProgram`` of an exported program, which loses the outputs that ``torch.onnx.export`` raises for.

    Those are, in 2.13, an int, a float, a bool and a text. ``options`` are those of that function. Raises
    CannotTranslateError.
    """
    try:
        return _translated(program, given, dynamic_shapes, options), None
    except CannotTranslateError as error:
        outputs, specs = program.graph.output_node(), program.graph_signature.output_specs
        constants = [spec for spec in specs if getattr(spec.arg, "value", None) is not None]
        of_module = [spec for spec in specs if spec.kind.name == "USER_OUTPUT"]
        refused = tuple(number for number, spec in enumerate(of_module) if spec in constants)
        if not refused or len(refused) == len(of_module):
            raise
        kept = (None if spec in constants else node for spec, node in zip(specs, outputs.args[0], strict=True))
        outputs.args = (tuple(kept),)
        for spec in constants:
            spec.arg.value = None
        return _translated(program, given, dynamic_shapes, options), RefusedOutputs(error=error, outputs=refused)


def _translated(program: Any, given: Arguments, dynamic_shapes: Any, options: Mapping[str, Any]) -> Any:
    onnx = imported("torch.onnx")
    fresh = given.copied()
    try:
        with _quiet(), user_code():
            return onnx.export(
                program,
                fresh.args,
                kwargs=dict(fresh.kwargs),
                dynamic_shapes=dynamic_shapes,
                **{"verbose": False, **options},
            )
    except Exception as error:
        raise CannotTranslateError(error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the output, warnings and logs of PyTorch."""
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


def dynamic_shapes_of(module: Any, given: Arguments, shapes: Mapping[str, tuple[int | str | None, ...]]) -> Any:
    """The ``dynamic_shapes`` for ``torch.export``; None if ``shapes`` is empty.

    ``shapes`` has, by parameter of ``forward``, the size of each dimension: a number, or a name or None for an open
    size. Raises UsageError for a parameter that is not a tensor of the call, and for a shape that is not the tensor's.
    """
    if not shapes:
        return None
    try:
        bound = inspect.signature(module.forward).bind(*given.args, **given.kwargs).arguments
    except TypeError as error:
        raise errors.UsageError(f"the arguments are not those of {type(module).__name__}.forward: {error}") from error
    tensors = {name: value for name, value in bound.items() if isinstance(value, imported().Tensor)}
    for name, shape in shapes.items():
        if name not in tensors:
            kind = "a tensor" if name in bound else "a parameter of forward that is given"
            raise errors.UsageError(
                f"--dynamic-shapes {name}: that is not {kind}; the tensors are {', '.join(tensors) or 'none'}",
                next_steps=["biopsy.torch.diagnose(..., dynamic_shapes=...)    for tensors in lists and dictionaries"],
            )
        sizes = tuple(tensors[name].shape)
        fits = len(shape) == len(sizes) and all(
            size == wanted or not isinstance(wanted, int) for wanted, size in zip(shape, sizes, strict=True)
        )
        if not fits:
            typed = ",".join("-1" if size is None else str(size) for size in shape)
            raise errors.UsageError(
                f"--dynamic-shapes {name}:[{typed}]: the module is called with a tensor of shape {list(sizes)}",
                next_steps=[f"--dynamic-shapes '{name}:[{','.join(['batch', *map(str, sizes[1:])])}]'"],
            )
    tree_map, dynamic = imported("torch.utils._pytree").tree_map, imported("torch.export").Dim.DYNAMIC
    opened = {
        name: {place: size or dynamic for place, size in enumerate(shape) if not isinstance(size, int)}
        for name, shape in shapes.items()
    }
    return {name: opened[name] if name in opened else tree_map(lambda _: None, bound[name]) for name in bound}
