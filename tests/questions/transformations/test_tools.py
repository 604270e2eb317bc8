"""Failures of real tools, as their releases on the package index have them; each in an environment of its own.

Every tool has one of its own: no wrong pass had to be planted.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import errors
from biopsy.questions.transformations.question import ToolPackages, TransformationFindings, parse_tool, tool_python
from biopsy.questions.transformations.tools import TOOLS, WrongSettingError
from support.transformations import CAST_OF_INTEGERS, asked, graph

SCALE_OF_THE_LAST_AXIS = graph(
    """g (float[1,4,4,4] x) => (float[1,4,4,4] y)
    <float[4,4,1,1] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}, float[4] s = {1,2,3,4}>
    { z = Relu (x)  t = Conv (z, w)  y = Mul (t, s) }"""
)
"""onnxslim takes the scale of the last axis for one of the channels, and puts it into the weights."""

TRANSPOSE_WITHOUT_PERM = graph(
    """g (float[4,3] x) => (float[3,5] y)
    <float[4,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2}>
    { z = Relu (x)  t = Transpose (z)  y = Gemm (t, w) }"""
)
"""onnxsim and onnxoptimizer look for an attribute that may be left out."""

PADDED_MAXIMUM = graph(
    """g (float[1,1,6,6] x) => (float[a,b,c,d] y)
    <int64[8] p = {0,0,1,1,0,0,1,1}>
    { n = Neg (x)  t = Pad (n, p)  y = MaxPool <kernel_shape = [3, 3]> (t) }"""
)
"""A padding with zeros is none with minus infinity, which MaxPool pads with: onnxoptimizer takes one for the other."""

RESHAPED_TWICE = graph(
    """g (float[2,3,4] x) => (float[a,b,c] y)
    <int64[3] first = {4,3,2}, int64[3] then = {0,2,-1}>
    { z = Relu (x)  t = Reshape (z, first)  y = Reshape (t, then) }"""
)
"""The second 0 means the size that the first Reshape made: onnxoptimizer leaves the first out."""

MEAN_WITHOUT_ITS_AXIS = graph(
    """g (float[8,8] x) => (float[8,8] y)
    <float[1] two = {2.0}, float[1] small = {0.00001}, float[8] scale = {1,2,3,4,5,6,7,8},
    float[8] bias = {1,2,3,4,5,6,7,8}>
    {
        mu = ReduceMean <axes = [-1], keepdims = 0> (x)  d = Sub (x, mu)  square = Pow (d, two)
        mean = ReduceMean <axes = [-1], keepdims = 0> (square)  more = Add (mean, small)  root = Sqrt (more)
        ratio = Div (d, root)  s = Mul (ratio, scale)  y = Add (s, bias)
    }"""
)
"""onnxruntime.transformers reads the epsilon from a tensor of one axis, which NumPy does not allow any more."""


def clipped_convolution() -> onnx.ModelProto:
    """Its Clip has a lower limit above 0: quantize_static leaves it out, as if eight bits said it."""
    model = graph(
        "g (float[1,4,8,8] x) => (float[1,6,6,6] y) <float low = {0.5}, float high = {1.5}> "
        "{ z = Sigmoid (x)  t = Conv (z, w)  y = Clip (t, low, high) }"
    )
    weights = np.random.default_rng(0).normal(size=(6, 4, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


CASES = {
    "onnxslim": ("onnxslim", "onnxslim==0.1.98", SCALE_OF_THE_LAST_AXIS, {"FusionConvMul"}, ["Conv", "Mul"]),
    "onnxsim": (
        "onnxsim", "onnxsim==0.8.1", TRANSPOSE_WITHOUT_PERM, {"fuse_transpose_into_gemm"}, ["Transpose", "Gemm"],
    ),
    "onnxoptimizer": (
        "onnxoptimizer", "onnxoptimizer==0.4.2", PADDED_MAXIMUM, {"fuse_pad_into_pool"}, ["Pad", "MaxPool"],
    ),
    "reshape": (
        "onnxoptimizer", "onnxoptimizer==0.4.2", RESHAPED_TWICE, {"eliminate_consecutive_idempotent_ops"},
        ["Reshape", "Reshape"],
    ),
    "fp16": ("fp16", "onnxconverter-common==1.16.0", CAST_OF_INTEGERS, {"Cast"}, ["Cast"]),
    "transformers": (
        "onnxruntime.transformers", "onnxruntime==1.32.0", MEAN_WITHOUT_ITS_AXIS, {"enable_layer_norm"}, None,
    ),
    "quantize": (
        "quantize-static", "onnxruntime==1.32.0", clipped_convolution(), {"Conv", "Clip"}, ["Conv", "Clip"],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_failure_of_a_tool_is_found_with_its_pass_and_its_piece(tmp_path: Path, case: str):
    by, package, model, passes, nodes = CASES[case]
    found = with_package(tmp_path, model, by, package)
    assert found.fault == "transformation"
    assert set(found.passes.alone) == passes
    assert found.passes.verified and found.passes.whole_is_right
    assert nodes is None or [name.split()[0] for name in found.piece.nodes] == nodes
    assert found.passes.omission.command or found.passes.omission.python


@pytest.mark.slow
def test_another_release_may_be_right(tmp_path: Path):
    with pytest.raises(errors.OriginalPasses, match=r"onnxslim 0\.1\.50 makes"):
        with_package(tmp_path, SCALE_OF_THE_LAST_AXIS, "onnxslim", "onnxslim==0.1.50")


@pytest.mark.slow
def test_a_release_that_there_is_not_cannot_be_installed(tmp_path: Path):
    with pytest.raises(errors.CannotInstall):
        with_package(tmp_path, SCALE_OF_THE_LAST_AXIS, "onnxslim", "onnxslim==99.0")


def with_package(folder: Path, model: onnx.ModelProto, by: str, package: str) -> TransformationFindings:
    pytest.importorskip("uv")
    with tool_python(parse_tool(by), ToolPackages(packages=(package,))) as python:
        return asked(folder, model, by, python=python)


# What is declared


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_says_where_it_is_and_refuses_what_it_does_not_know(name: str):
    tool = TOOLS[name]
    assert tool.package and tool.module
    assert set(tool().settings) == set(tool.declared)
    with pytest.raises(WrongSettingError, match="no setting 'colour'"):
        tool({"colour": "blue"})


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_tells_how_passes_are_left_out(name: str):
    told = TOOLS[name]().omission(["fuse_pad_into_pool", "enable_gelu"])
    assert all("fuse_pad_into_pool" in one or "enable_gelu" in one or "gelu" in one for one in (told.python,))


def test_modules_that_run_elsewhere_import_nothing_but_the_standard_library():
    """The interpreter that has a tool may have neither NumPy nor onnx, and none of our dependencies."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from biopsy.questions.transformations import child, tools\n"
        "[tools.TOOLS[name] for name in tools.TOOLS]\n"
        "ours = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'biopsy'}\n"
        "print(sorted(name for name in ours if not name.startswith(('_', 'sitecustomize'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("onnxslom", "onnxslim"),
        ("onnxruntime:level=highest", "basic, extended, layout, all"),
        ("onnxruntime:levle=all", "no setting 'levle'"),
        ("onnxruntime:level", "is not key=value"),
        ("mytool {}", "file to write"),
        ("mytool {out}", "the model"),
        ("mytool '{} {out}", "cannot be split"),
    ],
)
def test_what_is_no_tool_is_refused_in_one_line(text: str, words: str):
    with pytest.raises(errors.UsageError) as refused:
        parse_tool(text)
    assert words in refused.value.message + " ".join(refused.value.next_steps)
