"""A process of ours that is started before it is needed: it loads, waits for its words, and then is as any other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from biopsy.isolation.interpreter import own_python
from biopsy.isolation.process import PrintingProcess
from biopsy.isolation.watch import Ended, Limits, Stop


class WaitingProcess:
    """Calls ``main`` of a module, with a descriptor and these words, at once; it waits there for one line of JSON.

    It sees the end of the file instead if it is not needed, or if this process has gone. Raises CannotStartError.
    """

    def __init__(self, module: str, words: Sequence[str]) -> None:
        theirs, self._ours = os.pipe()
        try:
            self._command = PrintingProcess([*own_python(module), str(theirs), *words], descriptors=[theirs])
        except BaseException:
            os.close(self._ours)
            raise
        finally:
            os.close(theirs)
        self.pid = self._command.process.pid

    def run(self, request: Mapping[str, Any], limits: Callable[[], Limits], stop: Stop | None = None) -> Ended | None:
        """Have it do what a request says, and watch it from now on as ``attend`` does; None if it has ended before.

        Once only. Raises StillRunningError.
        """
        if not self._tell(request):
            self._command.end()
            return None
        return self._command.watched(limits, stop)

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
