"""Models as exporters wrote them, in protobuf's text form.

Both are of a small model, in a file ``model.py`` of 25 lines: ``Model`` calls ``Sequential``, that ``Attention``, and
that ``Linear``, ``softmax`` and a function ``scaled``. ``pytorch`` was written by ``torch.onnx.export`` of PyTorch
2.13, ``torchscript`` by the same with ``dynamo=False, verbose=True``.
"""

from pathlib import Path

import onnx
from google.protobuf import text_format

FOLDER = Path(__file__).parent / "exported"


def exported(name: str) -> onnx.ModelProto:
    text = (FOLDER / f"{name}.textproto").read_text(encoding="utf-8")
    return text_format.Parse(text, onnx.ModelProto())
