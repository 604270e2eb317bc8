"""The process of a cold check that is started before it is asked for: it loads what it needs, and waits. Its words
are a descriptor, and those of a check, which tell what to load: code and engines, nothing of the model or of the
files that the words name. What comes over the descriptor, one JSON object with the ``words`` and, under
``BIOPSY_VERDICT``, the path to say its verdict in, makes it what ``biopsy`` with these words would be. Engines
are loaded when an empty line says that it will be needed soon. Nothing comes if it is not needed.
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
    """Load, wait, run; the exit status."""
    descriptor, *words = sys.argv[1:]
    options = own_run(words)
    return wait(int(descriptor), [] if options is None else load(options))


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


# What a check that is ``biopsy run`` will need, told by its words, and loaded before it is asked for.

_CODE = (
    "biopsy.checks.verdict", "biopsy.cli.app", "biopsy.cli.arguments.engines", "biopsy.cli.run.execution",
    "biopsy.cli.run.files", "biopsy.cli.run.findings", "biopsy.cli.run.noise", "biopsy.cli.run.report",
    "biopsy.comparison.describe", "biopsy.comparison.runs", "biopsy.comparison.tolerance", "biopsy.engines.runner",
    "biopsy.model.extract", "biopsy.model.nodes", "biopsy.tensors.generate",
    "numpy.ma",  # numpy.unique would import it
    "pybase64",  # values in JSON files are text
)  # fmt: skip


def load(options: RunOptions) -> list[type[Engine]]:
    """Import what a check with these options needs but for its engines, whose classes are returned, each once.

    None is, if one is not known: the check itself will tell what is wrong with it.
    """
    for name in _CODE:
        importlib.import_module(name)
    try:
        return list(dict.fromkeys(class_of(spec) for spec in options.specs_to_run()))
    except errors.BiopsyError:
        return []
