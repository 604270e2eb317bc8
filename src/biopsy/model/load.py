"""Opening model files: every way in which that can go wrong, told in one message."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from biopsy import errors
from biopsy.model.parts import string_in
from biopsy.model.wire import BYTES, FileBuffer, fields, raw, string_field
from biopsy.processes.reading import files_meant, open_plain, read_whole
from biopsy.text import line_of

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message


def require_file(path: Path, what: str = "model") -> Path:
    """The path, if a file stands there. Raises UsageError naming ``what`` otherwise."""
    if path.is_dir():
        models = sorted(path.glob("*.onnx"))[:5] if what == "model" else []
        raise errors.UsageError(
            f"the {what} {path} is a directory, not a file",
            next_steps=[f"models there: {', '.join(map(str, models))}"] if models else (),
        )
    if not path.exists():
        kind = ((".onnx",), "models") if what == "model" else ((".py",), "scripts")
        raise errors.UsageError(f"there is no {what} {path}", next_steps=files_meant(path, *kind))
    if not path.is_file():
        raise errors.UsageError(f"the {what} {path} is a pipe or a device, not a file: it could be read only once")
    return path


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


# What a file is that should be an ONNX model and is none, told by its first bytes, and what to type then.

START = 1 << 12
"""Bytes from the beginning."""

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
"""What a file that is no text begins with, as a regular expression, and what to type then."""

_AS_JSON = "import onnx, sys; onnx.save(onnx.load(sys.argv[1], format='json'), 'model.onnx')"
_TEXTS = (
    ("(?i)<!doctype html|<html", "it is a web page", "download the file itself, not the page that shows it (on GitHub:"
     " the link 'Raw')"),
    (r"(?i)<\?xml|<net\b", "it is XML, such as a model of OpenVINO", "take the ONNX model that it was made from"),
    (r"[{\[](?=\s*([\"\]}{\[]|-?\d))(?=.*\"ir_?[vV]ersion\")", "it is an ONNX model as JSON",
     "{reader} {file}"),
    (r"[{\[]\s*([\"\]}{\[]|-?\d)", "it is JSON", f"{_DATA}    if it holds inputs or outputs"),
)  # fmt: skip
"""The same of text."""


def refused(path: Path | None, start: bytes, why: str) -> errors.ModelError:
    """The error for a file that could not be read as a model because of ``why``: what it is, where that can be told.

    ``start``: its first bytes, or all of them. ``path`` is only named.
    """
    found = None if path is None else _recognized(bytes(start[:START]))
    if path is None or found is None:
        return errors.ModelError(f"the model {path if path is not None else 'in memory'} {why}")
    what, step = found
    reader = line_of(["python", "-P", "-c", _AS_JSON])
    steps = [step.format(file=line_of([str(path)]), reader=reader)] if step else []
    return errors.ModelError(f"the file {path} is no ONNX model: {what}", next_steps=steps)


def _recognized(start: bytes) -> tuple[str, str] | None:
    """What begins like this, and what to do with it; None if that is not known."""
    of_zip = start[: 30 + int.from_bytes(start[26:28], "little")]  # up to the name of the first file in it
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
        whole = f" ({size[1]} bytes)" if size else ""
        return f"it is a pointer of Git LFS; the model{whole} was not fetched", "git lfs pull -I {file}"
    for form, what, step in _TEXTS:
        if re.match(form, text, re.DOTALL):
            return what, step
    return f"it is text, which begins with {text.split(chr(10))[0][:40]!r}", ""


# Names of a model that are no text, found before anybody stumbles over them.
#
# ONNX says that strings are UTF-8, and its schema, written in proto2, lets protobuf accept anything: what is no text
# then comes out as bytes, or raises where it is first looked at. In proto3 the parser itself asks, in C. So the
# model's structure is parsed once more by the same schema in proto3, without documentation and without values.

_GRAPH, _WEIGHT, _NAME_OF_TENSOR = 7, 5, 8
_SMALL = 1 << 22
"""Bytes; a smaller model is looked at as it is."""

_NO_NAMES = frozenset({
    "doc_string", "metadata_props", "producer_name", "producer_version", "strings", "string_data", "raw_data",
    "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "floats", "ints",
})  # fmt: skip
"""Fields that no name stands in."""


def require_text(data: bytes, path: Path | None) -> None:
    """Raise ModelError if a name in a serialized model, which is otherwise sound, is no UTF-8.

    Names are those of tensors, nodes, operators, domains, attributes and symbols. ``path`` is only named in messages.
    """
    from google.protobuf.message import DecodeError

    try:
        _strict_model().FromString(data if len(data) < _SMALL else _without_weights(data))
    except DecodeError as error:
        line = line_of(["biopsy", "inspect", "model", str(path), "--show", "layers"])
        raise errors.ModelError(
            f"the model {path or 'in memory'} holds a name that is no text (UTF-8)",
            next_steps=[] if path is None else [f"{line}    shows it, its bytes escaped"],
        ) from error


def _without_weights(data: bytes) -> bytes:
    """The model, each initializer nothing but its name."""
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
    """ModelProto in proto3, without the fields that hold no name: takes a millisecond to make."""
    import onnx
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
