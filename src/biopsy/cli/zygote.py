"""The warm process behind checks that are our own ``run``: engine and files are loaded once, each check is a fork.

Its words are those of a check. A request has the ``words`` of one, and under ``BIOPSY_VERDICT`` the path to say its
verdict in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.cli.run import preloading
from biopsy.engines.registry import create
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.fork_serving import arguments, serve_forks


def main() -> None:
    """Serve checks, unless these words cannot be served."""
    if warm_up(arguments()):
        serve_forks(_check)


def warm_up(words: Sequence[str]) -> bool:
    """Load what the check will need; False if it is no ``run``, or one that may not be forked."""
    args = preloading.options_of(words)
    if args is None:
        return False
    try:
        engines = preloading.engines_of(args)
    except errors.BiopsyError:
        return False  # the check itself will tell what is wrong with it
    if not all(engine.forks_warm for engine in engines) or args.data_loader_script:
        return False
    preloading.load_code()
    for engine in engines:
        with suppress(errors.BiopsyError):  # an engine that is missing will be told of by the check
            create(engine.name).warm_up()
    _load_files((*(args.load_inputs or ()), *(args.load_outputs or ())))
    return True


def _load_files(paths: Sequence[Path]) -> None:
    """Read inputs and golden values that stay the same, once for all checks."""
    from biopsy.tensors import files

    for path in paths:
        with suppress(errors.BiopsyError):
            files.keep(path)


def _check(request: Mapping[str, Any]) -> int:
    """In a fork: run the command as a process of its own would; its status."""
    os.environ[VERDICT_VARIABLE] = request[VERDICT_VARIABLE]
    program, *words = request["words"]
    sys.argv = [Path(program).name]
    from biopsy.cli.app import main as run_command

    return run_command(words)
