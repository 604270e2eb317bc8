"""The right to write candidates to a path, and what stands there that is not ours."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from biopsy import errors
from biopsy.filesystem.leftovers import remove_files
from biopsy.filesystem.own_file import lock, open_own
from biopsy.filesystem.write import cannot_write

_LONGEST_LIST = 1 << 20
_NEWEST = 2
"""Of so many models at one place the digests are kept: one may be replaced by the next when a process is killed."""


class Claim:
    """The right to write candidates to a path, held by one process at a time. It ends with the process, however.

    The file that is locked lists the places that are written to, with the digests of the models written last, so that
    whoever has the right next can tell what a process that was killed has left there from what somebody else has put
    there since. What cannot be told is taken for somebody else's: only a plain file with a listed digest is removed.
    What stood at the path before is set ``aside`` until the end; None if nothing did.
    """

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError if another process has it, OSError if the folder cannot be written."""
        self.path = path
        self._lock = path.with_name(f".{path.name}.lock")
        self._descriptor = _locked(self._lock)
        self._places: dict[str, list[str]] = {}
        self.aside: Path | None = None
        found = _listed(os.read(self._descriptor, _LONGEST_LIST))
        _remove_what_was_left(path, found)
        _put_back(found.get("aside"), path)
        self._set_aside()
        self.note(path)

    def note(self, place: Path, digest: bytes | None = None) -> None:
        """List a place, and the digest of the model, before it is written there. None: nothing is written yet."""
        digests = self._places.setdefault(str(place.absolute()), [])
        if digest is not None and digest.hex() not in digests:
            digests.append(digest.hex())
            del digests[:-_NEWEST]
        self._list()

    def remark(self, work: str = "reduction") -> str | None:
        """What a person should know: that something stood there, and where it is until the ``work`` ends."""
        if self.aside is None:
            return None
        return f"{self.path} already exists: moved to {self.aside} until the {work} ends"

    def release(self) -> str | None:
        """Give the path free, and put back what was set aside. What is left there on purpose stays known as ours.

        What cannot be put back stays listed, for the next who claims the path. Returns the words to tell of it.
        """
        left = {place: [found.hex()] for place in self._places if (found := _digest(Path(place))) is not None}
        if self.aside is not None:
            _put_back(str(self.aside), self.path)
            self.aside = self.aside if os.path.lexists(self.aside) else None
        with contextlib.suppress(OSError):
            if left or self.aside is not None:
                self._places = left
                self._list()
            else:
                self._lock.unlink()
        os.close(self._descriptor)
        if self.aside is None:
            return None
        return f"{self.path} holds the last candidate: what stood there before is still {self.aside}"

    def _set_aside(self) -> None:
        if not _may_be_moved(self.path):
            return
        number, aside = 0, self.path.with_name(f"{self.path.stem}.aside{self.path.suffix}")
        while os.path.lexists(aside):
            number += 1
            aside = self.path.with_name(f"{self.path.stem}.aside.{number}{self.path.suffix}")
        self.aside = aside
        self._list()  # first: whoever is killed in between has lost nothing
        self.path.rename(aside)

    def _list(self) -> None:
        aside = None if self.aside is None else str(self.aside.absolute())
        data = json.dumps({"places": self._places, "aside": aside}).encode("ascii")
        with contextlib.suppress(OSError):  # no room: then a candidate is left there if this process is killed
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, data)
            os.ftruncate(self._descriptor, len(data))


@contextlib.contextmanager
def set_aside(path: Path | None, work: str) -> Iterator[str | None]:
    """Claim a path while ``work`` is done; gives the words to tell of what stood there and is aside, None if none.

    Raises UsageError if another process has it. Nothing is done without a path.
    """
    if path is None:
        yield None
        return
    try:
        claim = Claim(path)
    except BlockingIOError:
        raise errors.UsageError(f"another biopsy in this folder writes to {path}") from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield claim.remark(work)
    finally:
        claim.release()


def _listed(data: bytes) -> Mapping[str, Any]:
    """What a list says; nothing if it was not written whole."""
    try:
        found, _ = json.JSONDecoder().raw_decode(data.decode("ascii"))
        places = found["places"]
        plain = all(isinstance(digests, list) for digests in places.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return found if plain else {}


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked, and still stands where it stood when it was opened."""
    while True:
        descriptor = open_own(path)
        try:
            lock(descriptor)
            if _inode(path) == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _inode(path: Path) -> int | None:
    """None where nothing stands any more: whoever had the lock removes its file when it is let go."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _remove_what_was_left(path: Path, found: Mapping[str, Any]) -> None:
    """Remove candidates at the places of a list, as far as they are named after ``path`` and are what was written."""
    ours = re.compile(rf"\.?{re.escape(path.stem)}(\.\d+)*{re.escape(path.suffix)}")
    for place, digests in found.get("places", {}).items():
        if ours.fullmatch(Path(place).name):
            written = _digest(Path(place))
            if written is not None and written.hex() in digests:
                with contextlib.suppress(OSError):
                    Path(place).unlink()
            remove_files(Path(place).parent, rf"\.{re.escape(Path(place).name)}\.\d+\.part")


def _may_be_moved(path: Path) -> bool:
    """Whether something stands there that is somebody's. Folders are refused elsewhere; devices are nobody's."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return not (stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode))


def _put_back(aside: object, path: Path) -> None:
    """Have what was set aside in its place again, if that is free and nobody has moved it."""
    if isinstance(aside, str) and os.path.lexists(aside) and not os.path.lexists(path):
        with contextlib.suppress(OSError):
            Path(aside).rename(path)


def _digest(path: Path) -> bytes | None:
    """What tells one model from another, as ``Trial.digest`` does; None if there is no plain file."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            with path.open("rb") as stream:
                found = hashlib.blake2b(digest_size=16)
                while chunk := stream.read(1 << 20):
                    found.update(chunk)
                return found.digest()
    return None
