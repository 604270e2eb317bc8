"""Runs of which several go on at once, and that are told of in the order in which they were begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import TypeVar

from biopsy.session.workers import Workers

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_order(
    asked: Iterable[Asked],
    begin: Callable[[Asked, Collection[Asked]], Future[Found]],
    workers: Workers,
    *,
    jobs: int,
    waiting: int,
) -> Generator[tuple[Asked, Found], None, None]:
    """Begin a run for each thing that is ``asked``, up to ``jobs`` at once; yields what they found, in this order.

    ``begin`` gets a thing, and those whose runs go on. At most ``waiting`` runs for each job may have ended before one
    that was begun earlier. With one job the next run does not begin before the one that was yielded has been dealt
    with. Closing the generator stops what still runs. Raises what a run raises.
    """
    left = iter(asked)
    begun: deque[tuple[Asked, Future[Found]]] = deque()
    try:
        while True:
            running = {run: thing for thing, run in begun if not run.done()}
            room = min(jobs - len(running), waiting * jobs - len(begun))
            for thing in islice(left, max(0, room)):
                run = begin(thing, list(running.values()))
                running[run] = thing
                begun.append((thing, run))
            if not begun:
                return
            if running and not begun[0][1].done():
                workers.wait(running, None)
            if begun[0][1].done():
                thing, run = begun.popleft()
                yield thing, run.result()
    finally:
        for _, run in begun:
            workers.stop(run)
