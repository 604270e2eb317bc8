"""The journal: every run of a check of one reduction, on disk, so that a reduction that was stopped goes on from there.

It is an SQLite file. Each run is committed by itself, into a write-ahead log and without waiting for the disk: a
process that is killed loses nothing that ``add`` had returned from, a machine that loses power at most the last runs.
One process has it at a time. What outcomes depend on stands in it too, as its identity: it answers for no other
reduction.

What is read from it is judged like any file from elsewhere: types, outcomes and tables are compared with what this
version writes, and nothing is changed in a file that is not ours.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.checks.outcome import Evidence, Judged, Outcome
from biopsy.filesystem.write import cannot_write, require_writable
from biopsy.text import printable

FRESH = "--fresh    starts over, and keeps the old journal aside"
"""The next step where a journal cannot be used."""

OF_A_FILE = "file "
"""How the names begin that stand for files; one that was not there at first is a product, not a condition."""

_APPLICATION = int.from_bytes(b"biop", "big")
_VERSION = 2
_TABLES = (
    "CREATE TABLE identity (name TEXT NOT NULL, value TEXT NOT NULL)",
    "CREATE TABLE notes (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
    "CREATE TABLE opened (process INTEGER NOT NULL)",
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, digest BLOB NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,"
    " status INTEGER NOT NULL, seconds REAL NOT NULL, timed_out INTEGER NOT NULL,"
    " stage TEXT NOT NULL, doing TEXT NOT NULL, nodes INTEGER NOT NULL)",
)
_INSERT = (
    "INSERT INTO runs (digest, outcome, reason, status, seconds, timed_out, stage, doing, nodes)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT = (
    "SELECT digest, outcome, reason, status, seconds, timed_out, stage, doing, nodes, typeof(timed_out)"
    " FROM runs ORDER BY number"
)
_INTO_ONE_FILE = "PRAGMA journal_mode = MEMORY"
"""Empties the log into the file and deletes it, while the lock is kept."""

_SIDE_FILES = ("-wal", "-shm", "-journal")
_PATIENCE = 0.2
"""Seconds to wait for whoever else has the file: long enough for a look at it, too short to be noticed."""

_MOST_SHOWN = 4
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Entry:
    """One run of a check: of which model (the digest of its bytes), what came of it, and what the search was doing."""

    digest: bytes
    judged: Judged
    stage: str
    doing: str
    nodes: int


class Journal:
    """Every run of the checks of one reduction.

    To be used by one thread at a time. A fork of this process must end by ``os._exit`` or by becoming another program:
    if it tidied up at its end, SQLite would delete the write-ahead log under its parent.
    """

    def __init__(self, path: Path, place: Path, connection: sqlite3.Connection) -> None:
        """Use ``open``. ``place`` is ``path`` without symbolic links; ``connection`` holds the lock."""
        self.path = path
        self._place = place
        self._connection = connection
        self._memory: dict[bytes, list[Judged]] = {}
        self.identity: Mapping[str, str] = _pairs(connection, "SELECT name, value FROM identity")
        self._notes = _pairs(connection, "SELECT name, value FROM notes")
        self.found = 0
        for entry in self.entries():
            self._remember(entry)
            self.found += 1
        self._count = self.found

    @classmethod
    def open(cls, path: Path, identity: Mapping[str, str], *, fresh: bool = False) -> Journal:
        """The journal at ``path``, a new one if there is none.

        ``identity`` is what outcomes depend on, by names that a person understands. ``fresh`` renames a journal that
        stands there to ``NAME.1`` (or the next number that is free) and starts a new one.

        Raises UsageError, and leaves the file as it is, if another process has it, if it belongs to another identity,
        is damaged, of another version or no journal, or if it cannot be written.
        """
        require_writable(path)
        place = path.resolve()
        if place.exists() and not place.is_file():
            raise errors.UsageError(f"{path} cannot be a journal: it is no file")
        now = {storable(name): storable(value) for name, value in identity.items()}
        made = False
        try:
            if fresh:
                _set_aside(place)
            if not _holds_something(place):
                made = True
                _create(place, now)
            _refuse_what_is_not_ours(place)
            return cls._opened(path, place, now)
        except (sqlite3.Error, _DamagedError) as error:
            refusal = _refusal(path, place, error)
            if made and _is_full(place):
                _remove(place)  # nothing stands in it
            raise refusal from error
        except OSError as error:
            raise cannot_write(path, error) from error

    @classmethod
    def _opened(cls, path: Path, place: Path, identity: Mapping[str, str]) -> Journal:
        connection = _locked(place)
        try:
            _refuse_other_tables(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            journal = cls(path, place, connection)
            journal._adopt(identity)
            require_same_identity(
                journal.identity, identity, f"the journal {path}", kept="the journal, as it is", next_steps=[FRESH]
            )
            connection.execute("UPDATE opened SET process = ?", (os.getpid(),))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # where others see the number of us
        except BaseException:
            connection.close()
            raise
        return journal

    def _adopt(self, identity: Mapping[str, str]) -> None:
        """Become a journal of ``identity`` if nothing stands in it yet: whoever made it was stopped before it began."""
        if self.found or self._notes or self.identity == identity:
            return
        self._connection.execute("BEGIN")
        self._connection.execute("DELETE FROM identity")
        self._connection.executemany("INSERT INTO identity (name, value) VALUES (?, ?)", identity.items())
        self._connection.execute("COMMIT")
        self.identity = dict(identity)

    def runs(self, digest: bytes) -> list[Judged]:
        """All runs of the model with this digest, in order. They have no output and no verdict file."""
        return list(self._memory.get(digest, ()))

    def add(self, digest: bytes, judged: Judged, *, stage: str, doing: str, nodes: int) -> None:
        """Keep one run: once this returns it survives the end of this process, however it ends.

        Raises CheckError if it cannot be written; the journal then is as it was.
        """
        entry = Entry(digest, _without_output(judged), storable(stage), storable(doing), nodes)
        kept, evidence = entry.judged, entry.judged.evidence
        self._write(
            _INSERT,
            (
                entry.digest, kept.outcome.value, kept.reason, evidence.status, evidence.seconds, evidence.timed_out,
                entry.stage, entry.doing, entry.nodes,
            ),
        )  # fmt: skip
        self._remember(entry)
        self._count += 1

    def forget(self, digest: bytes) -> None:
        """Remove every run of a model: a person takes the answer back. Raises CheckError like ``add``."""
        self._write("DELETE FROM runs WHERE digest = ?", (digest,))
        self._count -= len(self._memory.pop(digest, ()))

    @property
    def count(self) -> int:
        """How many runs stand in it now."""
        return self._count

    def note(self, key: str, value: str) -> None:
        """Keep a small fact, in place of what was noted under this key before. Raises CheckError like ``add``."""
        name, text = storable(key), storable(value)
        self._write("INSERT OR REPLACE INTO notes (name, value) VALUES (?, ?)", (name, text))
        self._notes[name] = text

    def noted(self, key: str) -> str | None:
        """What was noted under a key."""
        return self._notes.get(storable(key))

    def notes(self) -> dict[str, str]:
        """Everything that was noted, by key."""
        return dict(self._notes)

    def entries(self) -> Iterator[Entry]:
        """Every run in the order in which they were added."""
        for *values, kind in self._connection.execute(_SELECT):
            found: dict[str, Any] = dict(zip(ENTRY_TYPES, values, strict=True))
            if kind != "integer" or found["timed_out"] not in (0, 1):
                raise _DamagedError("a run in it has a 'timed_out' that is neither 0 nor 1")
            try:
                yield entry_of({**found, "timed_out": bool(found["timed_out"])})
            except ValueError as error:
                raise _DamagedError(f"a run in it has {error}") from error

    def close(self) -> None:
        """Let go of the file. Everything is on disk already."""
        with contextlib.suppress(sqlite3.Error):  # only a number for the message to whoever comes second
            self._connection.execute("UPDATE opened SET process = 0")
        self._connection.close()

    def remove(self) -> None:
        """Close the journal and delete it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute(_INTO_ONE_FILE)
        _remove(self._place)  # while the lock is held: what is there later belongs to somebody else
        self.close()

    def _remember(self, entry: Entry) -> None:
        self._memory.setdefault(entry.digest, []).append(entry.judged)

    def _write(self, statement: str, values: Sequence[object]) -> None:
        try:
            self._connection.execute(statement, values)
        except sqlite3.Error as error:
            raise errors.CheckError(
                f"the journal {self.path} cannot be written: {_reason(error, self._place)}",
                kept=f"the {self._count} outcomes that stand in it",
                next_steps=["make room on that disk; the same command then goes on from there"],
            ) from error


