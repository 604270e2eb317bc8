"""The process of a cold check that is started before it is asked for: it loads what it needs, and waits.

Its words are a descriptor, and those of a check, which tell what to load: code and engines, nothing of the model or of
the files that the words name. What comes over the descriptor, one JSON object with the ``words`` and, under
``BIOPSY_VERDICT``, the path to say its verdict in, makes it what ``biopsy`` with these words would be. Nothing comes if
it is not needed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from biopsy import errors
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.leaving import leave


def main() -> int:
    """Load, wait, run; the exit status."""
    descriptor, *words = sys.argv[1:]
    load(words)
    with os.fdopen(int(descriptor), "rb") as asked:
        line = asked.readline()
    if not line.endswith(b"\n"):
        leave(0)  # it is not needed
    request = json.loads(line)
    program, *options = request["words"]
    sys.argv = [Path(program).name, *options]
    os.environ[VERDICT_VARIABLE] = request[VERDICT_VARIABLE]
    from biopsy.cli.app import main as run_command

    return run_command()


def load(words: Sequence[str]) -> None:
    """Import what a check of these words needs; the check itself will tell what is missing, or wrong with it."""
    from biopsy.cli.run import preloading

    args = preloading.options_of(words)
    if args is None:
        return
    preloading.load_code()
    with suppress(errors.BiopsyError):
        for engine in preloading.engines_of(args):
            engine.version()
