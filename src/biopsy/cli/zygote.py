"""The processes behind checks that are ``biopsy run``, started ahead of time: they load the code of a check and wait.

The arguments are the descriptor to read from, another one whose closing ends the zygote (-1 if none is wanted), and the
words of a check. These tell which code and engines to load; no model or other file that they name is opened yet.

The zygote is a fork of such a process. It loads engines and files once, and each check is a fork of it. A request holds
the ``words`` of a check and, under ``BIOPSY_VERDICT``, the path to write its verdict to.

The process itself waits to become a cold check. An empty line on its descriptor says to load the engines. A line with
such a request, as JSON, says to become that check. If the descriptor is closed instead, the process ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.cli.run.options import RunOptions, own_run
from biopsy.engines.base import Engine
from biopsy.engines.registry import class_of, created_plain
from biopsy.processes.forks import MARK, carry_mark, connections_of_environment, is_detached_fork
from biopsy.processes.own_process import leave
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.server import serve_forks


def main() -> int:
    """Load the code, then fork: the fork serves checks, if they can be, and this process waits to become a cold one."""
    requests, lifeline, *words = sys.argv[1:]
    connections = connections_of_environment() if int(lifeline) >= 0 else []
    options = own_run(words)
    engines = [] if options is None else load(options)
    # Scripts of the user's are run in a process of their own, and limits are kept by one that supervises the run.
    is_plain = options is not None and not (options.data_loader_script or options.has_functions or options.has_limits)
    is_served = connections and is_plain and engines and all(engine.forks_warm for engine in engines)
    if options is not None and is_served and is_detached_fork(int(lifeline)):
        os.close(int(requests))
        warm_up(options, engines)
        serve_forks(_check, connections)
    for descriptor in (int(lifeline), *connections) if connections else ():
        os.close(descriptor)
    return wait(int(requests), engines)


def warm_up(options: RunOptions, engines: Sequence[type[Engine]]) -> None:
    """Load the engines, inputs and golden values of checks with these options. The checks report what is missing."""
    for engine in engines:
        with suppress(errors.BiopsyError):
            created_plain(engine).warm_up()
    from biopsy.tensors import files

    for path in (*(options.load_inputs or ()), *(options.load_outputs or ())):
        with suppress(errors.BiopsyError):
            files.keep(path)


def _check(request: Mapping[str, Any]) -> int:
    """Run a requested check in a fork, as in a process of its own; returns its exit status."""
    os.environ.update({VERDICT_VARIABLE: request[VERDICT_VARIABLE], SETTINGS_VARIABLE: NO_SETTINGS})
    program, *words = request["words"]
    sys.argv = [Path(program).name]
    from biopsy.cli.app import main as run_command

    return run_command(words)


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
