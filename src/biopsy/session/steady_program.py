"""Whether a check is still what it was when a search began: somebody may edit its script meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from biopsy import errors
from biopsy.filesystem.plain_file import FileState, state_at
from biopsy.session.conditions import state_of

_MOST_READ = 1 << 20  # bytes; of a larger file the size and time tell


class SteadyProgram:
    """The files that a check runs, as they were when this was made.

    One that has changed by the end of the first run changes whenever the check runs, and is not watched any more.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._seen: dict[Path, tuple[FileState | None, str]] = {
            path.absolute(): (state_at(path), state_of(path, _MOST_READ)) for path in files
        }
        self._has_run = False

    def after_run(self) -> list[Path]:
        """The files that change whenever the check runs: found once, when its first run has ended.

        Raises CheckChanged if one of them holds something else after a later run. One that was written anew with the
        same may.
        """
        changed = [path for path in self._seen if self._has_changed(path)]
        if changed and self._has_run:
            raise errors.CheckChanged(
                f"the check changed while it ran: {str(changed[0])!r} is not what it was when this began",
                next_steps=["start over: what the check said before may not be what it says now"],
            )
        self._has_run = True
        for path in changed:
            del self._seen[path]
        return changed

    def _has_changed(self, path: Path) -> bool:
        state, content = self._seen[path]
        now = state_at(path)
        if now == state:
            return False
        if state_of(path, _MOST_READ) != content:
            return True
        self._seen[path] = now, content
        return False
