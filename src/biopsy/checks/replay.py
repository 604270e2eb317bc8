"""Outcomes as JSON files: a whole journal, to be sent or to go on from, and Polygraphy's form, by the number of the
iteration.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.journal import Entry, Journal, entry_of, require_same_identity, storable
from biopsy.checks.outcome import Outcome
from biopsy.processes.reading import read_plain
from biopsy.processes.writing import write_whole

_VERSION = 1
_MOST_BYTES = 256 << 20
_CONTEXT = "IterationContext"
"""The class that Polygraphy gives each iteration of its replays."""


def save_replay(path: Path, journal: Journal) -> None:
    """Write everything that a journal holds. Raises UsageError if ``path`` cannot be written."""

    def parts() -> Iterator[bytes]:
        identity = json.dumps(dict(journal.identity))
        yield f'{{"biopsy_replay": {_VERSION},\n"identity": {identity},\n"runs": ['.encode("ascii")
        before = "\n"
        for entry in journal.entries():
            yield (before + json.dumps(entry.values, allow_nan=False)).encode("ascii")
            before = ",\n"
        yield f'\n],\n"notes": {json.dumps(journal.notes())}}}\n'.encode("ascii")

    write_whole(path, parts())


def save_polygraphy_replay(path: Path, journal: Journal, probes: Collection[str]) -> None:
    """Write the iterations in the form of Polygraphy's ``polygraphy_debug_replay.json``. Raises UsageError likewise.

    ``probes`` are the stages whose models are no iterations of a search: Polygraphy would not have them.
    """

    def parts() -> Iterator[bytes]:
        before = "{\n"
        runs = (entry for entry in journal.entries() if entry.stage not in probes)
        for number, entry in enumerate(runs):
            passed = entry.judged.outcome is not Outcome.REPRODUCES
            tree = _iteration(number, {"num_nodes": entry.nodes}, passed=passed)
            yield f"{before}{json.dumps(f'_N{number}_{entry.stage}')}: {json.dumps(tree)}".encode("ascii")
            before = ",\n"
        yield b"{}\n" if before == "{\n" else b"\n}\n"

    write_whole(path, parts())


def _iteration(number: int, state: Mapping[str, int], *, passed: bool) -> dict[str, Any]:
    """One iteration, as Polygraphy writes it."""
    return {
        "state": state, "iteration_info": {"iteration": number},
        "success": passed, "polygraphy_class": _CONTEXT,
    }  # fmt: skip


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


def _object_in(path: Path, most: int, damaged: Callable[[str], errors.DataError]) -> dict[str, Any]:
    """The object in a file of at most ``most`` bytes. Raises UsageError if it cannot be read, else ``damaged``."""
    try:
        if not path.is_file():
            raise errors.UsageError(f"there is no replay {path}" if not path.exists() else f"{path} is no file")
        tree = json.loads(read_plain(path, most, follow=True))
    except OSError as error:
        raise errors.UsageError(f"cannot read the replay {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(f"it is no JSON ({error})") from error
    if not isinstance(tree, dict):
        raise damaged("it holds no JSON object")
    return tree


def _read(path: Path) -> dict[str, Any]:
    """The object in a replay of ours. Raises UsageError or DataError for anything else."""
    tree = _object_in(path, _MOST_BYTES, partial(_damaged, path))
    version = tree.get("biopsy_replay")
    if type(version) is int and version == _VERSION:
        return tree
    if version is not None:
        raise _damaged(path, f"it is of version {str(version)[:20]!r}, and this biopsy reads version {_VERSION}")
    if any(isinstance(value, dict) and value.get("polygraphy_class") == _CONTEXT for value in tree.values()):
        raise errors.UsageError(
            f"{path} is a replay of Polygraphy, which cannot be loaded: it counts iterations (_N0, _N1, ...)"
            " and does not say which model each of them was about",
            next_steps=[
                "leave --load-debug-replay out: the search begins anew, and a journal remembers its checks",
                "to go on later, type the same command again; to go on elsewhere, --save-debug-replay FILE writes a"
                " replay that can be loaded",
            ],
        )
    raise _damaged(
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
    entries = []
    for number, run in enumerate(runs):
        try:
            if not isinstance(run, dict):
                raise ValueError("no names and values")
            seconds = run.get("seconds")
            if type(seconds) is int and abs(seconds) < 1 << 53:
                seconds = float(seconds)
            entries.append(entry_of({**run, "seconds": seconds}))
        except ValueError as error:
            raise _damaged(path, f"run {number} in it has {error}") from error
    return entries


# Outcomes by the number of the iteration, in Polygraphy's form: ``{"_N0": {"success": true, ...}, ...}``.
#
# For a command that is run again and again the number says all. The outcomes of a search need to know which model
# each was of: see ``replay``.

_MOST_BYTES_OF_ITERATIONS = 64 << 20


def read_iterations(path: Path) -> list[bool]:
    """Whether each iteration passed, from the first on, up to the first that the file does not hold.

    Raises UsageError if the file cannot be read, DataError if it is no such replay.
    """

    def wrong(why: str, *next_steps: str) -> errors.DataError:
        return errors.DataError(f"the replay {path} cannot be loaded: {why}", next_steps=next_steps)

    tree = _object_in(path, _MOST_BYTES_OF_ITERATIONS, wrong)
    if tree and "_N0" not in tree:
        of_search = "it is of a search (debug reduce, debug precision), whose runs are of many models"
        raise wrong(
            of_search if "biopsy_replay" in tree else "it holds no iteration",
            'a replay looks like {"_N0": {"success": true}, "_N1": {"success": false}}',
            "--save-debug-replay writes one",
        )
    passed: list[bool] = []
    for number in count():
        if f"_N{number}" not in tree:
            return passed
        iteration = tree[f"_N{number}"]
        success = iteration.get("success") if isinstance(iteration, dict) else None
        if not isinstance(success, bool):
            raise wrong(f"'_N{number}' does not say whether it passed")
        passed.append(success)
    return passed


def write_iterations(path: Path, passed: Mapping[int, bool]) -> None:
    """Write whether iterations passed, by number. Raises UsageError if the file cannot be written."""
    tree = {f"_N{number}": _iteration(number, {}, passed=success) for number, success in sorted(passed.items())}
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])
