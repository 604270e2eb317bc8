"""A process for a cold check, started ahead of time, that loads what the check needs and waits.

Its arguments are a file descriptor to read from and the words of a check. The words tell which code and engines to
load; no model or other file that they name is opened. An empty line on the descriptor says to load the engines. A line
with a JSON object says to become a check: to do what ``biopsy`` with its ``words`` does, and to write the verdict to
the path under ``BIOPSY_VERDICT``. If the descriptor is closed instead, the process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from biopsy import errors
from biopsy.checks.words import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.cli.run.options import RunOptions, own_run
from biopsy.engines.base import Engine
from biopsy.engines.registry import class_of
from biopsy.processes.forks import MARK, carry_mark
from biopsy.processes.own_process import leave
from biopsy.processes.reaper import VERDICT_VARIABLE


def main() -> int:
    """Load, wait and run; returns the exit status."""
    descriptor, *words = sys.argv[1:]
    options = own_run(words)
    return wait(int(descriptor), [] if options is None else load(options))


def wait(descriptor: int, engines: Sequence[type[Engine]]) -> int:
    """Wait for lines on the descriptor: load the engines, then run the requested check; returns its exit status."""
    with os.fdopen(descriptor, "rb") as requests:
        while (line := requests.readline()) == b"\n":
            for engine in engines:
                with suppress(errors.BiopsyError):
                    engine.version()  # imports its package
    if not line.endswith(b"\n"):
        leave(0)  # no check is needed
    request = json.loads(line)
    carry_mark(request[MARK])
    program, *options = request["words"]
    sys.argv = [Path(program).name, *options]
    os.environ.update({VERDICT_VARIABLE: request[VERDICT_VARIABLE], SETTINGS_VARIABLE: NO_SETTINGS})
    from biopsy.cli.app import main as run_command

    return run_command()


_CODE = (
    "biopsy.cli.app", "biopsy.cli.run.command", "biopsy.cli.run.noise", "biopsy.cli.run.report", "biopsy.model.extract",
    "numpy.ma",  # numpy.unique would import it
    "pybase64",  # values in JSON files are text
)  # fmt: skip


def load(options: RunOptions) -> list[type[Engine]]:
    """Import the code of ``biopsy run``; returns the classes of its engines, each once.

    Returns none if an engine is unknown: the check itself will report that.
    """
    for name in _CODE:
        importlib.import_module(name)
    try:
        return list(dict.fromkeys(class_of(spec) for spec in options.specs_to_run()))
    except errors.BiopsyError:
        return []
