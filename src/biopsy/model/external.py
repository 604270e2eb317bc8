"""Weights that stand in other files: finding them safely, and reading them.

A model names such a file by a path relative to its own folder (onnx.proto3, TensorProto.external_data). The name comes
with the model, from anybody: it never leads out of that folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.model import walk
from biopsy.model.load import parse
from biopsy.model.parts import ExternalPlace, external_place
from biopsy.model.tensor_type import SIZED, raw_size
from biopsy.processes.reading import open_plain
from biopsy.processes.writing import is_read
from biopsy.text import line_of, printable, shortened

if TYPE_CHECKING:
    import onnx

_LOCATION = b"location"
"""The key under which every reference to another file stands."""
_LENGTH_OF_LOCATION = re.compile(rb"(?:\x08|\x88[\x80-\xff]{0,8}[\x00-\x7f])\Z")
"""Its length before it, 8, as a varint: in one byte, or in more, which protobuf reads as well."""
_LONGEST_VARINT = 10
_IN_MEMORY = re.compile(r"_ORT_(\w+_)?MEM_ADDR_")
"""In a location: ONNX Runtime and OpenVINO take the offset for an address in their own memory, whatever it holds."""
_ENGINE_FILE = b"EPContext"
"""An operator of ONNX Runtime that stands for what an engine has built; the file may be named in an attribute."""

_CHUNK = 1 << 20
_LONGEST_PATH, _LONGEST_NAME = 2048, 255  # bytes; longer ones no system has, with the folder before them
_MOST_SHOWN = 200
_MOST_NAMES = 10_000
"""Files that are looked at for the other names of a hard link."""


_ASK = "ask whoever made the model for one whose weights stand in files"
_MOVE = (
    "only if that file is yours and belongs to this model: copy it into the model's folder and let the model name it"
    " there, by a relative path"
)


@dataclass(frozen=True)
class Span:
    """Where the values of one tensor stand: ``length`` bytes at ``offset`` of the file ``path``, all of it there."""

    path: Path
    offset: int
    length: int


def resolve(folder: Path, location: str, tensor: str = "") -> Path:
    """The file that a model in ``folder`` means by ``location``; whether it exists is not looked at.

    Raises ModelError, naming ``tensor`` and the file, if the location is absolute, climbs out by ``..``, passes through
    a symbolic link, or is a hard link whose other names are not in the folder: these are the rules of ONNX. Raises it
    too for what engines take for an address in memory, even if a file has that name.
    """

    def refused(why: str, *next_steps: str) -> errors.ModelError:
        place = shortened(location, _MOST_SHOWN)
        text = f"the external data of tensor {tensor!r} may not be read from {place!r}: {why}"
        return errors.ModelError(text, next_steps=next_steps)

    root = folder.resolve()

    def copied(source: str) -> str:
        place = PurePosixPath("COPY", location)
        command = f"{line_of(['mkdir', '-p', '--', str(place.parent)])} && {line_of(['cp', '--', source, str(place)])}"
        return (
            f"only if {printable(source)} is yours and belongs to this model: {command}    and so on for its other"
            " weights; then --external-data-dir COPY"
        )

    pure, name = PurePosixPath(location.replace("\\", "/")), location.encode("utf-8", "surrogatepass")
    is_too_long = len(name) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in name.split(b"/"))
    if not location or "\0" in location or is_too_long:
        raise refused("that is no file name")
    if _IN_MEMORY.search(location):
        raise refused("engines take it for an address in their memory", _ASK)
    if pure.is_absolute() or PureWindowsPath(location).drive or PureWindowsPath(location).root:
        raise refused("the path is absolute", _MOVE)
    if ".." in pure.parts:
        raise refused("it leads out of the model's folder", _MOVE)
    path = root
    for part in PurePosixPath(location).parts:
        path = path / part
        if path.is_symlink():
            leads, target = os.path.realpath(path), os.path.realpath(root / location)
            raise refused(f"{printable(str(path))} is a symbolic link to {printable(leads)}", copied(target))
    if may_be_shared(path, root):
        raise refused("it is a hard link to a file that may stand outside the model's folder", copied(str(path)))
    is_read(path)
    return path


def may_be_shared(path: Path, root: Path) -> bool:
    """Whether a file has names that are not seen in the folder: then its content may be somebody else's."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_nlink == 1:
            return False
    except OSError:
        return False  # a file that is not there, or may not be looked at, is told as that when it is read
    return _names_within(root, found.st_dev, found.st_ino, found.st_nlink, found.st_ctime_ns) < found.st_nlink


