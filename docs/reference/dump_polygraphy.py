"""Writes the commands and options of the Polygraphy that runs this, as JSON: {command: [[spellings], ...]}.

.venv-peer/bin/python docs/reference/dump_polygraphy.py > docs/reference/polygraphy-0.53.6.json

`make test-peer` tells whether that file is still what its parsers say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence


def commands() -> dict[str, list[list[str]]]:
    """Each command and the spellings of its options; of a positional argument, its name."""
    from polygraphy.tools.registry import TOOL_REGISTRY

    root = argparse.ArgumentParser("polygraphy")
    below = root.add_subparsers()
    for tool in TOOL_REGISTRY:
        tool.setup_parser(below)
    found: dict[str, list[list[str]]] = {}
    _walk(root, (), found)
    return found


def _walk(parser: argparse.ArgumentParser, words: Sequence[str], found: dict[str, list[list[str]]]) -> None:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        options = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
        found[" ".join(words)] = [list(action.option_strings) or [action.dest] for action in options]
    for group in groups:
        for name, inner in group.choices.items():
            _walk(inner, (*words, name), found)


def as_text(found: dict[str, list[list[str]]]) -> str:
    """One line for each command."""
    lines = [f"{json.dumps(command)}: {json.dumps(options)}" for command, options in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.stdout.write(as_text(commands()))
