"""The same arguments in other sizes, where the captured program leaves sizes open: values are repeated, or cut off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from biopsy.torch.calls import Arguments
from biopsy.torch.installed import imported
from biopsy.torch.outputs import leaves_of


def with_other_sizes(program: Any, given: Arguments) -> Iterator[Arguments]:
    """Arguments in which every open size is another one, a few ways, within what the program says that it takes.

    Nothing where no size is open, or where they cannot be told. Elements along a dimension are those given, in their
    order, from the beginning again where there are more: so they stay in their domain, such as that of identifiers.
    """
    pytree = imported("torch.utils._pytree")
    kwargs = _in_order(program, given.kwargs)
    values, structure = pytree.tree_flatten((given.args, kwargs))
    shapes = _open_shapes(program)
    if len(shapes) != len(values):
        return
    sizes = _sizes(shapes, values)
    for other in _others(program, sizes):
        changed = [_resized(value, shape, other) for value, shape in zip(values, shapes, strict=True)]
        if any(value is None and old is not None for value, old in zip(changed, values, strict=True)):
            continue
        args, kwargs = pytree.tree_unflatten(changed, structure)
        yield Arguments(args=args, kwargs=kwargs)


def sizes_of(given: Arguments) -> str:
    """The shapes of all tensors, in words."""
    values = [leaf.value for leaf in leaves_of((given.args, dict(given.kwargs)))]
    return ", ".join(str(list(value.shape)) for value in values if isinstance(value, imported().Tensor))


def _in_order(program: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order in which they were captured."""
    names = program.call_spec.in_spec.children()[1].context or []
    return {name: kwargs[name] for name in names} if set(names) == set(kwargs) else dict(kwargs)


def _open_shapes(program: Any) -> list[Sequence[Any]]:
    """The shape of each value that the program takes: numbers, and expressions of SymPy where a size is open."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    shapes: list[Sequence[Any]] = []
    for spec in specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        shape = getattr(node.meta.get("val"), "shape", ()) if node is not None else ()
        shapes.append([size if isinstance(size, int) else size.node.expr for size in shape])
    return shapes


def _sizes(shapes: Sequence[Sequence[Any]], values: Sequence[Any]) -> dict[Any, int]:
    """What the symbols are now: those that stand alone for a dimension."""
    found: dict[Any, int] = {}
    for shape, value in zip(shapes, values, strict=True):
        for place, size in enumerate(shape):
            if not isinstance(size, int) and size.is_Symbol:
                found[size] = int(value.shape[place])
    return found


def _others(program: Any, sizes: Mapping[Any, int]) -> Iterator[dict[Any, int]]:
    """Other values of all symbols, each another one, so that sizes that were equal by chance are not."""
    if not sizes:
        return
    numbered = list(enumerate(sizes.items()))
    for other in (
        {symbol: size + 1 + place for place, (symbol, size) in numbered},
        {symbol: size * (2 + place) for place, (symbol, size) in numbered},
        {symbol: size - 1 for _, (symbol, size) in numbered},
    ):
        if all(_is_allowed(program, symbol, size) for symbol, size in other.items()):
            yield other


def _is_allowed(program: Any, symbol: Any, size: int) -> bool:
    bounds = program.range_constraints.get(symbol)
    return size > 0 and (bounds is None or bool(bounds.lower <= size <= bounds.upper))


def _resized(value: Any, shape: Sequence[Any], sizes: Mapping[Any, int]) -> Any:
    """A value in other sizes; None if a size cannot be told."""
    torch = imported()
    if not isinstance(value, torch.Tensor):
        return value
    for place, size in enumerate(shape):
        if isinstance(size, int):
            continue
        wanted = size.subs(sizes)
        before = value.shape[place]
        if not getattr(wanted, "is_Integer", False) or wanted < 1 or not before:
            return None
        value = value.index_select(place, torch.arange(int(wanted)) % before)
    return value.detach()
