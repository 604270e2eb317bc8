"""Runs tasks on another machine, in a folder of its own, with warm checks; brings back files that a check leaves."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from biopsy import errors
from biopsy.checks.command import CommandCheck
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.portable import Content, PortableCheck, PortableTask
from biopsy.checks.task import NO_CANDIDATE, EngineFileCheck, Prepared, Task, TaskSite, clear, run_check
from biopsy.checks.warm import command_check
from biopsy.checks.words import with_files
from biopsy.processes.reading import FileState, open_plain, state_at
from biopsy.processes.server import as_json
from biopsy.processes.watch import Stop
from biopsy.text import size_text

_MOST_CHECKS = 4
"""Checks kept warm: usually one or two, and the cold one at the end."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a task: its evidence, or the error that it raised, in JSON form. Paths are below ``root``.

    For a task with a preparation: the ``report`` of that, and the ``files`` to bring back, by their paths on the
    sending machine; ``evidence`` is None if the check was not run.

    If ``is_stopped``, the rest of the answer means nothing.
    """

    root: str
    evidence: Evidence | None = None
    error: Mapping[str, Any] | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[tuple[str, bytes], ...] = ()
    is_stopped: bool = False


class TaskHost:
    """Runs portable tasks, one after the other. Their files are written below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._placed: dict[str, tuple[str, FileState | None]] = {}  # place -> digest, state
        self._checks: dict[PortableCheck, CommandCheck] = {}
        self._kept: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._unwanted = -1
        self._running: tuple[int, Stop] | None = None

    def run(self, number: int, task: PortableTask, received: Callable[[str], Iterable[bytes]]) -> Answer:
        """Run a task, unless it is stopped by its ``number``; numbers rise from task to task.

        ``received`` gives the bytes of a file by its digest, in parts; it is called only for files that are not in
        their places, or were changed there.
        """
        with self._stop_of(number) as stop:
            try:
                answer = self._answer(task, received, stop)
            except (errors.BiopsyError, OSError) as error:  # whatever it is, it says nothing about the model
                failure = error
                if isinstance(error, OSError):
                    failure = errors.CheckError(f"the check could not be run: {error.strerror or error}")
                elif not isinstance(error, errors.CheckError):
                    failure = errors.CheckError(error.message, kept=error.kept, next_steps=error.next_steps)
                answer = Answer(root=str(self._folder), error=as_json(failure))
        with self._lock:
            is_stopped = number <= self._unwanted
        return replace(answer, is_stopped=is_stopped)

    def stop(self, number: int) -> None:
        """End a task with all processes that it has started, or keep it from starting. From any thread."""
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

    def _answer(self, task: PortableTask, received: Callable[[str], Iterable[bytes]], stop: Stop) -> Answer:
        root = str(self._folder)
        for file in task.contents:
            self._place(file, received)
        if task.candidate is None:
            return Answer(root=root, evidence=self._evidence(task, NO_CANDIDATE, stop))
        candidate = self._path(task.candidate)
        try:
            if task.preparation is None:
                return Answer(root=root, evidence=self._evidence(task, candidate, stop))
            places = {sender_path: self._path(place) for sender_path, place in task.places}
            left = {sender_path: [*_left_at(sender_path, self._folder, places)] for sender_path in task.back}
            for path in chain.from_iterable(left.values()):  # of an earlier run
                with contextlib.suppress(OSError):
                    clear(path, whole=True)
            with task.preparation.prepared(TaskSite(places.__getitem__, self._kept), stop) as prepared:
                check = None if task.check is None or not prepared.is_ready else _with(task.check, prepared)
                evidence = self._evidence(replace(task, check=check), candidate, stop)
                back, room = dict[str, bytes](), MOST_BYTES
                for sender_path, paths in left.items():
                    if (content := _content(sender_path, paths, room)) is not None:
                        back[sender_path], room = content, room - len(content)
                return Answer(root=root, evidence=evidence, report=prepared.report, files=tuple(back.items()))
        finally:
            with contextlib.suppress(OSError):
                clear(candidate, whole=True)

    def _evidence(self, task: PortableTask, candidate: Path, stop: Stop) -> Evidence | None:
        if task.check is None:
            return None
        parts = None if task.model is None or task.candidate is None else [task.model]
        check: Check = self._command(task, replace(task.check, builder=None, built=""))
        if task.check.builder is not None:
            builder = self._command(task, task.check.builder)
            check = EngineFileCheck(builder, check, self._path(dict(task.places)[task.check.built]))
        return run_check(Task(check, candidate, parts, task.original), stop)

    def close(self) -> None:
        """End everything kept warm."""
        for kept in (*self._checks.values(), *self._kept.values()):
            kept.close()
        self._checks.clear()
        self._kept.clear()

    def _path(self, place: str) -> Path:
        """The path of a place. Raises CheckError for one outside the folder."""
        pure = PurePosixPath(place)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in place:
            raise errors.CheckError(f"{place!r} is not a place below a folder")
        path = self._folder / pure
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _place(self, content: Content, received: Callable[[str], Iterable[bytes]]) -> None:
        path = self._path(content.place)
        if self._placed.get(content.place) == (content.digest, state_at(path)) and not path.is_symlink():
            return  # unchanged since it was written
        clear(path, whole=True)
        digest, length = hashlib.sha256(), 0
        mode = 0o700 if content.is_program else 0o600
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            for part in received(content.digest):
                length += len(part)
                if length > content.size:
                    break
                digest.update(part)
                stream.write(part)
        if length != content.size or digest.hexdigest() != content.digest:
            clear(path, whole=True)
            raise errors.CheckError(f"what came for {content.place} is not what was sent: was the file changed?")
        self._placed[content.place] = content.digest, state_at(path)

    def _command(self, task: PortableTask, portable: PortableCheck) -> CommandCheck:
        """A command of a task; a warm one if it was run before."""
        # A check that finds candidates by their usual name is told the path in each run.
        paths = {path: self._path(place) for path, place in task.places if place != task.candidate}
        key = replace(portable, timeout=None, memory=None, replaced=())
        check = self._checks.pop(key, None)
        if check is None:
            own = tuple(sys.executable if word == task.python else word for word in portable.words)
            words = with_files(own, {Path(path): place for path, place in paths.items()})
            environment = {name: value for name, value in portable.environment if os.environ.get(name) != value}
            if portable.is_warm and not environment:
                check = command_check(words, portable.default_name)
            else:
                check = CommandCheck(words, portable.default_name, environment=environment)
            while len(self._checks) >= _MOST_CHECKS:
                self._checks.pop(next(iter(self._checks))).close()
        self._checks[key] = check  # last in the dictionary: the check used last is closed last
        check.timeout, check.memory = portable.timeout, portable.memory
        replaced = {paths[path]: paths[other] for path, other in portable.replaced}
        return check.with_files(replaced) if replaced else check


