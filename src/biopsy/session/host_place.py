"""A place for checks on this machine, lent to a search that runs on another one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.filesystem.content_store import ContentStore
from biopsy.filesystem.private_folder import folder_of_user
from biopsy.isolation import cleanup
from biopsy.isolation.claimed_folder import claimed_folder, remove_abandoned

_PREFIX = "biopsy-host-"


class HostPlace:
    """A task host in a folder of its own, which is the current folder of this process from now on.

    The folder, and all that checks have started, go with this process, however it ends. What a machine that died has
    left is removed by the next that begins there. What is sent is kept in the cache of this user, for all places of
    this machine.
    """

    def __init__(self) -> None:
        os.environ.pop("PYTHONBREAKPOINT", None)  # Ray's waits for a person
        cleanup.start(apart=True)  # whoever ends this process may end its children first
        parent = Path(tempfile.gettempdir())
        remove_abandoned(_PREFIX, parent)
        self._leaving = ExitStack()
        folder = self._leaving.enter_context(claimed_folder(_PREFIX, parent))
        os.chdir(folder)
        self._host = TaskHost(folder, ContentStore(_store_folder() or folder / "contents"))

    def run(self, number: int, task: PortableTask, received: Callable[[str], Iterable[bytes]]) -> Answer:
        """See ``TaskHost.run``."""
        return self._host.run(number, task, received)

    def stop(self, number: int) -> None:
        """End a task. From any thread."""
        self._host.stop(number)

    def close(self) -> None:
        """End what was kept warm, and remove the folder."""
        self._host.close()
        os.chdir("/")
        self._leaving.close()


def _store_folder() -> Path | None:
    given = os.environ.get("BIOPSY_CACHE_DIR")
    own = Path(given).absolute() if given else folder_of_user("XDG_CACHE_HOME", ".cache")
    return None if own is None else own / "contents"
