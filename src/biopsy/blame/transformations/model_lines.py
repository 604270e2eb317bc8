"""A small model as lines of text, to be read beside another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy.model.load import parse, read_bytes
from biopsy.text import printable, shortened

if TYPE_CHECKING:
    import onnx

_MOST_VALUES = 8
_LONGEST = 160
_MOST_LINES = 200
_NARROWEST = 60


def model_lines(path: Path) -> tuple[str, ...]:
    """Inputs, weights, nodes and outputs of a model, a line each; what is too long is cut. Raises ModelError."""
    model = parse(read_bytes(path), path)
    lines = [shortened(printable(line), _LONGEST) for line in _lines(model.graph)]
    more = len(lines) - _MOST_LINES
    return tuple(lines if more <= 0 else [*lines[:_MOST_LINES], f"... {more} more lines"])


def side_by_side(left: Sequence[str], right: Sequence[str], width: int, head: tuple[str, str]) -> list[str]:
    """Two texts in columns, the left one as wide as it needs, at most half of ``width``; 0 for any width."""
    width = max(_NARROWEST, width) if width else 2 * _LONGEST + 3
    column = min((width - 3) // 2, max(map(len, [head[0], *left])))
    rows = zip_longest([head[0], *left], [head[1], *right], fillvalue="")
    return [f"{shortened(a, column):<{column}}   {shortened(b, width - column - 3)}".rstrip() for a, b in rows]


def _lines(graph: onnx.GraphProto) -> Iterator[str]:
    stored = {weight.name for weight in graph.initializer}
    for value in graph.input:
        if value.name not in stored:
            yield f"in  {_value(value)}"
    for weight in graph.initializer:
        yield f"    {weight.name} = {_weight(weight)}"
    for sparse in graph.sparse_initializer:
        yield f"    {sparse.values.name} = sparse {_weight(sparse.values)} at {_weight(sparse.indices)}"
    for node in graph.node:
        yield f"    {_node(node)}"
    for value in graph.output:
        yield f"out {_value(value)}"


def _node(node: onnx.NodeProto) -> str:
    attributes = ", ".join(f"{one.name}={_attribute(one)}" for one in node.attribute)
    operator = f"{node.domain}.{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type
    inside = f"<{attributes}>" if attributes else ""
    return f"{', '.join(node.output)} = {operator}{inside}({', '.join(node.input)})"


def _attribute(attribute: onnx.AttributeProto) -> str:
    from onnx import helper

    kinds = type(attribute)
    if attribute.type == kinds.TENSOR:
        return _weight(attribute.t)
    if attribute.type in {kinds.GRAPH, kinds.GRAPHS}:
        return "{...}"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:g}"
    return str(list(value)) if not isinstance(value, int | str) else str(value)


def _weight(weight: onnx.TensorProto) -> str:
    from onnx import helper, numpy_helper

    count = 1
    for size in weight.dims:
        count *= size
    kind = helper.tensor_dtype_to_string(weight.data_type).partition(".")[2].lower()
    shape = f"{kind}{list(weight.dims)}"
    if count > _MOST_VALUES or weight.data_location == weight.EXTERNAL:
        return shape
    try:
        values = numpy_helper.to_array(weight).reshape(-1).tolist()
    except (ValueError, TypeError):
        return shape
    return f"{shape} {{{', '.join(f'{one:g}' if isinstance(one, float) else str(one) for one in values)}}}"


def _value(value: onnx.ValueInfoProto) -> str:
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        return value.name
    kind = value.type.tensor_type
    name = helper.tensor_dtype_to_string(kind.elem_type).partition(".")[2].lower()
    sizes = [str(dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?")) for dim in kind.shape.dim]
    return f"{value.name}: {name}[{', '.join(sizes)}]"