@lru_cache(maxsize=256)
def _names_within(root: Path, device: int, inode: int, links: int, changed: int) -> int:
    """How many names a file has in a folder. Remembered until it is linked, unlinked or renamed: ``changed`` tells."""
    number = 0
    with suppress(OSError):
        for other in islice(root.rglob("*"), _MOST_NAMES):
            with suppress(OSError):
                found = other.lstat()
                number += (found.st_dev, found.st_ino) == (device, inode)
    return number


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the values of a tensor stand in another file."""
    return bool(tensor.data_location == 1)


def external_tensors(model: onnx.ModelProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model, or of a function, whose values stand in another file, wherever it stands."""
    return filter(is_external, walk.every_tensor(model))


def may_refer(data: bytes) -> bool:
    """Whether a serialized model may refer to another file: it holds the key of such a reference, as a whole string.

    What is named exactly ``location`` looks like one; what only has it in its name does not.
    """
    at = data.find(_LOCATION)
    while at >= 0:
        if _LENGTH_OF_LOCATION.search(data[max(0, at - _LONGEST_VARINT) : at]):
            return True
        at = data.find(_LOCATION, at + 1)
    return False


def require_safe(data: bytes, folder: Path, path: Path | None = None) -> None:
    """Raise ModelError if any tensor of a serialized model refers to what it may not read, or to what is not there.

    Engines read what a model names, and not all of them ask whether it may be read: ONNX Runtime up to 1.23 follows
    absolute paths and links, and takes the location ``*/_ORT_MEM_ADDR_/*`` for an address in its own memory. So this is
    asked before any of them sees the model. Every message of the model is looked at, whatever field it stands in.
    """
    may_name_engines = _ENGINE_FILE in data
    if not may_name_engines and not may_refer(data):
        return
    model = parse(data, path)
    for tensor in _referring(model):
        _require_place(tensor, folder)
    if may_name_engines:
        for node in walk.nodes(model):
            if node.op_type == "EPContext":
                attributes = {attribute.name: attribute for attribute in node.attribute}
                embedded = attributes.get("embed_mode")
                if embedded is not None and embedded.i == 0 and "ep_cache_context" in attributes:
                    location = attributes["ep_cache_context"].s.decode("utf-8", "replace")
                    resolve(folder, location, node.name or node.op_type)


def _require_place(tensor: onnx.TensorProto, folder: Path) -> None:
    sized = is_external(tensor) and tensor.data_type in SIZED
    (span_of if sized else place_of)(tensor, folder)


def require_safe_locations(data: bytes, folder: Path, path: Path | None = None) -> None:
    """As ``require_safe``, of a model that nobody runs yet: files that it refers to need not be there."""
    if may_refer(data):
        for tensor in _referring(parse(data, path)):
            if os.path.lexists(resolve(folder, _said(tensor).location, tensor.name)):
                _require_place(tensor, folder)


def files_referred_to(data: bytes, folder: Path) -> list[Path]:
    """The files that the tensors of a serialized model refer to, whether or not they are there.

    Raises ModelError for a model that cannot be parsed, or one that refers to what may not be read.
    """
    if not may_refer(data):
        return []
    return sorted({resolve(folder, _said(tensor).location, tensor.name) for tensor in _referring(parse(data, None))})