def _with(check: PortableCheck, prepared: Prepared) -> PortableCheck:
    """A check with the words and variables that a preparation gives."""
    words = check.words
    for before, now in prepared.words.items():
        words = tuple(word.replace(before, now) for word in words)
    environment = {**dict(check.environment), **prepared.environment}
    return replace(check, words=words, environment=tuple(environment.items()))


MOST_BYTES = 256_000_000
"""Bytes of all files that one run may bring back."""


def _left_at(sender_path: str, folder: Path, places: Mapping[str, Path]) -> Iterator[Path]:
    """The paths where a check may leave the file that is called ``sender_path`` on the sending machine.

    ``places`` maps paths there to paths here. A check that is not given the name writes to ``folder``, its current one.
    """
    yield places[sender_path]
    if not PurePath(sender_path).is_absolute() and ".." not in PurePath(sender_path).parts:
        yield folder / sender_path


def _content(sender_path: str, paths: Iterable[Path], room: int) -> bytes | None:
    """The content of the file; None if there is none. Raises CheckError if it is not a plain file, or too large."""
    for path in paths:
        try:
            with open_plain(path) as stream:
                content = b"" if os.fstat(stream.fileno()).st_size > room else stream.read(room + 1)
                is_too_large = os.fstat(stream.fileno()).st_size > room
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _stays(sender_path, str(error.strerror or error)) from error
        if is_too_large or len(content) > room:
            raise _stays(sender_path, f"at most {size_text(MOST_BYTES)} of files come back from one run")
        return content
    return None


def _stays(sender_path: str, why: str) -> errors.CheckError:
    return errors.CheckError(
        f"the artifact {sender_path} cannot be brought back from another machine: {why}",
        next_steps=["leave it out of --artifacts, or leave --on out"],
    )
