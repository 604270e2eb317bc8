"""The files of a result: written whole, and written again if somebody removes or changes them before the end."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from biopsy import errors, events
from biopsy.filesystem.plain_file import FileState
from biopsy.filesystem.write import write_whole
from biopsy.model.inlined import inlined_parts
from biopsy.model.load import parse


class ResultFile:
    """``write`` writes the files at ``paths``, each whole; not all of them need come to be."""

    def __init__(self, paths: Iterable[Path], write: Callable[[], None], listener: events.Listener) -> None:
        self._paths = list(paths)
        self._write = write
        self._listener = listener
        self._stamps: dict[Path, FileState] = {}

    def write(self) -> None:
        """Write them. Raises UsageError if that cannot be done."""
        self._write()
        stamps = {path: _stamp(path) for path in self._paths}
        self._stamps = {path: stamp for path, stamp in stamps.items() if stamp is not None}

    def restore(self) -> None:
        """Write them again, and say so, if one is not as it was left: a check may remove whatever it finds."""
        changed = [path for path, stamp in self._stamps.items() if _stamp(path) != stamp]
        if not changed:
            return
        self.write()
        names = ", ".join(map(str, changed))
        text = f"{names} was removed or changed meanwhile, by the check or another program: it was written again"
        self._listener(events.Remark(text, warning=True))


def files_of(output: Path, external: str | None) -> tuple[Path, Path]:
    """A result and its weights; those of a large result have a name of their own if ``external`` gives none."""
    return output, output.with_name(external or f"{output.name}.data")


def streams_among(paths: Iterable[Path]) -> frozenset[Path]:
    """Those paths where something stands that is no file, such as a pipe or /dev/null: a person wants it so."""
    return frozenset(path for path in paths if path.exists() and not path.is_file())


def write_result(parts: Iterable[bytes], path: Path, folder: Path, external: str | None, has_external: bool) -> None:
    """Write a model to ``path`` with the weights it needs: inside, or in the file named ``external`` beside it.

    ``parts`` are its bytes, which refer to external weights from ``folder`` if it ``has_external`` ones. Above 1 GB
    they are put beside it in any case. Raises UsageError if it cannot be written, ModelError if weights are missing.
    """
    if external is None and not has_external:
        write_whole(path, parts)
        return
    from biopsy.model import weights_file
    from biopsy.model.external import byte_size, external_tensors

    data = b"".join(parts)
    model = parse(data, path)
    if external is None and sum(map(byte_size, external_tensors(model))) <= weights_file.MOST_INLINE:
        write_whole(path, inlined_parts(data, model, folder))
    else:
        weights_file.save_with_weights(model, path, folder, external or weights_file.default_name(path))


def make_room(path: Path) -> None:
    """Remove what a check has put in the place of a file that is to be written, if nothing can be lost with it.

    It would be written into, or wait for a reader that never comes. A folder that holds something stays.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.rmdir()
        elif not (path.is_file() or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
            path.unlink()


def _stamp(path: Path) -> FileState | None:
    """What tells whether a plain file is still the one that was written; None for what is no plain file."""
    with contextlib.suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return FileState.of(status)
    return None


def size_of(path: Path) -> int:
    """Bytes of a result. Raises CheckError if it has gone since."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise errors.CheckError(f"{path} was written, and cannot be found any more: {error.strerror}") from error
