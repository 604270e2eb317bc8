"""Models as exporters wrote them, in protobuf's text form.

Both are of a small model, in a file ``model.py`` of 25 lines: ``Model`` calls ``Sequential``, that ``Attention``, and
that ``Linear``, ``softmax`` and a function ``scaled``. ``pytorch`` was written by ``torch.onnx.export`` of PyTorch
2.13, ``torchscript`` by the same with ``dynamo=False, verbose=True``.

Others are files of PyTorch 2.13, each with a file of what its module gave for the tensors that the exporter names after
an operator of PyTorch: ``mlp``, which is right and has a value of every tensor; ``attention``, which was exported
wrongly, since a query that may see nothing gives 0 in PyTorch, and the mean of all values in the model; ``custom``,
with an operator that no engine has. ``exported/make.py`` writes these.
"""

from pathlib import Path

import onnx
from google.protobuf import text_format

FOLDER = Path(__file__).parent / "exported"


def exported(name: str) -> onnx.ModelProto:
    text = (FOLDER / f"{name}.textproto").read_text(encoding="utf-8")
    return text_format.Parse(text, onnx.ModelProto())


def copied(name: str, folder: Path) -> tuple[Path, Path]:
    """A model and the values that its module gave, in a folder: ``NAME.onnx`` and ``golden.safetensors``."""
    model, golden = folder / f"{name}.onnx", folder / "golden.safetensors"
    model.write_bytes((FOLDER / f"{name}.onnx").read_bytes())
    golden.write_bytes((FOLDER / f"{name}.safetensors").read_bytes())
    return model, golden
