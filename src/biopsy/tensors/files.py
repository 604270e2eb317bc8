"""Reads and writes files of inputs (feeds) and outputs (results), in the format of the extension.

.json is Polygraphy's format, .npz is NumPy's, and .safetensors is for large tensors: it is memory-mapped. A path
without an extension is a folder with one JSON file per iteration (``0000000000.json``, ...), as Polygraphy writes it.
Arrays that are read are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.reading import FileState, files_meant, state_at
from biopsy.processes.writing import folders_of, write_whole, writing_to
from biopsy.processes.writing import require_writable as require_writable_file
from biopsy.tensors import npz, polygraphy_json, safetensors_file
from biopsy.tensors.container import Container, Kind, UnreadableFileError, placed
from biopsy.tensors.results import Array, ChosenTensors, Feed, Iteration, RunnerResult

_Writer: TypeAlias = Callable[[Container], Iterable[bytes | memoryview]]

_READERS = {".json": polygraphy_json.read, ".npz": npz.read, ".safetensors": safetensors_file.read}
_WRITERS: dict[str, _Writer] = {
    ".json": polygraphy_json.parts,
    ".npz": npz.parts,
    ".safetensors": safetensors_file.parts,
}
_EXTENSIONS = ".json, .npz or .safetensors, or none for a folder with one file per iteration"


def read_feeds(path: Path | str) -> list[Feed]:
    """The iterations of a file of inputs: tensor name -> array, in the file's order.

    For a file of outputs, these are the iterations of its first runner. Raises UsageError if there is no such file or
    its extension is unknown, DataError with file, iteration and tensor if it is damaged or has no iteration.
    """
    return feeds_of(read_container(path), path)


def feeds_of(container: Container, path: Path | str) -> list[Feed]:
    """The iterations of the first runner in the contents of ``path``. Raises DataError if there are none."""
    if not container.runners or not container.runners[0].iterations:
        raise errors.DataError(f"{path} holds no iteration")
    return [iteration.outputs for iteration in container.runners[0].iterations]


def read_results(path: Path | str) -> list[RunnerResult]:
    """The outputs of every runner in a file, in its order; a file of inputs has one runner with its own name.

    Raises UsageError and DataError as ``read_feeds``.
    """
    container = read_container(path)
    if not container.runners:
        raise errors.DataError(f"{path} holds no outputs of any runner")
    return list(container.runners)


def read_container(path: Path | str) -> Container:
    """The contents of a file or folder of tensors. Raises UsageError and DataError as ``read_feeds``."""
    path = Path(path)
    if _kept and (kept := _kept.get(path.resolve())) is not None and kept[0] == state_at(path):
        return kept[1]
    if path.is_dir():
        return _read_folder(path)
    if not path.exists():
        raise errors.UsageError(
            f"there is no file of tensors {path}", next_steps=files_meant(path, _READERS, "files of tensors")
        )
    # Without an extension, it can only be JSON of Polygraphy, which wrote it under any name until 0.53.
    reader = _READERS.get(path.suffix.lower() or ".json")
    if reader is None:
        raise errors.UsageError(f"cannot read {path}: the extension must be {_EXTENSIONS}")
    if not path.is_file():
        raise errors.UsageError(f"cannot read {path}: it is a pipe or a device, not a file")
    with placed(f"cannot read {path}", UnreadableFileError):
        if path.stat().st_size == 0:
            raise errors.DataError("it is empty (0 bytes)")
        return reader(path)


_kept: dict[Path, tuple[FileState, Container]] = {}


def keep(path: Path) -> None:
    """Read a file and keep its contents, here and in forks of this process, until it changes.

    A folder is not kept. Raises as ``read_container``.
    """
    state = state_at(path)
    if state is not None and not path.is_dir():
        _kept[path.resolve()] = (state, read_container(path))


def _read_folder(folder: Path) -> Container:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise errors.DataError(f"cannot read {folder}: no iteration (a .json file) is in this folder")
    contents = [read_container(path) for path in paths]
    kinds = {container.kind for container in contents}
    if len(kinds) > 1:
        raise errors.DataError(f"cannot read {folder}: it holds both inputs and outputs")
    joined: dict[tuple[str, int], list[Iteration]] = {}
    for container in contents:
        names = [folder.stem if container.kind == "feeds" else runner.runner for runner in container.runners]
        for position, runner in enumerate(container.runners):
            # Two runners may have the same name: the n-th of that name goes on with the n-th.
            key = (names[position], names[:position].count(names[position]))
            joined.setdefault(key, []).extend(runner.iterations)
    return Container(kinds.pop(), tuple(RunnerResult(name, tuple(its)) for (name, _), its in joined.items()))


def write_feeds(path: Path | str, feeds: Sequence[Mapping[str, Array]]) -> None:
    """Write iterations of inputs, completely or not at all.

    Raises UsageError if ``path`` has an unknown extension, cannot be written, or is a folder that is not empty;
    DataError if there is no iteration, or if a tensor has a type that cannot be saved.
    """
    if not feeds:
        raise errors.DataError(f"cannot write {path}: there is no iteration to save")
    _write(Path(path), "feeds", [RunnerResult(Path(path).stem, tuple(Iteration(feed) for feed in feeds))])


def write_results(path: Path | str, results: Sequence[RunnerResult]) -> None:
    """Write the outputs of runners, completely or not at all. Raises UsageError and DataError as ``write_feeds``."""
    if not any(result.iterations for result in results):
        raise errors.DataError(f"cannot write {path}: there is no iteration to save")
    _write(Path(path), "results", results)


def require_writable(path: Path | str) -> None:
    """Raise UsageError, before long work, if feeds or results could not be written to ``path`` after it."""
    path = Path(path)
    if _writer(path) is not None:
        require_writable_file(path)
    else:
        require_new_folder(path)
        require_writable_file(path.parent / "a file")


def _writer(path: Path) -> _Writer | None:
    """The writer of files with this extension; None for a folder of iterations."""
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None and path.suffix:
        raise errors.UsageError(f"cannot write {path}: the extension must be {_EXTENSIONS}")
    if writer is not None and path.is_dir():
        raise errors.UsageError(f"cannot write {path}: it is a directory")
    return writer


def _write(path: Path, kind: Kind, runners: Iterable[RunnerResult]) -> None:
    writer = _writer(path)
    container = Container(kind, tuple(runners))
    with placed(f"cannot write {path}"):
        if writer is None:
            require_new_folder(path)
            with writing_to(path), folders_of(path), temporary_folder(f".{path.name}.", path.parent) as temporary:
                folder = temporary / "iterations"
                folder.mkdir()
                for number in range(max(len(runner.iterations) for runner in container.runners)):
                    # Runners with fewer iterations are not in the last files.
                    present = [runner for runner in container.runners if number < len(runner.iterations)]
                    single = (RunnerResult(runner.runner, (runner.iterations[number],)) for runner in present)
                    file = folder / f"{number:010d}.json"
                    write_whole(file, polygraphy_json.parts(Container(kind, tuple(single)), bare=True))
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                folder.replace(path)
        else:
            write_whole(path, writer(container))


def require_new_folder(folder: Path) -> None:
    """Raise UsageError unless ``folder`` is new or empty: iterations of two runs must not mix."""
    if folder.is_file():
        raise errors.UsageError(f"cannot write the folder {folder}: a file of that name exists")
    if folder.is_dir() and any(folder.iterdir()):
        raise errors.UsageError(
            f"cannot write the folder {folder}: it is not empty, and nothing is overwritten there",
            next_steps=["name a new folder, or a file that ends in .json, .npz or .safetensors"],
        )


def concatenated(containers: Iterable[Container]) -> list[RunnerResult]:
    """The iterations of each runner, by name, in files of outputs, one file after the other."""
    iterations_of: dict[str, list[Iteration]] = {}
    for container in containers:
        for runner in container.runners:
            iterations_of.setdefault(runner.runner, []).extend(runner.iterations)
    return [RunnerResult(name, tuple(iterations)) for name, iterations in iterations_of.items()]


def merge_feeds(files: Sequence[Sequence[Feed]]) -> list[ChosenTensors]:
    """One list of iterations with the tensors of all ``files``, each a list of iterations.

    If two files have the same name, the later one wins; names keep the order of their first occurrence. A file with
    one iteration goes into all iterations of the others. Each tensor is read when it is accessed. Raises UsageError
    for other differences in the number of iterations, DataError if a file has none.
    """
    counts = [len(feeds) for feeds in files]
    if not counts or 0 in counts:
        raise errors.DataError("there is nothing to merge: a file has no iteration")
    several = sorted(set(counts) - {1})
    if len(several) > 1:
        raise errors.UsageError(
            f"the files cannot be merged: one has {several[0]} iterations, another {several[-1]}",
            next_steps=["save inputs and outputs in the same run, with the same --iterations"],
        )
    return [
        ChosenTensors.merged(feeds[number if len(feeds) > 1 else 0] for feeds in files) for number in range(max(counts))
    ]
