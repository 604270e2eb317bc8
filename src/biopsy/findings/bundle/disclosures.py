"""Words that a bundle may not hold: the texts by which a model can be known again, looked for in every member of the
archive that is to be sent.
"""

from __future__ import annotations

import getpass
import io
import os
import re
import socket
import sys
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from biopsy.engines.registry import TITLES
from biopsy.findings.bundle import script_parts
from biopsy.model.load import parse, read_bytes
from biopsy.model.parts import PUBLIC_DOMAINS

_SHORTEST = 3
"""Characters. Shorter names, such as x and y, stand in any text."""

_SHORTEST_AMONG_BYTES = 6
"""Characters: where any bytes may stand, shorter names are met by chance."""

_FOLDERS_OF_ANYBODY = frozenset(map(Path, ("/", "/usr", "/usr/local", "/tmp")))  # noqa: S108 -- nothing is put there

_BYTES = (".npy", ".onnx", ".data")


def words_of_machine(model: Path) -> dict[str, str]:
    """Paths, and the names of the user and the machine -> what each is, for a person."""
    words: dict[str, str] = {}
    with suppress(OSError, KeyError, ImportError):
        words[getpass.getuser()] = "the name of the user"
    words[socket.gethostname()] = "the name of the machine"
    folders = {
        Path.home(): "the home folder",
        Path.cwd(): "the current folder",
        model.absolute().parent: "the folder of the model",
        Path(sys.prefix): "the folder of this Python",
    }
    words |= {str(folder): what for folder, what in folders.items() if folder not in _FOLDERS_OF_ANYBODY}
    usual = usual_words()
    return {word: what for word, what in words.items() if word and word not in usual}


def disclosures(archive: Path, words: Mapping[str, str]) -> list[str]:
    """What of the words stands in a bundle, each with its member; member names and archives inside count too."""
    wanted = {
        word.encode("utf-8", "surrogateescape"): (word, what)
        for word, what in words.items()
        if (len(word) >= _SHORTEST and os.sep != word)
    }
    told: dict[str, None] = {}
    for member, data in _members(archive):
        shortest = _SHORTEST_AMONG_BYTES if member.endswith(_BYTES) else _SHORTEST
        for word, (text, what) in wanted.items():
            pattern = rb"(?<![A-Za-z0-9_])" + re.escape(word) + rb"(?![A-Za-z0-9_])"
            if len(word) >= shortest and (re.search(pattern, data) or re.search(pattern, member.encode())):
                told[f"{member} holds {text!r}, {what}"] = None
    return list(told)


def _members(archive: Path | io.BytesIO, above: str = "") -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each member, of an archive inside too."""
    with zipfile.ZipFile(archive) as stream:
        for info in stream.infolist():
            data = stream.read(info)
            yield f"{above}{info.filename}", data
            if info.filename.endswith(".npz"):
                yield from _members(io.BytesIO(data), f"{above}{info.filename}/")


# The words by which a model can be known again: every text in it that is neither the standard's nor neutral.

_NEUTRAL = re.compile(r"(t|n|g|f|d|a|domain|overload)\d+_*")
"""Names that --anonymize gives, and any model may have."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def words_of_model(path: Path) -> dict[str, str]:
    """The texts of a model -> what they are, for a person; without words that any bundle has.

    Weights are not read from files beside it. Raises ModelError.
    """
    words = dict.fromkeys(_texts(parse(read_bytes(path), path)), "a name or text of the original")
    words[path.stem] = "the name of the original's file"
    usual = usual_words()
    return {text: what for text, what in words.items() if text not in usual and not _NEUTRAL.fullmatch(text)}


def without_words_of(words: Mapping[str, str], result: Path) -> dict[str, str]:
    """Those words that a result has no more: the others were told when they were not replaced. Raises ModelError."""
    stay = set(_texts(parse(read_bytes(result), result)))
    return {text: what for text, what in words.items() if text not in stay}


def _texts(message: Any) -> Iterator[str]:
    """Every text in a message of protobuf and in all inside it."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if hasattr(value, "ListFields") else value:
                yield from _texts(part)
        elif field.type == field.TYPE_STRING:
            yield from filter(None, (value,) if isinstance(value, str) else value)


@cache
def usual_words() -> Collection[str]:
    """Words of the standard, and of the texts that every bundle is made of."""
    from onnx import TensorProto, defs

    words = {*PUBLIC_DOMAINS, *(name.lower() for name in TensorProto.DataType.keys())}  # noqa: SIM118 -- no dictionary
    for schema in defs.get_all_schemas_with_history():
        words |= {schema.name, schema.domain, *schema.attributes}
    told = {"script.py", "issue.py"}
    bundle = resources.files(script_parts.__name__.rpartition(".")[0])
    files = [*resources.files(script_parts).iterdir(), *(file for file in bundle.iterdir() if file.name in told)]
    for file in files:
        if file.name.endswith(".py"):
            words.update(_WORD.findall(file.read_text(encoding="utf-8")))
    return words.union(*map(_WORD.findall, TITLES.values()))
