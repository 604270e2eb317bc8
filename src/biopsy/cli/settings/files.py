"""The files that give options: that of the project in which somebody works, and the user's own.

A project's is ``biopsy.toml``, or ``[tool.biopsy]`` in ``pyproject.toml``. It came with the folder, so it is trusted no
more than a model that lies there: ``allowed`` says with what. The user's own may say everything.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from biopsy import errors
from biopsy.checks.own_program import NO_SETTINGS, SETTINGS_VARIABLE
from biopsy.filesystem.plain_file import read_plain
from biopsy.filesystem.private_folder import folder_of_user, has_modes

OWN_FILE = "biopsy.toml"
SHARED_FILE = "pyproject.toml"
USERS_FILE = "config.toml"
MOST_BYTES = 1 << 20

Value: TypeAlias = "bool | tuple[str, ...]"
"""What a setting says: whether a switch is on, or the values of an option."""


class _Number(str):
    """A number with a fraction or an exponent, as it is written: ``1e9`` is told as that."""


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """A file and its settings, by key. ``is_users``: it is the user's own, not one that was found in a folder."""

    file: Path
    values: Mapping[str, Value]
    is_users: bool

    @property
    def name(self) -> str:
        """The file as a person knows it."""
        return str(self.file) if self.is_users else os.path.relpath(self.file)


def of_project(folder: Path) -> SettingsFile | None:
    """The settings of the project that a folder belongs to; None if it has none.

    The nearest file counts, up to the folder with the project's ``.git``; outside of any such project, only the folder
    itself is looked at. Raises UsageError if the file cannot be read, belongs to somebody else, or is a link that leads
    out of the project.
    """
    if are_off():
        return None
    upwards = (folder.absolute(), *folder.absolute().parents)
    root = next((place for place in upwards if (place / ".git").exists()), upwards[0])
    for place in upwards[: upwards.index(root) + 1]:
        for name in (OWN_FILE, SHARED_FILE):
            table = _table(place / name, root)
            if table is not None:
                _require_owner(place / name)
                return SettingsFile(file=place / name, values=_values(table, place / name), is_users=False)
    return None


def of_user() -> SettingsFile | None:
    """The settings in ``users_path``; None if there is no such file.

    Raises UsageError if it cannot be read, or if anybody else owns it or may write it.
    """
    file = None if are_off() else users_path()
    if file is None or (table := _table(file, None)) is None:
        return None
    for path in (file, file.parent.resolve(), file.resolve().parent):
        _require_owner(path)
        if has_modes() and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise errors.UsageError(
                f"others may write to {path}: the settings in {file} are not followed",
                next_steps=[f"chmod go-w {path}"],
            )
    return SettingsFile(file=file, values=_values(table, file), is_users=True)


def are_off() -> bool:
    """Whether no settings file is read: somebody has said so in the environment, or this process is a check of ours."""
    return os.environ.get(SETTINGS_VARIABLE) == NO_SETTINGS


def users_path() -> Path | None:
    """``$XDG_CONFIG_HOME/biopsy/config.toml``, else ``~/.config/biopsy/config.toml``; None without a home."""
    folder = folder_of_user("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / USERS_FILE


def _table(file: Path, root: Path | None) -> Mapping[str, Any] | None:
    """What a file gives to biopsy; None if there is no file, or nothing for biopsy in it.

    Links may lead anywhere below ``root``: what stands elsewhere is nothing to be told of, not even in an error.
    """
    try:
        if not file.is_file():
            return None
        data = read_plain(file, MOST_BYTES, follow=True)
    except OSError as error:  # settings that are not followed must not go unnoticed: they decide what passes
        raise errors.UsageError(
            f"{file} is not read for settings: {error.strerror}",
            next_steps=[f"make it readable and small, or put the settings in a {OWN_FILE} beside it"],
        ) from error
    if file.name == SHARED_FILE and b"biopsy" not in data:
        return None
    if root is not None and not file.resolve().is_relative_to(root.resolve()):
        raise errors.UsageError(
            f"{file} is a link that leads out of {root}: it is not followed", next_steps=["put a copy in its place"]
        )
    import tomllib  # here, since most folders have no such file

    try:
        table: Any = tomllib.loads(data.decode(), parse_float=_Number)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.UsageError(f"{file} is no valid TOML: {error}") from error
    if file.name == SHARED_FILE:
        tools = table.get("tool")
        table = tools.get("biopsy") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise errors.UsageError(f"{file}: tool.biopsy is not a table")
    return table


def _require_owner(path: Path) -> None:
    """Raise UsageError if it belongs to another person: settings decide what passes."""
    owner = path.stat().st_uid
    if has_modes() and owner not in (os.geteuid(), 0):
        raise errors.UsageError(
            f"{path} belongs to another user (number {owner}): its settings are not followed",
            next_steps=["take it over with chown, or work in another folder"],
        )


def _values(table: Mapping[str, Any], file: Path) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            raise errors.UsageError(
                f"{file}: there are no sections here, and so no [{key}]",
                next_steps=["take that line away: every setting holds for all commands that have its option"],
            )
        if value == []:
            raise errors.UsageError(f"{file}: {key} has no value")
        listed = value if isinstance(value, list) else [value]
        values[key] = value if isinstance(value, bool) else tuple(_word(one, key, file) for one in listed)
    return values


def _word(value: object, key: str, file: Path) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise errors.UsageError(f"{file}: {key} is text, a number, or a list of them; a switch is true or false")
    if isinstance(value, str) and not isinstance(value, _Number) and value.startswith("-"):
        raise errors.UsageError(f"{file}: {key} begins with a dash: {value!r}")
    return str(value)
