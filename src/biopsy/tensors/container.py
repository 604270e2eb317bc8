"""What any file of tensors holds, whatever its format: several iterations, read in pieces from a file that must stay
as it is.
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

    def stored(number: int, iteration: Iteration) -> dict[str, Array]:
        with placed(f"iteration {number}"):
            return {name: storable(name, value) for name, value in iteration.outputs.items()}

    return replace(container, runners=tuple(runner.with_outputs(stored) for runner in container.runners))


# Several iterations in one flat archive of named arrays (.npz, .safetensors), whatever the tensors are called.
#
# One iteration keeps its tensors' names as keys, so that other programs find them. Of several, the keys are
# ``ITERATION/NAME`` for feeds and ``RUNNER/ITERATION/NAME`` for results, with numbers for runner and iteration. A
# reader of ours goes by the index alone: JSON that says for every tensor its key and, where the format cannot tell,
# its type::
#
#     {"biopsy": 1, "kind": "feeds" | "results",
#      "runners": [{"name": ...,
#                   "iterations": [{"runtime": seconds | null, "tensors": [[name, key, type | null], ...]}]}]}
#
# Where a format cannot hold a name, the key has ``#`` and a number in its place. One iteration of plainly named and
# typed feeds needs no index: it is what any other program would write.

VERSION = 1

Read: TypeAlias = Callable[[str, str | None], Array]
"""Reads one array: (key, the name of its true type, or None where the format knows it)."""


@dataclass(frozen=True)
class Form:
    """What a format can hold by itself: which keys, and which types of arrays."""

    holds_key: Callable[[str], bool]
    holds_type: Callable[[Array], bool]


@dataclass(frozen=True)
class Archive:
    """Arrays under distinct keys, and the index; None where keys and types say everything.

    ``places`` says of each key which tensor it is: numbers of the runner and the iteration, and its name.
    """

    arrays: dict[str, Array]
    index: str | None
    places: dict[str, tuple[int, int, str]]


def pack(container: Container, form: Form) -> Archive:
    """Flatten the iterations of ``container`` into one archive of a format."""
    single = len(container.runners) == 1 == len(container.runners[0].iterations)
    is_plain = single and container.kind == "feeds"
    arrays: dict[str, Array] = {}
    places: dict[str, tuple[int, int, str]] = {}
    runners: list[dict[str, Any]] = []
    for runner_number, runner in enumerate(container.runners):
        iterations = []
        for number, iteration in enumerate(runner.iterations):
            place = f"{number}/" if container.kind == "feeds" else f"{runner_number}/{number}/"
            prefix = "" if single else place
            tensors = []
            for position, (name, array) in enumerate(iteration.outputs.items()):
                key = prefix + name
                if name.startswith("#") or not form.holds_key(key):  # such keys are for odd names alone
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
    """The iterations of an archive. Without an index it is one iteration of feeds, kept under the name ``runner``.

    Raises DataError if the index is damaged, of a newer form, or names a key that is not there.
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
    """The time of a run as a file has it; None where that is no time."""
    if isinstance(runtime, bool) or not isinstance(runtime, int | float):
        return None
    try:
        seconds = float(runtime)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None


def _arrays(tensors: Any, keys: set[str], read: Read) -> dict[str, Array]:
    """The tensors of one iteration. Their keys are taken away: two tensors that share one could be a thousand."""
    arrays = {}
    name = ""
    try:
        for name, key, dtype in tensors:
            if key not in keys:
                raise errors.DataError("it is missing")
            keys.remove(key)
            if not isinstance(dtype, str | None):
                raise errors.DataError("its type is no name")
            arrays[str(name)] = read(key, dtype)
    except errors.DataError as error:
        with placed(f"tensor {name!r}"):
            raise error
    return arrays


# A file whose pieces are read when they are needed, and refused once it is no more what it was.
#
# It is not mapped into memory: whoever reads a mapped file that somebody cuts short is killed. Nor is it kept open: a
# folder of iterations has thousands of files, and what is opened anew shares no position with forks of this process.

SteadyFileRead: TypeAlias = Callable[[int, int], bytes]
"""Reads (offset, number of bytes)."""


class SteadyFile:
    """A plain file as it was when this was made; ``size`` in bytes. Raises OSError as ``open_plain`` does."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        with open_plain(self._path, follow=True) as stream:
            self._state = FileState.of(os.fstat(stream.fileno()))
        self.size = self._state.size

    @contextmanager
    def opened(self) -> Iterator[SteadyFileRead]:
        """What reads it, of a given offset and number of bytes.

        Raises DataError if the file is not what it was, also if that happens meanwhile.
        """
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
        found = os.read(descriptor, size)
        while len(found) < size:  # no read gives more than 2 GiB
            more = os.read(descriptor, size - len(found))
            if not more:
                raise changed(self._path, self.size, os.fstat(descriptor).st_size)
            found += more
        return found


def changed(path: Path, before: int, now: int) -> errors.DataError:
    """The error that a file is no more what it was; sizes in bytes."""
    return errors.DataError(
        f"{path} was changed while it was read: it had {before} bytes, and has {now} now",
        next_steps=["wait until it is written, then type the same again"],
    )
