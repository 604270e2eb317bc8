"""Runs that are begun before anybody asks for them, where workers would have nothing to do meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import Generic, TypeVar

from biopsy.session.workers import Workers

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class RunsAhead(Generic[Asked, Found]):
    """Runs of ``workers``, which ``begin`` begins. Who asks gets the oldest run that nobody has asked for.

    What is expected is only begun sooner: what is asked for, and in which order, is up to who asks. Things with the
    same ``key`` have the same runs. At most ``most`` are begun ahead and go on; None for any number.
    """

    def __init__(
        self,
        begin: Callable[[Asked], Future[Found]],
        key: Callable[[Asked], Hashable],
        workers: Workers,
        most: int | None = None,
    ) -> None:
        self._begin = begin
        self._key = key
        self._workers = workers
        self._most = most
        self._begun: dict[Hashable, deque[tuple[Asked, Future[Found]]]] = {}

    def expect(self, asked: Asked, times: int = 1) -> None:
        """Say that a thing will be asked for so many times: as many runs of it begin as have room."""
        begun = self._begun.setdefault(self._key(asked), deque())
        while len(begun) < times and (self._most is None or self._running < self._most):
            begun.append((asked, self._begin(asked)))

    def found(self, asked: Asked) -> tuple[Asked, Found]:
        """What a run of a thing has found, and that thing as it was when the run began. Raises what the run raises."""
        begun = self._begun.get(self._key(asked))
        thing, run = begun.popleft() if begun else (asked, self._begin(asked))
        while not run.done():
            self._workers.wait([run], None)
        return thing, run.result()

    def forget(self, asked: Asked) -> None:
        """Stop the runs of a thing that nobody will ask for."""
        self._stop(self._key(asked))

    def forget_all(self, but: Iterable[Asked] = ()) -> None:
        """Stop the runs of all things, ``but`` these."""
        for key in self._begun.keys() - {self._key(asked) for asked in but}:
            self._stop(key)

    @property
    def _running(self) -> int:
        return sum(not run.done() for begun in self._begun.values() for _, run in begun)

    def _stop(self, key: Hashable) -> None:
        for _, run in self._begun.pop(key, ()):
            self._workers.stop(run)
