"""``biopsy surgeon insert``: one node between tensors of a model."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection

from biopsy import errors
from biopsy.cli import model_files
from biopsy.cli.console import Console
from biopsy.model import insertion, sanitize
from biopsy.model.insertion import AttributeValue
from biopsy.text import count, printable

EPILOG = """\
The node reads --inputs and computes --outputs instead of what computed them before; nodes that nobody needs then go.
A tensor that is both is split: the node stands behind what computes it, and whatever read it reads the node's result.

examples:
  biopsy surgeon insert model.onnx -o m.onnx --op Relu --inputs t --outputs t
  biopsy surgeon insert model.onnx -o m.onnx --op Transpose \\
      --inputs x --outputs t --attrs perm=[1,0]
  biopsy surgeon insert model.onnx -o m.onnx --op MyPlugin \\
      --inputs a b --outputs y --attrs axis=1 scale=0.5 mode=fast"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``surgeon insert``."""
    parser.epilog = EPILOG
    model_files.add(parser, "surgeon insert")
    group = parser.add_argument_group("the node")
    group.add_argument("--op", required=True, metavar="OPERATOR", help="its operator, which need not be one of ONNX")
    group.add_argument("--name", default="", metavar="NAME", help="its name (default: none)")
    group.add_argument("--inputs", nargs="+", required=True, metavar="NAME", help="the tensors it reads, in its order")
    group.add_argument(
        "--outputs", nargs="+", required=True, metavar="NAME", help="the tensors it computes, in its order"
    )
    group.add_argument(
        "--attrs",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="attributes: 1 is a whole number, 1.0 a float, '1' in quotes a text, [0,1] a list of these",
    )
    inference = parser.add_argument_group("shape inference")
    model_files.add_shape_inference(
        inference, no_effect="shapes are inferred anyway", without="write no inferred types and shapes"
    )
    model_files.add_no_onnxruntime(inference)


derived_files = model_files.derived


def execute(args: argparse.Namespace, console: Console) -> int:
    """Insert, write, and tell what else changed."""
    attributes: dict[str, AttributeValue] = {}
    for word in args.attrs:
        name, value = parse_attribute(word)
        if name in attributes:
            raise _wrong(word, f"{name!r} is given twice")
        attributes[name] = value
    opened = model_files.opened(args)
    model = opened.parsed()
    before = sanitize.count_operators(model)
    insertion.insert(
        model,
        insertion.NewNode(
            operator=args.op, name=args.name, inputs=args.inputs, outputs=args.outputs, attributes=attributes
        ),
        infers=not args.no_shape_inference,
    )
    if not args.no_shape_inference:
        sanitize.refresh_shapes(model)
    _warn_of_operator(args.op, len(args.inputs), len(args.outputs), console)
    opset = next((used.version for used in model.opset_import if used.domain in {"", "ai.onnx"}), None)
    if opset is None:
        console.warn("the model imports no opset of ai.onnx, to which the node belongs: engines will refuse it")
    _warn_of_attributes(args.op, opset or 1, attributes, console)
    model_files.save(args, model, opened, console)
    changes = sanitize.changes(before, sanitize.count_operators(model))
    console.say(f"{printable(args.op)} inserted, written to {args.output}")
    console.note(f"  {', '.join(changes) or 'as many nodes of each operator as before'}")
    return 0


def _warn_of_operator(op: str, inputs: int, outputs: int, console: Console) -> None:
    """Say what ONNX knows of the operator where that does not fit."""
    from onnx import defs

    if not defs.has(op):
        console.warn(f"ONNX has no operator {op!r}: only an engine with a plugin for it can run the model")
        return
    schema = defs.get_schema(op)
    for what, number, least, most in (
        ("input", inputs, schema.min_input, schema.max_input),
        ("output", outputs, schema.min_output, schema.max_output),
    ):
        if not least <= number <= most:
            known = count(most, what) if least == most else f"{least} to {count(most, what)}"
            console.warn(f"{op} has {known}, and was given {number}")


def _warn_of_attributes(op: str, opset: int, given: Collection[str], console: Console) -> None:
    """Say which attributes the operator does not have in this opset, and which it lacks."""
    from onnx import defs

    try:
        declared = defs.get_schema(op, opset, "").attributes
    except defs.SchemaError:
        return
    for name in given:
        if name not in declared:
            known = f"it has {', '.join(sorted(declared))}" if declared else "it has none"
            console.warn(f"{op} of opset {opset} has no attribute {name!r} ({known})")
    for name, attribute in declared.items():
        if attribute.required and name not in given:
            console.warn(f"{op} needs the attribute {name!r} (--attrs {name}=VALUE)")


def parse_attribute(word: str) -> tuple[str, AttributeValue]:
    """Name and value from ``NAME=VALUE``. Raises UsageError if it is neither a number, a text nor a list of these."""
    name, sign, text = word.partition("=")
    if not sign or not name or not text:
        raise _wrong(word, "a name and a value are needed")
    if not (text.startswith("[") and text.endswith("]")):
        return name, _scalar(text)
    items = [_scalar(item.strip()) for item in text[1:-1].split(",")] if text[1:-1].strip() else []
    if not items:
        raise _wrong(word, "a list without items has no type")
    if any(isinstance(item, str) for item in items):
        if not all(isinstance(item, str) for item in items):
            raise _wrong(word, "a list holds texts or numbers, not both")
        return name, [str(item) for item in items]
    if all(isinstance(item, int) for item in items):
        return name, [int(item) for item in items]
    return name, [float(item) for item in items]


def _scalar(text: str) -> int | float | str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        whole = int(text)
    except ValueError:
        try:
            value = float(text)
        except ValueError:
            return text
        return value if math.isfinite(value) or text.lstrip("+-").lower() in {"inf", "nan"} else text
    if not -(1 << 63) <= whole < 1 << 63:
        raise _wrong(text, "a whole number of ONNX has 64 bits")
    return whole


def _wrong(word: str, why: str) -> errors.UsageError:
    return errors.UsageError(f"--attrs {word}: {why}", next_steps=["--attrs axis=1 scale=0.5 mode=fast perm=[1,0]"])
