"""The child's side of a process that serves requests, one after the other or by a fork for each; errors travel back
as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from biopsy import errors
from biopsy.processes.forks import ForkLoop, connections_of_environment

Request: TypeAlias = Mapping[str, Any]
Note: TypeAlias = Callable[[str], None]
"""Says how far the child has come with a request: whoever has to tell of its death knows it then."""


class Serving:
    """Takes over stdin and stdout: from now on, what anybody prints goes to stderr, and is no answer."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def serve(self, answer: Callable[[Request, Note], dict[str, Any]]) -> int:
        """Answer all requests; returns the exit status. What ``answer`` raises is raised where it was asked."""
        for line in sys.stdin.buffer:
            try:
                self._say({"answer": answer(json.loads(line), self._note)})
            except Exception as error:
                self._say({"error": as_json(error)})
        return 0

    def _note(self, text: str) -> None:
        self._say({"note": text})

    def _say(self, tree: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(tree).encode() + b"\n")
        self._answers.flush()


# The side of a warm process of ours that makes a fork for each request of a ``ForkServer``.

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


# Errors as JSON carries them from a child process to the one that started it.


def as_json(error: Exception) -> dict[str, Any]:
    """An error as JSON, of which ``from_json`` makes it again; what nobody foresaw becomes a BiopsyError.

    A class that takes more than JSON says of it, or that stands elsewhere than in ``errors``, becomes the nearest one
    above it that does not.
    """
    if not isinstance(error, errors.BiopsyError):
        error = errors.BiopsyError(f"{type(error).__name__}: {error}")
    tree = {
        "error": _nearest(type(error)).__name__,
        "message": error.summary,
        "details": list(error.details),
        "kept": error.kept,
        "next_steps": list(error.next_steps),
    }
    if isinstance(error, errors.EngineFailure):
        tree |= {"engine": error.engine, "stage": error.stage, "kind": error.kind}
    if isinstance(error, errors.CannotInstall):
        tree |= {"kind": error.kind}
    return tree


def from_json(tree: Mapping[str, Any]) -> errors.BiopsyError:
    """The error that ``as_json`` has made this of."""
    named = getattr(errors, tree["error"], None)
    error_class: type[errors.BiopsyError] = errors.BiopsyError
    if isinstance(named, type) and issubclass(named, errors.BiopsyError):
        error_class = _nearest(named)
    message, kept, steps = tree["message"], tree["kept"], tree["next_steps"]
    if error_class is errors.EngineFailure:
        failure = errors.EngineFailure(
            message, engine=tree["engine"], stage=tree["stage"], kind=tree["kind"], next_steps=steps
        )
        failure.kept = kept
        return failure
    if error_class is errors.CannotInstall:
        return errors.CannotInstall(message, kind=tree["kind"], details=tree["details"], kept=kept, next_steps=steps)
    if error_class is errors.Interrupted:
        return errors.Interrupted(message, kept=kept, next_steps=steps)
    return error_class(message, details=tree["details"], kept=kept, next_steps=steps)


def _nearest(error_class: type[errors.BiopsyError]) -> type[errors.BiopsyError]:
    """The class itself or the first above it that ``from_json`` can make."""
    for each in error_class.__mro__:
        stands_in_errors = getattr(errors, each.__name__, None) is each
        if stands_in_errors and issubclass(each, errors.BiopsyError):
            takes_only_what_all_take = each.__init__ is errors.BiopsyError.__init__
            if takes_only_what_all_take or each in {errors.EngineFailure, errors.CannotInstall, errors.Interrupted}:
                return each
    return errors.BiopsyError
