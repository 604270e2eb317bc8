"""The warm process behind checks that are our own ``run``: engine and files are loaded once, each check is a fork.

It is a fork itself, of a process that has loaded the code of a check, and nothing else: that one waits to be a cold
check, as ``cold_start`` says. What the zygote loads, and what its forks do, stays here.

Its words are a descriptor for what ``cold_start`` waits for, one that ends the zygote, and those of a check. A request
has the ``words`` of one, and under ``BIOPSY_VERDICT`` the path to say its verdict in.
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
    """Load, and part: the fork serves checks, unless these words cannot be served, and this process waits."""
    asked, lifeline, *words = sys.argv[1:]
    connections = connections_of_environment()
    options = own_run(words)
    engines = [] if options is None else cold_start.load(options)
    if options is not None and _may_be_served(options, engines) and is_detached_fork(int(lifeline)):
        os.close(int(asked))
        warm_up(options, engines)
        serve_forks(_check, connections)
    for descriptor in (int(lifeline), *connections):
        os.close(descriptor)
    return cold_start.wait(int(asked), engines)


def _may_be_served(options: RunOptions, engines: Sequence[type[Engine]]) -> bool:
    runs_scripts = options.data_loader_script or options.has_functions
    is_plain = not (runs_scripts or options.has_limits)  # limits are kept by a process that only waits
    return bool(engines) and all(engine.forks_warm for engine in engines) and is_plain


def warm_up(options: RunOptions, engines: Sequence[type[Engine]]) -> None:
    """Load what checks with these options will need: engines, inputs and golden values."""
    for engine in engines:
        with suppress(errors.BiopsyError):  # an engine that is missing will be told of by the check
            created_plain(engine).warm_up()
    from biopsy.tensors import files

    for path in (*(options.load_inputs or ()), *(options.load_outputs or ())):
        with suppress(errors.BiopsyError):
            files.keep(path)


def _check(request: Mapping[str, Any]) -> int:
    """In a fork: run the command as a process of its own would; its status."""
    os.environ.update({VERDICT_VARIABLE: request[VERDICT_VARIABLE], SETTINGS_VARIABLE: NO_SETTINGS})
    program, *words = request["words"]
    sys.argv = [Path(program).name]
    from biopsy.cli.app import main as run_command

    return run_command(words)
