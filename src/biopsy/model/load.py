"""Opens model files. If that fails, one error says what the file is and what to type next."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model.parts import string_in
from biopsy.model.wire import BYTES, Buffer, FileBuffer, FileChanged, fields, raw, string_field
from biopsy.processes.reading import files_meant, open_plain
from biopsy.slow_imports import onnx
from biopsy.text import line_of

if TYPE_CHECKING:
    from google.protobuf.message import Message


def require_file(path: Path, what: str = "model") -> Path:
    """The path, if it is a file. Raises UsageError naming ``what`` otherwise."""
    if path.is_dir():
        models = sorted(path.glob("*.onnx"))[:5] if what == "model" else []
        raise errors.UsageError(
            f"the {what} {path} is a directory, not a file",
            next_steps=[f"models there: {', '.join(map(str, models))}"] if models else (),
        )
    if not path.exists():
        kind = {"model": ((".onnx",), "models"), "list of names": ((), "")}
        steps = files_meant(path, *kind.get(what, ((".py",), "scripts")))
        raise errors.UsageError(f"there is no {what} {path}", next_steps=steps)
    if not path.is_file():
        raise errors.UsageError(f"the {what} {path} is a pipe or a device, not a file: it could be read only once")
    return path


def read_bytes(path: Path) -> bytes:
    """The bytes of a model file. Raises UsageError if there is none, ModelError if it cannot be read."""
    return bytes(open_model(path))


READ_WHOLE = 64 << 20
"""Bytes. A file up to this size is faster to index as one bytes object."""


def open_model(path: Path) -> bytes | FileBuffer:
    """The bytes of a model file; of a large one, only the parts in use are read.

    Raises UsageError if there is no such file, ModelError if it is empty or cannot be read.
    """
    require_file(path)
    try:
        with open_plain(path, follow=True) as stream:
            large = os.fstat(stream.fileno()).st_size > READ_WHOLE and hasattr(os, "pread")
            buffer = FileBuffer(path, stream.fileno()) if large else stream.read()
    except OSError as error:
        raise errors.ModelError(f"the model {path} cannot be read: {error.strerror}") from error
    if not len(buffer):
        raise errors.ModelError(f"the model {path} is empty (0 bytes)")
    return buffer


def parse(data: bytes, path: Path | None) -> onnx.ModelProto:
    """The model as a protobuf object, without its external data. ``path`` is only for messages.

    Raises ModelError if the bytes are not an ONNX model, are cut short, or hold a name that is not UTF-8.
    """
    from google.protobuf.message import DecodeError

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise refused(path, data, f"is damaged or cut short: {error}") from error
    if not model.HasField("graph"):
        raise refused(path, data, "is not an ONNX model: it has no graph")
    require_text(data, path)
    return model


START = 1 << 12
"""The first bytes of a file, from which ``refused`` recognizes what it is."""

_EXPORT = "export it with torch.onnx.export"
_DATA = "biopsy inspect data {file}"
_BINARY = (
    (rb"\x1f\x8b", "it is compressed with gzip", "gunzip -c -- {file} > model.onnx"),
    (rb"\xfd7zXZ\x00", "it is compressed with xz", "xz -dc -- {file} > model.onnx"),
    (rb"BZh", "it is compressed with bzip2", "bunzip2 -c -- {file} > model.onnx"),
    (rb"\x28\xb5\x2f\xfd", "it is compressed with zstd", "zstd -dc -- {file} > model.onnx"),
    (rb"\x89HDF", "it is an HDF5 file, such as a Keras model", "export it to ONNX, as with tf2onnx"),
    (rb"\x80\x02", "it is a Python pickle, such as an old PyTorch model", _EXPORT),
    (rb".{4}TFL3", "it is a TensorFlow Lite model", "export it to ONNX, as with tf2onnx"),
    (rb"PK\x03\x04.*/(data\.pkl|version|\.format_version|byteorder)\Z", "it is a PyTorch model", _EXPORT),
    (rb"PK\x03\x04.*\.npy\Z", "it is a file of tensors (.npz)", _DATA),
    (rb"PK\x03\x04", "it is a zip archive", "unzip {file}"),
    (rb".{4}\0{4}\{\"", "it is a file of tensors (safetensors): weights without a graph", _DATA),
)
"""Beginnings of binary files as regular expressions, what such a file is, and what to do with it."""

_AS_JSON = "import onnx, sys; onnx.save(onnx.load(sys.argv[1], format='json'), 'model.onnx')"
_TEXTS = (
    ("(?i)<!doctype html|<html", "it is a web page", "download the file itself, not the page that shows it (on GitHub:"
     " the link 'Raw')"),
    (r"(?i)<\?xml|<net\b", "it is XML, such as a model of OpenVINO", "take the ONNX model that it was made from"),
    (r"[{\[](?=\s*([\"\]}{\[]|-?\d))(?=.*\"ir_?[vV]ersion\")", "it is an ONNX model as JSON",
     "{reader} {file}"),
    (r"[{\[]\s*([\"\]}{\[]|-?\d)", "it is JSON", f"{_DATA}    if it holds inputs or outputs"),
)  # fmt: skip
"""The same for text files."""


def refused(path: Path | None, start: bytes, why: str) -> errors.ModelError:
    """The error for a file that is not a readable model: it says what the file is if that is recognized, else ``why``.

    ``start`` holds at least its first ``START`` bytes. ``path`` is only for messages.
    """
    recognized = None if path is None else _recognized(bytes(start[:START]))
    if path is None or recognized is None:
        return errors.ModelError(f"the model {path if path is not None else 'in memory'} {why}")
    what, step = recognized
    reader = line_of(["python", "-P", "-c", _AS_JSON])
    steps = [step.format(file=line_of([str(path)]), reader=reader)] if step else []
    return errors.ModelError(f"the file {path} is not an ONNX model: {what}", next_steps=steps)


def _recognized(start: bytes) -> tuple[str, str] | None:
    """What a file is that begins like this, and what to do with it; None if unknown."""
    of_zip = start[: 30 + int.from_bytes(start[26:28], "little")]  # ends with the name of the first file in it
    for pattern, what, step in _BINARY:
        if re.match(pattern, of_zip if start.startswith(b"PK") else start, re.DOTALL):
            return what, step
    if b"\0" in start or re.search(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", start):
        return None
    try:
        text = start.decode("utf-8-sig", "strict" if len(start) < START else "ignore").lstrip()
    except UnicodeDecodeError:
        return None
    if text.startswith("version https://git-lfs.github.com/spec/"):
        size = re.search(r"^size (\d{1,15})$", text, re.MULTILINE)
        bytes_there = f" ({size[1]} bytes)" if size else ""
        return f"it is a pointer of Git LFS; the model{bytes_there} was not fetched", "git lfs pull -I {file}"
    for form, what, step in _TEXTS:
        if re.match(form, text, re.DOTALL):
            return what, step
    return f"it is text, which begins with {text.split(chr(10))[0][:40]!r}", ""


# ONNX requires UTF-8 in names, but its schema is proto2, in which protobuf accepts any bytes: a name that is not UTF-8
# raises only where it is first used. A proto3 parser checks for UTF-8 itself, in C. So the structure of the model is
# parsed once more with the same schema as proto3, without documentation and values.


@contextmanager
def refusing_damage(path: Path | None, buffer: Buffer) -> Iterator[None]:
    """Damage that is met while a model is read becomes a ModelError that names the file."""
    try:
        yield
    except FileChanged:
        raise
    except errors.ModelError as error:
        raise refused(path, buffer[:START], f"is damaged, cut short or no ONNX model: {error.message}") from error
    except (IndexError, struct.error, RecursionError) as error:
        raise refused(path, buffer[:START], "is damaged or cut short: a field ends too early") from error


_GRAPH, _WEIGHT, _NAME_OF_TENSOR = 7, 5, 8
_SMALL = 1 << 22
"""Bytes. A smaller model is parsed with its weights."""

_NO_NAMES = frozenset({
    "doc_string", "metadata_props", "producer_name", "producer_version", "strings", "string_data", "raw_data",
    "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "floats", "ints",
})  # fmt: skip
"""Fields that hold no names."""


def require_text(data: bytes, path: Path | None) -> None:
    """Raise ModelError if a name in a serialized model, which is otherwise sound, is not UTF-8.

    Names are those of tensors, nodes, operators, domains, attributes and symbols. ``path`` is only for messages.
    """
    from google.protobuf.message import DecodeError

    try:
        _strict_model().FromString(data if len(data) < _SMALL else _without_weights(data))
    except DecodeError as error:
        line = line_of(["biopsy", "inspect", "model", str(path), "--show", "layers"])
        raise errors.ModelError(
            f"the model {path or 'in memory'} holds a name that is not text (UTF-8)",
            next_steps=[] if path is None else [f"{line}    shows it, its bytes escaped"],
        ) from error


def _without_weights(data: bytes) -> bytes:
    """The serialized model with only the names of its initializers."""
    parts: list[bytes] = []
    for number, kind, tag, start, end in fields(data):
        if number != _GRAPH or kind != BYTES:
            parts.append(data[tag:end])
            continue
        graph = [
            string_field(_WEIGHT, string_field(_NAME_OF_TENSOR, raw(string_in(data, _NAME_OF_TENSOR, s, e))))
            if inner == _WEIGHT and inner_kind == BYTES
            else data[t:e]
            for inner, inner_kind, t, s, e in fields(data, start, end)
        ]
        parts.append(string_field(_GRAPH, b"".join(graph)))
    return b"".join(parts)


@cache
def _strict_model() -> type[Message]:
    """ModelProto in proto3, without the fields that hold no names. It takes a millisecond to make."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    schema = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(schema)
    schema.syntax = "proto3"
    for message in schema.message_type:
        _strip(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{schema.package}.ModelProto"))


def _strip(message: Any) -> None:
    for field in list(message.field):
        if field.name in _NO_NAMES:
            message.field.remove(field)
        else:
            field.ClearField("options")
            field.ClearField("default_value")
    message.ClearField("reserved_range")
    message.ClearField("reserved_name")
    for inner in message.nested_type:
        _strip(inner)
