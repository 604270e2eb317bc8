"""Examples and paragraphs that fit the width of a terminal: commands go on behind a backslash, never inside a word."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

_NOTE = re.compile(r"(?<=\S) {2,}(?=\S)")
"""What parts a command and what is said of it."""


def fitted(lines: Sequence[str], width: int) -> list[str]:
    """The lines, none of them longer than ``width`` unless one word is. What fits stays as it is."""
    kinds = list(zip(lines, _commands(lines), strict=True))
    found: list[str] = []
    for (is_command, indent), part in groupby(kinds, lambda kind: (kind[1], _indent(kind[0]))):
        text = [line for line, _ in part]
        if all(len(line) <= width for line in text):
            found += text
        elif is_command:
            found += [piece for line in text for piece in _command(line, width)]
        else:
            found += textwrap.wrap(
                " ".join(line.strip() for line in text),
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return found


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _commands(lines: Sequence[str]) -> Iterator[bool]:
    """Whether each line is a command, or goes on with one."""
    goes_on = False
    for line in lines:
        is_command = goes_on or re.match(r"\s*(biopsy|polygraphy) ", line) is not None or not line.strip()
        yield is_command
        goes_on = is_command and line.endswith("\\")


def _command(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    indent = _indent(line)
    command, _, note = _parted(line.strip())
    goes_on = command.endswith(" \\")
    if len(indent + command) <= width:
        yield indent + command
    else:
        pieces = list(_pieces(command.removesuffix(" \\"), indent, width - 2))
        last = len(pieces) - 1
        yield from (piece + (" \\" if number < last or goes_on else "") for number, piece in enumerate(pieces))
    if note:
        yield from textwrap.wrap(note, width, initial_indent=f"{indent}    ", subsequent_indent=f"{indent}    ")


def _pieces(command: str, indent: str, width: int) -> Iterator[str]:
    """The lines of a command: broken before options, and between words only where an option is too long."""
    line = indent
    for part in re.split(r" (?=-)", command):
        for words in [part] if len(indent) + 4 + len(part) <= width else part.split(" "):
            if line.strip() and len(line) + 1 + len(words) > width:
                yield line
                line = f"{indent}    "
            line += f"{' ' if line.strip() else ''}{words}"
    yield line


def _parted(text: str) -> tuple[str, str, str]:
    match = _NOTE.search(text)
    return (text, "", "") if match is None else (text[: match.start()], match[0], text[match.end() :])
