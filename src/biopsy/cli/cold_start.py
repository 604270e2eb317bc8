"""The process of a cold check that is started before it is asked for: it loads what it needs, and waits.

Its words are a descriptor, and those of a check, which tell what to load: code and engines, nothing of the model or of
the files that the words name. What comes over the descriptor, one JSON object with the ``words`` and, under
``BIOPSY_VERDICT``, the path to say its verdict in, makes it what ``biopsy`` with these words would be. Engines are
loaded when an empty line says that it will be needed soon. Nothing comes if it is not needed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from biopsy import errors
from biopsy.checks.own_program import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.cli.run import preloading
from biopsy.engines.base import Engine
from biopsy.isolation.forks import MARK, carry_mark
from biopsy.isolation.leaving import leave
from biopsy.isolation.reaper import VERDICT_VARIABLE


def main() -> int:
    """Load, wait, run; the exit status."""
    descriptor, *words = sys.argv[1:]
    args = preloading.options_of(words)
    return wait(int(descriptor), [] if args is None else load(args))


def load(args: argparse.Namespace) -> list[type[Engine]]:
    """Import what a check with these options needs but for its engines, which are returned.

    None is, if one is not known: the check itself will tell what is wrong with it.
    """
    preloading.load_code()
    try:
        return preloading.engines_of(args)
    except errors.BiopsyError:
        return []


def wait(descriptor: int, engines: Sequence[type[Engine]]) -> int:
    """Load the engines once told, and be the check that is asked for; its exit status."""
    with os.fdopen(descriptor, "rb") as asked:
        while (line := asked.readline()) == b"\n":
            for engine in engines:
                with suppress(errors.BiopsyError):
                    engine.version()
    if not line.endswith(b"\n"):
        leave(0)  # it is not needed
    request = json.loads(line)
    carry_mark(request[MARK])
    program, *options = request["words"]
    sys.argv = [Path(program).name, *options]
    os.environ.update({VERDICT_VARIABLE: request[VERDICT_VARIABLE], SETTINGS_VARIABLE: NO_SETTINGS})
    from biopsy.cli.app import main as run_command

    return run_command()
