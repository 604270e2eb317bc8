"""The side of a warm process of ours that makes a fork for each request of a ``ForkServer``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from biopsy.isolation.forks import ForkLoop, connections_of_environment

Task: TypeAlias = Callable[[Mapping[str, Any]], int]
"""Does in a fork what a request says, and returns the exit status."""


def arguments() -> list[str]:
    """The words that the ``ForkServer`` was given."""
    return sys.argv[1:]


def serve_forks(task: Task, connections: Sequence[int] | None = None) -> NoReturn:
    """Do a task in a fork for each request, until nobody listens any more; then end this process.

    ``connections`` are the descriptors that the environment named, if they were taken from there before.
    """
    loop = ForkLoop(connections_of_environment() if connections is None else list(connections))
    gc.collect()
    gc.freeze()  # what is loaded now is shared with the forks, and not copied by their collector's marks
    request = loop.next_request()
    status = 4
    try:
        status = task(request)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
