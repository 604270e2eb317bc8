"""The patched model as a file."""

from __future__ import annotations

from pathlib import Path

from biopsy.model.index import ModelIndex
from biopsy.model.load import parse
from biopsy.model.weights_file import MOST_SMALL, save_with_weights
from biopsy.workarounds.result import VerifiedChange


def write_patched(
    found: VerifiedChange, path: Path, index: ModelIndex, external: str | None = None, threshold: int = MOST_SMALL
) -> None:
    """Write the model of a workaround that changes one.

    In the folder of the original it goes on referring to weights in other files; elsewhere it gets them inside, or,
    with ``external``, a file name, those of ``threshold`` bytes or more in that file beside it. Raises UsageError if it
    cannot be written, ModelError if weights are missing.
    """
    assert found.model is not None
    save_with_weights(parse(found.model, path), path, index.folder, external, threshold)
