"""Files of each iteration, sorted by what the check said: ``good``, ``bad`` and ``other``; none is overwritten."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors
from biopsy.checks.outcome import Outcome
from biopsy.filesystem.write import write_whole

DEFAULT_FOLDER = Path("polygraphy_artifacts")
_FOLDER_OF = {Outcome.REPRODUCES: "bad", Outcome.PASSES: "good"}


@dataclass(frozen=True)
class Artifacts:
    """Which files to sort after each check, and where to."""

    files: tuple[Path, ...] = ()
    folder: Path = DEFAULT_FOLDER

    def sort(self, outcome: Outcome, iteration: int, phase: str) -> list[Path]:
        """Move every file that exists to the folder of its outcome, named by time, iteration and phase.

        Returns the files that were not there. Raises UsageError if the folder cannot be written, or is a link: not
        where a person has named it, but where the name is ours.
        """
        missing = []
        for file in self.files:
            if file.exists():
                self._move(file, self.folder / _FOLDER_OF.get(outcome, "other"), iteration, phase)
            else:
                missing.append(file)
        return missing

    def _move(self, file: Path, folder: Path, iteration: int, phase: str) -> None:
        when = f"_{time.strftime('%m-%d-%y_%H-%M-%S')}_N{iteration}{f'_{phase}' if phase else ''}"
        try:
            for ours in {self.folder, folder} if self.folder == DEFAULT_FOLDER else {folder}:
                if ours.is_symlink():
                    raise OSError(errno.ELOOP, f"{ours} is a symbolic link")
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / _short(file.stem, f"{when}{file.suffix}")
            again = 1
            while os.path.lexists(target):
                target = folder / _short(file.stem, f"{when}_{again}{file.suffix}")
                again += 1
            shutil.move(file, target)
        except OSError as error:
            raise errors.UsageError(f"cannot sort {file} into {folder}: {error.strerror or error}") from error


def _short(stem: str, rest: str) -> str:
    """A name of at most 255 bytes, as file systems take it, whose end is whole."""
    room = _LONGEST_NAME - len(os.fsencode(rest))
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem + rest


_LONGEST_NAME = 255


def write_iteration(path: Path, iteration: int) -> None:
    """Write the file of ``--iter-info``: ``{"iteration": N}``."""
    write_whole(path, [json.dumps({"iteration": iteration}, indent=4).encode()])


def require_distinct(files: Sequence[Path], reserved: Path) -> None:
    """Raise UsageError if an artifact is the result file, or a folder that stands there already: it would be moved."""
    for file in files:
        if file.is_dir():
            raise errors.UsageError(
                f"{file} is given as an artifact, and it is a folder that stands there already: it would be moved away",
                next_steps=["name the files, or a folder that the check makes anew each time"],
            )
        if file.resolve() == reserved.resolve():
            raise errors.UsageError(f"{file} is given as an artifact and as the output: it would be moved away")
