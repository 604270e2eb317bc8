"""The reference evaluator of the package onnx: slow, and as close to the standard's text as there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from biopsy import errors
from biopsy.engines.base import Engine, ModelInput, Session
from biopsy.model import external, load
from biopsy.model.index import ModelIndex, index_bytes
from biopsy.model.tensor_type import TensorType
from biopsy.tensors.results import Array, Feed


class Reference(Engine):
    """onnx.reference.ReferenceEvaluator."""

    name = "reference"
    summary = "reference evaluator of onnx"
    package = "onnx"
    forks_warm = True

    @classmethod
    def version(cls) -> str:
        """The version of the package onnx."""
        try:
            import onnx
        except ImportError as error:
            raise errors.EngineMissing(f"onnx cannot be imported: {error}", next_steps=["pip install onnx"]) from error
        return str(onnx.__version__)

    def build(self, model: ModelInput) -> Session:
        """Load the model, with its external data. Raises ModelError if that is missing or unsafe."""
        self.version()
        proto = load.parse(model.data, model.path)
        index = index_bytes(model.data, model.folder)
        external.load_into(proto, model.folder)
        try:
            from onnx.reference import ReferenceEvaluator

            evaluator = ReferenceEvaluator(proto)
        except Exception as error:
            raise _failure(error, "load") from error
        return ReferenceSession(evaluator, index)


class ReferenceSession(Session):
    """A model that the reference evaluator has loaded."""

    def __init__(self, evaluator: Any, index: ModelIndex) -> None:
        self._evaluator = evaluator
        self._inputs = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
        self._outputs = tuple(index.names[tensor] for tensor in index.outputs)

    @property
    def inputs(self) -> Mapping[str, TensorType | None]:
        """Inputs that must be fed, with the types that the model declares."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs."""
        return self._outputs

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run once."""
        try:
            with np.errstate(all="ignore"):
                values = self._evaluator.run(None, dict(feed))
        except Exception as error:
            raise _failure(error, "run") from error
        found = zip(self._outputs, values, strict=True)
        return {name: _readable(value) for name, value in found if isinstance(value, np.ndarray | np.generic)}


def _readable(value: Array | np.generic[Any]) -> Array:
    array = np.asarray(value)
    return array.astype(np.str_) if array.dtype == object else array


def _failure(error: Exception, stage: errors.Stage) -> errors.EngineFailure:
    message = str(error).strip() or type(error).__name__
    return errors.EngineFailure(message, engine=Reference.name, stage=stage, kind=type(error).__name__)
