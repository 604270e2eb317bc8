"""The file of ``--runtime-env``: what Ray is to install on other machines before a check runs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.plain_file import read_plain
from biopsy.text import printable

_FIELDS = ("pip", "uv", "conda", "image_uri", "env_vars")
_SENT_UNASKED = frozenset({"working_dir", "py_modules", "excludes", "java_jars"})
_FORMS = "name a file of requirements (.txt), or of the fields of Ray's runtime_env (.yaml, .json)"


def runtime_environment(path: Path) -> dict[str, Any]:
    """The fields of Ray's ``runtime_env`` that a file holds; a file of requirements is its field ``pip``.

    Every plain value is a text. Raises UsageError, in one line that names the file, for other fields: some would send
    whole folders that no check names, others are no question of what is installed.
    """
    if path.suffix == ".txt":
        return {"pip": [line for line in map(str.strip, _text(path).splitlines()) if line and line[0] != "#"]}
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise errors.UsageError(f"{path}: its name says no form", next_steps=[_FORMS])
    from biopsy.known_failures.yaml_file import value_in

    try:
        found = value_in(_text(path))
    except ValueError as error:
        raise errors.UsageError(f"{path}: {error}", next_steps=[_FORMS]) from error
    if not isinstance(found, dict) or not found:
        raise errors.UsageError(f"{path}: it holds no fields", next_steps=["pip: [onnxruntime==1.20.1]"])
    for name in found:
        if name in _SENT_UNASKED:
            raise errors.UsageError(
                f"{path}: {name} would send files that no check names",
                next_steps=["name each file that the check reads as a word of its own: they are sent by themselves"],
            )
        if name not in _FIELDS:
            raise errors.UsageError(f"{path}: there is no field {printable(str(name))!r:.80}", next_steps=[_known()])
    return found


def _known() -> str:
    return f"the fields are {', '.join(_FIELDS)}"


def _text(path: Path) -> str:
    from biopsy.known_failures.yaml_file import MOST_BYTES

    try:
        return read_plain(path, MOST_BYTES, follow=True).decode("utf-8")
    except OSError as error:
        raise errors.UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise errors.UsageError(f"{path}: it is no UTF-8 text") from error
