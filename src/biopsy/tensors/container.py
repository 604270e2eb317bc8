"""What any file of tensors holds, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from biopsy import errors
from biopsy.tensors.dtypes import storable
from biopsy.tensors.results import Iteration, RunnerResult

Kind: TypeAlias = Literal["feeds", "results"]


@dataclass(frozen=True)
class Container:
    """The contents of a file: the iterations of one or more runners.

    Feeds are kept as the iterations of one runner, named after the file.
    """

    kind: Kind
    runners: tuple[RunnerResult, ...]


class UnreadableFileError(errors.DataError):
    """A DataError whose message begins with the file that cannot be read: nothing belongs in front of that."""


@contextmanager
def placed(place: str, kind: type[errors.DataError] = errors.DataError) -> Iterator[None]:
    """Put ``place`` in front of the message of every DataError raised inside, which becomes one of a ``kind``."""
    try:
        yield
    except UnreadableFileError:
        raise
    except errors.DataError as error:
        raise kind(f"{place}: {error.message}", next_steps=error.next_steps) from error


def with_storable_arrays(container: Container) -> Container:
    """The same with every array ready to be written. Raises DataError naming iteration and tensor if one is not."""
    return Container(container.kind, tuple(_storable_runner(runner) for runner in container.runners))


def _storable_runner(runner: RunnerResult) -> RunnerResult:
    iterations = []
    for number, iteration in enumerate(runner.iterations):
        with placed(f"iteration {number}"):
            arrays = {name: storable(name, value) for name, value in iteration.outputs.items()}
        iterations.append(Iteration(arrays, iteration.runtime))
    return RunnerResult(runner.runner, tuple(iterations))
