"""Tensors that are views of a mapped file, which nobody may write to meanwhile: who reads behind its end dies."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from biopsy.tensors.container import Container
from biopsy.tensors.results import Array
from biopsy.tensors.steady_file import changed


class Watch:
    """Tells whether a file is as it was when this was made. One that is replaced by another stays as it was."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is of the file, and may be closed afterwards."""
        self._path = path
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._state_now()

    def __call__(self) -> None:
        """Raise DataError if the file has been written to or cut short."""
        now = self._state_now()
        if now != self._state:
            raise changed(self._path, self._state[0], now[0])

    def _state_now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


class _Watched(Mapping[str, Array]):
    """Arrays by name; each is handed out only if the file is as it was."""

    def __init__(self, arrays: Mapping[str, Array], watch: Callable[[], None]) -> None:
        self._arrays = arrays
        self._watch = watch

    def __getitem__(self, name: str) -> Array:
        self._watch()
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return repr(self._arrays)


def watched(container: Container, watch: Callable[[], None]) -> Container:
    """The same, its arrays handed out only as long as ``watch`` raises nothing."""
    return replace(
        container,
        runners=tuple(
            replace(
                runner,
                iterations=tuple(
                    replace(iteration, outputs=_Watched(iteration.outputs, watch)) for iteration in runner.iterations
                ),
            )
            for runner in container.runners
        ),
    )
