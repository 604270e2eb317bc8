"""A module and what it is called with: every run gets arguments and a module that no other run has touched."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.text import first_line, shortened
from biopsy.torch.installed import imported
from biopsy.torch.module_state import ModuleState
from biopsy.torch.outputs import Leaf, leaves_of

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
        return _own(leaves_of(function(*fresh.args, **fresh.kwargs)))


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


def _own(leaves: list[Leaf]) -> list[Leaf]:
    """The same values, tensors copied: an output may be a buffer, or an argument, that changes later."""
    tensor = imported().Tensor
    return [
        Leaf(leaf.path, leaf.value.detach().clone() if isinstance(leaf.value, tensor) else leaf.value)
        for leaf in leaves
    ]
