"""What is different between a model and a changed one, as a list that a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from biopsy.model import value_info, walk
from biopsy.model.tensor_type import DTYPE_OF_ELEM
from biopsy.reduction.passes.editing import described
from biopsy.text import printable

if TYPE_CHECKING:
    import onnx

_MOST_TEXT = 100
_Path: TypeAlias = str
"""Where a graph stands: "" for the main one, else the nodes around it."""

_Key: TypeAlias = "tuple[_Path, str]"
"""Where a node stands, and the first tensor that it writes."""

_Nodes: TypeAlias = "Mapping[_Key, onnx.NodeProto]"


@dataclass(frozen=True, kw_only=True)
class ChangedNode:
    """A node as it is now; ``changes`` are words such as ``transB 1 -> 0`` and ``writes y/Gemm, not y``."""

    node: str
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ModelDifference:
    """What is different, all of it made printable.

    ``casts`` are those among the nodes that were added; ``added`` has all others but Constants, which ``constants``
    counts. ``outputs`` are those of the model that were added, ``lost_outputs`` those that it has no more.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    casts: tuple[str, ...]
    changed: tuple[ChangedNode, ...]
    constants: int
    outputs: tuple[str, ...]
    lost_outputs: tuple[str, ...]
    functions: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """One line for each: ``- `` before what is gone, ``+ `` before what is new, ``~ `` before what changed."""
        found = [f"- {each}" for each in self.removed]
        found += [f"+ {each}" for each in (*self.added, *self.casts)]
        found += [f"~ {each.node}: {', '.join(each.changes)}" for each in self.changed]
        if self.constants:
            found.append(f"+ {self.constants} constant{'s' if self.constants > 1 else ''}")
        found += [f"+ output {each}" for each in self.outputs]
        found += [f"- output {each}" for each in self.lost_outputs]
        found += [f"~ {each}" for each in self.functions]
        return tuple(found)


def difference(before: onnx.ModelProto, after: onnx.ModelProto) -> ModelDifference:
    """What is different in the nodes and outputs of two models.

    A node is the same one if it has the same operator and writes the same tensors, else if it has the same operator and
    the same name or inputs. Where it stands does not matter.
    """
    old, new = dict(_nodes(before.graph, "")), dict(_nodes(after.graph, ""))
    pairs = _pairs(old, new)
    found = set(pairs.values())
    fresh = [(key[0], node) for key, node in new.items() if key not in found]
    changed = [
        ChangedNode(node=_told(key[0], new[pairs[key]]), changes=tuple(_changes(old[key], new[pairs[key]])))
        for key in pairs
        if old[key] != new[pairs[key]]
    ]
    names = [[info.name for info in model.graph.output] for model in (before, after)]
    return ModelDifference(
        removed=tuple(_told(key[0], node) for key, node in old.items() if key not in pairs),
        added=tuple(_told(path, node) for path, node in fresh if node.op_type not in {"Cast", "Constant"}),
        casts=tuple(_told(path, node) for path, node in fresh if node.op_type == "Cast"),
        changed=tuple(each for each in changed if each.changes),
        constants=sum(node.op_type == "Constant" for _, node in fresh),
        outputs=tuple(_output(info) for info in after.graph.output if info.name not in names[0]),
        lost_outputs=tuple(printable(name) for name in names[0] if name not in names[1]),
        functions=tuple(_functions(before, after)),
    )


def _pairs(old: _Nodes, new: _Nodes) -> dict[_Key, _Key]:
    """Nodes of both models that are the same one: the old key -> the new one."""
    pairs = {key: key for key in new if key in old and _is_same(old[key], new[key])}
    for traits in (_name, _inputs):
        taken = set(pairs.values())
        free: dict[tuple[object, ...], _Key] = {}
        for key, node in new.items():
            if key not in taken and traits(node):
                free.setdefault((key[0], walk.operator(node), traits(node)), key)
        for key, node in old.items():
            if key not in pairs and traits(node):
                found = free.pop((key[0], walk.operator(node), traits(node)), None)
                pairs |= {} if found is None else {key: found}
    return pairs


def _name(node: onnx.NodeProto) -> str:
    return str(node.name)


def _inputs(node: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(node.input)


def _nodes(graph: onnx.GraphProto, path: _Path) -> Iterator[tuple[_Key, onnx.NodeProto]]:
    for place, node in enumerate(graph.node):
        written = next((name for name in node.output if name), f"#{place}")
        yield (path, written), node
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
            for number, body in enumerate(bodies):
                inner = f"{path}{described(node)}, {attribute.name}{f'[{number}]' if number else ''}: "
                yield from _nodes(body, inner)


def _is_same(old: onnx.NodeProto, new: onnx.NodeProto) -> bool:
    """Whether a node that writes the same tensor is still the same node."""
    return walk.operator(old) == walk.operator(new) and list(old.output) == list(new.output)


def _changes(old: onnx.NodeProto, new: onnx.NodeProto) -> Iterator[str]:
    for at in range(max(len(old.input), len(new.input))):
        one, other = ((node.input[at] if at < len(node.input) else "") for node in (old, new))
        if one != other:
            yield f"input {at} {_short(one) or 'none'} -> {_short(other) or 'none'}"
    for one, other in zip(old.output, new.output, strict=False):
        if one != other:
            yield f"writes {_short(other) or 'nothing'}, not {_short(one) or 'nothing'}"
    before, after = _attributes(old), _attributes(new)
    for name in (*before, *(name for name in after if name not in before)):
        if before.get(name) != after.get(name):
            yield f"{_short(name)} {before.get(name, 'not given')} -> {after.get(name, 'not given')}"


def _attributes(node: onnx.NodeProto) -> Mapping[str, str]:
    return {each.name: _value(each) for each in node.attribute if not each.HasField("g") and not each.graphs}


def _value(attribute: onnx.AttributeProto) -> str:
    from onnx import helper

    if attribute.HasField("t"):
        return f"a tensor {list(attribute.t.dims)}"
    if attribute.name == "to" and attribute.i in DTYPE_OF_ELEM:
        return DTYPE_OF_ELEM[attribute.i]
    found = helper.get_attribute_value(attribute)
    return _short(found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found))


def _told(path: _Path, node: onnx.NodeProto) -> str:
    """``Gemm 'fc' (x, w) -> y`` with its attributes."""
    inputs = ", ".join(_short(name) for name in node.input)
    outputs = ", ".join(_short(name) for name in node.output if name)
    attributes = ", ".join(f"{_short(name)}={value}" for name, value in _attributes(node).items())
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    named = f"{domain}{node.op_type}" + (f" {node.name!r}" if node.name and node.name not in node.output else "")
    told = f"{_short(path, 4 * _MOST_TEXT)}{_short(named)}({inputs}) -> {outputs}"
    return f"{told}  [{attributes}]" if attributes else told


def _output(info: onnx.ValueInfoProto) -> str:
    kind = value_info.tensor_type(info.SerializeToString())
    return f"{_short(info.name)}{f' {printable(str(kind))}' if kind is not None else ''}"


def _functions(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    old, new = (Counter(walk.function_key(each)[1] for each in model.functions) for model in (before, after))
    for name in old - new:
        yield f"function {_short(name)}: its nodes in place of the calls"


def _short(text: str, most: int = _MOST_TEXT) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
