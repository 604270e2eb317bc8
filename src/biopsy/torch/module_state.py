"""A module as it was: whatever running it changes is put back.

That is its buffers (statistics of BatchNorm, caches, counters), plain attributes and what they hold, gradients, whether
its parts are in training mode, and the generators of random numbers. Parameters are not copied, since they may be all
of the memory; that they stay as they are is made sure of.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.text import first_of
from biopsy.torch.installed import imported
from biopsy.torch.plain_state import PlainState

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
        known = (*self._parts, *(buffer for _, buffer, _ in self._buffers), *self._registers())
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
        changed = self._changed_parameters()
        if changed:
            raise errors.CannotCompare(
                f"the module changes its own parameters when it runs ({changed[0]}): no two runs can be compared"
            )

    def _changed_parameters(self) -> list[str]:
        """Those that were written into. What writes into ``.data`` counts no versions: so they are read, once."""
        found = [name for name, parameter, version, _ in self._parameters if parameter._version != version]
        if not found and not self._are_sure:
            self._are_sure = True
            found = [name for name, parameter, _, digest in self._parameters if _digest(parameter) != digest]
        return found

    def _registers(self) -> Iterator[Any]:
        for part, registries in zip(self._parts, self._registries, strict=True):
            yield from (vars(part)[name] for name in registries)


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
