"""Outcomes by the number of the iteration, in Polygraphy's form: ``{"_N0": {"success": true, ...}, ...}``.

For a command that is run again and again the number says all. The outcomes of a search need to know which model each
was of: see ``replay``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count, takewhile
from pathlib import Path

from biopsy import errors
from biopsy.filesystem.plain_file import read_plain
from biopsy.filesystem.write import write_whole

_MOST_BYTES = 64 << 20


def read_iterations(path: Path) -> list[bool]:
    """Whether each iteration passed, from the first on, up to the first that the file does not hold.

    Raises UsageError if the file cannot be read, DataError if it is no such replay.
    """
    try:
        tree = json.loads(read_plain(path, _MOST_BYTES, follow=True))
    except OSError as error:
        raise errors.UsageError(f"cannot read the replay {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise errors.DataError(f"the replay {path} cannot be loaded: it is no JSON ({error})") from error
    if not isinstance(tree, dict):
        raise errors.DataError(f"the replay {path} cannot be loaded: it holds no JSON object")
    if tree and "_N0" not in tree:
        raise _no_replay(path, tree)
    return [_success(path, tree, number) for number in takewhile(lambda each: f"_N{each}" in tree, count())]


def _no_replay(path: Path, tree: Mapping[str, object]) -> errors.DataError:
    if "biopsy_replay" in tree:
        why = "it is of a search (debug reduce, debug precision), whose runs are of many models"
    else:
        why = "it holds no iteration"
    return errors.DataError(
        f"the replay {path} cannot be loaded: {why}",
        next_steps=['a replay looks like {"_N0": {"success": true}, "_N1": {"success": false}}', _SAVED_BY],
    )


_SAVED_BY = "--save-debug-replay writes one"


def _success(path: Path, tree: Mapping[str, object], number: int) -> bool:
    entry = tree[f"_N{number}"]
    success = entry.get("success") if isinstance(entry, dict) else None
    if not isinstance(success, bool):
        raise errors.DataError(f"the replay {path} cannot be loaded: '_N{number}' does not say whether it passed")
    return success


def write_iterations(path: Path, passed: Mapping[int, bool]) -> None:
    """Write whether iterations passed, by number. Raises UsageError if the file cannot be written."""
    tree = {
        f"_N{number}": {
            "state": {},
            "iteration_info": {"iteration": number},
            "success": success,
            "polygraphy_class": "IterationContext",
        }
        for number, success in sorted(passed.items())
    }
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])
