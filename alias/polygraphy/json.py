"""Writing and reading inputs and outputs as Polygraphy's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biopsy.tensors.container import Container
    from polygraphy.comparator import RunResults

__all__ = ["load_json", "save_json"]


def save_json(
    obj: Mapping[str, Any] | Iterable[Mapping[str, Any]] | RunResults,
    dest: str | PathLike[str],
    description: str | None = None,
) -> None:
    """Write feeds (a dictionary of tensors, or several, one per iteration) or a ``RunResults`` to the file ``dest``.

    ``description`` is accepted and has no effect. Raises biopsy's DataError for anything that is neither, and
    UsageError if the file cannot be written.
    """
    del description
    from biopsy.processes.writing import write_whole
    from biopsy.tensors.polygraphy_json import parts

    write_whole(Path(fspath(dest)), parts(_container(obj)))


def load_json(src: str | PathLike[str], description: str | None = None) -> list[dict[str, Any]] | RunResults:
    """The feeds of a file as a list of dictionaries of arrays; a ``RunResults`` if it holds outputs.

    ``description`` is accepted and has no effect. Raises biopsy's UsageError or DataError if it cannot be read.
    """
    del description
    import numpy as np

    from biopsy.tensors.files import read_container
    from polygraphy.comparator import results_of

    container = read_container(Path(fspath(src)))
    if container.kind == "results":
        return results_of(container)
    (runner,) = container.runners
    return [{name: np.array(value) for name, value in one.outputs.items()} for one in runner.iterations]


def _container(obj: Any) -> Container:
    from biopsy.errors import DataError
    from biopsy.tensors.container import Container
    from biopsy.tensors.results import Iteration, RunnerResult
    from polygraphy.comparator import RunResults, container_of

    if isinstance(obj, RunResults):
        return container_of(obj)
    feeds = [obj] if isinstance(obj, Mapping) else list(obj) if isinstance(obj, Iterable) else []
    if not feeds or not all(isinstance(feed, Mapping) for feed in feeds):
        raise DataError("only dictionaries of tensors, a list of them, or a RunResults can be saved")
    return Container("feeds", (RunnerResult("inputs", tuple(Iteration(_arrays(feed)) for feed in feeds)),))


def _arrays(feed: Mapping[str, Any]) -> dict[str, Any]:
    import numpy as np

    return {str(name): np.asarray(value) for name, value in feed.items()}
