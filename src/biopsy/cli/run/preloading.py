"""What a check that is ``biopsy run`` will need, told by its words, and loaded before it is asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from biopsy import errors
from biopsy.checks.command_line import OwnRun, parse
from biopsy.engines.base import Engine


def options_of(words: Sequence[str]) -> argparse.Namespace | None:
    """The options of a check; None if it is no ``run`` of ours, or a wrong one."""
    command = parse(words)
    if not isinstance(command, OwnRun):
        return None
    from biopsy.cli.commands import COMMANDS
    from biopsy.cli.parser import parser_of

    parser = parser_of(Path(command.program).name, next(each for each in COMMANDS if each.words == ("run",)))
    try:
        return parser.parse_known_args(list(command.options))[0]
    except errors.BiopsyError:
        return None  # the check itself will tell what is wrong with it


def engines_of(args: argparse.Namespace) -> list[type[Engine]]:
    """The classes of the engines that it runs, each once. Raises UsageError for one that is not known."""
    from biopsy.cli.arguments.engine_options import specs_to_run
    from biopsy.engines.registry import class_of

    return list(dict.fromkeys(class_of(spec) for spec in specs_to_run(args)))


def load_code() -> None:
    """Import everything that it uses."""
    import numpy.ma  # noqa: F401 -- numpy.unique would import it
    import pybase64  # noqa: F401 -- values in JSON files are text

    import biopsy.checks.verdict
    import biopsy.cli.app
    import biopsy.cli.installing
    import biopsy.cli.run.building
    import biopsy.cli.run.hints
    import biopsy.cli.run.mismatch
    import biopsy.cli.run.names
    import biopsy.cli.run.report
    import biopsy.cli.run.settings
    import biopsy.comparison.describe
    import biopsy.comparison.runs
    import biopsy.comparison.spoken_of
    import biopsy.engines.feeding
    import biopsy.engines.runner
    import biopsy.model.random_operators
    import biopsy.tensors.generate  # noqa: F401
