"""The journal: every run of a check in one reduction, on disk, so that an interrupted reduction can be resumed.

Each run is one line appended to a text file, completely or not at all: a process that is killed loses nothing that
``add`` has returned from; a power failure loses at most the runs of the last moments. One process has the file at a
time. It also holds, as its identity, what outcomes depend on, and answers for no other reduction.

Its content is checked like any untrusted file: checksums, types and outcomes are compared with what this version
writes, and a file that is not ours is never changed. Someone with write access can still forge answers, so the journal
is only asked about candidates, and a result is checked anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.journal_file import (
    DamagedError,
    JournalFile,
    Values,
    process_that_has,
    require_plain,
    set_aside,
)
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.checks.verdict import VerdictFile
from biopsy.processes.own_files import InUseError
from biopsy.processes.reading import files_meant, read_plain
from biopsy.processes.writing import cannot_write, write_whole
from biopsy.text import printable

FRESH = "--fresh    starts over, and keeps the old journal aside"
"""The next step if a journal cannot be used."""

OF_A_FILE = "file "
"""Prefix of names that stand for files; a file that was missing at first is a product of the check, no condition."""

_MOST_SHOWN = 4
_LONGEST_SHOWN = 60
_LONGEST_KEPT = 1 << 15  # characters of a text; the rest is kept as a digest only
_NO_VERDICT = VerdictFile()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run of a check: the digest of the model's bytes, the outcome, and what the search was doing."""

    digest: bytes
    judged: Judged
    stage: str
    description: str
    nodes: int

    @property
    def values(self) -> dict[str, Any]:
        """Its values by name, as written to files."""
        judged, evidence = self.judged, self.judged.evidence
        return {
            "digest": self.digest.hex(),
            "outcome": judged.outcome.value,
            "reason": judged.reason,
            "status": evidence.status,
            "seconds": evidence.seconds,
            "timed_out": evidence.timed_out,
            "stage": self.stage,
            "description": self.description,
            "nodes": self.nodes,
        }


