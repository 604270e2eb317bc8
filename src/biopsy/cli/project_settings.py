"""Options that a project gives once for all: ``biopsy.toml``, or ``[tool.biopsy]`` in ``pyproject.toml``.

They become words of the command line, as if typed, wherever the command has the option and the person has not given
it. So everything that keeps or shows a command line, such as a journal or an advised command, holds them too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.checks.leading_options import HELP
from biopsy.cli.arguments.checks import REST_OPTIONS
from biopsy.cli.check_words import own_command
from biopsy.cli.parser import parser_of
from biopsy.shell_words import line_of
from biopsy.similar_names import did_you_mean

if TYPE_CHECKING:
    from biopsy.cli.commands import Command
    from biopsy.cli.parser import Parser

OWN_FILE = "biopsy.toml"
SHARED_FILE = "pyproject.toml"
MOST_BYTES = 1 << 20

ENGINES = "engines"
"""The key of the engines that ``biopsy run`` compares, in a list: what ``--engine`` takes."""

_FILES = ("load-inputs", "external-data-dir")
_TOLERANCES = ("atol", "rtol", "check-error-stat", "error-quantile", "cosine", "psnr", "snr", "l2", "ulp")
_INPUTS = ("input-shapes", "input-symbols", "val-range", "seed", "iterations")
KEYS = (ENGINES, *_TOLERANCES, "noise-ratio", "validate", *_INPUTS, *_FILES)
"""What a project may give: nothing that runs code, or that writes a file."""


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """The options of a project: the file that gives them, and the values of each key as words."""

    file: Path
    values: Mapping[str, tuple[str, ...]]

    def added(self, command: Command, parser: Parser, given: Sequence[str]) -> list[str]:
        """The words to add to those that a person gave behind a command."""
        return [
            word
            for key, values in self.values.items()
            if _is_wanted(key, command, parser, given)
            for word in _words(key, values)
        ]

    def line(self, added: Sequence[str], checked: Sequence[str]) -> str:
        """What was added to a command and to its check, for a person; "" if nothing was."""
        parts = [line_of(added), f"check: {line_of(checked)}" if checked else ""]
        told = " · ".join(part for part in parts if part)
        return f"settings   {os.path.relpath(self.file)}: {told}" if told else ""


def applied(
    program: str, command: Command, own: list[str], rest: list[str] | None
) -> tuple[list[str], list[str] | None, str]:
    """The words of a command and of the check behind them, with the project's options, and a line that says which."""
    parser = parser_of(program, command)
    if rest is None and (not {*HELP}.isdisjoint(own) or not any(parser.has_option(_option(key)) for key in KEYS)):
        return own, rest, ""
    settings = find(Path.cwd())
    if settings is None:
        return own, rest, ""
    added, checked = settings.added(command, parser, own), list[str]()
    inner = None if rest is None else own_command(rest)
    if rest is not None and inner is not None and {*REST_OPTIONS}.isdisjoint(inner[1]):  # else it adds to its own check
        checked_command, given = inner
        checked = settings.added(checked_command, parser_of(program, checked_command), given)
        rest = _joined(rest, checked)
    return _joined(own, added), rest, settings.line(added, checked)


def _joined(given: list[str], added: list[str]) -> list[str]:
    """What a person gave, with the project's options behind it, but before operands after ``--``."""
    at = given.index("--") if "--" in given else len(given)
    return [*given[:at], *added, *given[at:]]


def find(folder: Path) -> ProjectSettings | None:
    """The settings of the project that a folder belongs to; None if it has none.

    The nearest file counts, up to the folder with the project's ``.git``; outside of any such project, only the folder
    itself is looked at. Raises UsageError if the file cannot be read, or gives what no project may give.
    """
    for place in _places(folder.absolute()):
        for name in (OWN_FILE, SHARED_FILE):
            table = _table(place / name)
            if table is not None:
                return ProjectSettings(file=place / name, values=_checked(table, place / name))
    return None


