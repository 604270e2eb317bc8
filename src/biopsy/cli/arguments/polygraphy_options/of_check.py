"""Rows of ``check ...``."""

from __future__ import annotations

from biopsy.cli.arguments.polygraphy_options import shared
from biopsy.cli.arguments.polygraphy_options.difference import OptionDifference

_LINT = (
    shared.IGNORE_EXTERNAL_DATA._replace(why="the nodes of a model cannot be run without its weights"),
    shared.TO_FP16,
    shared.LOADER_MODULE,
    OptionDifference(
        ("-o", "--output"), "differs", "the same JSON, with every node that fails, not only the first one"
    ),
)

CHECK = {"check lint": _LINT}
