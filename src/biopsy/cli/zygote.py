"""The warm process behind checks that are ``biopsy run``: it loads engines and files once, and each check is a fork.

It is itself a fork of a process that has loaded only the code of a check. That process then waits to become a cold
check, as in ``cold_start``.

Its arguments are the descriptor that ``cold_start`` reads from, one whose closing ends the zygote, and the words of a
check. A request holds the ``words`` of a check and, under ``BIOPSY_VERDICT``, the path to write its verdict to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.words import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.cli import cold_start
from biopsy.cli.run.options import RunOptions, own_run
from biopsy.engines.base import Engine
from biopsy.engines.registry import created_plain
from biopsy.processes.forks import connections_of_environment, is_detached_fork
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.server import serve_forks


def main() -> int:
    """Load the code, then fork: the fork serves checks, if they can be, and this process waits to become a cold one."""
    requests, lifeline, *words = sys.argv[1:]
    connections = connections_of_environment()
    options = own_run(words)
    engines = [] if options is None else cold_start.load(options)
    # Scripts of the user's are run in a process of their own, and limits are kept by one that supervises the run.
    is_plain = options is not None and not (options.data_loader_script or options.has_functions or options.has_limits)
    is_served = is_plain and engines and all(engine.forks_warm for engine in engines)
    if options is not None and is_served and is_detached_fork(int(lifeline)):
        os.close(int(requests))
        warm_up(options, engines)
        serve_forks(_check, connections)
    for descriptor in (int(lifeline), *connections):
        os.close(descriptor)
    return cold_start.wait(int(requests), engines)


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
