"""The contents of a file of tensors in any format: iterations, their archive of named arrays, and safe reading.

An archive (.npz, .safetensors) holds several iterations under distinct keys. One iteration keeps its tensors' names as
keys, so that other programs find them. Several have the keys ``ITERATION/NAME`` for feeds and
``RUNNER/ITERATION/NAME`` for results, with numbers for runner and iteration. If a format cannot hold a name, the key
has ``#`` and a number in its place. biopsy reads by the index alone, which gives the key of every tensor and, if the
format cannot hold it, its type. It is JSON::

    {"biopsy": 1, "kind": "feeds" | "results",
     "runners": [{"name": ...,
                  "iterations": [{"runtime": seconds | null, "tensors": [[name, key, type | null], ...]}]}]}

One iteration of feeds with plain names and types needs no index: it is what any other program would write.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from biopsy import errors
from biopsy.processes.reading import FileState, open_plain
from biopsy.tensors.results import Array, Iteration, RunnerResult
from biopsy.tensors.types import storable, stored_form

Kind: TypeAlias = Literal["feeds", "results"]


@dataclass(frozen=True)
class Container:
    """The contents of a file: the iterations of one or more runners.

    Feeds are the iterations of one runner, named after the file.
    """

    kind: Kind
    runners: tuple[RunnerResult, ...]


class UnreadableFileError(errors.DataError):
    """A DataError whose message already begins with the file that cannot be read."""


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
    """The same with arrays that can be written. Raises DataError with iteration and tensor if one cannot be."""

    def stored(number: int, iteration: Iteration) -> dict[str, Array]:
        with placed(f"iteration {number}"):
            return {name: storable(name, value) for name, value in iteration.outputs.items()}

    return replace(container, runners=tuple(runner.with_outputs(stored) for runner in container.runners))


VERSION = 1

Read: TypeAlias = Callable[[str, str | None], Array]
"""Reads one array: (key, the name of its true type, or None if the format holds the type)."""


@dataclass(frozen=True)
class Form:
    """Which keys and which types of arrays a format can hold."""

    holds_key: Callable[[str], bool]
    holds_type: Callable[[Array], bool]


@dataclass(frozen=True)
class Archive:
    """Arrays under distinct keys, and the index; None if keys and types suffice.

    ``places``: key -> number of the runner, number of the iteration, name of the tensor.
    """

    arrays: dict[str, Array]
    index: str | None
    places: dict[str, tuple[int, int, str]]


def pack(container: Container, form: Form) -> Archive:
    """The iterations of ``container`` as one archive of a format."""
    is_single = len(container.runners) == 1 == len(container.runners[0].iterations)
    is_plain = is_single and container.kind == "feeds"
    arrays: dict[str, Array] = {}
    places: dict[str, tuple[int, int, str]] = {}
    runners: list[dict[str, Any]] = []
    for runner_number, runner in enumerate(container.runners):
        iterations = []
        for number, iteration in enumerate(runner.iterations):
            place = f"{number}/" if container.kind == "feeds" else f"{runner_number}/{number}/"
            prefix = "" if is_single else place
            tensors = []
            for position, (name, array) in enumerate(iteration.outputs.items()):
                key = prefix + name
                if name.startswith("#") or not form.holds_key(key):  # so that "#N" is always a replaced name
                    key = f"{prefix}#{position}"
                stored, stored_type = stored_form(array)
                dtype = None if form.holds_type(array) else stored_type
                tensors.append((name, key, dtype))
                arrays[key] = stored
                places[key] = (runner_number, number, name)
                is_plain = is_plain and name == key and dtype is None
            iterations.append({"runtime": iteration.runtime, "tensors": tensors})
        runners.append({"name": runner.runner, "iterations": iterations})
    index = None if is_plain else json.dumps({"biopsy": VERSION, "kind": container.kind, "runners": runners})
    return Archive(arrays, index, places)


def unpack(index: str | bytes | None, keys: Collection[str], read: Read, runner: str) -> Container:
    """The iterations of an archive; without an index, one iteration of feeds under the name ``runner``.

    Raises DataError if the index is damaged, of a newer version, or has a key that is missing.
    """
    if index is None:
        tensors = [(key, key, None) for key in keys]
        return Container("feeds", (RunnerResult(runner, (Iteration(_arrays(tensors, set(keys), read)),)),))
    try:
        tree = json.loads(index)
        if tree["biopsy"] > VERSION:
            raise errors.DataError("it was written by a newer biopsy", next_steps=["pip install --upgrade biopsy"])
        kind: Kind = "results" if tree["kind"] == "results" else "feeds"
        remaining = set(keys)
        runners = []
        for entry in tree["runners"]:
            iterations = []
            for number, iteration in enumerate(entry["iterations"]):
                with placed(f"iteration {number}"):
                    arrays = _arrays(iteration["tensors"], remaining, read)
                    iterations.append(Iteration(arrays, seconds_of(iteration["runtime"])))
            runners.append(RunnerResult(str(entry["name"]), tuple(iterations)))
        return Container(kind, tuple(runners))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise errors.DataError("its index is damaged") from error


def seconds_of(runtime: Any) -> float | None:
    """The run time that a file has, in seconds; None if it is invalid."""
    if isinstance(runtime, bool) or not isinstance(runtime, int | float):
        return None
    try:
        seconds = float(runtime)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None


def _arrays(tensors: Any, keys: set[str], read: Read) -> dict[str, Array]:
    """The tensors of one iteration; their keys are removed from ``keys``, so that no two tensors share an array, which
    would let a small file fill the memory.
    """
    arrays = {}
    name = ""
    try:
        for name, key, dtype in tensors:
            if key not in keys:
                raise errors.DataError("it is missing")
            keys.remove(key)
            if not isinstance(dtype, str | None):
                raise errors.DataError("its type is not a name")
            arrays[str(name)] = read(key, dtype)
    except errors.DataError as error:
        with placed(f"tensor {name!r}"):
            raise error
    return arrays


SteadyFileRead: TypeAlias = Callable[[int, int], bytes]
"""Reads bytes: (offset, number of bytes)."""


class SteadyFile:
    """A plain file that is read in pieces and refused once it changes; ``size`` is in bytes.

    It is not mapped into memory: reading a mapped file that was cut short kills the process. Nor is it kept open: a
    folder of iterations has thousands of files, and forks of this process would share its position.

    Raises OSError as ``open_plain`` does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        with open_plain(self._path, follow=True) as stream:
            self._state = FileState.of(os.fstat(stream.fileno()))
        self.size = self._state.size

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """A function that reads it. Raises DataError if the file has changed, or changes meanwhile."""
        try:
            with open_plain(self._path, follow=True) as stream:
                descriptor = stream.fileno()
                self._require(descriptor)
                yield lambda offset, size: self._read(descriptor, offset, size)
                self._require(descriptor)
        except OSError as error:
            raise errors.DataError(f"{self._path} cannot be read any more: {error.strerror or error}") from error

    def _require(self, descriptor: int) -> None:
        now = FileState.of(os.fstat(descriptor))
        if now != self._state:
            raise changed(self._path, self.size, now.size)

    def _read(self, descriptor: int, offset: int, size: int) -> bytes:
        os.lseek(descriptor, offset, os.SEEK_SET)
        data = os.read(descriptor, size)
        while len(data) < size:  # one call reads at most 2 GiB
            more = os.read(descriptor, size - len(data))
            if not more:
                raise changed(self._path, self.size, os.fstat(descriptor).st_size)
            data += more
        return data


def changed(path: Path, before: int, now: int) -> errors.DataError:
    """The error for a file that was changed while it was read; sizes are in bytes."""
    return errors.DataError(
        f"{path} was changed while it was read: it had {before} bytes, and has {now} now",
        next_steps=["wait until it is written, then type the same again"],
    )
