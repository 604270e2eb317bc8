"""What a module keeps beside its parameters and buffers, in plain attributes: lists, dictionaries, tensors, objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from biopsy.torch.installed import imported

_MOST = 100_000
"""Objects that are looked at: what a module merely refers to, such as a data set, may be without end."""

_NOT_KEPT = (str, bytes, int, float, complex, bool, type, FunctionType, ModuleType)


class PlainState:
    """The content of everything that can be reached from some objects. ``restore`` puts it back, in the same objects.

    ``others`` are objects that somebody else keeps. Parameters are not copied, nor what stands behind a function.
    """

    def __init__(self, objects: Iterable[Any], others: Iterable[Any]) -> None:
        self._restorers: list[Callable[[], None]] = []
        self._seen = {id(other) for other in others}
        self._kept: list[Any] = []
        waiting = deque(objects)
        while waiting and len(self._kept) < _MOST:
            found = waiting.popleft()
            if id(found) not in self._seen and not isinstance(found, _NOT_KEPT):
                self._seen.add(id(found))
                self._kept.append(found)  # as long as it lives, nothing else has its id
                waiting.extend(self._inside(found))

    def restore(self) -> None:
        """Put everything back."""
        for restorer in self._restorers:
            restorer()

    def _inside(self, found: Any) -> Iterator[Any]:
        torch = imported()
        if isinstance(found, torch.Tensor):
            # Tracing leaves stand-ins without values behind, of classes of their own.
            if type(found) is torch.Tensor and found.layout == torch.strided and not found.is_meta:
                self._restorers.append(_of_tensor(found, found.detach().clone()))
        elif isinstance(found, list | deque | set):
            self._restorers.append(_of_collection(found, list(found)))
            yield from list(found)
        elif isinstance(found, dict):
            self._restorers.append(_of_dictionary(found, dict(found)))
            yield from list(found.values())
        elif isinstance(found, tuple):
            yield from found
        elif isinstance(getattr(found, "__dict__", None), dict):
            yield vars(found)


def _of_tensor(tensor: Any, before: Any) -> Callable[[], None]:
    def restore() -> None:
        if tensor.shape != before.shape:
            tensor.resize_(before.shape)
        if not imported().equal(tensor, before):
            with imported().no_grad():
                tensor.copy_(before)

    return restore


def _of_collection(found: Any, before: list[Any]) -> Callable[[], None]:
    def restore() -> None:
        if len(found) != len(before) or any(one is not other for one, other in zip(found, before, strict=False)):
            found.clear()
            found.update(before) if isinstance(found, set) else found.extend(before)

    return restore


def _of_dictionary(found: dict[Any, Any], before: dict[Any, Any]) -> Callable[[], None]:
    def restore() -> None:
        if list(found) != list(before) or any(found[key] is not before[key] for key in before):
            found.clear()
            found.update(before)

    return restore
