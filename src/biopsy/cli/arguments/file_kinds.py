"""The types of options that name files: what a command does with each file.

Every option that names a file has one of these kinds as its ``type``, so that a new option takes part in the rule of
``conflicts`` without a list of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

Task = Literal["read", "write", "make anew", "move"]
"""What becomes of a file: it is read, replaced, made anew for each check (which may read it), or moved away after it.
"""


def _path(text: str) -> Path:
    return Path(text)


@dataclass(frozen=True)
class FileKind:
    """The ``type`` of an option that names a file or folder: gives a Path, or the text if it is ``textual``.

    ``over`` are the options (by ``dest``) whose file it may replace, since that is read whole before and a person may
    well mean it. ``container``: it names a folder that files of our own naming are put into, or read from.
    """

    task: Task
    over: frozenset[str] = frozenset()
    container: bool = False
    textual: bool = False
    path_of: Callable[[str], Path] = _path

    def __call__(self, text: str) -> Path | str:
        """The value of the option."""
        return text if self.textual else Path(text)


READ = FileKind("read")
WRITTEN = FileKind("write")
ITERATION = FileKind("make anew")
ARTIFACT = FileKind("move")
FOLDER_READ = FileKind("read", container=True)
FOLDER_WRITTEN = FileKind("write", container=True)
READ_TEXT = FileKind("read", textual=True)


def written_over(*dests: str, textual: bool = False) -> FileKind:
    """A file that is written, and may be the one that another option reads."""
    return replace(WRITTEN, over=frozenset(dests), textual=textual)


def script_with_function(text: str) -> Path:
    """The file of ``FILE.py[:function]``."""
    return Path(text if text.endswith(".py") else text.rpartition(":")[0] or text)


READ_SCRIPT = FileKind("read", textual=True, path_of=script_with_function)


Derived: TypeAlias = Mapping[str, tuple[Path | None, FileKind]]
"""Files that a command names by itself, such as a default: what a person calls them -> path (None for none), kind."""
