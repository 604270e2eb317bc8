"""TensorRT's network, as its parser has made it of a model, in the layout of Polygraphy's ``inspect model``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from biopsy.engines.trt.element_types import numpy_name
from biopsy.text import printable

_TAB = "    "


def network_text(network: Any, *, with_layers: bool) -> Iterator[str]:
    """The lines of the description; ``with_layers`` adds each layer with what it reads and writes."""
    inputs = [network.get_input(number) for number in range(network.num_inputs)]
    outputs = [network.get_output(number) for number in range(network.num_outputs)]
    yield "[I] ==== TensorRT Network ===="
    yield f"{_TAB}Name: {printable(network.name)} | Explicit Batch Network"
    for title, tensors in (("Input(s)", inputs), ("Output(s)", outputs)):
        yield ""
        yield f"{_TAB}---- {len(tensors)} Network {title} ----"
        yield from _braced(tensors, _TAB)
    yield ""
    yield f"{_TAB}---- {network.num_layers} Layer(s) ----"
    for number in range(network.num_layers if with_layers else 0):
        layer = network.get_layer(number)
        yield f"{_TAB}Layer {number:<4} | {printable(layer.name)} [Op: {layer.type}]"
        yield from _braced([layer.get_input(place) for place in range(layer.num_inputs)], 2 * _TAB)
        written = list(_braced([layer.get_output(place) for place in range(layer.num_outputs)], 3 * _TAB))
        yield f"{2 * _TAB} -> {written[0].lstrip()}"
        yield from written[1:]
        yield ""


def _braced(tensors: Sequence[Any], indent: str) -> list[str]:
    told = [_told(tensor) for tensor in tensors if tensor is not None]
    return [indent + line for line in ("{" + ",\n ".join(told) + "}").split("\n")]


def _told(tensor: Any) -> str:
    try:
        shape = str(tuple(tensor.shape))
    except ValueError:  # TensorRT has no number of dimensions for it
        shape = "None"
    return f"{printable(tensor.name)} [dtype={numpy_name(tensor.dtype) or tensor.dtype.name}, shape={shape}]"
