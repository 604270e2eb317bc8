"""Asking which line of a PyTorch module is to blame for what its ONNX model gives.

found = biopsy.torch.diagnose(module, (x,), suspect="onnxrt", output="found")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from biopsy import errors, events
from biopsy.api.arguments import require_seconds
from biopsy.api.compare import asked_of_outputs
from biopsy.comparison.tolerance import DEFAULT_TOLERANCE
from biopsy.engines.registry import create
from biopsy.filesystem.write import require_writable
from biopsy.isolation.cleanup import temporary_folder
from biopsy.torch.calls import arguments_of, require_evaluation
from biopsy.torch.differences import Closeness
from biopsy.torch.facts import TorchDiagnosis
from biopsy.torch.installed import imported
from biopsy.torch.module_state import kept
from biopsy.torch.questions import Inquiry, ModuleQuestion


def diagnose(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    suspect: str = "onnxrt",
    output: str | PathLike[str] | None = None,
    atol: float = DEFAULT_TOLERANCE,
    rtol: float = DEFAULT_TOLERANCE,
    export: Mapping[str, Any] | None = None,
    run_timeout: float | None = None,
    max_time: float | None = None,
    listener: events.Listener = events.ignore,
) -> TorchDiagnosis:
    """Find out why ``module``, exported to ONNX, gives something else in the engine ``suspect`` than in PyTorch.

    ``args`` and ``kwargs`` are what the module is called with, ``dynamic_shapes`` and ``export`` what
    ``torch.onnx.export`` is told besides (``{"optimize": False}``, ``{"custom_translation_table": ...}``). ``atol`` and
    ``rtol`` are those of ``compare``. ``output`` is a folder, new or empty, that keeps the model, its inputs, the
    values of the module, and the smallest part that still fails, ready to send; without it, nothing is kept.
    ``run_timeout`` is in seconds per run of an engine. ``max_time`` is in seconds, too: what is known by then is told,
    and which questions are open; PyTorch itself and its exporter are not interrupted.

    ``verdict`` of the result says who is to blame, ``places`` at which lines, ``failed`` whether anything fails. The
    module, its gradients and the generators of random numbers are left as they were.

    Raises UsageError for what is no module, is in training mode, or for arguments that cannot be used; CannotCompare
    if the module itself raises, or returns nothing that can be compared; EngineMissing without PyTorch or the engine.
    """
    require_seconds(run_timeout=run_timeout, max_time=max_time)
    require_evaluation(module)
    _require_values(module, args, kwargs)
    create(suspect)
    tolerances, stats = asked_of_outputs(atol, rtol, "elemwise")
    question = ModuleQuestion(
        module=module,
        given=arguments_of(args, kwargs),
        dynamic_shapes=dynamic_shapes,
        suspect=suspect,
        asked=Closeness(tolerances=tolerances, stats=stats),
        export=dict(export or {}),
        folder=None if output is None else Path(output),
        timeout=run_timeout,
        seconds=max_time,
    )
    if question.folder is not None:
        require_folder(question.folder)
    with kept(module) as state, temporary_folder("biopsy-torch-") as scratch, _folder_kept(question.folder):
        found = Inquiry(question, state, scratch, listener).run()
    return found if found.folder is None or found.folder.is_dir() else replace(found, folder=None)


@contextmanager
def _folder_kept(folder: Path | None) -> Iterator[None]:
    """A folder to write into; one that was made here, and into which nothing was written, does not stay."""
    if folder is None or folder.is_dir():
        yield
        return
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            folder.rmdir()


def require_folder(folder: Path) -> None:
    """Raise UsageError unless a diagnosis can be kept in a folder: a new one, or an empty one."""
    if folder.is_dir() and any(folder.iterdir()):
        raise errors.UsageError(
            f"the folder {folder} is not empty, and nothing is overwritten there", next_steps=["name a new folder"]
        )
    require_writable(folder / "a file")


def _require_values(module: Any, args: Any, kwargs: Any) -> None:
    """Raise UsageError for what has shapes and no values."""
    leaves, _ = imported("torch.utils._pytree").tree_flatten((args, kwargs))
    for value in (*module.parameters(), *module.buffers(), *leaves):
        if isinstance(value, imported().Tensor) and value.is_meta:
            raise errors.UsageError(
                "the module or an argument is on the device 'meta', where tensors have no values",
                next_steps=["make them on the CPU"],
            )
