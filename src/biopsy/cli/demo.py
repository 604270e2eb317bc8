"""``biopsy demo``: finds a real bug, and shows the command lines to do the same with another model."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import as_word
from biopsy.cli.app import main
from biopsy.cli.arguments import types
from biopsy.cli.console import Console
from biopsy.processes.writing import write_whole
from biopsy.slow_imports import np, onnx
from biopsy.text import line_of

TOLERANCES = ("--atol", "1e-3", "--rtol", "1e-3")
"""Above the rounding errors of hundreds of nodes, and a hundred times below the error of the bug."""

COMPARE = ("run", "model.onnx", "--engine", "onnxrt:optimization=none", "--onnxrt", *TOLERANCES)
GOLDEN = (
    "run", "model.onnx", "--engine", "onnxrt:optimization=none", "--save-inputs", "inputs.npz",
    "--onnx-outputs", "mark", "all", "--save-outputs", "layerwise_golden.npz",
)  # fmt: skip
MERGE = ("data", "to-input", "inputs.npz", "layerwise_golden.npz", "-o", "layerwise_inputs.npz")
REDUCE = (
    "debug", "reduce", "model.onnx", "-o", "reduced.onnx",
    "--check", "biopsy", "run", "polygraphy_debug.onnx", "--onnxrt",
    "--load-inputs", "layerwise_inputs.npz", "--load-outputs", "layerwise_golden.npz", *TOLERANCES,
)  # fmt: skip
SHOW = ("inspect", "model", "reduced.onnx", "--mode=basic")


_FOLDER = Path("biopsy-demo")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    parser.description = (
        "Builds a transformer of some 450 nodes and finds the six of them that ONNX Runtime's optimizer silently\n"
        "computes wrongly. Everything is kept in a folder."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=types.FOLDER_WRITTEN,
        default=_FOLDER,
        metavar="DIR",
        help="the folder (default: biopsy-demo)",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="use the folder even if it exists, and replace its files of the same names",
    )


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the demonstration. Raises BiopsyError if a command of it does not end as expected."""
    folder: Path = args.output
    if folder.exists() and not args.force:
        raise errors.UsageError(
            f"{folder} exists already",
            next_steps=[_typed(("demo", "--force", "-o", as_word(folder))), "biopsy demo -o ANOTHER"],
        )
    if folder == _FOLDER and folder.is_symlink():
        raise errors.UsageError(
            f"the default folder {folder} is a symbolic link, which is not followed",
            next_steps=["biopsy demo -o ANOTHER"],
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    with contextlib.chdir(folder):
        model = demonstration_model()
        write_whole(Path("model.onnx"), [model.SerializeToString(deterministic=True)])
        console.note(f"model.onnx: a transformer of {len(model.graph.node)} nodes with several branches", "")
        used = _demonstrated(console)
    console.note("", f"Everything is in {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    console.note("The command lines, to repeat them on your own model:", "")
    for words in used:
        console.say(f"  {_typed(words)}")
    return 0


def _demonstrated(console: Console) -> list[Sequence[str]]:
    """Find the bug of ONNX Runtime, or an operator if this release has no such bug; returns the commands used."""
    console.note("1. Does ONNX Runtime agree with itself, its optimizer off and on?")
    if _run(COMPARE, console, (0, 1)) == 1:
        console.note(
            "",
            "   It does not. 2. Golden values of every layer, and each layer's inputs, from the run that is right:",
        )
        _run(GOLDEN, console)
        _run(MERGE, console)
        console.note("", "3. The smallest part of the model that still fails:")
        _run(REDUCE, console)
        console.note("", "4. There it is:")
        _run(SHOW, console)
        return [COMPARE, GOLDEN, MERGE, REDUCE, SHOW]
    import onnxruntime

    console.note(
        "",
        f"   It does: onnxruntime {onnxruntime.__version__} no longer has the bug that this demonstration is about.",
        f"   So here is another: the check fails if the model has the operator {SEARCHED_FOR}.",
        "",
    )
    search = (
        "debug", "reduce", "model.onnx", "-o", "reduced.onnx",
        "--fail-regex", f"Op: {SEARCHED_FOR}", "--hide-fail-output",
        "--check", "biopsy", "inspect", "model", "polygraphy_debug.onnx", "--mode=basic",
    )  # fmt: skip
    _run(search, console)
    _run(SHOW, console)
    return [search, SHOW]


def _run(words: Sequence[str], console: Console, expected: Collection[int] = (0,)) -> int:
    """Show and run a command; returns its exit status. Raises BiopsyError for a status that is not expected."""
    console.note(f"$ {_typed(words)}")
    verbosity = ["-q"] * -console.verbosity if console.verbosity < 0 else ["-v"] * console.verbosity
    status = main((*words[:2], *verbosity, *words[2:]))  # before --check, which takes the rest of the line
    if status not in expected:
        raise errors.BiopsyError(
            f"the demonstration did not go as planned: status {status} of",
            details=[f"  {_typed(words)}"],
            next_steps=["biopsy doctor"],
        )
    return status


def _typed(words: Sequence[str]) -> str:
    return line_of(("biopsy", *words))


WIDTH = 32
"""Tokens and channels. The matrices must be square for the model to be valid."""

BLOCKS = 10
CULPRITS = ("Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul")
"""The operators of the six nodes that suffice for the failure, in order."""

SEARCHED_FOR = "Softplus"
"""An operator of a single node, which the second demonstration searches for."""

_SEED = 20


class _NodeWriter:
    """Collects nodes and weights; every method returns the name of the tensor that it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(_SEED)
        for name, value in {"two": 2.0, "eps": 1e-5, "half": 0.5, "one": 1.0, "root2": 2**0.5}.items():
            self._keep(name, np.array(value, np.float32))
        self._keep("scale", np.array(WIDTH**-0.5, np.float32))
        self._keep("last", np.array([-1], np.int64))

    def _keep(self, name: str, value: np.typing.NDArray[np.float32 | np.int64]) -> str:
        self.weights.append(onnx.numpy_helper.from_array(value, name))
        return name

    def node(self, scope: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{scope}/{op_type}"
        taken = sum(node.name == name or node.name.startswith(f"{name}_") for node in self.nodes)
        name = f"{name}_{taken}" if taken else name
        self.nodes.append(onnx.helper.make_node(op_type, inputs, [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def linear(self, scope: str, x: str) -> str:
        weight = self._random.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32)
        bias = self._random.normal(0, 0.1, WIDTH).astype(np.float32)
        product = self.node(scope, "MatMul", x, self._keep(f"{scope}.weight", weight))
        return self.node(scope, "Add", product, self._keep(f"{scope}.bias", bias))

    def normalization(self, scope: str, x: str, *, keepdims: int = 1) -> str:
        """Layer normalization in single operators; with ``keepdims=0``, the arithmetic that is mistaken for it."""
        gain = self._random.uniform(0.5, 1.5, WIDTH).astype(np.float32)
        centred = self.node(scope, "Sub", x, self.node(scope, "ReduceMean", x, "last", keepdims=1))
        squares = self.node(scope, "Pow", centred, "two")
        variance = self.node(scope, "ReduceMean", squares, "last", keepdims=keepdims)
        root = self.node(scope, "Sqrt", self.node(scope, "Add", variance, "eps"))
        scaled = self.node(scope, "Mul", self.node(scope, "Div", centred, root), self._keep(f"{scope}.gain", gain))
        if not keepdims:
            return scaled
        return self.node(scope, "Add", scaled, self._keep(f"{scope}.bias", 0.1 * gain))

    def attention(self, scope: str, x: str) -> str:
        query, key, value = (self.linear(f"{scope}/{part}", x) for part in ("query", "key", "value"))
        scores = self.node(scope, "MatMul", query, self.node(scope, "Transpose", key, perm=[1, 0]))
        weights = self.node(scope, "Softmax", self.node(scope, "Mul", scores, "scale"), axis=-1)
        return self.linear(f"{scope}/out", self.node(scope, "MatMul", weights, value))

    def gelu(self, scope: str, x: str) -> str:
        inner = self.node(scope, "Erf", self.node(scope, "Div", x, "root2"))
        return self.node(scope, "Mul", self.node(scope, "Mul", x, self.node(scope, "Add", inner, "one")), "half")

    def block(self, scope: str, x: str) -> str:
        attended = self.attention(f"{scope}/attention", self.normalization(f"{scope}/norm1", x))
        x = self.node(scope, "Add", x, attended)
        hidden = self.gelu(f"{scope}/mlp/gelu", self.linear(f"{scope}/mlp/up", self.normalization(f"{scope}/norm2", x)))
        return self.node(scope, "Add", x, self.linear(f"{scope}/mlp/down", hidden))

    def gate(self, scope: str, x: str) -> str:
        opened = self.node(scope, "Sigmoid", self.linear(f"{scope}/in", x))
        return self.node(scope, "Mul", self.node(scope, "Tanh", self.linear(f"{scope}/value", x)), opened)


def demonstration_model() -> onnx.ModelProto:
    """A transformer, from float32 ``tokens`` [32, 32] to ``logits`` [32, 32]; the same bytes at every call.

    One branch triggers a bug. In onnxruntime 1.17.3 to at least 1.32.0 on CPU, from the extended level of its optimizer
    on, the fusions for layer normalization also match ReduceMean with ``keepdims=0``. On a square matrix such a model
    is valid, with the mean broadcast along the other axis, and the fused kernel silently computes something else. In a
    variant of the bug, it raises an error: github.com/microsoft/onnxruntime issue 30513.
    """
    writer = _NodeWriter()
    x = "tokens"
    for number in range(BLOCKS):
        scope = f"block{number}"
        if number % 3 == 1:  # a branch beside the block, added to its output
            branch = writer.gate(f"{scope}/gate", x)
            if number == 7:
                branch = writer.normalization(f"{scope}/adapter", branch, keepdims=0)
                branch = writer.linear(f"{scope}/adapter/out", branch)
            x = writer.node(scope, "Add", writer.block(scope, x), branch)
        else:
            x = writer.block(scope, x)
    logits = writer.node("head", SEARCHED_FOR, writer.linear("head", x))
    writer.nodes.append(onnx.helper.make_node("Identity", [logits], ["logits"], name="head/logits"))
    shape = [WIDTH, WIDTH]
    graph = onnx.helper.make_graph(
        writer.nodes,
        "transformer",
        [onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, shape)],
        writer.weights,
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9, producer_name="biopsy demo"
    )
