"""Sizes that are exported as open ones, from how a person names them to how ``torch.export`` does."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from biopsy import errors
from biopsy.torch.calls import Arguments
from biopsy.torch.installed import imported


def dynamic_shapes_of(module: Any, given: Arguments, shapes: Mapping[str, tuple[int | str | None, ...]]) -> Any:
    """What ``torch.export`` takes as ``dynamic_shapes``; None if no shape is named.

    ``shapes`` has, by parameter of ``forward``, a size for each dimension: a name or None for an open one, and for one
    that is not, its number. Raises UsageError for what is no tensor that the module is called with, and for a shape
    that is not the tensor's.
    """
    if not shapes:
        return None
    try:
        bound = inspect.signature(module.forward).bind(*given.args, **given.kwargs).arguments
    except TypeError as error:
        raise errors.UsageError(f"the arguments are not those of {type(module).__name__}.forward: {error}") from error
    for name, shape in shapes.items():
        _require_fit(name, shape, bound)
    tree_map = imported("torch.utils._pytree").tree_map
    return {
        name: _open(shapes[name]) if name in shapes else tree_map(lambda _: None, value)
        for name, value in bound.items()
    }


def _require_fit(name: str, shape: tuple[int | str | None, ...], bound: Mapping[str, Any]) -> None:
    tensor = bound.get(name)
    if not isinstance(tensor, imported().Tensor):
        tensors = [other for other, value in bound.items() if isinstance(value, imported().Tensor)]
        kind = "a parameter of forward that is given" if name not in bound else "a tensor"
        raise errors.UsageError(
            f"--dynamic-shapes {name}: that is not {kind}; the tensors are {', '.join(tensors) or 'none'}",
            next_steps=["biopsy.torch.diagnose(..., dynamic_shapes=...)    for tensors in lists and dictionaries"],
        )
    sizes = tuple(tensor.shape)
    if len(shape) != len(sizes) or any(
        isinstance(one, int) and one != size for one, size in zip(shape, sizes, strict=True)
    ):
        told = ",".join("-1" if one is None else str(one) for one in shape)
        raise errors.UsageError(
            f"--dynamic-shapes {name}:[{told}]: the module is called with a tensor of shape {list(sizes)}",
            next_steps=[f"--dynamic-shapes '{name}:[{','.join(['batch', *map(str, sizes[1:])])}]'"],
        )


def _open(shape: tuple[int | str | None, ...]) -> dict[int, Any]:
    dynamic = imported("torch.export").Dim.DYNAMIC
    return {place: dynamic if size is None else size for place, size in enumerate(shape) if not isinstance(size, int)}
