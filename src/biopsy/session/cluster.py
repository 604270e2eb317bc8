"""What a Ray cluster is asked for and given: its address, what a check has of a machine for itself, and a place on
this machine for checks.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from biopsy import errors
from biopsy.checks.portable import PortableTask
from biopsy.checks.task_host import Answer, TaskHost
from biopsy.processes import cleanup
from biopsy.processes.own_files import ContentStore, claimed_folder, folder_of_user, remove_abandoned
from biopsy.text import first_line

_ADDRESS = re.compile(r"\s*(?P<client>ray://)?\[?(?P<host>[^/\[\]]+)\]?:(?P<port>\d{1,5})/?\s*")
_SOON = 10.0
"""Seconds in which a machine that is there takes a connection."""
_BEAT = 5.0
_AWAY = 30.0
"""Seconds between two looks at the head, and until it counts as gone: with a last look of 10 s, less than Ray's 60."""
_MOST_HEARD = 1 << 20
_START = "ray start --head    on the first machine, then  ray start --address HOST:6379  on the others"
_PORTS = "--on HOST:6379    on a machine of the cluster, or  --on ray://HOST:10001  from elsewhere"
_MODE = "RAY_AUTH_MODE"
_REFUSED = "InvalidAuthToken"
"""What a cluster says to whoever has not its token."""


def require_listener(address: str) -> None:
    """Raise UsageError if nothing takes a connection at ``HOST:PORT`` or ``ray://HOST:PORT``.

    Other addresses are left to Ray.
    """
    parts = _ADDRESS.fullmatch(address.strip())
    if parts is None:
        return
    try:
        socket.create_connection((parts["host"], int(parts["port"])), timeout=_SOON).close()
    except (OSError, OverflowError, ValueError) as error:  # no such port, no name of a host
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise errors.UsageError(
            f"no Ray cluster answers at {address}: {reason[:1].lower()}{reason[1:]}", next_steps=[_START, _PORTS]
        ) from error


def no_answer(address: str, error: Exception, heard: str) -> errors.UsageError:
    """The error for a cluster that could not be joined; ``heard`` is what Ray has written to stderr meanwhile."""
    wants_token = _REFUSED in heard or type(error).__name__ == "AuthenticationError"
    has_mode = _MODE in os.environ
    token = (
        "the token of the cluster belongs into ~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN"
        if has_mode
        else f"export {_MODE}=token    if the cluster wants the token that stands in ~/.ray/auth_token"
    )
    if wants_token:
        return errors.UsageError(f"the Ray cluster at {address} wants its token", next_steps=[token])
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        reason = first_line(str(error))
        return errors.UsageError(
            f"no Ray cluster answers at {address}: {type(error).__name__}: {reason}", next_steps=[_START]
        )
    kind = "Ray Client" if parts["client"] else "the head of a Ray cluster"
    other = address.removeprefix("ray://") if parts["client"] else f"ray://{address}"
    return errors.UsageError(
        f"what answers at {address} is not {kind}, or is too busy: {first_line(str(error))}",
        next_steps=[f"--on {other}    if this is the other port", _PORTS, *([] if has_mode else [token])],
    )


class Pulse:
    """Whether the head of a cluster that was joined still takes connections; asked by whoever waits for an answer.

    Ray ends this whole process, with status 1 and no word of ours, if the head is away for 60 s.
    """

    def __init__(self, head: str) -> None:
        self._head = head
        self._heard = self._asked = monotonic()
        self._lock = threading.Lock()
        self.is_gone = False

    def require(self) -> None:
        """Raise CheckError if the head has been away for so long that it will not come back."""
        with self._lock:
            now = monotonic()
            if self._head and not self.is_gone and now > self._asked + _BEAT:
                with contextlib.suppress(errors.UsageError):
                    require_listener(self._head)
                    self._heard = now
                self._asked = monotonic()
                self.is_gone = self._asked > self._heard + _AWAY
        if self.is_gone:
            raise errors.CheckError(
                f"the Ray cluster does not answer any more: its head, {self._head}, has been away for {_AWAY:.0f} s",
                next_steps=["ray status    shows whether it runs; the same line goes on once it does"],
            )


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """Keep what libraries write to stderr away from the terminal; at the end the list holds it, as one text."""
    heard: list[str] = []
    try:
        before = os.dup(2)
    except OSError:  # it was closed: nothing leaks, and nothing can be heard
        yield heard
        return
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(file.fileno(), 2)
        try:
            yield heard
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            heard.append(file.read(_MOST_HEARD).decode(errors="replace"))


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What each check needs of a machine, as Ray counts it: processors, GPUs, and whatever a cluster calls its own."""

    cpus: float = 1.0
    gpus: float = 0.0
    others: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def named(cls, wanted: Mapping[str, float]) -> Resources:
        """Resources by the names that Ray has for them, such as ``{"GPU": 1, "CPU": 4}``; one CPU if none is said."""
        others = {name: number for name, number in wanted.items() if name not in ("CPU", "GPU")}
        return cls(cpus=wanted.get("CPU", 1.0), gpus=wanted.get("GPU", 0.0), others=others)

    def __str__(self) -> str:
        return _text(self._wanted)

    @property
    def _wanted(self) -> dict[str, float]:
        every = {"CPU": self.cpus, "GPU": self.gpus, **self.others}
        return {name: number for name, number in every.items() if number}

    def places(self, there: Mapping[str, float]) -> int:
        """How many checks have room at once on a machine with these resources."""
        needs = self._wanted.items()
        return min((math.floor(there.get(name, 0.0) / needed) for name, needed in needs), default=1)

    def most(self, machines: Collection[Mapping[str, float]]) -> str:
        """The most that any of these machines has of each of them."""
        return _text({name: max((has.get(name, 0.0) for has in machines), default=0.0) for name in self._wanted})


def _text(numbers: Mapping[str, float]) -> str:
    return ",".join(f"{name}={number:g}" for name, number in numbers.items())


# A place for checks on this machine, lent to a search that runs on another one.

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
        given = os.environ.get("BIOPSY_CACHE_DIR")
        cache = Path(given).absolute() if given else folder_of_user("XDG_CACHE_HOME", ".cache")
        self._host = TaskHost(folder, ContentStore((cache or folder) / "contents"))

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
