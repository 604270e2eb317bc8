"""A file of lines of JSON, each with a seal: a checksum, under a key, over the line and all that stands before it.

Who does not have the key can write no line that is read, nor move one, nor take one from another file. A process that
is killed leaves at most a last line without its end, which is cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from biopsy.filesystem.own_file import open_own
from biopsy.filesystem.privacy import make_as_private_as_new

_MOST_BYTES = 1 << 30
_END = b',"seal":"%s"}\n'
_SIZE_OF_END = len(_END % bytes(32))


class ForeignError(Exception):
    """Lines that were not written with this key, or are not where they were written."""


class SealedLines:
    """An open file of such lines. ``purpose``, of at most 16 bytes, tells them from others under the same key."""

    def __init__(self, path: Path, key: bytes, purpose: bytes) -> None:
        """Made if there is none; nothing in it is changed. Raises OSError as ``open_own`` does."""
        self.path = path
        self._key, self._purpose = key, purpose
        self._seal = b""
        self._stream = os.fdopen(open_own(path, mode=0o666), "r+b")
        make_as_private_as_new(self._stream.fileno())

    def read(self) -> list[dict[str, Any]]:
        """All lines. Raises ForeignError, nothing being changed then, or OSError."""
        if os.fstat(self._stream.fileno()).st_size > _MOST_BYTES:
            raise ForeignError
        self._stream.seek(0)
        data = self._stream.read(_MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        found = list(self._opened(whole))
        self._stream.truncate(len(whole))
        self._stream.seek(len(whole))
        return found

    def _opened(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._seal = b""
        for line in data.splitlines(keepends=True):
            body, end = line[:-_SIZE_OF_END], line[-_SIZE_OF_END:]
            seal = self._sealed(body)
            if not hmac.compare_digest(end, _END % seal):
                raise ForeignError
            self._seal = seal
            yield json.loads(line)

    def begin(self, line: Mapping[str, Any]) -> None:
        """Start over, with this line."""
        self._stream.seek(0)
        self._stream.truncate()
        self._seal = b""
        self.append(line)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line: the disk has it when this returns. Raises OSError."""
        body = json.dumps(line, separators=(",", ":")).encode("ascii")[:-1]
        seal = self._sealed(body)
        self._stream.write(body + _END % seal)
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._seal = seal

    def close(self) -> None:
        """Let go of the file, as it is."""
        with contextlib.suppress(OSError):  # a full disk, told of when it was written to
            self._stream.close()

    def remove(self) -> None:
        """Delete the file and let go of it."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _sealed(self, body: bytes) -> bytes:
        """The seal of a line, without what it ends with, after those that were read or written."""
        hashed = hashlib.blake2b(self._seal + body, key=self._key, person=self._purpose, digest_size=16)
        return hashed.hexdigest().encode("ascii")
