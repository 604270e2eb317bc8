"""Whose fault it is that an engine cannot load a model: its own, or that of a damaged or incomplete file.

Asked only after a failure, so that a check that passes never pays for reading the model a second time.
"""

from __future__ import annotations

from biopsy.engines.base import ModelInput


def raise_if_model_is_broken(model: ModelInput) -> None:
    """Raise ModelError if the bytes are no whole ONNX model, or a file with its weights is missing or unsafe."""
    from biopsy.model import external, load

    for tensor in external.external_tensors(load.parse(model.data, model.path)):
        external.span_of(tensor, model.folder)
