"""Writing files whole or not at all: first under a temporary name in the same folder, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from biopsy import errors
from biopsy.shell_words import line_of


def write_whole(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write ``parts`` one after the other to ``path``, replacing what stood there in one step.

    What is no file, such as a pipe or /dev/null, is written to as it is. Raises UsageError if the folder does not exist
    or cannot be written; what stood at ``path`` is then untouched.
    """
    if _is_device(path):
        _write_into(path, parts)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as stream:
            stream.writelines(parts)
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # a read-only file system refuses even what is not there
            temporary.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _write_into(path: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    try:
        with path.open("wb") as stream:
            stream.writelines(parts)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> errors.UsageError:
    """The error that tells why ``path`` cannot be written."""
    if not path.parent.is_dir():
        return errors.UsageError(
            f"cannot write {path}: there is no folder {path.parent}",
            next_steps=[line_of(["mkdir", "-p", "--", str(path.parent)])],
        )
    return errors.UsageError(f"cannot write {path}: {error.strerror or error}")


def require_writable(path: Path) -> None:
    """Raise UsageError now if ``path`` could not be written later, at the end of long work."""
    if path.is_dir():
        raise errors.UsageError(f"cannot write {path}: it is a directory")
    if _is_device(path):
        return
    probe = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
