"""Whose fault it is that an engine cannot load a model: its own, or that of a damaged or incomplete file.

Asked only after a failure, so that a check that passes never pays for reading the model a second time.
"""

from __future__ import annotations

from biopsy import errors
from biopsy.engines.base import ModelInput
from biopsy.model import load


def raise_if_model_is_broken(model: ModelInput) -> None:
    """Raise ModelError if the bytes are no whole ONNX model, or a file with its weights is missing."""
    from onnx import TensorProto
    from onnx.external_data_helper import _get_all_tensors as all_tensors

    for tensor in all_tensors(load.parse(model.data, model.path)):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if not (model.folder / location).is_file():
            raise errors.ModelError(
                f"the weights of {model.path or 'the model'} are missing: tensor {tensor.name!r} stands in "
                f"{model.folder / location}, and there is no such file",
                next_steps=["put the file there, or name its folder with --external-data-dir"],
            )
