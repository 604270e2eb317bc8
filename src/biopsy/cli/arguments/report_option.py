"""``--report``: the same option, with the same meaning, in every command that finds something."""

from __future__ import annotations

import argparse

from biopsy.cli.arguments import file_kinds

HELP = "write all that was found to this file: FILE.json as JSON, FILE.html as a page that shows it"
"""What its help says, in every command."""


def add_report(group: argparse.ArgumentParser | argparse._ArgumentGroup, *spellings: str) -> None:
    """Add it, into ``args.report``; ``spellings`` are other names that it has in a command."""
    group.add_argument("--report", *spellings, dest="report", type=file_kinds.WRITTEN, metavar="FILE", help=HELP)
