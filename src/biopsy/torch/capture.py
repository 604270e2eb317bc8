"""A module as an exported program, in the way in which ``torch.onnx.export`` gets one."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from biopsy.torch.calls import Arguments, persons_code, said
from biopsy.torch.installed import imported
from biopsy.torch.module_state import ModuleState


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
    first: Exception | None = None
    for strict in (False, True):
        fresh = given.copied()
        try:
            with _quiet(), persons_code(), config.patch(backed_size_oblivious=True):
                return export.export(
                    module,
                    fresh.args,
                    dict(fresh.kwargs),
                    dynamic_shapes=_without_names(dynamic_shapes),
                    strict=strict,
                )
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
        raise CannotTranslateError(_causes(error)) from error


def _causes(error: BaseException) -> list[str]:
    """What an exporter says: it wraps what went wrong into errors of its own, of which the first says nothing."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return [said(one) for one in (chain[1:] or chain)]


def _without_names(dynamic_shapes: Any) -> Any:
    """Shapes as ``torch.export`` takes them: the exporter to ONNX also takes a name for a dimension that is open."""
    if isinstance(dynamic_shapes, str):
        return imported("torch.export").Dim.DYNAMIC
    if isinstance(dynamic_shapes, dict):
        return {key: _without_names(value) for key, value in dynamic_shapes.items()}
    if isinstance(dynamic_shapes, list | tuple):
        return type(dynamic_shapes)(map(_without_names, dynamic_shapes))
    return dynamic_shapes


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch prints on the way, which nobody has asked for."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    children = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._dynamo")]
    levels = [child.level for child in children]
    try:
        for child in children:
            child.setLevel(logging.CRITICAL)
        printed = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(printed), redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
        for child, level in zip(children, levels, strict=True):
            child.setLevel(level)
