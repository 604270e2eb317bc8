"""The files of tensors that a data command reads and the one that it writes: their options."""

from __future__ import annotations

import argparse

from biopsy.cli.arguments import file_kinds


def add(parser: argparse.ArgumentParser, read: str) -> None:
    """The paths, and ``--output``; ``read`` says what the files hold."""
    parser.add_argument("paths", nargs="+", type=file_kinds.READ, metavar="FILE", help=read)
    parser.add_argument(
        "-o", "--output", type=file_kinds.WRITTEN, required=True, metavar="FILE", help="the file to write"
    )
