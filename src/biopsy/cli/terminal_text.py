"""Wraps text to the width of a terminal: long lines are broken at blanks and indented, and commands in examples are
continued with a backslash. Loaded only for lines that are too wide and for help texts.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from biopsy.cli.commands import COMMANDS

_NARROWEST = 40
"""Nothing is wrapped below this number of columns."""

_LEAST_INDENT = 2

_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
"""The gap between columns, and between a command and its description."""

_WIDEST_LABEL = re.compile(r"^workaround (?=\S)")
"""A label that fills its column, so that a single blank follows it."""

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
"""The beginning of something that the user may paste."""

_PASTED = re.compile(r"\ *(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|\S|\ (?=\S))*")
"""The rest of it, up to the end of its column. Blanks within a shell's quotes do not end a column."""

_HEAD = re.compile(r"(?:error|warning): |(?:PASSED|FAILED) \||(?:next|kept|hint|Next)  ")
"""How our own lines begin. No continuation may begin so, or a name in a stranger's model could pass for our line."""

_UNIT = re.compile(r"(?:[A-Z]\w* (?=')|--[a-z][a-z-]* (?=[^-\s]))?(?:'[^']*'|\[[^][]{0,40}\]|\S)+(?: (?:->|·)(?= ))?")
"""What is never broken: a word with its quoted text or index; an operator, its node and the arrow after them; an option
and its value."""


def wrapped(line: str, width: int, least_indent: int = _LEAST_INDENT) -> list[str]:
    """The line broken into lines of at most ``width``, more only where a part that must not be broken is wider.

    Colours have no width. Lines after the first are indented by at least ``least_indent``.
    """
    if width < _NARROWEST or _width(line) <= width:
        return [line]
    indent = " " * _hanging(_COLOUR.sub("", line), width, least_indent)
    lines, shown = [], ""
    place = 0
    for gap, unit in _in_parts(_units(line), width - len(indent)):
        place += len(gap)
        helps = len(gap) == 1 or _width(indent + unit) <= width  # a column that is too wide anyway is not moved
        goes_on = not (helps and shown.strip() and _width(shown + gap + unit) > width) or _HEAD.match(line, place)
        place += len(unit)
        if goes_on:
            shown += gap + unit
        else:
            lines.append(shown)
            shown = indent + unit
    return [*lines, shown]


def _in_parts(units: Iterable[tuple[str, str]], most: int) -> Iterator[tuple[str, str]]:
    """The units; those between two dots are joined if that is not wider than ``most``."""
    parts: list[list[tuple[str, str]]] = [[]]
    for gap, unit in units:
        if len(gap) > 1:
            parts.append([])
        parts[-1].append((gap, unit))
        if unit.endswith("·"):
            parts.append([])
    has_dots = any(part and part[-1][1].endswith("·") for part in parts)
    for part in filter(None, parts):
        joined = "".join(gap + unit for gap, unit in part)
        blanks = len(part[0][0])
        fits = has_dots and _width(joined) - blanks <= most
        yield from [(joined[:blanks], joined[blanks:])] if fits else part


def _width(text: str) -> int:
    return len(_COLOUR.sub("", text))


def _hanging(line: str, width: int, least: int) -> int:
    """The indentation of continuations: the start of the last column in the left half, else a little more than now."""
    gaps = [*_WIDEST_LABEL.finditer(line), *_GAP.finditer(line)]
    columns = [match.end() for match in gaps if match.end() <= width // 2]
    start = len(line) - len(line.lstrip())
    return columns[-1] if columns else max(start + _LEAST_INDENT, least)


def _units(line: str) -> Iterator[tuple[str, str]]:
    """Each unit, after the blanks before it."""
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


def fitted(lines: Sequence[str], width: int) -> list[str]:
    """Examples and paragraphs in lines of at most ``width``, unless a word is longer. What fits is not changed."""
    kinds: list[tuple[bool, str]] = []  # whether each line is, or continues, a command; and its indent
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
    """A command, broken before options, and between words where an option is too long; then its description."""
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
        lines = [f"{part} \\" for part in lines[:-1]] + [lines[-1] + (" \\" if goes_on else "")]
    return [*lines, *(line for note in notes for line in _paragraph(note, width, f"{indent}    "))]