class Journal:
    """Every run of the checks of one reduction. For one thread at a time; a fork of this process loses access."""

    def __init__(self, path: Path, file: JournalFile) -> None:
        """Call ``open`` instead. Raises DamagedError, or OSError if the file cannot be read."""
        self.path = path
        self._file = file
        self._memory: dict[bytes, list[Judged]] = {}
        self._forgotten: dict[bytes, int] = {}
        self._notes: dict[str, str] = {}
        self._identity: dict[str, str] = {}
        self._began = False
        self.search = "reduction"
        """What the user calls the search."""
        for number, (kind, *values) in file.lines():
            try:
                self._read(number, str(kind), values)
            except ValueError as error:
                raise DamagedError(f"it is damaged at line {number}: {error}") from error
        self.resumed = self.count = sum(map(len, self._memory.values()))

    def _read(self, number: int, kind: str, values: Sequence[Any]) -> None:
        if tuple(map(type, values)) != _TYPES_OF_LINES.get(kind):
            raise ValueError("it is not a line of a journal")
        if kind != "opened" and (kind == "identity") is self._began:
            raise ValueError("it is in the wrong place")
        if kind == "opened":
            self._began = True
        elif kind == "run":
            entry = _entry_in(values)
            self._memory.setdefault(entry.digest, []).append(entry.judged)
        elif kind == "forget":
            digest = _digest(values[0])
            self._memory.pop(digest, None)
            self._forgotten[digest] = number
        else:
            name, text = map(storable, values)
            if kind == "identity" and name in self._identity:
                raise ValueError("it names a condition twice")
            (self._identity if kind == "identity" else self._notes)[name] = text

    @classmethod
    def open(
        cls, path: Path, identity: Mapping[str, str], *, fresh: bool = False, search: str = "reduction"
    ) -> Journal:
        """Open the journal at ``path``, or create it, readable by this user only.

        ``identity`` is what outcomes depend on, by names that a user understands. ``fresh`` renames an existing file to
        ``NAME.1`` (or the next free number) and starts a new one. ``search`` is what the user calls the search.

        Raises UsageError, and leaves the file as it is, if another process has it, if it belongs to another identity,
        is damaged, of another version or no journal, is a link or somebody else's file, or cannot be written.
        """
        is_new = False
        try:
            if fresh:
                set_aside(path)
            is_new = not os.path.lexists(path)
            if not is_new:
                require_plain(path.lstat(), path)
            file = JournalFile.open(path.absolute())  # a check in this process may change the current folder
        except OSError as error:
            raise refusal(path, error) from error
        try:
            journal = cls(path, file)
            journal.search = search
            now = {_kept(name): _kept(value) for name, value in identity.items()}
            if journal._began and (journal.resumed or journal._notes or journal.identity == now):
                what, kept = f"the journal {path}", "the journal, as it is"
                require_same_identity(journal.identity, now, what, kept=kept, next_steps=[FRESH], search=search)
                file.append([])
            else:  # its creator was stopped before the first line
                journal._identity, journal._forgotten = now, {}
                file.begin([("identity", name, value) for name, value in now.items()])
            return journal
        except (OSError, DamagedError) as error:
            (file.remove if is_new else file.abandon)()
            raise refusal(path, error) from error
        except BaseException:
            file.abandon()
            raise

    @property
    def identity(self) -> Mapping[str, str]:
        """What its answers depend on, by name."""
        return self._identity

    def runs(self, digest: bytes) -> list[Judged]:
        """All runs of the model with this digest, oldest first, without output and verdict file."""
        return list(self._memory.get(digest, ()))

    def add(self, digest: bytes, judged: Judged, *, stage: str, description: str, nodes: int) -> None:
        """Append one run: once this returns, it survives the end of this process.

        Raises CheckError if it cannot be written; the journal is then unchanged.
        """
        evidence = judged.evidence
        seconds = float(evidence.seconds) if math.isfinite(evidence.seconds) else 0.0
        evidence = Evidence(status=evidence.status, seconds=seconds, timed_out=evidence.timed_out)  # without its output
        kept = Judged(judged.outcome, _kept(judged.reason), evidence)
        entry = Entry(digest=digest, judged=kept, stage=_kept(stage), description=_kept(description), nodes=nodes)
        self._write(("run", *entry.values.values()))
        self._memory.setdefault(digest, []).append(kept)
        self.count += 1

    def forget(self, digest: bytes) -> None:
        """Remove every run of a model, because a person takes the answer back. Raises CheckError like ``add``."""
        self._write(("forget", digest.hex()), at_once=True)
        self._forgotten[digest] = self._file.end.lines
        self.count -= len(self._memory.pop(digest, ()))

    def note(self, key: str, value: str) -> None:
        """Store a small fact, replacing what was noted under this key before. Raises CheckError like ``add``."""
        name, text = storable(key), storable(value)
        self._write(("note", name, text))
        self._notes[name] = text

    def noted(self, key: str) -> str | None:
        """The fact noted under a key; None if there is none."""
        return self._notes.get(storable(key))

    def notes(self) -> dict[str, str]:
        """All notes by key."""
        return dict(self._notes)

    def entries(self) -> Iterator[Entry]:
        """Yield every run, oldest first. Raises CheckError if the file was changed meanwhile."""
        try:
            for number, (kind, *values) in self._file.lines():
                if kind == "run":
                    entry = _entry_in(values)
                    if number > self._forgotten.get(entry.digest, 0):
                        yield entry
        except (OSError, ValueError, DamagedError) as error:
            raise errors.CheckError(
                f"the journal {self.path} cannot be read any more: {_reason(error)}", kept="that file, as it is"
            ) from error

    def close(self) -> None:
        """Release the file, once all of it is on disk."""
        self._file.close()

    def remove(self) -> None:
        """Delete the journal and release the file."""
        self._file.remove()

    def _write(self, values: Values, *, at_once: bool = False) -> None:
        try:
            self._file.append([values], at_once=at_once)
        except OSError as error:
            raise cannot_append(self.path, f"the {self.count} outcomes in it", error) from error


def cannot_append(path: Path, kept: str, error: OSError) -> errors.CheckError:
    """The error to show when a journal cannot be written any more, as on a full disk."""
    return errors.CheckError(
        f"the journal {path} cannot be written: {_reason(error)}",
        kept=kept,
        next_steps=["make room on that disk; the same command then goes on from there"],
    )