def _referring(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    return (tensor for tensor in walk.every_tensor(model) if tensor.external_data or is_external(tensor))


def _said(tensor: onnx.TensorProto) -> ExternalPlace:
    return external_place(tensor.name, ((entry.key, entry.value) for entry in tensor.external_data))


def span_of(tensor: onnx.TensorProto, folder: Path) -> Span:
    """Where an external tensor's values stand.

    Raises ModelError as ``place_of`` does, and if the place has not as many bytes as the tensor's type and shape need.
    """
    found = place_of(tensor, folder)
    if found.length != byte_size(tensor):
        raise errors.ModelError(
            f"tensor {tensor.name!r} needs {byte_size(tensor)} bytes by its type and shape, "
            f"but the model gives it {found.length} bytes of {found.path}"
        )
    return found


def place_of(tensor: onnx.TensorProto, folder: Path) -> Span:
    """The place that a tensor refers to, whether or not it fits the tensor.

    Raises ModelError if the location is unsafe, the file is missing or no regular one, or is too short.
    """
    said = _said(tensor)
    path = resolve(folder, said.location, tensor.name)
    offset, length = said.offset, byte_size(tensor) if said.length is None else said.length
    return placed(tensor.name, path, offset, length)


def placed(tensor: str, path: Path, offset: int, length: int) -> Span:
    """A place in a file that ``resolve`` gave. Raises ModelError if it is not there, or no plain file, or too short."""
    try:
        found = path.lstat()
    except OSError as error:
        raise _missing(tensor, path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise errors.ModelError(f"the weights of tensor {tensor!r} cannot be read from {path}: it is no plain file")
    if offset < 0 or length < 0 or offset + length > found.st_size:
        raise errors.ModelError(
            f"tensor {tensor!r} should be bytes {offset} to {offset + length} of {path}, which has only {found.st_size}"
        )
    return Span(path, offset, length)


def _missing(tensor: str, path: Path, error: OSError) -> errors.ModelError:
    if isinstance(error, FileNotFoundError):
        return errors.ModelError(
            f"the weights of tensor {tensor!r} are missing: there is no file {path}",
            next_steps=["--external-data-dir FOLDER, if they stand elsewhere"],
        )
    return errors.ModelError(f"the weights of tensor {tensor!r} cannot be read from {path}: {error.strerror}")


def byte_size(tensor: onnx.TensorProto) -> int:
    """Bytes that a tensor's values take in raw form, by its type and shape; 0 for strings.

    Raises ModelError for a negative dimension or an element type that nobody knows.
    """
    size = raw_size(tensor.data_type, tensor.dims)
    if size is None:
        raise errors.ModelError(
            f"tensor {tensor.name!r} has shape {list(tensor.dims)} and element type {tensor.data_type}: "
            f"its size cannot be told"
        )
    return size


VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
"""Where a TensorProto may hold its values; beside these, they may stand in a file."""


def clear_values(tensor: onnx.TensorProto) -> None:
    """Take the values from a tensor, wherever they stand: type, shape and name are left."""
    for field in (*VALUE_FIELDS, "external_data", "data_location"):
        tensor.ClearField(field)


def raw_values(tensor: onnx.TensorProto) -> bytes:
    """The values of a tensor that stands in the model, little-endian and packed, whichever field holds them.

    Raises ModelError if they are not as many as its type and shape say.
    """
    if tensor.HasField("raw_data"):
        values = bytes(tensor.raw_data)
    else:
        from onnx import numpy_helper

        try:
            values = bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)
        except (ValueError, TypeError) as error:
            raise errors.ModelError(f"the values of tensor {tensor.name!r} cannot be read: {error}") from error
    if len(values) != byte_size(tensor):
        raise errors.ModelError(
            f"tensor {tensor.name!r} needs {byte_size(tensor)} bytes by its type and shape, but it has {len(values)}"
        )
    return values


def values_later(tensor: onnx.TensorProto, folder: Path) -> Callable[[], bytes]:
    """What gives the values of a tensor, also once the tensor itself has lost them; those of a file are read then.

    Raises ModelError now if they are missing or damaged, later if the file can no longer be read.
    """
    if is_external(tensor):
        span, name = span_of(tensor, folder), tensor.name
        return lambda: b"".join(chunks(name, span))
    values = raw_values(tensor)
    return lambda: values


def load_into(model: onnx.ModelProto | onnx.FunctionProto, folder: Path) -> None:
    """Read every external tensor of a model in ``folder``, or of a function of it, into the model itself.

    Raises ModelError if a file is missing, unsafe or too short; the model is then unchanged.
    """
    found = [(tensor, span_of(tensor, folder)) for tensor in external_tensors(model)]
    for tensor, span in found:
        load_values(tensor, span)


def load_values(tensor: onnx.TensorProto, span: Span) -> None:
    """Read the values of an external tensor, which stand at ``span``, into the tensor itself. Raises ModelError."""
    values = b"".join(chunks(tensor.name, span))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = values


def chunks(tensor: str, span: Span) -> Iterator[bytes]:
    """The bytes of a span, a megabyte at a time."""
    left = span.length
    try:
        with open_plain(span.path) as stream:
            stream.seek(span.offset)
            while left:
                chunk = stream.read(min(left, _CHUNK))
                if not chunk:
                    raise errors.ModelError(f"{span.path} became shorter while tensor {tensor!r} was read")
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise _missing(tensor, span.path, error) from error
