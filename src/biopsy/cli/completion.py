"""``biopsy completion``: a script with which a shell completes commands and options, made from the parsers."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import shtab

from biopsy.cli.arguments.types import FileKind
from biopsy.cli.commands import COMMANDS, GROUPS
from biopsy.cli.console import Console
from biopsy.cli.parser import add_options

SHELLS = ("bash", "zsh", "fish")

EPILOG = """\
examples:
  biopsy completion bash > ~/.local/share/bash-completion/completions/biopsy
  biopsy completion zsh > ~/.zfunc/_biopsy                 (a folder of $fpath)
  biopsy completion fish > ~/.config/fish/completions/biopsy.fish

Then start a new shell. Write the script again after an update of biopsy."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Show the script."""
    console.program_text(shtab.complete(_tree(), args.shell))
    return 0


def _tree() -> argparse.ArgumentParser:
    """All commands as one parser, whose actions say which options complete to files and which to folders."""
    root = argparse.ArgumentParser(prog="biopsy", add_help=False)
    add_options(root)
    below_root: Any = root.add_subparsers()
    below: dict[str, Any] = {}
    for command in COMMANDS:
        *group, name = command.words
        if group and group[0] not in below:
            group_parser = below_root.add_parser(group[0], help=GROUPS[group[0]], add_help=False)
            add_options(group_parser)
            below[group[0]] = group_parser.add_subparsers()
        parser = (below[group[0]] if group else below_root).add_parser(name, help=command.summary, add_help=False)
        importlib.import_module(command.module).configure(parser)
        add_options(parser)
        for action in parser._actions:
            if isinstance(action.type, FileKind) or "--check" in action.option_strings:
                is_folder = isinstance(action.type, FileKind) and action.type.container
                action.complete = shtab.DIRECTORY if is_folder else shtab.FILE
    return root
