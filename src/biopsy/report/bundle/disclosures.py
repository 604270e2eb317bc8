"""Words that a bundle may not hold, looked for in every member of the archive that is to be sent."""

from __future__ import annotations

import getpass
import io
import os
import re
import socket
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from biopsy.report.bundle.names_of_model import usual_words

_SHORTEST = 3
"""Characters. Shorter names, such as x and y, stand in any text."""

_SHORTEST_AMONG_BYTES = 6
"""Characters: where any bytes may stand, shorter names are met by chance."""

_FOLDERS_OF_ANYBODY = frozenset(map(Path, ("/", "/usr", "/usr/local", "/tmp")))  # noqa: S108 -- nothing is put there

_BYTES = (".npy", ".onnx", ".data")


def words_of_machine(model: Path) -> dict[str, str]:
    """Paths, and the names of the user and the machine -> what each is, for a person."""
    found: dict[str, str] = {}
    with suppress(OSError, KeyError, ImportError):
        found[getpass.getuser()] = "the name of the user"
    found[socket.gethostname()] = "the name of the machine"
    folders = {
        Path.home(): "the home folder",
        Path.cwd(): "the current folder",
        model.absolute().parent: "the folder of the model",
        Path(sys.prefix): "the folder of this Python",
    }
    found |= {str(folder): what for folder, what in folders.items() if folder not in _FOLDERS_OF_ANYBODY}
    usual = usual_words()
    return {word: what for word, what in found.items() if word and word not in usual}


def disclosures(archive: Path, words: Mapping[str, str]) -> list[str]:
    """What of the words stands in a bundle, each with its member; member names and archives inside count too."""
    wanted = {word.encode("utf-8", "surrogateescape"): (word, what) for word, what in words.items() if _tells(word)}
    if not wanted:
        return []
    patterns = {word: _pattern(word) for word in wanted}
    found: dict[str, None] = {}
    for member, data in _members(archive):
        shortest = _SHORTEST_AMONG_BYTES if member.endswith(_BYTES) else _SHORTEST
        for word, pattern in patterns.items():
            if len(word) >= shortest and (pattern.search(data) or pattern.search(member.encode())):
                text, what = wanted[word]
                found[f"{member} holds {text!r}, {what}"] = None
    return list(found)


def _tells(word: str) -> bool:
    """Whether finding a word says anything."""
    return len(word) >= _SHORTEST and os.sep != word


def _pattern(word: bytes) -> re.Pattern[bytes]:
    """The word, where it is no part of a longer one."""
    return re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(word) + rb"(?![A-Za-z0-9_])")


def _members(archive: Path | io.BytesIO, above: str = "") -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each member, of an archive inside too."""
    with zipfile.ZipFile(archive) as stream:
        for info in stream.infolist():
            data = stream.read(info)
            yield f"{above}{info.filename}", data
            if info.filename.endswith(".npz"):
                yield from _members(io.BytesIO(data), f"{above}{info.filename}/")
