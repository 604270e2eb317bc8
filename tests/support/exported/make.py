"""Writes the exported models of this folder, and what their modules gave: ``python make.py FOLDER``.

Needs PyTorch 2.13 and the extra ``torch``. The folders of whoever runs it are replaced by those of nobody.
"""

import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxscript
import torch

from biopsy.tensors.files import write_feeds
from biopsy.torch.recording import input_values, intermediate_values

HERE = Path(__file__).parent
PROJECT, PACKAGES = "/home/me/project", "/home/me/env/lib/python3.11/site-packages"
_PATH = re.compile(r'File "([^"]*)"')

sys.path.insert(0, str(HERE))
import modules  # noqa: E402


@torch.library.custom_op("mine::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    """x times its sigmoid."""
    return x * torch.sigmoid(x)


@swish.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _translated_swish(x: Any) -> Any:
    one = onnx.defs.OpSchema.FormalParameter
    schema = onnx.defs.OpSchema(
        "Swish", "mine", 1, inputs=[one("x", "tensor(float)")], outputs=[one("y", "tensor(float)")]
    )
    return onnxscript.values.Op(onnxscript.values.Opset("mine", 1), "Swish", schema)(x)


def _public(path: str) -> str:
    """A path in a stack, of nobody's folders."""
    inside = path.partition("site-packages/")[2]
    return f"{PACKAGES}/{inside}" if inside else f"{PROJECT}/{Path(path).name}"


def _without_folders(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for entry in node.metadata_props:
            entry.value = _PATH.sub(lambda found: f'File "{_public(found[1])}"', entry.value)


def _make(folder: Path, name: str, module: torch.nn.Module, args: tuple[torch.Tensor, ...], **options: Any) -> None:
    program = torch.onnx.export(module.eval(), args, dynamo=True, verbose=False, **options)
    model = program.model_proto
    _without_folders(model)
    onnx.save(model, folder / f"{name}.onnx")
    values = {**input_values(program, args), **dict(intermediate_values(program, args))}
    write_feeds(folder / f"{name}.safetensors", [values])


def make(folder: Path) -> None:
    """Write all of them."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    _make(folder, "mlp", modules.Mlp(), (torch.randn(2, 4),), input_names=["x"], output_names=["y"])
    mask = torch.tensor([[True, True, False], [False, False, False], [True, True, True]]).reshape(1, 1, 3, 3)
    _make(folder, "attention", modules.Attention(), (torch.randn(1, 3, 4), mask), input_names=["x", "mask"])
    table = {torch.ops.mine.swish.default: _translated_swish}
    x = torch.randn(2, 4)
    _make(folder, "custom", modules.Custom(), (x,), input_names=["x"], custom_translation_table=table)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