def _places(folder: Path) -> list[Path]:
    upwards = (folder, *folder.parents)
    root = next((number for number, place in enumerate(upwards) if (place / ".git").exists()), 0)
    return list(upwards[: root + 1])


def _table(file: Path) -> dict[str, Any] | None:
    """What a file gives to biopsy; None if there is no file, or nothing for biopsy in it."""
    try:
        if not file.is_file():
            return None
        if file.stat().st_size > MOST_BYTES:
            raise _too_large(file)
        data = file.read_bytes()
    except OSError as error:
        raise errors.UsageError(f"{file}: {error.strerror}") from error
    if file.name == SHARED_FILE and b"biopsy" not in data:
        return None
    table: Any = _parsed(data, file)
    if file.name == SHARED_FILE:
        tools = table.get("tool")
        table = tools.get("biopsy") if isinstance(tools, dict) else None
        if table is None:
            return None
    if not isinstance(table, dict):
        raise errors.UsageError(f"{file}: tool.biopsy is not a table")
    _require_own(file)
    return table


def _too_large(file: Path) -> errors.UsageError:
    """Settings that are not followed must not go unnoticed: they decide what passes."""
    return errors.UsageError(
        f"{file} has more than {MOST_BYTES} bytes: it is not read for settings",
        next_steps=[f"make it smaller, or put the settings in a {OWN_FILE} beside it"],
    )


def _parsed(data: bytes, file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.UsageError(f"{file} is no valid TOML: {error}") from error


def _require_own(file: Path) -> None:
    """Raise UsageError if the file belongs to another person: settings decide what passes."""
    owner = file.stat().st_uid
    if owner not in (os.getuid(), 0):
        raise errors.UsageError(
            f"{file} belongs to another user (number {owner}): its settings are not followed",
            next_steps=["take it over with chown, or work in another folder"],
        )


def _checked(table: Mapping[str, Any], file: Path) -> dict[str, tuple[str, ...]]:
    values = {}
    for key, value in table.items():
        if key not in KEYS and isinstance(value, dict):
            raise errors.UsageError(
                f"{file}: there are no sections here, and so no [{key}]",
                next_steps=["take that line away: every setting holds for all commands that have its option"],
            )
        if key not in KEYS:
            raise errors.UsageError(
                f"{file}: there is no setting {key!r}",
                next_steps=[*did_you_mean(key, KEYS, most=1, cutoff=0.6), f"one of {', '.join(KEYS)}"],
            )
        if value == []:
            raise errors.UsageError(f"{file}: {key} has no value")
        values[key] = tuple(_word(one, key, file) for one in _listed(value, key))
    return values


def _listed(value: object, key: str) -> list[object]:
    return value if isinstance(value, list) and key != "validate" else [value]


def _word(value: object, key: str, file: Path) -> str:
    if key == "validate":
        if not isinstance(value, bool):
            raise errors.UsageError(f"{file}: {key} is true or false")
        return "yes" if value else ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise errors.UsageError(f"{file}: {key} is text, a number, or a list of them")
    text = str(value)
    if isinstance(value, str) and text.startswith("-"):
        raise errors.UsageError(f"{file}: {key} begins with a dash: {text!r}")
    return _path(file.parent / text) if key in _FILES else text


def _path(path: Path) -> str:
    """A path from the current folder, as a word that is no option, whatever the file is called."""
    text = os.path.relpath(path)
    return f"{os.curdir}{os.sep}{text}" if text.startswith("-") else text


def _is_wanted(key: str, command: Command, parser: Parser, given: Sequence[str]) -> bool:
    option = _option(key)
    if not parser.has_option(option) or (key == ENGINES and command.words != ("run",)):
        return False
    return not any(parser.rivals(word, option) for word in given if word.startswith("-"))


def _option(key: str) -> str:
    return "--engine" if key == ENGINES else f"--{key}"


def _words(key: str, values: Sequence[str]) -> list[str]:
    if key == "validate":
        return [_option(key)] if values == ("yes",) else []
    if key == ENGINES:
        return [word for value in values for word in (_option(key), value)]
    return [_option(key), *values]
