"""An engine that reads whatever a model tells it to, as ONNX Runtime did: from any path, by links, from memory."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from biopsy.engines.base import Capabilities, Engine, ModelInput, Session
from biopsy.model import walk


class Trusting(Engine):
    """Reads what it is told to, then computes as onnx's reference evaluator does."""

    name, summary, package = "trusting", "believes what a model says", "trusting"
    capabilities = Capabilities(saves=(".ort",), precision_used=True)
    forks_warm = True

    @classmethod
    def version(cls) -> str:
        return "1"

    def build(self, model: ModelInput) -> Session:
        proto = onnx.ModelProto.FromString(model.data)
        for tensor in walk.every_tensor(proto):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.raw_data = told(tensor, model.folder)
                tensor.ClearField("data_location")
                tensor.ClearField("external_data")
        from onnx.reference import ReferenceEvaluator

        return TrustingSession(ReferenceEvaluator(proto), model)


def told(tensor: onnx.TensorProto, folder: Path) -> bytes:
    """The bytes that a tensor refers to, whatever they are."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 16)
    if entries["location"] == "*/_ORT_MEM_ADDR_/*":
        return ctypes.string_at(offset, length)
    with open(os.path.join(folder, entries["location"]), "rb") as stream:  # noqa: PTH118, PTH123 -- as they do
        stream.seek(offset)
        return stream.read(length)


class TrustingSession(Session):
    """What it has read, ready to run."""

    def __init__(self, evaluator: Any, model: ModelInput) -> None:
        from biopsy.model.index import index_bytes

        index = index_bytes(model.data, model.folder)
        self._evaluator = evaluator
        self._inputs = index.fed_types()
        self._outputs = [index.names[tensor] for tensor in index.outputs]

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        return self._outputs

    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(self._outputs, self._evaluator.run(None, dict(feed)), strict=True))
