"""Opening model files: every way in which that can go wrong, told in one message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.filesystem.plain_file import open_plain, read_whole
from biopsy.filesystem.similar_files import files_meant
from biopsy.model.file_buffer import FileBuffer
from biopsy.model.file_content import refused
from biopsy.model.utf8 import require_text

if TYPE_CHECKING:
    import onnx


def require_file(path: Path, what: str = "model") -> Path:
    """The path, if a file stands there. Raises UsageError naming ``what`` otherwise."""
    if path.is_dir():
        raise errors.UsageError(
            f"the {what} {path} is a directory, not a file",
            next_steps=_models_in(path) if what == "model" else (),
        )
    if not path.exists():
        raise errors.UsageError(
            f"there is no {what} {path}",
            next_steps=files_meant(path, (".onnx",), "models")
            if what == "model"
            else files_meant(path, (".py",), "scripts"),
        )
    if not path.is_file():
        raise errors.UsageError(f"the {what} {path} is a pipe or a device, not a file: it could be read only once")
    return path


def _models_in(folder: Path) -> list[str]:
    found = sorted(folder.glob("*.onnx"))[:5] if folder.is_dir() else []
    return [f"models there: {', '.join(str(path) for path in found)}"] if found else []


def read_bytes(path: Path) -> bytes:
    """The bytes of a model file. Raises UsageError if there is none, ModelError if it cannot be read."""
    require_file(path)
    try:
        data = read_whole(path)
    except OSError as error:
        raise errors.ModelError(f"the model {path} cannot be read: {error.strerror}") from error
    if not data:
        raise errors.ModelError(f"the model {path} is empty (0 bytes)")
    return data


READ_WHOLE = 64 << 20
"""Bytes; a file up to this size is faster to walk as one bytes object."""


def open_model(path: Path) -> bytes | FileBuffer:
    """The bytes of a model file, a large one read where it is looked at.

    Raises UsageError if there is no such file, ModelError if it is empty or cannot be read.
    """
    require_file(path)
    try:
        with open_plain(path, follow=True) as stream:
            large = os.fstat(stream.fileno()).st_size > READ_WHOLE and hasattr(os, "pread")
            found = FileBuffer(path, stream.fileno()) if large else stream.read()
    except OSError as error:
        raise errors.ModelError(f"the model {path} cannot be read: {error.strerror}") from error
    if not len(found):
        raise errors.ModelError(f"the model {path} is empty (0 bytes)")
    return found


def parse(data: bytes, path: Path | None) -> onnx.ModelProto:
    """The model as a protobuf object, external data not loaded.

    Raises ModelError if the bytes are no ONNX model or are cut short, or if a name in it is no text. ``path`` is only
    named in messages.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise refused(path, data, f"is damaged or cut short: {error}") from error
    if not model.HasField("graph"):
        raise refused(path, data, "is no ONNX model: it has no graph")
    require_text(data, path)
    return model
