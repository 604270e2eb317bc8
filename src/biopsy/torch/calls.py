"""A module and what it is called with: every run gets arguments and a module that no other run has touched."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        tensor = imported().Tensor
        args, kwargs = imported("torch.utils._pytree").tree_map(
            lambda value: value.detach().clone() if isinstance(value, tensor) else value,
            (self.args, dict(self.kwargs)),
        )
        return Arguments(args=args, kwargs=kwargs)


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

    It is called many times: what it warns of, its author has seen before.
    """
    fresh = given.copied()
    with imported().no_grad(), warnings.catch_warnings():
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
