"""Types and shapes of a model's inputs and outputs from a run of it, where they cannot be inferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors

if TYPE_CHECKING:
    from biopsy.model.tensor_type import TensorType, ValueType
    from biopsy.tensors.results import Array, Feed


def types_by_running(
    data: bytes, folder: Path, feed_for: Callable[[Mapping[str, ValueType | None]], Feed]
) -> dict[str, TensorType]:
    """Types of the inputs and outputs of a model in one run, in a process of its own.

    ``folder`` is where external weights stand; ``feed_for`` gives values for inputs of these types. Raises BiopsyError
    if the run fails.
    """
    from biopsy.model.index import index_bytes
    from biopsy.model.tensor_type import ELEM_OF_DTYPE, STRING, TensorType

    index = index_bytes(data, folder)
    feed = feed_for(index.fed_types())
    values = {**feed, **_outputs(data, folder, feed)}
    return {
        name: TensorType(ELEM_OF_DTYPE.get(str(array.dtype), STRING), array.shape) for name, array in values.items()
    }


def _outputs(data: bytes, folder: Path, feed: Feed) -> Mapping[str, Array]:
    from biopsy.engines.base import ModelInput
    from biopsy.engines.worker import Worker
    from biopsy.engines.yardsticks import PLAIN
    from biopsy.isolation.cleanup import temporary_folder
    from biopsy.tensors.files import write_feeds

    with temporary_folder("biopsy-") as scratch:
        given = scratch / "inputs.safetensors"
        write_feeds(given, [feed])
        try:
            with Worker(PLAIN[0], scratch) as worker:
                return worker.run(ModelInput(data, folder.resolve()), given)[0]
        except errors.EngineFailure as error:
            raise errors.BiopsyError(
                f"the model cannot be run once to see its shapes: {error.message}",
                next_steps=["leave out --force-fallback-shape-inference", *error.next_steps],
            ) from error
