"""What Polygraphy's options are here, where they are not the same: data for the parsers, for the docs and for tests.

An option that both have, with one meaning, has no row. Read off Polygraphy 0.53.6. Only the rows of the command that is
asked for are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from biopsy.cli.arguments.polygraphy_options.difference import Fate, OptionDifference

__all__ = ["COMMANDS", "Fate", "OptionDifference", "differences_of"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "run": "of_run",
        "debug build": "of_debug",
        "debug precision": "of_debug",
        "debug reduce": "of_debug",
        "convert": "of_convert",
        "inspect model": "of_inspect",
        "inspect capability": "of_inspect",
        "inspect diff-tactics": "of_inspect",
        "inspect sparsity": "of_inspect",
        "check lint": "of_check",
        "surgeon extract": "of_surgeon",
        "surgeon sanitize": "of_surgeon",
        "surgeon insert": "of_surgeon",
        "surgeon prune": "of_surgeon",
        "surgeon weight-strip": "of_surgeon",
        "surgeon weight-reconstruct": "of_surgeon",
    }
)
"""The commands with rows -> the module that holds them. In all others that both tools have, every option is the same.
"""


def differences_of(command: str) -> Sequence[OptionDifference]:
    """The rows of a command, such as ``debug reduce``. A spelling stands in one of them at most."""
    module = COMMANDS.get(command)
    if module is None:
        return ()
    rows: Sequence[OptionDifference] = import_module(f"{__name__}.{module}").DIFFERENCES[command]
    return rows
