"""Signals that ask this process to end: one KeyboardInterrupt, however often they come and wherever they arrive."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

_AGAIN_AFTER = 0.05
"""Seconds until an interrupt that was swallowed is raised once more: what has swallowed it is over by then."""

is_program = False
"""Whether this process is the command and nothing else, so that it may go on ignoring signals until it ends."""


class Interrupts:
    """Handlers that raise KeyboardInterrupt, but not again for what comes within ``seconds``: it is the same request.

    Python prints and forgets an exception that is raised in a callback, such as one of ``weakref`` or ``__del__``. An
    interrupt that is lost there is raised again.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._asked: float | None = None
        self._number = signal.SIGINT.value

    @property
    def asked(self) -> bool:
        """Whether any has come."""
        return self._asked is not None

    def handle(self, number: int, frame: object) -> None:
        """The handler of a signal."""
        del frame
        self._number = number
        if self._asked is None or time.monotonic() - self._asked > self._seconds:
            self._asked = time.monotonic()
            raise KeyboardInterrupt

    def take_over(self, numbers: Sequence[int]) -> dict[int, Any]:
        """Handle signals, but for those that are ignored, as with nohup; returns the handlers that they had."""
        handlers = {number: signal.getsignal(number) for number in numbers}
        kept = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
        for number in kept:
            signal.signal(number, self.handle)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        return kept

    def give_back(self, handlers: dict[int, Any]) -> None:
        """Undo ``take_over``. After a request a program ignores the signals instead: it is ending."""
        sys.unraisablehook = self._hook
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_IGN if self.asked and is_program else handler)

    def _unraisable(self, lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._hook(lost)
            return
        import threading

        self._asked = None
        again = threading.Timer(_AGAIN_AFTER, _signal_main_thread, [self._number])
        again.daemon = True
        again.start()


def _signal_main_thread(number: int) -> None:
    """Send a signal to the thread that handles it, so that it ends a call in which that thread waits."""
    import threading

    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)


@contextlib.contextmanager
def interrupted_once(seconds: float) -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, end what stands inside as Ctrl-C does: nothing found is lost.

    Asked again within so many seconds it goes on with what it does then: to write the best result, and to end checks.
    What is ignored, as with nohup, stays so.
    """
    interrupts = Interrupts(seconds)
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = interrupts.take_over(numbers)
    try:
        yield
    finally:
        interrupts.give_back(handlers)
