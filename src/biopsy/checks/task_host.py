"""What does tasks on another machine: a folder of its own, where it has what a task speaks of, and warm checks."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.file_names import with_files
from biopsy.checks.outcome import Evidence
from biopsy.checks.portable import Content, PortableCheck, PortableTask
from biopsy.checks.task import NO_CANDIDATE, Task, clear, run_check
from biopsy.filesystem.content_store import ContentStore
from biopsy.isolation.errors_as_json import as_json
from biopsy.isolation.watch import Stop

_MOST_CHECKS = 4
"""Checks that are kept warm: as a rule there are one or two, and the cold one of the end."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a task has come to: its evidence, or the error that it raised, as JSON has it. Paths are below ``root``."""

    root: str
    evidence: Evidence | None = None
    error: Mapping[str, Any] | None = None


class TaskHost:
    """Does portable tasks, one after the other. What is to stand at their places is written below ``folder``."""

    def __init__(self, folder: Path, store: ContentStore) -> None:
        self._folder = folder
        self._store = store
        self._placed: dict[str, str] = {}  # digests, by place
        self._checks: dict[PortableCheck, CommandCheck] = {}
        self._lock = threading.Lock()
        self._unwanted = -1
        self._running: tuple[int, Stop] | None = None

    def run(self, number: int, task: PortableTask, received: Callable[[str], Iterable[bytes]]) -> Answer:
        """Do a task, unless it is stopped by its ``number``; each has a larger one than those before it.

        ``received`` gives the bytes of a file by its digest, in parts; it is asked for new ones only.
        """
        root = str(self._folder)
        with self._stop_of(number) as stop:
            try:
                return Answer(root=root, evidence=self._evidence(task, received, stop))
            except (errors.BiopsyError, OSError) as error:
                return Answer(root=root, error=as_json(_as_check_error(error)))

    def stop(self, number: int) -> None:
        """Have a task end, with all that it has started; or never begin. From any thread."""
        with self._lock:
            self._unwanted = max(number, self._unwanted)
            if self._running is not None and self._running[0] == number:
                self._running[1].set()

    @contextlib.contextmanager
    def _stop_of(self, number: int) -> Iterator[Stop]:
        stop = Stop()
        with self._lock:
            self._running = number, stop
            if number <= self._unwanted:
                stop.set()
        try:
            yield stop
        finally:
            with self._lock:
                self._running = None
            stop.close()

    def _evidence(self, task: PortableTask, received: Callable[[str], Iterable[bytes]], stop: Stop) -> Evidence:
        for content in task.contents:
            self._place(content, received)
        if task.candidate is None:
            return run_check(Task(self._check(task), NO_CANDIDATE, None), stop)
        candidate = self._path(task.candidate)
        try:
            return run_check(Task(self._check(task), candidate, [task.model], task.original), stop)
        finally:
            with contextlib.suppress(OSError):
                clear(candidate, whole=True)

    def close(self) -> None:
        """End what was kept warm."""
        for check in self._checks.values():
            check.close()
        self._checks.clear()

    def _path(self, place: str) -> Path:
        """Where a place is. Raises CheckError for one that leads elsewhere."""
        pure = PurePosixPath(place)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in place:
            raise errors.CheckError(f"{place!r} is no place below a folder")
        path = self._folder / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _place(self, content: Content, received: Callable[[str], Iterable[bytes]]) -> None:
        path = self._path(content.place)
        if self._placed.get(content.place) == content.digest and path.is_file():
            return
        self._store.copy_to(path, content.digest, content.size, lambda: received(content.digest))
        path.chmod(0o700 if content.is_program else 0o600)
        self._placed[content.place] = content.digest

    def _check(self, task: PortableTask) -> CommandCheck:
        """The check of a task, a warm one if it was asked before."""
        told = task.check
        paths = {path: self._path(place) for path, place in task.places}
        base = self._base(told, task.python, {Path(path): place for path, place in paths.items()})
        base.timeout, base.memory = told.timeout, told.memory
        replaced = {paths[path]: paths[other] for path, other in told.replaced}
        return base.with_files(replaced) if replaced else base

    def _base(self, told: PortableCheck, python: str, paths: Mapping[Path, Path]) -> CommandCheck:
        from biopsy.checks.warm import command_check

        key = replace(told, timeout=None, memory=None, replaced=())
        found = self._checks.pop(key, None)
        if found is None:
            own = tuple(sys.executable if word == python else word for word in told.words)
            words = with_files(own, paths)
            environment = dict(told.environment)
            warm = told.is_warm and not environment
            found = (
                command_check(words, told.default_name)
                if warm
                else CommandCheck(words, told.default_name, environment=environment)
            )
            while len(self._checks) >= _MOST_CHECKS:
                self._checks.pop(next(iter(self._checks))).close()
        self._checks[key] = found  # the one asked last is the last to go
        return found


def _as_check_error(error: errors.BiopsyError | OSError) -> errors.BiopsyError:
    """What is raised here says nothing of the model, whatever it is."""
    if isinstance(error, errors.CheckError):
        return error
    if isinstance(error, errors.BiopsyError):
        return errors.CheckError(error.message, kept=error.kept, next_steps=error.next_steps)
    return errors.CheckError(f"the check could not be run: {error.strerror or error}")
