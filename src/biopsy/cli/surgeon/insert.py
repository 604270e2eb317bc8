"""``biopsy surgeon insert``: inserts a node between tensors of a model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from biopsy import errors
from biopsy.cli.arguments.declared import Options, option
from biopsy.cli.console import Console
from biopsy.cli.model_files import ChangeOptions, InferenceOptions
from biopsy.model import sanitize
from biopsy.model.load import parse
from biopsy.model.sanitize import AttributeValue, NewNode
from biopsy.slow_imports import onnx
from biopsy.text import printable

EPILOG = """\
The node reads --inputs and computes --outputs, in place of the nodes that computed them; nodes without use are removed.
If a tensor is both, the node reads the old tensor, and all nodes that read it before read the result of the node.

examples:
  biopsy surgeon insert model.onnx -o m.onnx --op Relu --inputs t --outputs t
  biopsy surgeon insert model.onnx -o m.onnx --op Transpose \\
      --inputs x --outputs t --attrs perm=[1,0]
  biopsy surgeon insert model.onnx -o m.onnx --op MyPlugin \\
      --inputs a b --outputs y --attrs axis=1 scale=0.5 mode=fast"""


class NodeFields(Options, title="the node"):
    """The node to insert."""

    op: str = option(
        "--op",
        required=True,
        metavar="OPERATOR",
        meaning="its operator, which need not be one of ONNX",
    )
    name: str = option("--name", default="", metavar="NAME", meaning="its name (default: none)")
    inputs: Sequence[str] = option(
        "--inputs",
        nargs="+",
        required=True,
        metavar="NAME",
        meaning="the tensors it reads, in its order",
    )
    outputs: Sequence[str] = option(
        "--outputs",
        nargs="+",
        required=True,
        metavar="NAME",
        meaning="the tensors it computes, in its order",
    )
    attrs: Sequence[str] = option(
        "--attrs",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        meaning="attributes: 1 is a whole number, 1.0 a float, '1' in quotes a text, [0,1] a list of these",
    )

    def node(self) -> NewNode:
        """The node. Raises UsageError for invalid attributes."""
        attributes: dict[str, AttributeValue] = {}
        for word in self.attrs:
            name, value = parse_attribute(word)
            if name in attributes:
                raise _wrong(word, f"{name!r} is given twice")
            attributes[name] = value
        return NewNode(
            operator=self.op, name=self.name, inputs=self.inputs, outputs=self.outputs, attributes=attributes
        )


class NodeOptions(ChangeOptions, InferenceOptions, NodeFields):
    """All options of ``surgeon insert``."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon insert``."""
    NodeOptions.add(parser, without=("force_fallback_shape_inference",), shape_inference="shapes are inferred anyway")


derived_files = NodeOptions.reading(NodeOptions.derived)


@NodeOptions.reading
def execute(options: NodeOptions, console: Console) -> int:
    """Insert the node, write the model, and show what else changed."""
    node = options.node()
    data = options.read()
    model = parse(data, options.model)
    before = sanitize.count_operators(model)
    sanitize.insert(model, node, infers=not options.no_shape_inference)
    if not options.no_shape_inference:
        sanitize.refresh_shapes(model)
    if not onnx.defs.has(node.operator):
        console.warn(f"ONNX has no operator {node.operator!r}: only an engine with a plugin for it can run the model")
    if not any(used.domain in {"", "ai.onnx"} for used in model.opset_import):
        console.warn("the model imports no opset of ai.onnx, to which the node belongs: engines will refuse it")
    options.save(model, data, console)
    changes = sanitize.changes(before, sanitize.count_operators(model))
    console.say(f"{printable(options.op)} inserted, written to {options.output}")
    console.note(f"  {', '.join(changes) or 'as many nodes of each operator as before'}")
    return 0


def parse_attribute(word: str) -> tuple[str, AttributeValue]:
    """Name and value from ``NAME=VALUE``; the value is a number, a text or a list of these. Raises UsageError."""
    name, sign, text = word.partition("=")
    if not sign or not name or not text:
        raise _wrong(word, "a name and a value are needed")
    if not (text.startswith("[") and text.endswith("]")):
        return name, _scalar(text)
    items = [_scalar(item.strip()) for item in text[1:-1].split(",")] if text[1:-1].strip() else []
    if not items:
        raise _wrong(word, "a list without items has no type")
    texts = [item for item in items if isinstance(item, str)]
    numbers = [item for item in items if not isinstance(item, str)]
    if texts and numbers:
        raise _wrong(word, "a list holds texts or numbers, not both")
    integers = [number for number in numbers if isinstance(number, int)]
    return name, texts or (integers if len(integers) == len(numbers) else [float(number) for number in numbers])


def _scalar(text: str) -> int | float | str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        integer = int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
        return value if math.isfinite(value) or text.lstrip("+-").lower() in {"inf", "nan"} else text
    if not -(1 << 63) <= integer < 1 << 63:
        raise _wrong(text, "a whole number of ONNX has 64 bits")
    return integer


def _wrong(word: str, why: str) -> errors.UsageError:
    return errors.UsageError(f"--attrs {word}: {why}", next_steps=["--attrs axis=1 scale=0.5 mode=fast perm=[1,0]"])
