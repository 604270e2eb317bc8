"""Models that real tools break, and questions about them."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from numpy.typing import NDArray
from onnx import parser

from biopsy import events
from biopsy.api.running import checked_feeds, inputs_of
from biopsy.model.index import index_file
from biopsy.questions.transformations.find import find_transformation
from biopsy.questions.transformations.question import (
    SameEngine,
    TransformationFindings,
    TransformationQuestion,
    parse_tool,
)

HEAD = '<ir_version: 9, opset_import: ["" : 17]>'


def graph(text: str) -> onnx.ModelProto:
    """A model from its text, in opset 17."""
    return parser.parse_model(f"{HEAD} {text}")


LAYER_NORM = graph(
    """g (float[8,8] x) => (float[8,8] y)
    <float[1] two = {2.0}, float[1] small = {0.00001}, float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}>
    {
        [first] z = Relu (x)
        [square] squared = Pow (z, two)
        [mean] mean = ReduceMean <axes = [-1], keepdims = 0> (squared)
        [more] more = Add (mean, small)
        [root] root = Sqrt (more)
        [ratio] ratio = Div (z, root)
        [last] y = Mul (scale, ratio)
    }"""
)
"""What ``onnxruntime:level=extended`` takes for a layer normalization."""

CLIP_RELU = graph(
    """g (float[8] x) => (float[8] y)
    <float low = {-3}, float high = {-1}>
    { n = Neg (x)  t = Clip (n, low, high)  y = Relu (t) }"""
)
"""What the rule FuseSuccessiveReluClip of onnxscript 0.7.2 makes one Clip of, whose limits contradict each other."""

CAST_OF_INTEGERS = graph(
    """g (float[4] x, int64[4] n) => (float[4] y)
    { [cast] a = Cast <to = 1> (n)  [mul] y = Mul (x, a) }"""
)
"""microsoft/onnxconverter-common#320: the Cast stays one to float32, its output is declared to be float16."""


def sparse() -> onnx.ModelProto:
    """A model with a sparse weight, which the form of a graph of onnxscript does not hold."""
    model = graph("g (float[2,2] x) => (float[2,2] y) { [relu] z = Relu (x)  [matmul] y = MatMul (z, d) }")
    values = onnx.helper.make_tensor("d", onnx.TensorProto.FLOAT, [2], [5.0, 7.0])
    places = onnx.helper.make_tensor("places", onnx.TensorProto.INT64, [2], [0, 3])
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [2, 2]))
    return model


def question(
    path: Path, by: str, *, inputs: Mapping[str, NDArray] | None = None, **more: object
) -> TransformationQuestion:
    """What is asked of the model in a file and a tool."""
    index = index_file(path)
    kinds = index.fed_types()
    given: dict[str, object] = {"index": index, "tool": parse_tool(by), "python": Path(sys.executable)}
    given["decides"] = SameEngine(feeds=lambda: checked_feeds(kinds, inputs_of(inputs)))
    return TransformationQuestion(**{**given, **more})  # type: ignore[arg-type]


def asked(
    folder: Path,
    model: onnx.ModelProto,
    by: str,
    listener: Callable[[events.Event], None] = events.ignore,
    **more: object,
) -> TransformationFindings:
    """What is found of a model and a tool."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return find_transformation(question(path, by, **more), listener)


def own_tool(folder: Path, code: str) -> str:
    """A tool of ours, for ``--by``: it changes ``data``, the bytes of the model, by its ``passes``."""
    script = folder / "tool.py"
    script.write_text(
        "import os, sys, time\n"
        "data, passes = open(sys.argv[1], 'rb').read(), [one for one in sys.argv[3].split(',') if one]\n"
        f"{code}\n"
        "open(sys.argv[2], 'wb').write(data)\n"
    )
    return f"{sys.executable} -I -S {script} {{}} {{out}} {{passes}}"
