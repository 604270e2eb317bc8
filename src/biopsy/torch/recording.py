"""Recording what a PyTorch module gives, as golden values of the model that it was exported to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.quantities import count
from biopsy.tensors.appendable_store import AppendableStore, results_of
from biopsy.tensors.results import Array, same_values
from biopsy.torch.installed import imported
from biopsy.torch.names import named_values
from biopsy.torch.values import input_values, intermediate_values

RUNNER = "torch"
"""Whose values they are, in the file."""


@dataclass(frozen=True, kw_only=True)
class TorchRecording:
    """A file of golden values.

    ``path`` is the file, which holds the inputs of the model too. ``tensors`` is how many tensors of the main graph
    have a golden value in it, and ``of`` how many there are that a node computes and anything takes. ``refused`` are
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
    """Write what a module gives for its arguments, under the names of the tensors in the model it was exported to.

    ``onnx_program`` is what ``torch.onnx.export(module, ..., dynamo=True)`` returned; its own program is run
    (``biopsy.torch.values.intermediate_values``), once and without gradients. ``args`` and ``kwargs`` are what the
    module is called with. ``path`` ends in .safetensors; a file that stands there is replaced once all is written. Each
    tensor is written as it comes, so that memory holds what the program itself needs. The inputs are in the file as
    well: ``biopsy debug layers model.onnx --load-outputs PATH`` needs no other.

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
    """A file of one sample that takes tensors as they come. Use it in a ``with``: without ``finish`` nothing stays.

    ``inputs`` are those of the model, ``names`` the tensors that may come. Raises UsageError if it cannot be written.
    """

    def __init__(self, path: Path, inputs: Mapping[str, Array], names: Iterable[str]) -> None:
        self._inputs = list(inputs)
        self._came: Counter[str] = Counter()
        self._store = AppendableStore(path, None, [(0, 0, name) for name in dict.fromkeys((*inputs, *names))])
        for name, value in inputs.items():
            self._store.append((0, 0, name), value)

    def __enter__(self) -> RecordingFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._store.close()

    def add(self, name: str, value: Array) -> None:
        """Write a tensor."""
        self._came[name] += 1
        self._store.append((0, 0, name), value)

    def has(self, name: str, value: Array) -> bool:
        """Whether that is what was written."""
        self._store.commit()
        written = self._store.array((0, 0, name))
        return written is not None and same_values(written, value)

    def finish(self, names: Iterable[str]) -> None:
        """Make it the file, with these of the tensors that came; the others are in it without a name."""
        self._store.commit()
        kept = [*self._inputs, *(name for name in names if name in self._came)]
        self._store.finish({0: results_of(self._store, kept, 0, RUNNER, 1)})


def require_safetensors(path: Path) -> None:
    """Raise UsageError unless a recording can be written to a file of this name."""
    if path.suffix.lower() != ".safetensors":
        raise errors.UsageError(
            f"cannot write {path}: golden values of a module go into a file that ends in .safetensors"
        )