def storable(text: str) -> str:
    """A text as it can be kept and found again: what is no Unicode, as in names of files, becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _without_output(judged: Judged) -> Judged:
    evidence = judged.evidence
    seconds = float(evidence.seconds) if math.isfinite(evidence.seconds) else 0.0
    facts = Evidence(evidence.status, seconds=seconds, timed_out=evidence.timed_out)
    return Judged(judged.outcome, storable(judged.reason), facts)


# What a file says, compared with what we would have written


ENTRY_TYPES: Mapping[str, type] = {
    "digest": bytes, "outcome": str, "reason": str, "status": int, "seconds": float, "timed_out": bool,
    "stage": str, "doing": str, "nodes": int,
}  # fmt: skip
"""The values of an entry by name, as they stand in files."""


def entry_of(values: Mapping[str, Any]) -> Entry:
    """The entry of values that come from a file. Raises ValueError, with words such as ``no 'status'``."""
    for name, kind in ENTRY_TYPES.items():
        value = values.get(name)
        if value is None:
            raise ValueError(f"no {name!r}")
        if type(value) is not kind:
            raise ValueError(f"a {name!r} of a wrong type ({type(value).__name__})")
    if not math.isfinite(values["seconds"]):
        raise ValueError("a 'seconds' that is no number")
    if not all(-(1 << 63) <= values[name] < 1 << 63 for name in ("status", "nodes")):
        raise ValueError("a number that is too large")
    try:
        outcome = Outcome(values["outcome"])
    except ValueError:
        raise ValueError(f"the unknown outcome {values['outcome'][:_LONGEST_SHOWN]!r}") from None
    evidence = Evidence(values["status"], seconds=values["seconds"], timed_out=values["timed_out"])
    judged = Judged(outcome, storable(values["reason"]), evidence)
    return Entry(values["digest"], judged, storable(values["stage"]), storable(values["doing"]), values["nodes"])


def require_same_identity(
    then: Mapping[str, str], now: Mapping[str, str], what: str, *, kept: str, next_steps: Sequence[str]
) -> None:
    """Raise UsageError that names what differs between the reduction ``what`` was written by and this one."""
    made_since = {name for name in now if name.startswith(OF_A_FILE) and name not in then}  # by the check itself
    differing = [name for name in {**now, **then} if then.get(name) != now.get(name) and name not in made_since]
    if not differing:
        return
    lines = []
    for name in differing[:_MOST_SHOWN]:
        old, new = then.get(name), now.get(name)
        at = _first_difference(old or "", new or "")
        lines.append(f"  {printable(name)}: {_shown(old, at)} then, {_shown(new, at)} now")
    if len(differing) > _MOST_SHOWN:
        lines.append(f"  and {len(differing) - _MOST_SHOWN} more")
    told = f"{what} belongs to another reduction; what differs is:"
    raise errors.UsageError(told, details=lines, kept=kept, next_steps=next_steps)


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _shown(value: str | None, at: int) -> str:
    """A value for a message; of a long one only the part around the first letter that differs."""
    if value is None:
        return "not given"
    start = max(0, at - _LONGEST_SHOWN // 3) if len(value) > _LONGEST_SHOWN else 0
    end = start + _LONGEST_SHOWN
    return ("..." if start else "") + repr(value[start:end]) + ("..." if end < len(value) else "")


class _DamagedError(Exception):
    """What stands in the file is not what a journal holds."""


def _pairs(connection: sqlite3.Connection, question: str) -> dict[str, str]:
    found = connection.execute(question).fetchall()
    if not all(isinstance(text, str) for pair in found for text in pair):
        raise _DamagedError("it holds a value of a wrong type")
    return dict(found)


# The file


def _beside(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)


def _peek(place: Path, question: str) -> Any:
    """The first row of an answer; asks without a lock, and without writing to the file or to what stands beside it.

    Not through a plain open(): closing that would give back every lock that this process holds on the file.
    """
    connection = sqlite3.connect(f"{place.as_uri()}?mode=ro&immutable=1", uri=True)
    with contextlib.closing(connection):
        connection.execute("PRAGMA writable_schema = ON")  # or a file whose last pages are still in its log is refused
        return connection.execute(question).fetchone()


def _refuse_what_is_not_ours(place: Path) -> None:
    """Raise UsageError or _DamagedError, before anything could be written, if a file is no journal of this version."""
    _refuse_files_of_others(place)
    (version,) = _peek(place, "PRAGMA user_version")
    if version != _VERSION:
        raise _DamagedError(f"it is of version {version}, and this biopsy writes version {_VERSION}")


def _refuse_files_of_others(place: Path) -> None:
    if _peek(place, "PRAGMA application_id") != (_APPLICATION,):
        raise errors.UsageError(
            f"{place} is an SQLite file of another program, and no journal",
            kept="that file, untouched",
            next_steps=["move it elsewhere: a journal is to stand in its place"],
        )


def _remove(place: Path) -> None:
    """Delete a journal, and what SQLite has beside it. What cannot be deleted does no harm."""
    for suffix in (*_SIDE_FILES, ""):
        with contextlib.suppress(OSError):
            _beside(place, suffix).unlink(missing_ok=True)


def _is_full(place: Path) -> bool:
    """Whether there is no room where a file stands: SQLite calls that an I/O error, or damage, as it comes."""
    with contextlib.suppress(OSError, AttributeError):
        found = os.statvfs(place.parent)
        return found.f_bavail * found.f_frsize < _LITTLE_ROOM
    return False


_LITTLE_ROOM = 1 << 16  # bytes; SQLite extends its files by as much


def _reason(error: Exception, place: Path) -> str:
    return f"{error}" if "full" in str(error) or not _is_full(place) else f"No space left on device ({error})"


def _holds_something(place: Path) -> bool:
    return place.exists() and place.stat().st_size > 0


def _locked(place: Path) -> sqlite3.Connection:
    """A connection that holds the only lock on a file until it is closed or its process ends, however that ends."""
    before = _inode(place)
    connection = sqlite3.connect(place, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        for statement in (
            "PRAGMA locking_mode = EXCLUSIVE", "PRAGMA synchronous = NORMAL", "PRAGMA trusted_schema = OFF",
            "BEGIN EXCLUSIVE", "COMMIT",
        ):  # fmt: skip
            connection.execute(statement)
        if before not in (None, _inode(place)):
            raise sqlite3.OperationalError("locked: renamed by another process meanwhile")
    except BaseException:
        connection.close()
        raise
    return connection


def _inode(place: Path) -> int | None:
    return place.stat().st_ino if place.exists() else None


def _create(place: Path, identity: Mapping[str, str]) -> None:
    """Put an empty journal at ``place``, whole or not at all; if another process does so first, theirs stays."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            for statement in (
                "PRAGMA synchronous = NORMAL",
                "PRAGMA journal_mode = MEMORY",  # no log: what the disk has no room for is told by the commit
                "BEGIN",
                *_TABLES,
                "INSERT INTO opened (process) VALUES (0)",
            ):
                connection.execute(statement)
            connection.executemany("INSERT INTO identity (name, value) VALUES (?, ?)", identity.items())
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        if place.exists():  # and is empty
            place.unlink()
        _put(temporary, place)
    finally:
        for suffix in ("", *_SIDE_FILES):
            with contextlib.suppress(OSError):
                _beside(temporary, suffix).unlink(missing_ok=True)


