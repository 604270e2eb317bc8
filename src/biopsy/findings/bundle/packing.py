"""A bundle on disk: a folder or a zip archive, written completely or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from biopsy import errors
from biopsy.findings.bundle.script import OWN_MEMBERS
from biopsy.processes.cleanup import temporary_folder
from biopsy.processes.writing import cannot_write, folders_of, require_writable, write_whole

_DATE = (1980, 1, 1, 0, 0, 0)
"""The date of all members, so that the same bundle is the same bytes."""

_FILE_MODE = (stat.S_IFREG | 0o644) << 16
_AT_ONCE = 1 << 20


def is_archive(target: Path) -> bool:
    """Whether a bundle is to be a zip archive, by its name."""
    return target.suffix.lower() == ".zip"


def require_target(target: Path) -> None:
    """Raise UsageError if no bundle can be written to ``target``.

    An existing folder must be empty or hold nothing but an earlier bundle.
    """
    if is_archive(target):
        require_writable(target)
        return
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        what = "a link" if target.is_symlink() else "a file"
        raise errors.UsageError(f"cannot write the folder {target}: {what} of that name exists")
    entries = sorted(target.iterdir()) if target.is_dir() else []
    others = [entry for entry in entries if entry.is_symlink() or entry.is_dir()]
    others = others or [entry for entry in entries if entry.name not in OWN_MEMBERS]
    if others:
        raise errors.UsageError(
            f"cannot write the bundle {target}: the folder holds other things, such as {others[0].name!r}",
            kept="the folder, as it is",
            next_steps=["name a new folder, or a file that ends in .zip"],
        )
    if not target.exists():
        require_writable(target)


def write_archive(path: Path, members: Iterable[Path], *, compressed: bool) -> None:
    """Write files into a zip archive in this order, under their own names, all with one date and mode."""
    with zipfile.ZipFile(path, "w") as stream:
        for member in members:
            info = zipfile.ZipInfo(member.name, _DATE)
            info.external_attr, info.create_system = _FILE_MODE, 3
            info.compress_type = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
            with (
                member.open("rb") as source,
                stream.open(info, "w", force_zip64=member.stat().st_size >= zipfile.ZIP64_LIMIT) as packed,
            ):
                shutil.copyfileobj(source, packed, _AT_ONCE)


def publish(target: Path, archive: Path, members: Sequence[Path]) -> None:
    """Write the bundle to ``target``, completely or not at all. Raises UsageError if that cannot be done."""
    require_target(target)
    if is_archive(target):
        write_whole(target, _chunks(archive))
        return
    try:
        with folders_of(target), temporary_folder(f".{target.name}.", target.absolute().parent) as scratch:
            folder = scratch / "made"
            folder.mkdir()
            for member in members:
                write_whole(folder / member.name, _chunks(member))
            if target.exists():
                os.replace(target, scratch / "before")  # noqa: PTH105 -- a folder, in one step
            folder.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from iter(lambda: stream.read(_AT_ONCE), b"")
