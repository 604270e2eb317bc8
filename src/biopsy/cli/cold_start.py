"""The process of a cold check that is started before it is asked for: it loads what it needs, and waits. Its words
are a descriptor, and those of a check, which tell what to load: code and engines, nothing of the model or of the
files that the words name. What comes over the descriptor, one JSON object with the ``words`` and, under
``BIOPSY_VERDICT``, the path to say its verdict in, makes it what ``biopsy`` with these words would be. Engines
are loaded when an empty line says that it will be needed soon. Nothing comes if it is not needed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.cli.run.options import RunOptions
from biopsy.engines.base import Engine
from biopsy.processes.forks import MARK, carry_mark
from biopsy.processes.own_process import leave
from biopsy.processes.reaper import VERDICT_VARIABLE


def main() -> int:
    """Load, wait, run; the exit status."""
    descriptor, *words = sys.argv[1:]
    options = options_of(words)
    return wait(int(descriptor), [] if options is None else load(options))


def load(options: RunOptions) -> list[type[Engine]]:
    """Import what a check with these options needs but for its engines, which are returned.

    None is, if one is not known: the check itself will tell what is wrong with it.
    """
    load_code()
    try:
        return engines_of(options)
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


# What a check that is ``biopsy run`` will need, told by its words, and loaded before it is asked for.


def options_of(words: Sequence[str]) -> RunOptions | None:
    """The options of a check; None if it is no ``run`` of ours, or a wrong one."""
    command = parse(words)
    if not isinstance(command, OwnRun):
        return None
    from biopsy.cli.commands import COMMANDS
    from biopsy.cli.parser import parser_of

    parser = parser_of(Path(command.program).name, next(each for each in COMMANDS if each.words == ("run",)))
    try:
        return RunOptions.of(parser.parse_known_args(list(command.options))[0])
    except errors.BiopsyError:
        return None  # the check itself will tell what is wrong with it


def engines_of(options: RunOptions) -> list[type[Engine]]:
    """The classes of the engines that it runs, each once. Raises UsageError for one that is not known."""
    from biopsy.engines.registry import class_of

    return list(dict.fromkeys(class_of(spec) for spec in options.specs_to_run()))


def load_code() -> None:
    """Import everything that it uses."""
    import numpy.ma  # noqa: F401 -- numpy.unique would import it
    import pybase64  # noqa: F401 -- values in JSON files are text

    import biopsy.checks.verdict
    import biopsy.cli.app
    import biopsy.cli.arguments.engines
    import biopsy.cli.run.execution
    import biopsy.cli.run.findings
    import biopsy.cli.run.names
    import biopsy.cli.run.report
    import biopsy.cli.run.settings
    import biopsy.comparison.describe
    import biopsy.comparison.runs
    import biopsy.comparison.tolerance
    import biopsy.engines.runner
    import biopsy.model.extract
    import biopsy.model.nodes
    import biopsy.tensors.generate  # noqa: F401
