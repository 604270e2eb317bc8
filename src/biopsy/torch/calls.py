"""A module and what it is called with: every run gets arguments and a module that no other run has touched, and
whatever it changes is put back.
"""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.text import first_line, first_of, shortened
from biopsy.torch.arrays import Leaf, imported, leaves_of

_LONGEST = 500


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a module is called with; ``kwargs`` by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def copied(self) -> Arguments:
        """The same values in tensors of their own, for a module may change what it is given."""
        args, kwargs = imported("torch.utils._pytree").tree_map(_copied, (self.args, dict(self.kwargs)))
        return Arguments(args=args, kwargs=kwargs)


def _copied(value: Any) -> Any:
    """A tensor, or an object that holds some, such as a dataclass; what cannot be copied is given as it is."""
    if isinstance(value, imported().Tensor):
        return value.detach().clone()
    try:
        with imported().no_grad():
            return copy.deepcopy(value)
    except Exception:
        return value


class ModuleExitsError(Exception):
    """The code of a module ends Python. As an exception like others it cannot end biopsy, with a status of its own."""


@contextmanager
def persons_code() -> Iterator[None]:
    """Run a person's code; the current folder is the same afterwards.

    Raises ModuleExitsError where that code would end Python.
    """
    folder = Path.cwd()
    try:
        yield
    except SystemExit as error:
        raise ModuleExitsError(f"this code ends Python: sys.exit({error.code!r})") from error
    finally:
        os.chdir(folder)


def arguments_of(args: Any, kwargs: Mapping[str, Any] | None = None) -> Arguments:
    """The arguments of ``module(*args, **kwargs)``; what is neither a tuple nor a list is the only one."""
    return Arguments(args=tuple(args) if isinstance(args, tuple | list) else (args,), kwargs=dict(kwargs or {}))


def require_evaluation(module: Any, called: str = "the module", hint: str = "module.eval()") -> None:
    """Raise UsageError unless this is a module in evaluation mode; ``hint`` is what to type then."""
    if not isinstance(module, imported().nn.Module):
        raise errors.UsageError(f"module={type(module).__name__}: it is a torch.nn.Module")
    if module.training:
        raise errors.UsageError(
            f"{called} is in training mode, in which dropout and BatchNorm give other values than an ONNX model",
            next_steps=[hint],
        )


def called(function: Callable[..., Any], given: Arguments) -> list[Leaf]:
    """What a module or program gives, without gradients, in tensors of its own. Raises what it raises.

    It is called many times: what it warns of, its author has seen before. Raises ModuleExitsError if it ends Python.
    """
    fresh = given.copied()
    with imported().no_grad(), persons_code(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaves = leaves_of(function(*fresh.args, **fresh.kwargs))
        tensor = imported().Tensor
        return [
            Leaf(leaf.path, leaf.value.detach().clone() if isinstance(leaf.value, tensor) else leaf.value)
            for leaf in leaves
        ]


def eager(module: Any, state: ModuleState, given: Arguments) -> list[Leaf]:
    """What the module itself gives; it is as before afterwards. Raises CannotCompare if it raises."""
    try:
        return called(module, given)
    except Exception as error:
        raise errors.CannotCompare(
            f"the module itself raises {said(error)}", next_steps=["run module(*args, **kwargs) by hand"]
        ) from error
    finally:
        state.restore()


def said(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of its message."""
    message = shortened(first_line(str(error)), _LONGEST)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# A module as it was: whatever running it changes is put back.
#
# That is its buffers (statistics of BatchNorm, caches, counters), plain attributes and what they hold, gradients,
# whether its parts are in training mode, and the generators of random numbers. Parameters are not copied, since they
# may be all of the memory; that they stay as they are is made sure of.

_PIECE = 1 << 20
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class ModuleState:
    """What a module was when this was made. ``restore`` puts it back."""

    def __init__(self, module: Any) -> None:
        self._parts = list(module.modules())
        self._attributes = [dict(vars(part)) for part in self._parts]
        self._registries = [_registries(part) for part in self._parts]
        self._buffers = [(name, buffer, buffer.detach().clone()) for name, buffer in module.named_buffers()]
        self._parameters = [
            (name, parameter, parameter._version, _digest(parameter)) for name, parameter in module.named_parameters()
        ]
        self._are_sure = False
        registers = (
            vars(part)[name]
            for part, registries in zip(self._parts, self._registries, strict=True)
            for name in registries
        )
        known = (*self._parts, *(buffer for _, buffer, _ in self._buffers), *registers)
        self._plain = PlainState((value for one in self._attributes for value in one.values()), known)
        self.changed: set[str] = set()
        """Names of the buffers that runs have changed, as far as ``restore`` has seen."""

    def restore(self) -> None:
        """Put everything back. Raises CannotCompare if the module has changed its own parameters: they are lost."""
        for part, attributes, registries in zip(self._parts, self._attributes, self._registries, strict=True):
            there = vars(part)
            for name in [name for name in there if name not in attributes]:
                del there[name]
            there.update(attributes)
            for name, entries in registries.items():
                there[name].clear()
                there[name].update(entries)
        self._plain.restore()
        with imported().no_grad():
            for name, buffer, before in self._buffers:
                if not _same(buffer, before):
                    self.changed.add(name)
                    buffer.resize_(before.shape).copy_(before)
        changed = [name for name, parameter, version, _ in self._parameters if parameter._version != version]
        if not changed and not self._are_sure:
            # What writes into ``.data`` counts no versions: so parameters are read, once.
            self._are_sure = True
            changed = [name for name, parameter, _, digest in self._parameters if _digest(parameter) != digest]
        if changed:
            raise errors.CannotCompare(
                f"the module changes its own parameters when it runs ({changed[0]}): no two runs can be compared"
            )


def _registries(part: Any) -> dict[str, dict[str, Any]]:
    """What a part has registered; nothing of one that was compiled by TorchScript, which keeps that elsewhere."""
    found = {name: vars(part).get(name) for name in _REGISTRIES}
    return {name: dict(entries) for name, entries in found.items() if isinstance(entries, dict)}


def _digest(parameter: Any) -> int | None:
    """The sum of its elements as integers, which does not depend on their order; None for what has no such form."""
    integers = _INTEGERS.get(parameter.element_size())
    try:
        flat = parameter.detach().view(getattr(imported(), integers or "")).reshape(-1)
        return sum(int(part.sum()) for part in flat.split(_PIECE))  # a sum is made of 64-bit copies
    except (AttributeError, RuntimeError):
        return None


def _same(buffer: Any, before: Any) -> bool:
    torch = imported()
    if buffer.shape != before.shape:
        return False
    if bool(torch.equal(buffer, before)) or not buffer.is_floating_point():
        return bool(torch.equal(buffer, before))
    return bool(torch.allclose(buffer, before, rtol=0, atol=0, equal_nan=True))


def in_training(module: Any) -> str:
    """Which parts of a module are in training mode, as a sentence with a space before it; nothing if none is."""
    names = [name for name, part in module.named_modules() if name and part.training]
    if not names:
        return ""
    return f" In training mode: {first_of(names, 3)}; module.eval() puts every part into evaluation mode."


@contextmanager
def kept(module: Any) -> Iterator[ModuleState]:
    """Keep a module, its gradients and the generators of random numbers as they are, whatever happens inside."""
    torch = imported()
    state = ModuleState(module)
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    ours, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield state
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        state.restore()


# What a module keeps beside its parameters and buffers, in plain attributes: lists, dictionaries, tensors, objects.

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