def storable(text: str) -> str:
    """A text that can be stored and found again: what is not valid Unicode, as in file names, is escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _kept(text: str) -> str:
    """A text as it is stored: a very long one is cut, with its length and digest at the end."""
    text = storable(text)
    if len(text) <= _LONGEST_KEPT:
        return text
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
    end = f"... ({len(text)} characters, {digest})"
    return text[: _LONGEST_KEPT - len(end)] + end


_TYPES: Mapping[str, type] = {
    "digest": str, "outcome": str, "reason": str, "status": int, "seconds": float, "timed_out": bool,
    "stage": str, "description": str, "nodes": int,
}  # fmt: skip
"""The types of an entry's values by name, as written to files. Digests are hexadecimal."""
_TYPES_OF_LINES: Mapping[str, tuple[type, ...]] = {
    "identity": (str, str),
    "opened": (int,),
    "run": tuple(_TYPES.values()),
    "note": (str, str),
    "forget": (str,),
}
"""The types of a line's values by the kind of line."""
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def entry_of(values: Mapping[str, Any]) -> Entry:
    """The entry with values that come from a file. Raises ValueError with a message such as ``no 'status'``."""
    for name, kind in _TYPES.items():
        value = values.get(name)
        if value is None:
            raise ValueError(f"no {name!r}")
        if type(value) is not kind:
            raise ValueError(f"a {name!r} of a wrong type ({type(value).__name__})")
    if not math.isfinite(values["seconds"]):
        raise ValueError("a 'seconds' that is not a number")
    if not all(_LEAST <= values[name] <= _MOST for name in ("status", "nodes")):
        raise ValueError("a number that is too large")
    if values["outcome"] not in _OUTCOMES:
        raise ValueError(f"the unknown outcome {values['outcome'][:_LONGEST_SHOWN]!r}")
    facts = {name: values[name] for name in ("status", "seconds", "timed_out")}
    return Entry(
        digest=_digest(values["digest"]),
        judged=Judged(_OUTCOMES[values["outcome"]], storable(values["reason"]), Evidence(**facts, verdict=_NO_VERDICT)),
        stage=storable(values["stage"]),
        description=storable(values["description"]),
        nodes=values["nodes"],
    )


def _entry_in(values: Sequence[Any]) -> Entry:
    """The entry of a line whose types have been compared. Raises ValueError with a message."""
    try:
        return entry_of(dict(zip(_TYPES, values, strict=True)))
    except ValueError as error:
        raise ValueError(f"a run in it has {error}") from None


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError("a 'digest' that is not hexadecimal") from None


def require_same_identity(
    then: Mapping[str, str],
    now: Mapping[str, str],
    what: str,
    *,
    kept: str,
    next_steps: Sequence[str],
    search: str = "reduction",
) -> None:
    """Raise UsageError that shows how the ``search`` that wrote ``what`` differs from this one."""
    made_since = {name for name in now if name.startswith(OF_A_FILE) and name not in then}  # by the check
    differing = [name for name in {**now, **then} if then.get(name) != now.get(name) and name not in made_since]
    if not differing:
        return
    lines = []
    for name in differing[:_MOST_SHOWN]:
        old, new = then.get(name), now.get(name)
        pairs = enumerate(zip_longest(old or "", new or ""))
        at = next((at for at, (left, right) in pairs if left != right), 0)
        lines.append(f"  {printable(name)}: {_shown(old, at)} then, {_shown(new, at)} now")
    if len(differing) > _MOST_SHOWN:
        lines.append(f"  and {len(differing) - _MOST_SHOWN} more")
    message = f"{what} belongs to another {search}; what differs is:"
    raise errors.UsageError(message, details=lines, kept=kept, next_steps=next_steps)


