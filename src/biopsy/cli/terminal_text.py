"""Text that fits the width of a terminal: long lines are broken at blanks and indented, and commands in examples go
on behind a backslash. It is loaded only where something is too wide, or for a help.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from biopsy.cli.commands import COMMANDS

_NARROWEST = 40
"""Below so many columns nothing is wrapped."""

_LEAST_INDENT = 2

_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
"""What stands between columns, and between a command and what is said of it."""

_WIDEST_LABEL = re.compile(r"^workaround (?=\S)")
"""A label that fills its column, so that one blank stands behind it."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_OWN = "|".join(sorted({command.words[0] for command in COMMANDS} | {"help", "--help"}))
_OTHERS = "pip|uv|pipx|git|mkdir|gunzip|bash|sh|python3?|cp|mv|rm|chmod|docker|source|cd"
_COMMAND = re.compile(
    rf"""
    (?: ^ | \s )  (?P<own> (?: biopsy | polygraphy ) \s (?: {_OWN} ) \b )    # wherever it stands
    | (?: ^\s* | \s\s | (?<!error)(?<!warning): \s | \$\s )  (?P<other> --?[A-Za-z] | \./ | (?: {_OTHERS} ) \s )
    | ^\s* (?P<head> tried | resume ) \s
    """,
    re.VERBOSE,
)
"""Where something begins that a person may paste."""

_PASTED = re.compile(r"\ *(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|\S|\ (?=\S))*")
"""The rest of it: it ends with its column. Blanks that a shell's quotes hold are no end of a column."""

_HEAD = re.compile(r"(?:error|warning): |(?:PASSED|FAILED) \||(?:next|kept|hint|Next)  ")
"""How our own lines begin. None that goes on begins so: a name of a stranger could be read as a line of ours."""

_UNIT = re.compile(r"(?:[A-Z]\w* (?=')|--[a-z][a-z-]* (?=[^-\s]))?(?:'[^']*'|\[[^][]{0,40}\]|\S)+(?: (?:->|·)(?= ))?")
"""What is never broken: a word, with what stands in quotes or is an index; an operator and its node, with the arrow
behind them; an option and its value."""


def wrapped(line: str, width: int, least_indent: int = _LEAST_INDENT) -> list[str]:
    """The lines, none of them wider than ``width`` unless something in it is that must stay whole.

    Colours have no width. What follows the first line is indented, by ``least_indent`` or more.
    """
    if width < _NARROWEST or _width(line) <= width:
        return [line]
    indent = " " * _hanging(_COLOUR.sub("", line), width, least_indent)
    lines, shown = [], ""
    place = 0
    for gap, unit in _in_parts(_units(line), width - len(indent)):
        place += len(gap)
        helps = len(gap) == 1 or _width(indent + unit) <= width  # a column that is too wide stays where it begins
        goes_on = not (helps and shown.strip() and _width(shown + gap + unit) > width) or _HEAD.match(line, place)
        place += len(unit)
        if goes_on:
            shown += gap + unit
        else:
            lines.append(shown)
            shown = indent + unit
    return [*lines, shown]


def _in_parts(units: Iterable[tuple[str, str]], most: int) -> Iterator[tuple[str, str]]:
    """The units, those between two dots as one where that is not wider than ``most``."""
    parts: list[list[tuple[str, str]]] = [[]]
    for gap, unit in units:
        if len(gap) > 1:
            parts.append([])
        parts[-1].append((gap, unit))
        if unit.endswith("·"):
            parts.append([])
    has_dots = any(part and part[-1][1].endswith("·") for part in parts)
    for part in filter(None, parts):
        whole = "".join(gap + unit for gap, unit in part)
        blanks = len(part[0][0])
        fits = has_dots and _width(whole) - blanks <= most
        yield from [(whole[:blanks], whole[blanks:])] if fits else part


def _width(text: str) -> int:
    return len(_COLOUR.sub("", text))


def _hanging(line: str, width: int, least: int) -> int:
    """Where the last column begins that leaves at least half of the width; else a little behind the line's start."""
    gaps = [*_WIDEST_LABEL.finditer(line), *_GAP.finditer(line)]
    columns = [match.end() for match in gaps if match.end() <= width // 2]
    start = len(line) - len(line.lstrip())
    return columns[-1] if columns else max(start + _LEAST_INDENT, least)


def _units(line: str) -> Iterator[tuple[str, str]]:
    """The blanks before each unit, and the unit."""
    place = 0
    while place < len(line):
        command = _COMMAND.search(line, place)
        start = len(line) if command is None else command.start(command.lastgroup or 0)
        for unit in _UNIT.finditer(line, place, start):
            yield line[place : unit.start()], unit[0]
            place = unit.end()
        if command is None:
            return
        pasted = _PASTED.match(line, command.end())
        end = command.end() if pasted is None else pasted.end()
        yield line[place:start], line[start:end]
        place = end


# Examples and paragraphs that fit the width of a terminal: commands go on behind a backslash, never inside a word.


def fitted(lines: Sequence[str], width: int) -> list[str]:
    """The lines, none of them longer than ``width`` unless one word is. What fits stays as it is."""
    kinds: list[tuple[bool, str]] = []  # whether each line is a command, or goes on with one; and its indent
    goes_on = False
    for line in lines:
        is_command = goes_on or re.match(r"\s*(biopsy|polygraphy) ", line) is not None or not line.strip()
        kinds.append((is_command, line[: len(line) - len(line.lstrip())]))
        goes_on = is_command and line.endswith("\\")
    shown: list[str] = []
    for (is_command, indent), part in groupby(zip(kinds, lines, strict=True), lambda pair: pair[0]):
        text = [line for _, line in part]
        if all(len(line) <= width for line in text):
            shown += text
        elif is_command:
            shown += [piece for line in text for piece in ([line] if len(line) <= width else _command(line, width))]
        else:
            shown += _paragraph(" ".join(line.strip() for line in text), width, indent)
    return shown


def _paragraph(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _command(line: str, width: int) -> list[str]:
    """A command: broken before options, and between words only where an option is too long; then what is said of it."""
    indent = line[: len(line) - len(line.lstrip())]
    command, *notes = _GAP.split(line.strip(), maxsplit=1)
    lines = [indent + command]
    if len(lines[0]) > width:
        goes_on = command.endswith(" \\")
        lines = [indent]
        for part in re.split(r" (?=-)", command.removesuffix(" \\")):
            for words in [part] if len(indent) + 4 + len(part) <= width - 2 else part.split(" "):
                if lines[-1].strip() and len(lines[-1]) + 1 + len(words) > width - 2:
                    lines.append(f"{indent}    ")
                lines[-1] += f"{' ' if lines[-1].strip() else ''}{words}"
        lines = [f"{one} \\" for one in lines[:-1]] + [lines[-1] + (" \\" if goes_on else "")]
    return [*lines, *(line for note in notes for line in _paragraph(note, width, f"{indent}    "))]
