"""External data: finds the files of weights safely, and reads them.

A model names such a file by a path relative to its own folder (onnx.proto3, TensorProto.external_data). The model may
come from a stranger, so the path must not lead out of that folder.
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

from biopsy import errors
from biopsy.model import walk
from biopsy.model.load import parse
from biopsy.model.parts import ExternalPlace, external_place
from biopsy.model.tensor_type import SIZED, raw_size
from biopsy.processes.reading import open_plain
from biopsy.processes.writing import is_read
from biopsy.slow_imports import onnx
from biopsy.text import line_of, printable, shortened

_LOCATION = b"location"
"""The key of every reference to another file."""
_LENGTH_OF_LOCATION = re.compile(rb"(?:\x08|\x88[\x80-\xff]{0,8}[\x00-\x7f])\Z")
"""The length of that key, 8, as a varint, also in a longer encoding, which protobuf accepts."""
_LONGEST_VARINT = 10
_IN_MEMORY = re.compile(r"_ORT_(\w+_)?MEM_ADDR_")
"""A location with which ONNX Runtime and OpenVINO take the offset for an address in their own memory."""
_ENGINE_FILE = b"EPContext"
"""An operator of ONNX Runtime for what an engine has built; an attribute may name its file."""

_CHUNK = 1 << 20
_LONGEST_PATH, _LONGEST_NAME = 2048, 255  # bytes; no system has longer ones, with the folder before them
_MOST_SHOWN = 200
_MOST_NAMES = 10_000
"""Files of a folder among which the other names of a hard link are searched."""

_ASK = "ask whoever made the model for one whose weights stand in files"
_MOVE = (
    "only if that file is yours and belongs to this model: copy it into the model's folder and let the model name it"
    " there, by a relative path"
)


@dataclass(frozen=True)
class Span:
    """The place of a tensor's values: ``length`` bytes at ``offset`` of the file ``path``, which has all of them."""

    path: Path
    offset: int
    length: int


def resolve(folder: Path, location: str, tensor: str = "") -> Path:
    """The file that a model in ``folder`` names by ``location``; it need not exist.

    Raises ModelError, naming ``tensor`` and the file, as the rules of ONNX demand: if the location is absolute, has a
    ``..``, passes through a symbolic link, or is a hard link whose other names are not in the folder. It is also raised
    for a location that engines take for an address in memory.
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
        raise refused("that is not a file name")
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
    """Whether a file has hard links outside of the folder ``root``, so that its content may be somebody else's."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 1:
            return False
    except OSError:
        return False  # reading it raises the error
    return _names_within(root, status.st_dev, status.st_ino, status.st_nlink, status.st_ctime_ns) < status.st_nlink


@lru_cache(maxsize=256)
def _names_within(root: Path, device: int, inode: int, links: int, changed: int) -> int:
    """The number of names that a file has in a folder.

    It is cached until the file is linked, unlinked or renamed, which changes the time ``changed``.
    """
    number = 0
    with suppress(OSError):
        for other in islice(root.rglob("*"), _MOST_NAMES):
            with suppress(OSError):
                status = other.lstat()
                number += (status.st_dev, status.st_ino) == (device, inode)
    return number


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether the values of a tensor are in another file."""
    return bool(tensor.data_location == 1)


def external_tensors(model: onnx.ModelProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Every tensor anywhere in a model, or in a function, whose values are in another file."""
    return filter(is_external, walk.every_tensor(model))


def may_refer(data: bytes) -> bool:
    """Whether a serialized model may refer to another file: it holds ``location``, the key of a reference, as a string.

    A tensor or node of exactly this name also counts; a longer name that contains it does not.
    """
    at = data.find(_LOCATION)
    while at >= 0:
        if _LENGTH_OF_LOCATION.search(data[max(0, at - _LONGEST_VARINT) : at]):
            return True
        at = data.find(_LOCATION, at + 1)
    return False


