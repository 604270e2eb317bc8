"""The patched model as a file."""

from __future__ import annotations

from biopsy.model.index import ModelIndex
from biopsy.model.load import parse
from biopsy.model.weights_file import save_with_weights
from biopsy.workarounds.question import PatchedFile


def write_patched(model: bytes, target: PatchedFile, index: ModelIndex) -> None:
    """Write a model that was made of an original, and refers to the same weights.

    In the folder of the original it goes on referring to weights in other files; elsewhere it gets them inside. Raises
    UsageError if it cannot be written, ModelError if weights are missing.
    """
    parsed = parse(model, target.path)
    save_with_weights(parsed, target.path, index.folder, target.external, target.threshold)
