"""Types and shapes from a run of the model, where they cannot be inferred."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.model.tensor_type import TensorType


def add_no_onnxruntime(group: argparse._ArgumentGroup) -> None:
    """The option of Polygraphy that names the only way there is here."""
    group.add_argument(
        "--no-onnxruntime-shape-inference",
        action="store_true",
        help="has no effect: shapes are inferred by onnx alone, in any case",
    )


def types_by_running(
    data: bytes, folder: Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, TensorType]:
    """Types of the inputs and outputs of a model in one run with random inputs, in a process of its own.

    ``shapes``: of inputs whose dimensions the model leaves open; others are 1. Raises BiopsyError if the run fails.
    """
    from biopsy.engines.base import ModelInput
    from biopsy.engines.worker import Worker
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.model.index import index_bytes
    from biopsy.model.tensor_type import ELEM_OF_DTYPE, STRING, TensorType
    from biopsy.tensors.files import write_feeds
    from biopsy.tensors.generate import generate_feeds

    index = index_bytes(data, folder)
    types = {index.names[tensor]: index.tensor_type(tensor) for tensor in index.fed_inputs()}
    feeds = generate_feeds({name: kind for name, kind in types.items() if kind is not None}, shapes=shapes)
    with temporary_folder("biopsy-") as scratch:
        given = scratch / "inputs.safetensors"
        write_feeds(given, feeds)
        try:
            with Worker("onnxrt:optimization=none", scratch) as worker:
                outputs = worker.run(ModelInput(data, folder.resolve()), given)[0]
        except errors.EngineFailure as error:
            raise errors.BiopsyError(
                f"the model cannot be run once to see its shapes: {error.message}",
                next_steps=["leave out --force-fallback-shape-inference", *error.next_steps],
            ) from error
    values = {**feeds[0], **outputs}
    return {
        name: TensorType(ELEM_OF_DTYPE.get(str(array.dtype), STRING), array.shape) for name, array in values.items()
    }
