"""The side of a child process that answers the requests of a ``Server``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from biopsy.isolation.errors_as_json import as_json

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
