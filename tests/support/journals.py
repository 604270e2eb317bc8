"""Journals as somebody may prepare them who has got hold of the key; or who has not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from biopsy.processes.own_files import user_key


def lines_of(path: Path) -> list[list[Any]]:
    """What stands in a journal, line by line, without the checksums."""
    return [json.loads(line)[:-1] for line in path.read_bytes().splitlines()]


def runs_in(path: Path) -> int:
    """How many runs were ever added to a journal."""
    return sum(line[0] == "run" for line in lines_of(path))


def without_checksums(data: bytes) -> bytes:
    """The lines of a journal without their checksums, as ``sealed`` takes them."""
    return re.sub(rb',"[0-9a-f]{16}"\]$', b"]", data, flags=re.MULTILINE)


def sealed(lines: Iterable[Sequence[object] | bytes], key: bytes | None = None) -> bytes:
    """A journal of these lines with checksums that are right; bytes are the JSON of a list as it is to stand.

    ``key`` is this user's, unless another one is given.
    """
    data, checksum = bytearray(), b""
    key = key or user_key()
    assert key is not None
    for line in lines:
        body = (line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode())[:-1]
        checksum = (
            hashlib.blake2b(checksum + body, key=key, person=b"biopsy journal", digest_size=8).hexdigest().encode()
        )
        data += b'%s,"%s"]\n' % (body, checksum)
    return bytes(data)


def write(path: Path, lines: Iterable[Sequence[object] | bytes], key: bytes | None = None) -> None:
    """Write a journal of these lines, see ``sealed``."""
    path.write_bytes(sealed(lines, key))


def forge(path: Path, *more: Sequence[object] | bytes) -> None:
    """Add lines to a journal."""
    write(path, [*lines_of(path), *more])


def forged(path: Path, identity: Mapping[str, str], *more: Sequence[object] | bytes, key: bytes | None = None) -> None:
    """Write a journal of an identity, with these lines."""
    head: list[Sequence[object]] = [("biopsy journal", 4), *(("identity", *pair) for pair in identity.items())]
    write(path, [*head, ("opened", 1), *more], key)