def require_safe(data: bytes, folder: Path, path: Path | None = None) -> None:
    """Raise ModelError if any tensor of a serialized model refers to a file that it may not read, or that is missing.

    Call it before an engine gets the model: not all of them refuse such references. ONNX Runtime up to 1.23 follows
    absolute paths and links, and takes the location ``*/_ORT_MEM_ADDR_/*`` for an address in its own memory. Every
    message of the model counts, in whatever field it is.
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
    """As ``require_safe``, but files may be missing: for a model that is not run yet."""
    if may_refer(data):
        for tensor in _referring(parse(data, path)):
            if os.path.lexists(resolve(folder, _declared_place(tensor).location, tensor.name)):
                _require_place(tensor, folder)


def files_referred_to(data: bytes, folder: Path) -> list[Path]:
    """The files that the tensors of a serialized model refer to, missing ones included.

    Raises ModelError if the model cannot be parsed, or refers to a file that it may not read.
    """
    if not may_refer(data):
        return []
    tensors = _referring(parse(data, None))
    return sorted({resolve(folder, _declared_place(tensor).location, tensor.name) for tensor in tensors})


def _referring(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    return (tensor for tensor in walk.every_tensor(model) if tensor.external_data or is_external(tensor))


def _declared_place(tensor: onnx.TensorProto) -> ExternalPlace:
    return external_place(tensor.name, ((entry.key, entry.value) for entry in tensor.external_data))


def span_of(tensor: onnx.TensorProto, folder: Path) -> Span:
    """The place of an external tensor's values.

    Raises ModelError as ``place_of`` does, and if the place is not as long as the tensor's type and shape need.
    """
    span = place_of(tensor, folder)
    require_length(tensor.name, span, byte_size(tensor))
    return span


def require_length(tensor: str, span: Span, needed: int) -> None:
    """Raise ModelError if a place is not as long as the tensor that it is for."""
    if span.length != needed:
        raise errors.ModelError(
            f"tensor {tensor!r} needs {needed} bytes by its type and shape, "
            f"but the model gives it {span.length} bytes of {span.path}"
        )


def place_of(tensor: onnx.TensorProto, folder: Path) -> Span:
    """The place that a tensor refers to, of any length.

    Raises ModelError if the location is unsafe, or the file is missing, no plain file or too short.
    """
    declared = _declared_place(tensor)
    path = resolve(folder, declared.location, tensor.name)
    length = byte_size(tensor) if declared.length is None else declared.length
    return placed(tensor.name, path, declared.offset, length)


def placed(tensor: str, path: Path, offset: int, length: int) -> Span:
    """A place in a file from ``resolve``. Raises ModelError if the file is missing, no plain file or too short."""
    try:
        status = path.lstat()
    except OSError as error:
        raise _unreadable(tensor, path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise errors.ModelError(f"the weights of tensor {tensor!r} cannot be read from {path}: it is not a plain file")
    if offset < 0 or length < 0 or offset + length > status.st_size:
        end, size = offset + length, status.st_size
        raise errors.ModelError(f"tensor {tensor!r} should be bytes {offset} to {end} of {path}, which has only {size}")
    return Span(path, offset, length)


def _unreadable(tensor: str, path: Path, error: OSError) -> errors.ModelError:
    if isinstance(error, FileNotFoundError):
        return errors.ModelError(
            f"the weights of tensor {tensor!r} are missing: there is no file {path}",
            next_steps=["--external-data-dir FOLDER, if they stand elsewhere"],
        )
    return errors.ModelError(f"the weights of tensor {tensor!r} cannot be read from {path}: {error.strerror}")


def byte_size(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values in raw form, by its type and shape; 0 for strings.

    Raises ModelError for a negative dimension or an unknown element type.
    """
    size = raw_size(tensor.data_type, tensor.dims)
    if size is None:
        raise errors.ModelError(
            f"tensor {tensor.name!r} has shape {list(tensor.dims)} and element type {tensor.data_type}: "
            f"its size cannot be told"
        )
    return size


VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
"""The fields in which a TensorProto may hold its values, if they are not in another file."""


def clear_values(tensor: onnx.TensorProto) -> None:
    """Remove the values from a tensor, or the reference to them; type, shape and name stay."""
    for field in (*VALUE_FIELDS, "external_data", "data_location"):
        tensor.ClearField(field)


def raw_values(tensor: onnx.TensorProto) -> bytes:
    """The values of a tensor that is not external, little-endian and packed, from whichever field holds them.

    Raises ModelError if their number does not match its type and shape.
    """
    if tensor.HasField("raw_data"):
        values = bytes(tensor.raw_data)
    else:
        try:
            values = bytes(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor)).raw_data)
        except (ValueError, TypeError) as error:
            raise errors.ModelError(f"the values of tensor {tensor.name!r} cannot be read: {error}") from error
    if len(values) != byte_size(tensor):
        raise errors.ModelError(
            f"tensor {tensor.name!r} needs {byte_size(tensor)} bytes by its type and shape, but it has {len(values)}"
        )
    return values


def values_later(tensor: onnx.TensorProto, folder: Path) -> Callable[[], bytes]:
    """A function that returns the raw values of a tensor even after they were removed from it; it reads a file then.

    Raises ModelError now if the values are missing or damaged, later if their file can no longer be read.
    """
    if is_external(tensor):
        span, name = span_of(tensor, folder), tensor.name
        return lambda: b"".join(chunks(name, span))
    values = raw_values(tensor)
    return lambda: values


def load_into(model: onnx.ModelProto | onnx.FunctionProto, folder: Path) -> None:
    """Read the values of all external tensors of a model in ``folder``, or of one of its functions, into the tensors.

    Raises ModelError if a file is missing, unsafe or too short; the model is then unchanged.
    """
    for tensor, span in [(tensor, span_of(tensor, folder)) for tensor in external_tensors(model)]:
        load_values(tensor, span)


def load_values(tensor: onnx.TensorProto, span: Span) -> None:
    """Read the values of an external tensor at ``span`` into the tensor. Raises ModelError if that fails."""
    values = b"".join(chunks(tensor.name, span))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = values


def chunks(tensor: str, span: Span) -> Iterator[bytes]:
    """The bytes of a span in chunks of 1 MiB. Raises ModelError if the file cannot be read or became shorter."""
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
        raise _unreadable(tensor, span.path, error) from error
