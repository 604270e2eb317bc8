"""Outcomes as JSON files: a whole journal, to be sent or to go on from, and Polygraphy's form, by the number of the
iteration.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.journal import ENTRY_TYPES, Entry, Journal, entry_of, require_same_identity, storable
from biopsy.checks.outcome import Outcome
from biopsy.processes.reading import read_plain
from biopsy.processes.writing import write_whole

_VERSION = 1
_MOST_BYTES = 256 << 20

# Writing


def save_replay(path: Path, journal: Journal) -> None:
    """Write everything that a journal holds. Raises UsageError if ``path`` cannot be written."""
    write_whole(path, _parts(journal))


def save_polygraphy_replay(path: Path, journal: Journal, probes: Collection[str]) -> None:
    """Write the iterations in the form of Polygraphy's ``polygraphy_debug_replay.json``. Raises UsageError likewise.

    ``probes`` are the stages whose models are no iterations of a search: Polygraphy would not have them.
    """
    runs = (entry for entry in journal.entries() if entry.stage not in probes)
    write_whole(path, _object(_polygraphy(number, entry) for number, entry in enumerate(runs)))


def _parts(journal: Journal) -> Iterator[bytes]:
    identity = json.dumps(dict(journal.identity))
    yield f'{{"biopsy_replay": {_VERSION},\n"identity": {identity},\n"runs": ['.encode("ascii")
    before = "\n"
    for entry in journal.entries():
        yield (before + json.dumps(_tree(entry), allow_nan=False)).encode("ascii")
        before = ",\n"
    yield f'\n],\n"notes": {json.dumps(journal.notes())}}}\n'.encode("ascii")


def _tree(entry: Entry) -> dict[str, Any]:
    evidence = entry.judged.evidence
    return {
        "digest": entry.digest.hex(),
        "outcome": entry.judged.outcome.value,
        "reason": entry.judged.reason,
        "status": evidence.status,
        "seconds": evidence.seconds,
        "timed_out": evidence.timed_out,
        "stage": entry.stage,
        "description": entry.description,
        "nodes": entry.nodes,
    }


def _polygraphy(number: int, entry: Entry) -> tuple[str, dict[str, Any]]:
    return f"_N{number}_{entry.stage}", {
        "state": {"num_nodes": entry.nodes},
        "iteration_info": {"iteration": number},
        "success": entry.judged.outcome is not Outcome.REPRODUCES,
        "polygraphy_class": "IterationContext",
    }


def _object(items: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[bytes]:
    before = "{\n"
    for key, tree in items:
        yield f"{before}{json.dumps(key)}: {json.dumps(tree)}".encode("ascii")
        before = ",\n"
    yield b"{}\n" if before == "{\n" else b"\n}\n"


# Reading


def load_replay(path: Path, journal: Journal) -> int:
    """Add to a journal the runs of a replay that it does not hold yet; returns how many. Its own notes stay.

    Raises UsageError if the file is missing, larger than 256 MiB, of another reduction or of Polygraphy; DataError if
    it is damaged or of another version. The journal is then as it was.
    """
    tree = _read(path)
    identity, notes = _texts(path, tree, "identity"), _texts(path, tree, "notes")
    require_same_identity(
        identity,
        journal.identity,
        f"the replay {path}",
        kept=f"the journal {journal.path}, as it was",
        next_steps=["leave --load-debug-replay out, or type the command that the replay was saved by"],
        search=journal.search,
    )
    runs = _entries(path, tree)
    held = Counter(journal.entries())
    added = 0
    for entry in runs:
        if held[entry] > 0:
            held[entry] -= 1
            continue
        journal.add(entry.digest, entry.judged, stage=entry.stage, description=entry.description, nodes=entry.nodes)
        added += 1
    for key, value in notes.items():
        if journal.noted(key) is None:
            journal.note(key, value)
    return added


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise errors.UsageError(f"there is no replay {path}" if not path.exists() else f"{path} is no file")
        data = read_plain(path, _MOST_BYTES, follow=True)
    except OSError as error:
        raise errors.UsageError(f"cannot read the replay {path}: {error.strerror}") from error
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is no JSON ({error})") from error
    if not isinstance(tree, dict):
        raise _damaged(path, "it holds no JSON object")
    version = tree.get("biopsy_replay")
    if version is None:
        raise _not_ours(path, tree)
    if type(version) is not int or version != _VERSION:
        raise _damaged(path, f"it is of version {str(version)[:20]!r}, and this biopsy reads version {_VERSION}")
    return tree


def _not_ours(path: Path, tree: dict[str, Any]) -> errors.BiopsyError:
    if any(isinstance(value, dict) and value.get("polygraphy_class") == "IterationContext" for value in tree.values()):
        return errors.UsageError(
            f"{path} is a replay of Polygraphy, which cannot be loaded: it counts iterations (_N0, _N1, ...)"
            " and does not say which model each of them was about",
            next_steps=[
                "leave --load-debug-replay out: the search begins anew, and a journal remembers its checks",
                "to go on later, type the same command again; to go on elsewhere, --save-debug-replay FILE writes a"
                " replay that can be loaded",
            ],
        )
    return _damaged(
        path,
        "it is no replay: one looks like"
        ' {"biopsy_replay": 1, "identity": {...}, "runs": [{"digest": ..., "outcome": ...}], "notes": {}}',
    )


def _damaged(path: Path, why: str) -> errors.DataError:
    return errors.DataError(
        f"the replay {path} cannot be loaded: {why}",
        kept="the journal, as it was",
        next_steps=["save it again by --save-debug-replay, or leave --load-debug-replay out"],
    )


def _texts(path: Path, tree: dict[str, Any], key: str) -> dict[str, str]:
    found = tree.get(key)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _damaged(path, f"its {key!r} is no object of texts")
    return {storable(name): storable(value) for name, value in found.items()}


def _entries(path: Path, tree: dict[str, Any]) -> list[Entry]:
    runs = tree.get("runs")
    if not isinstance(runs, list):
        raise _damaged(path, "its 'runs' are no list")
    found = []
    for number, run in enumerate(runs):
        try:
            found.append(_entry(run))
        except ValueError as error:
            raise _damaged(path, f"run {number} in it has {error}") from error
    return found


def _entry(run: object) -> Entry:
    if not isinstance(run, dict):
        raise ValueError("no names and values")
    values = {name: run.get(name) for name in ENTRY_TYPES}
    if type(values["digest"]) is str:
        try:
            values["digest"] = bytes.fromhex(values["digest"])
        except ValueError:
            raise ValueError("a 'digest' that is not hexadecimal") from None
    if type(values["seconds"]) is int and abs(values["seconds"]) < 1 << 53:
        values["seconds"] = float(values["seconds"])
    return entry_of(values)


# Outcomes by the number of the iteration, in Polygraphy's form: ``{"_N0": {"success": true, ...}, ...}``.
#
# For a command that is run again and again the number says all. The outcomes of a search need to know which model
# each was of: see ``replay``.

_ITERATION_REPLAY_MOST_BYTES = 64 << 20


def read_iterations(path: Path) -> list[bool]:
    """Whether each iteration passed, from the first on, up to the first that the file does not hold.

    Raises UsageError if the file cannot be read, DataError if it is no such replay.
    """
    try:
        tree = json.loads(read_plain(path, _ITERATION_REPLAY_MOST_BYTES, follow=True))
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
