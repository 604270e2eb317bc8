"""Other shapes for the inputs of an indexed model, and what follows from them for what it declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from biopsy import errors
from biopsy.model import value_info
from biopsy.model.index import ModelIndex
from biopsy.model.infer import infer_value_infos
from biopsy.model.known_names import no_such_input
from biopsy.model.load import parse
from biopsy.model.slice import without_weights
from biopsy.model.tensor_type import Dim, Shape, TensorType
from biopsy.model.validity import inference_objection, judged_form


def override_input_shapes(
    index: ModelIndex, shapes: Mapping[str, Shape], option: str = "--model-input-shapes"
) -> frozenset[int]:
    """Give graph inputs other shapes, and what is computed from them the shapes that follow.

    A symbol that gets a size gets it wherever such a tensor has it. What shape inference says anew wins over what the
    model declared. A size that the model declared and inference cannot tell stays; only where an input lost a size that
    the model had declared is it left open. Nothing else that the model declares is touched.

    Returns the tensors whose sizes were all declared and are now open, if all inputs are fixed: a run can tell them,
    and only that. Raises DoesNotFit for a name that is no input, and for shapes that strict shape inference refuses
    where it accepts the model without them; it is blamed on ``option``.
    """
    if not shapes:
        return frozenset()
    before = _objection(index)
    sizes: dict[str, Dim] = {}
    contradicted = False
    for name, shape in shapes.items():
        declared = _input_type(index, name, option)
        index.infos[index.ids[name]] = value_info.value_info(name, TensorType(declared.elem, shape))
        contradicted |= _bind(declared.shape, shape, sizes)
    stale = _shaped_by(index, [index.ids[name] for name in shapes])
    inferred = infer_value_infos(without_weights(undeclared(index, stale)))
    opened = set()
    for tensor, kind in stale.items():
        found = inferred.get(index.names[tensor])
        anew = value_info.tensor_type(found) if found is not None else None
        shape_now = _merged(kind.shape or (), None if anew is None else anew.shape, sizes, doubtful=contradicted)
        if shape_now != kind.shape:
            now = TensorType(kind.elem, shape_now)
            index.infos[tensor] = value_info.value_info(index.names[tensor], now)
            if kind.is_static and not now.is_static:
                opened.add(tensor)
    refused = _objection(index) if before is None else None
    if refused is not None:
        raise errors.DoesNotFit(
            f"{option}: the model cannot have these shapes: {refused}",
            next_steps=[f"give {option} sizes that the operators can work with"],
        )
    told = (index.tensor_type(tensor) for tensor in index.fed_inputs())
    return frozenset(opened) if all(kind is not None and kind.is_static for kind in told) else frozenset()


def _objection(index: ModelIndex) -> str | None:
    """What strict shape inference says against a model; None if it accepts it."""
    return inference_objection(judged_form(parse(without_weights(index), index.path)))


def undeclared(index: ModelIndex, tensors: Iterable[int]) -> ModelIndex:
    """The same model, declaring element types but no shapes for some tensors."""
    infos = dict(index.infos)
    for tensor in tensors:
        kind = value_info.tensor_type(infos[tensor])
        if kind is not None:
            infos[tensor] = value_info.value_info(index.names[tensor], TensorType(kind.elem, None))
    return replace(index, infos=infos)


def _input_type(index: ModelIndex, name: str, option: str) -> TensorType:
    tensor = index.ids.get(name)
    if tensor is None or tensor not in index.inputs:
        known = [index.names[number] for number in index.fed_inputs()]
        raise no_such_input(option, name, known)
    declared = index.tensor_type(tensor)
    if declared is None:
        raise errors.DoesNotFit(f"{option}: the input {name!r} is no tensor: it has no shape to set")
    return declared


def _bind(declared: Shape | None, given: Shape, sizes: dict[str, Dim]) -> bool:
    """Note which size a symbol gets, None if it gets several; True if a declared size or rank is contradicted."""
    if declared is None:
        return False
    if len(declared) != len(given):
        return True
    for old, new in zip(declared, given, strict=True):
        if isinstance(old, str):
            sizes[old] = new if sizes.get(old, new) == new else None
    return any(isinstance(old, int) and old != new for old, new in zip(declared, given, strict=True))


def _shaped_by(index: ModelIndex, inputs: Iterable[int]) -> dict[int, TensorType]:
    """The tensors that depend on some inputs and have a declared shape, with their types."""
    waiting, seen = list(inputs), set[int]()
    while waiting:
        for node in index.consumers.get(waiting.pop(), ()):
            if node not in seen:
                seen.add(node)
                waiting += index.node_writes[node]
    found = {}
    for tensor in sorted(index.infos):
        if index.producer.get(tensor) in seen:
            kind = value_info.tensor_type(index.infos[tensor])
            if kind is not None and kind.shape is not None:
                found[tensor] = kind
    return found


def _merged(declared: Shape, anew: Shape | None, sizes: Mapping[str, Dim], *, doubtful: bool) -> Shape:
    """A declared shape and one that was inferred without it; ``doubtful``: sizes may have changed unseen."""
    known = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in declared)
    if anew is not None and len(anew) != len(known):
        return anew
    other = anew or (None,) * len(known)
    return tuple(_size(old, new, doubtful=doubtful) for old, new in zip(known, other, strict=True))


def _size(old: Dim, new: Dim, *, doubtful: bool) -> Dim:
    if isinstance(new, int):
        return new
    return new if old is None or (doubtful and isinstance(old, int)) else old
