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
from biopsy.checks.command_line import OwnRun, parse
from biopsy.isolation.cleanup import VERDICT_VARIABLE
from biopsy.isolation.fork_serving import arguments, serve_forks


def main() -> None:
    """Serve checks, unless these words cannot be served."""
    if warm_up(arguments()):
        serve_forks(_check)


def warm_up(words: Sequence[str]) -> bool:
    """Load what the check will need; False if it is no ``run``, or one that may not be forked."""
    command = parse(words)
    if not isinstance(command, OwnRun):
        return False
    from biopsy.cli.arguments.engine_options import engine_specs
    from biopsy.cli.commands import COMMANDS
    from biopsy.cli.parser import parser_of
    from biopsy.engines.registry import find_class

    parser = parser_of(Path(command.program).name, next(each for each in COMMANDS if each.words == ("run",)))
    try:
        args = parser.parse_known_args(list(command.options))[0]
        names = {spec.name for spec in engine_specs(args)}
        warm = all(find_class(name).forks_warm for name in names)
    except errors.BiopsyError:
        return False  # the check itself will tell what is wrong with it
    if not warm or args.data_loader_script:
        return False
    _load_code(names)
    _load_files((*(args.load_inputs or ()), *(args.load_outputs or ())))
    return True


def _load_code(names: set[str]) -> None:
    """Import everything that a check uses, and pay what the first session of an engine costs."""
    import biopsy.cli.console
    import biopsy.cli.run.building
    import biopsy.cli.run.mismatch
    import biopsy.cli.run.report
    import biopsy.cli.run.settings
    import biopsy.comparison.describe
    import biopsy.comparison.runs
    import biopsy.engines.feeding
    import biopsy.engines.runner
    import biopsy.tensors.generate  # noqa: F401
    from biopsy.engines.registry import create

    for name in names:
        with suppress(errors.BiopsyError):  # an engine that is missing will be told of by the check
            create(name).warm_up()


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
