"""Files of tactics, biopsy's and Polygraphy's: one, or all below a folder."""

from __future__ import annotations

import json
from pathlib import Path

from biopsy import errors
from biopsy.filesystem.plain_file import open_delivering
from biopsy.tactics.record import KEY, TacticRecord, record_of
from biopsy.tactics.replay import TacticReplay, is_replay, replay_of

_BLANK = b" \t\r\n"


def read_tactics(path: Path) -> TacticRecord | TacticReplay:
    """What a file of tactics holds. Raises DataError if it is none or damaged, UsageError if it cannot be read."""
    try:
        found = _read(path)
    except OSError as error:
        raise errors.UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if found is None:
        raise errors.DataError(
            f"{path} is neither a tactic record of biopsy nor a tactic replay of Polygraphy",
            next_steps=["biopsy debug build MODEL --save-tactics FILE ...    writes records"],
        )
    return found


def _read(path: Path) -> TacticRecord | TacticReplay | None:
    """What a file holds; None if that is something else. A file that begins like no JSON object is not read whole.

    Raises DataError for a file of tactics that is damaged; one called .json that is cut short could be one.
    """
    with open_delivering(path) as stream:
        beginning = stream.read(64)
        if beginning.lstrip(_BLANK)[:1] not in (b"{", b""):
            return None
        data = beginning + stream.read()
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json":
            raise errors.DataError(f"{path} is damaged: it is no JSON ({error})") from error
        return None
    if isinstance(tree, dict) and KEY in tree:
        return record_of(tree, path)
    return replay_of(tree, path) if is_replay(tree) else None


def tactics_below(path: Path) -> dict[Path, TacticRecord | TacticReplay]:
    """All tactics of a folder and the folders in it, by path; or those of one file. Other files are passed over.

    Raises UsageError if there is nothing there, DataError for a file of tactics that is damaged.
    """
    if not path.is_dir():
        return {path: read_tactics(path)}
    found: dict[Path, TacticRecord | TacticReplay] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            try:
                tactics = _read(file)
            except OSError as error:
                raise errors.UsageError(f"cannot read {file}: {error.strerror or error}") from error
            if tactics is not None:
                found[file] = tactics
    return found
