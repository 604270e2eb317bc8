"""A warm process for a script of the user: its very interpreter, which has imported what the script needs.

Each fork of it runs the script from the beginning, with words of its own; ``script_start`` is what happens there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from biopsy.isolation.fork_server import ForkServer, ServerGoneError
from biopsy.isolation.forks import STATE_VARIABLE

_HERE = str(Path(__file__).with_name("script_start"))
_PATIENCE = 60.0  # seconds for all imports of a script


def start_script_server(words: Sequence[str], environment: Mapping[str, str], connections: int) -> ForkServer:
    """Start the warm process of a script, by the words that would run it. A fork gets its own words from a request.

    Raises ServerGoneError where that is not possible: only Linux tells what an import does.
    """
    if sys.platform != "linux" or os.pathsep in _HERE:
        raise ServerGoneError("no script can be kept warm here")
    theirs = os.environ.get("PYTHONPATH")
    printed, printing = os.pipe()
    told: dict[str, object] = {
        "PYTHONPATH": theirs, "here": _HERE, "printed": printed, "left": [], "noted": [], "own": [], "starts": 0,
        "generation": 0, "ready": False,
    }  # fmt: skip
    try:
        return ForkServer(
            words,
            connections=connections,
            patience=_PATIENCE,
            environment={
                **environment,
                "PYTHONPATH": os.pathsep.join(filter(None, [_HERE, theirs])),
                STATE_VARIABLE: json.dumps(told),
            },
            descriptors=[printed],
            stdout=printing,
        )
    finally:
        os.close(printed)
        os.close(printing)


def script_request(argv: Sequence[str], orig_argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """What a fork is to be: the words that the script sees, those of its process, and what its environment has more."""
    return {"argv": list(argv), "orig_argv": list(orig_argv), "environment": dict(environment)}
