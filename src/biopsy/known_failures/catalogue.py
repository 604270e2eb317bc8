"""All bugs that are known here: those that come with biopsy, and those in folders of the user."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors
from biopsy.filesystem.private_folder import folder_of_user
from biopsy.known_failures.entry import KnownFailure
from biopsy.known_failures.entry_file import read_entry

OWN_FOLDER = Path(__file__).parent / "catalogue"
ORIGIN = "biopsy"
"""What an entry says of where it is, if it comes with biopsy."""

SUFFIX = ".yaml"
_MOST_FILES = 2000


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The bugs, and a line for each file that cannot be used."""

    failures: tuple[KnownFailure, ...]
    broken: tuple[str, ...] = ()


def users_folder() -> Path | None:
    """``$BIOPSY_KNOWN_DIR``, ``$XDG_CONFIG_HOME/biopsy/known``, else ``~/.config/biopsy/known``; None without a home.

    Never below the current folder, which may be anybody's.
    """
    own = Path(os.environ.get("BIOPSY_KNOWN_DIR", ""))
    if own.is_absolute():
        return own
    folder = folder_of_user("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / "known"


def catalogue_of(folders: Sequence[Path] = ()) -> Catalogue:
    """The bugs that come with biopsy, those in the user's folder, and those in ``folders``.

    Raises UsageError for one of ``folders`` that is none.
    """
    failures: list[KnownFailure] = []
    broken: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise errors.UsageError(f"there is no folder {folder} with known failures")
    private = users_folder()
    for folder in [OWN_FOLDER, *filter(None, [private]), *folders]:
        origin = ORIGIN if folder == OWN_FOLDER else None
        try:
            files = sorted(folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            broken.append(f"{folder}: {error.strerror or error}")
            continue
        _read(files[:_MOST_FILES], origin, failures, broken)
        if len(files) > _MOST_FILES:
            broken.append(f"{folder}: only the first {_MOST_FILES:,} files are read")
    return Catalogue(failures=tuple(failures), broken=tuple(broken))


def _read(files: Iterable[Path], origin: str | None, failures: list[KnownFailure], broken: list[str]) -> None:
    for file in files:
        try:
            failures.append(read_entry(file, origin))
        except errors.DataError as error:
            broken.append(error.message)
