"""A model with weights in other files, as a file beside them: older releases find weights from no other place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from biopsy.engines.base import ModelInput
from biopsy.filesystem.write import write_whole
from biopsy.isolation.cleanup import temporary_folder
from biopsy.model.external import resolve
from biopsy.model.index import index_bytes

_SIGN = b"location"
"""What stands in a model that has weights in other files; others may have it too, and the index tells."""


def has_weights_elsewhere(model: ModelInput) -> bool:
    """Whether weights of a model stand in other files."""
    return _SIGN in model.data and index_bytes(model.data, model.folder).has_external_data


@contextmanager
def placed(model: ModelInput) -> Iterator[Path]:
    """The model's own file, if its weights stand beside it; else one in a folder of ours, with links to its weights.

    Weights are not copied. Raises ModelError for weights that are not there, OSError.
    """
    if model.path is not None and model.path.parent.resolve() == model.folder.resolve():
        yield model.path.absolute()
        return
    index = index_bytes(model.data, model.folder)
    locations = {weight.external.location for weight in index.weights.values() if weight.external}
    with temporary_folder("biopsy-model-") as folder:
        for location in sorted(locations):
            link = folder / location
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(resolve(model.folder, location).resolve())
        path = folder / "model.onnx"
        write_whole(path, [model.data])
        yield path