def _shown(value: str | None, at: int) -> str:
    """A value for a message; a long one is cut to the surroundings of ``at``, the first differing character."""
    if value is None:
        return "not given"
    start = max(0, at - _LONGEST_SHOWN // 3) if len(value) > _LONGEST_SHOWN else 0
    end = start + _LONGEST_SHOWN
    return ("..." if start else "") + repr(value[start:end]) + ("..." if end < len(value) else "")


_MOVE = "move it elsewhere: the journal needs this name"
_OF_OTHERS = frozenset({errno.ELOOP, errno.EPERM, errno.EMLINK})
"""Errors of ``open_own`` for links and files of other users, which can be renamed."""
_NO_FILES = frozenset({errno.EISDIR, errno.EINVAL, errno.ENXIO})


def refusal(path: Path, error: Exception) -> errors.UsageError:
    """The error to show when a journal cannot be opened."""
    if isinstance(error, InUseError):
        process = process_that_has(path)
        return errors.UsageError(
            f"the journal {path} is in use by another biopsy{f' (process {process})' if process else ''}",
            kept="the journal, as it is",
            next_steps=["wait until that one has ended, then type the same again"],
        )
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, OSError) and number not in _OF_OTHERS | _NO_FILES:
        return cannot_write(path, error)
    return errors.UsageError(
        f"{path} cannot be used as a journal: {_reason(error)}",
        kept="that file, as it is",
        next_steps=[_MOVE if number in _NO_FILES else FRESH],
    )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


_VERSION = 1
_MOST_BYTES_OF_REPLAY = 256 << 20
_CONTEXT = "IterationContext"
"""The class that Polygraphy gives each iteration of its replays."""


def save_replay(path: Path, journal: Journal) -> None:
    """Write everything in a journal to ``path``. Raises UsageError if that cannot be written."""

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

    ``probes`` are the stages that are not iterations of a search; Polygraphy would not have them, so they are left out.
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
    """Add the runs of a replay that a journal does not hold yet; returns how many. Existing notes stay.

    Raises UsageError if the file is missing, larger than 256 MiB, of another reduction or of Polygraphy; DataError if
    it is damaged or of another version. The journal is then unchanged.
    """
    tree = _replay_in(path)
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
    """The JSON object in a file of at most ``most`` bytes. Raises UsageError if it cannot be read, else ``damaged``."""
    try:
        if not path.exists():
            raise errors.UsageError(
                f"there is no replay {path}", next_steps=files_meant(path, (".json",), "JSON files")
            )
        if not path.is_file():
            raise errors.UsageError(f"{path} is not a file")
        tree = json.loads(read_plain(path, most, follow=True))
    except OSError as error:
        raise errors.UsageError(f"cannot read the replay {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(f"it is not JSON ({error})") from error
    if not isinstance(tree, dict):
        raise damaged("it holds no JSON object")
    return tree


def _replay_in(path: Path) -> dict[str, Any]:
    """The JSON object in a replay of ours. Raises UsageError or DataError for anything else."""
    tree = _object_in(path, _MOST_BYTES_OF_REPLAY, partial(_damaged, path))
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
        "it is not a replay: one looks like"
        ' {"biopsy_replay": 1, "identity": {...}, "runs": [{"digest": ..., "outcome": ...}], "notes": {}}',
    )


def _damaged(path: Path, why: str) -> errors.DataError:
    return errors.DataError(
        f"the replay {path} cannot be loaded: {why}",
        kept="the journal, as it was",
        next_steps=["save it again by --save-debug-replay, or leave --load-debug-replay out"],
    )


def _texts(path: Path, tree: dict[str, Any], key: str) -> dict[str, str]:
    texts = tree.get(key)
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise _damaged(path, f"its {key!r} is not an object of texts")
    return {storable(name): storable(value) for name, value in texts.items()}


def _entries(path: Path, tree: dict[str, Any]) -> list[Entry]:
    runs = tree.get("runs")
    if not isinstance(runs, list):
        raise _damaged(path, "its 'runs' are not a list")
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


# Replays that hold outcomes by iteration number, in Polygraphy's form: ``{"_N0": {"success": true, ...}, ...}``.
#
# The number is enough for one command that is run again and again. A search needs ``save_replay``, because each of its
# outcomes belongs to a model.

_MOST_BYTES_OF_ITERATIONS = 64 << 20


def read_iterations(path: Path) -> list[bool]:
    """Whether each iteration passed, from the first up to the first one missing in the file.

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
    """Write which iterations passed, by number. Raises UsageError if the file cannot be written."""
    tree = {f"_N{number}": _iteration(number, {}, passed=success) for number, success in sorted(passed.items())}
    write_whole(path, [json.dumps(tree, indent=4).encode(), b"\n"])