def _put(temporary: Path, place: Path) -> None:
    try:
        place.hardlink_to(temporary)  # unlike renaming, never over what another process has just put there
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        temporary.rename(place)


def _refuse_other_tables(connection: sqlite3.Connection) -> None:
    found = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if found != set(_TABLES):
        raise _DamagedError("its tables are not those of a journal")


def _set_aside(place: Path) -> None:
    """Rename what stands at ``place``, and what SQLite has beside it, to the first number that is free."""
    if not _holds_something(place):
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(sqlite3.DatabaseError):  # damaged: it is renamed as it is
            _refuse_files_of_others(place)
            try:
                connection = stack.enter_context(contextlib.closing(_locked(place)))
                connection.execute(_INTO_ONE_FILE)
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise _InUseError from error
        number = 1
        while any(_beside(place, f".{number}{suffix}").exists() for suffix in ("", *_SIDE_FILES)):
            number += 1
        for suffix in (*_SIDE_FILES, ""):
            if _beside(place, suffix).exists():
                _beside(place, suffix).rename(_beside(place, f".{number}{suffix}"))


class _InUseError(_DamagedError):
    """Another process has the file."""


def _refusal(path: Path, place: Path, error: Exception) -> errors.UsageError:
    """The error for a person when a journal cannot be opened."""
    text = str(error)
    if isinstance(error, _InUseError) or "locked" in text:
        return errors.UsageError(
            f"the journal {path} is in use by another biopsy{_process_that_has(place)}",
            kept="the journal, as it is",
            next_steps=["wait until that one has ended, then type the same again"],
        )
    if any(words in text for words in ("unable to open", "readonly", "disk I/O", "is full")):
        return cannot_write(path, OSError(_reason(error, place)))
    if _is_full(place) and "malformed" in text:
        return cannot_write(path, OSError(_reason(error, place)))
    return errors.UsageError(
        f"{path} cannot be used as a journal: {text}", kept="that file, as it is", next_steps=[FRESH]
    )


def _process_that_has(place: Path) -> str:
    with contextlib.suppress(sqlite3.Error, TypeError, ValueError):  # it is only good to know
        (process,) = _peek(place, "SELECT process FROM opened")
        if isinstance(process, int) and process > 0:
            return f" (process {process})"
    return ""
