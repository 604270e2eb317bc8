"""Words that identify a model or a machine, and the search for them in every member of a bundle's archive."""

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
from biopsy.questions import variation
from biopsy.slow_imports import onnx

_SHORTEST = 3
"""Characters of a word that is looked for in text: shorter names, such as x and y, are in any text."""

_SHORTEST_AMONG_BYTES = 6
"""Bytes of a word that is looked for in binary files, which hold shorter ones by chance."""

_FOLDERS_OF_ANYBODY = frozenset(map(Path, ("/", "/usr", "/usr/local", "/tmp")))  # noqa: S108 -- nothing is put there

_BYTES = (".npy", ".onnx", ".data")


def words_of_machine(model: Path) -> dict[str, str]:
    """Paths, and the names of the user and the machine; each with what it is, in words."""
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
    """A sentence for each word that a member of a bundle, or its name, holds; members of .npz files count too.

    ``words`` maps each word to what it is.
    """
    encoded_words = {
        word: word.encode("utf-8", "surrogateescape") for word in words if len(word) >= _SHORTEST and word != os.sep
    }
    disclosed: dict[str, None] = {}
    for member, data in _members(archive):
        shortest = _SHORTEST_AMONG_BYTES if member.endswith(_BYTES) else _SHORTEST
        for word, encoded in encoded_words.items():
            pattern = rb"(?<![A-Za-z0-9_])" + re.escape(encoded) + rb"(?![A-Za-z0-9_])"
            if len(encoded) >= shortest and (re.search(pattern, data) or re.search(pattern, member.encode())):
                disclosed[f"{member} holds {word!r}, {words[word]}"] = None
    return list(disclosed)


def _members(archive: Path | io.BytesIO, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of each member, and of the members of .npz files."""
    with zipfile.ZipFile(archive) as stream:
        for info in stream.infolist():
            data = stream.read(info)
            yield f"{prefix}{info.filename}", data
            if info.filename.endswith(".npz"):
                yield from _members(io.BytesIO(data), f"{prefix}{info.filename}/")


_NEUTRAL = re.compile(r"(t|n|g|f|d|a|domain|overload)\d+_*")
"""Names that --anonymize gives, which do not identify a model."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def words_of_model(path: Path) -> dict[str, str]:
    """The texts of a model, each with what it is in words; without words that any bundle has.

    External weights are not read. Raises ModelError.
    """
    words = dict.fromkeys(_texts(parse(read_bytes(path), path)), "a name or text of the original")
    words[path.stem] = "the name of the original's file"
    usual = usual_words()
    return {text: what for text, what in words.items() if text not in usual and not _NEUTRAL.fullmatch(text)}


def without_words_of(words: Mapping[str, str], result: Path) -> dict[str, str]:
    """The words that a result no longer holds. The user was told of the others, which could not be replaced.

    Raises ModelError.
    """
    kept = set(_texts(parse(read_bytes(result), result)))
    return {text: what for text, what in words.items() if text not in kept}


def _texts(message: Any) -> Iterator[str]:
    """Every text in a protobuf message and its submessages."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in (value,) if hasattr(value, "ListFields") else value:
                yield from _texts(part)
        elif field.type == field.TYPE_STRING:
            yield from filter(None, (value,) if isinstance(value, str) else value)


@cache
def usual_words() -> Collection[str]:
    """Words of the ONNX standard, and of the source of the texts that every bundle holds."""
    words = {*PUBLIC_DOMAINS, *(name.lower() for name in onnx.TensorProto.DataType.keys())}  # noqa: SIM118 -- no dictionary
    for schema in onnx.defs.get_all_schemas_with_history():
        words |= {schema.name, schema.domain, *schema.attributes}
    bundle = resources.files(script_parts.__name__.rpartition(".")[0])
    sources = [bundle / f"{name}.py" for name in ("script", "short_script", "engine_script", "issue")]
    sources.append(resources.files(variation) / "plain.py")
    for file in (*resources.files(script_parts).iterdir(), *sources):
        if file.name.endswith(".py"):
            words.update(_WORD.findall(file.read_text(encoding="utf-8")))
    return words.union(*map(_WORD.findall, TITLES.values()))
