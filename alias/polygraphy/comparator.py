"""Outputs of runners, as Polygraphy's scripts make and read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from biopsy.tensors.container import Container

__all__ = ["IterationResult", "RunResults"]

_DEFAULT_RUNNER = "custom_runner"


class IterationResult(dict[str, Any]):
    """The outputs of one run, by name. ``runtime`` is in seconds."""

    def __init__(
        self, outputs: Mapping[str, Any] | None = None, runtime: float | None = None, runner_name: str | None = None
    ) -> None:
        super().__init__(outputs or {})
        self.runtime = runtime
        self.runner_name = runner_name or _DEFAULT_RUNNER


class RunResults:
    """The iterations of each runner, in order: ``results["runner"][0]["output"]`` is an array.

    A number for a key gives the runner at that place, as (name, iterations); so does iterating.
    """

    def __init__(self, lst: Iterable[tuple[str, Sequence[IterationResult]]] = ()) -> None:
        self.lst = [(name, list(iterations)) for name, iterations in lst]

    def add(
        self, out_list: Iterable[Mapping[str, Any]], runtime: float | None = None, runner_name: str | None = None
    ) -> None:
        """Add a runner with one iteration for each dictionary of outputs."""
        name = runner_name or _DEFAULT_RUNNER
        self[name] = [IterationResult(outputs, runtime, name) for outputs in out_list]

    def keys(self) -> list[str]:
        """The names of the runners."""
        return [name for name, _ in self.lst]

    def values(self) -> list[list[IterationResult]]:
        """The iterations of each runner."""
        return [iterations for _, iterations in self.lst]

    def items(self) -> list[tuple[str, list[IterationResult]]]:
        """The runners: name and iterations."""
        return list(self.lst)

    def update(self, other: RunResults) -> None:
        """Take over the runners of another, in the place of those of the same name."""
        for name, iterations in other.items():
            self[name] = iterations

    def save(self, dest: str | PathLike[str]) -> None:
        """Write everything to a JSON file. Raises as ``save_json``."""
        from polygraphy.json import save_json

        save_json(self, dest)

    @staticmethod
    def load(src: str | PathLike[str]) -> RunResults:
        """What ``save``, or ``--save-outputs``, has written. Raises as ``load_json``, and DataError for inputs."""
        from biopsy.errors import DataError
        from polygraphy.json import load_json

        found = load_json(src)
        if isinstance(found, RunResults):
            return found
        raise DataError(f"{src} holds inputs, not the outputs of runners", next_steps=["polygraphy.json.load_json"])

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int):
            return self.lst[key]
        for name, iterations in self.lst:
            if name == key:
                return iterations
        raise KeyError(f"there is no runner {key!r}, only {', '.join(map(repr, self.keys())) or 'none'}")

    def __setitem__(self, key: int | str, value: Any) -> None:
        if isinstance(key, int):
            self.lst[key] = value
        elif key in self:
            self.lst[self.keys().index(key)] = (key, value)
        else:
            self.lst.append((key, value))

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[tuple[str, list[IterationResult]]]:
        return iter(self.lst)

    def __len__(self) -> int:
        return len(self.lst)


def container_of(results: RunResults) -> Container:
    """The results as biopsy writes them."""
    import numpy as np

    from biopsy.tensors.container import Container
    from biopsy.tensors.results import Iteration, RunnerResult

    def iteration(outputs: Mapping[str, Any]) -> Iteration:
        arrays = {str(name): np.asarray(value) for name, value in outputs.items()}
        return Iteration(arrays, getattr(outputs, "runtime", None))

    return Container("results", tuple(RunnerResult(name, tuple(map(iteration, its))) for name, its in results.items()))


def results_of(container: Container) -> RunResults:
    """What biopsy has read, as arrays that may be changed."""
    import numpy as np

    found = RunResults()
    for runner in container.runners:
        iterations = [
            IterationResult({name: np.array(value) for name, value in one.outputs.items()}, one.runtime, runner.runner)
            for one in runner.iterations
        ]
        found.lst.append((runner.runner, iterations))
    return found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(f"{__name__} is biopsy's here, and has no {name}: only {', '.join(__all__)}")
