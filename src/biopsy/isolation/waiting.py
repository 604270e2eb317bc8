"""A process of ours that is started before it is needed: it loads, waits for its words, and then is as any other.

What it has loaded can serve twice: a fork of it, made before it knows more, may become a warm process
(``ForkOfWaiting``). Nothing of what the fork does comes back to it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from biopsy.isolation.forks import FORK_VARIABLE, MARK, UNMARKED
from biopsy.isolation.interpreter import own_python
from biopsy.isolation.process import PrintingProcess, run_with_own_mark
from biopsy.isolation.watch import Ended, Limits, Stop, readable

_LAST_WAIT = 5.0  # seconds for a fork that was killed just now


class WaitingProcess:
    """Calls ``main`` of a module, with a descriptor and these words, at once; it waits there for one line of JSON.

    Before that, it may be told by an empty line that it will be needed soon. It sees the end of the file if it is not
    needed, or if this process has gone. ``environment`` and ``descriptors`` are handed on. Raises CannotStartError.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        theirs, self._ours = os.pipe()
        self._started = time.monotonic()
        try:
            self._command = PrintingProcess(
                [*own_python(module), str(theirs), *words],
                environment={**(environment or {}), FORK_VARIABLE: UNMARKED},
                descriptors=[theirs, *descriptors],
            )
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self.pid = self._command.process.pid

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def expect(self) -> None:
        """Tell it that it will be needed soon."""
        with suppress(OSError):  # it has gone, which who needs it will see
            os.write(self._ours, b"\n")

    def run(self, request: Mapping[str, Any], limits: Callable[[], Limits], stop: Stop | None = None) -> Ended | None:
        """Have it do what a request says, and watch it from now on as ``attend`` does; None if it has ended before.

        Once only. Raises StillRunningError.
        """

        def run(mark: str) -> Ended | None:
            if not self._tell({**request, MARK: mark}):
                self._command.end()
                return None
            return self._command.watched(limits, stop)

        return run_with_own_mark(run)

    def close(self) -> None:
        """End it: it is not needed."""
        os.close(self._ours)
        self._command.end()

    def _tell(self, request: Mapping[str, Any]) -> bool:
        data = json.dumps(request).encode() + b"\n"
        try:
            with os.fdopen(self._ours, "wb", buffering=0) as told:
                return self._command.process.status() is None and told.write(data) == len(data)
        except OSError:
            return False


class ForkOfWaiting:
    """A fork of a waiting process, as this process sees it: by ``lifeline``, our end of a pair of sockets.

    The fork alone has the other end, and is killed when ours is closed.
    """

    def __init__(self, waiting: WaitingProcess, lifeline: socket.socket) -> None:
        self.pid = waiting.pid  # it has none of its own yet
        self._lifeline = lifeline

    def wait(self, seconds: float) -> None:
        """Wait until it has let go of its files, which an ending process does first, at most so long."""
        if self._lifeline.fileno() >= 0:
            readable([self._lifeline.fileno()], seconds)

    def kill(self) -> None:
        """End it, and wait until it has let go of its files; the system may list it for a moment longer."""
        if self._lifeline.fileno() >= 0:
            self._lifeline.shutdown(socket.SHUT_WR)
            self.wait(_LAST_WAIT)
            self.close()

    def close(self) -> None:
        """Free our end; one that still runs is killed by that."""
        self._lifeline.close()
