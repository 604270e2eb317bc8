"""Weights that stand in other files: finding them safely, reading them, and writing a model together with them.

A model names such a file by a path relative to its own folder (onnx.proto3, TensorProto.external_data). The name comes
with the model, from anybody: it never leads out of that folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.filesystem.plain_file import open_plain
from biopsy.filesystem.privacy import as_private_as
from biopsy.filesystem.write import write_whole
from biopsy.model import walk
from biopsy.model.load import parse
from biopsy.model.storage import BITS, place_in_file, raw_size
from biopsy.shell_words import line_of
from biopsy.text import printable

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

MOST_INLINE = 1 << 30
"""Weights are gathered into the model file itself up to this many bytes. Protobuf's own end is 2 GB for all."""

_LARGEST_MESSAGE = (1 << 31) - 1
_SIZED = frozenset(BITS) - {8}
"""Element types of which the number of bytes is known."""
_CHUNK = 8 << 20
_PAGE = 4096
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
        text = f"the external data of tensor {tensor!r} may not be read from {_shortened(location)!r}: {why}"
        return errors.ModelError(text, next_steps=next_steps)

    root = folder.resolve()

    def copied(source: str) -> str:
        place = PurePosixPath("COPY", location)
        command = f"{line_of(['mkdir', '-p', '--', str(place.parent)])} && {line_of(['cp', '--', source, str(place)])}"
        return (
            f"only if {printable(source)} is yours and belongs to this model: {command}    and so on for its other"
            " weights; then --external-data-dir COPY"
        )

    pure = PurePosixPath(location.replace("\\", "/"))
    if not location or "\0" in location or _is_too_long(location):
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
    if _may_be_shared(path, root):
        raise refused("it is a hard link to a file that may stand outside the model's folder", copied(str(path)))
    return path


def _is_too_long(location: str) -> bool:
    name = location.encode("utf-8", "surrogatepass")
    return len(name) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in name.split(b"/"))


def _shortened(location: str) -> str:
    return location if len(location) <= _MOST_SHOWN else f"{location[:_MOST_SHOWN]}..."


def _may_be_shared(path: Path, root: Path) -> bool:
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
    try:
        return sum(1 for other in islice(root.rglob("*"), _MOST_NAMES) if _is(other, device, inode))
    except OSError:
        return 0


def _is(path: Path, device: int, inode: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)


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
        sized = is_external(tensor) and tensor.data_type in _SIZED
        (span_of if sized else place_of)(tensor, folder)
    if may_name_engines:
        _require_safe_engine_files(model, folder)


def require_safe_locations(data: bytes, folder: Path, path: Path | None = None) -> None:
    """Raise ModelError if any tensor of a serialized model refers to what it may not read; it need not be there."""
    if may_refer(data):
        for tensor in _referring(parse(data, path)):
            resolve(folder, _entries(tensor).get("location", ""), tensor.name)


def _require_safe_engine_files(model: onnx.ModelProto, folder: Path) -> None:
    """Raise ModelError if a node stands for what an engine has built and names a file for it that may not be read."""
    for node in walk.nodes(model):
        if node.op_type == "EPContext":
            attributes = {attribute.name: attribute for attribute in node.attribute}
            embedded = attributes.get("embed_mode")
            if embedded is not None and embedded.i == 0 and "ep_cache_context" in attributes:
                location = attributes["ep_cache_context"].s.decode("utf-8", "replace")
                resolve(folder, location, node.name or node.op_type)


def _referring(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    return (tensor for tensor in walk.every_tensor(model) if tensor.external_data or is_external(tensor))


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    """What a tensor says of its place. Raises ModelError if it says something twice: not all readers take the same."""
    found: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in found:
            raise errors.ModelError(f"the external data of tensor {tensor.name!r} names its {entry.key} twice")
        found[entry.key] = entry.value
    return found


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
    entries = _entries(tensor)
    path = resolve(folder, entries.get("location", ""), tensor.name)
    try:
        offset = place_in_file(entries.get("offset") or "0")
        length = place_in_file(entries["length"]) if entries.get("length") else byte_size(tensor)
        found = path.lstat()
    except ValueError as error:
        raise errors.ModelError(
            f"the external data of tensor {tensor.name!r} has no proper offset or length"
        ) from error
    except OSError as error:
        raise _missing(tensor.name, path, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise errors.ModelError(
            f"the weights of tensor {tensor.name!r} cannot be read from {path}: it is no plain file"
        )
    if offset < 0 or length < 0 or offset + length > found.st_size:
        raise errors.ModelError(
            f"tensor {tensor.name!r} should be bytes {offset} to {offset + length} of {path}, "
            f"which has only {found.st_size}"
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


def load_into(model: onnx.ModelProto | onnx.FunctionProto, folder: Path) -> None:
    """Read every external tensor of a model in ``folder``, or of a function of it, into the model itself.

    Raises ModelError if a file is missing, unsafe or too short; the model is then unchanged.
    """
    found = [(tensor, span_of(tensor, folder)) for tensor in external_tensors(model)]
    for tensor, span in found:
        _load_one(tensor, span)


def _load_one(tensor: onnx.TensorProto, span: Span) -> None:
    values = b"".join(chunks(tensor.name, span))
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = values


def chunks(tensor: str, span: Span) -> Iterator[bytes]:
    """The bytes of a span, a few megabytes at a time."""
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


def save_with_weights(
    model: onnx.ModelProto, path: Path, source_folder: Path, external: str | None, threshold: int = 1024
) -> None:
    """Write a model so that it finds its weights; ``model`` may be changed on the way.

    External data of ``model`` stands in ``source_folder``. With ``external``, a file name, every initializer of
    ``threshold`` bytes or more goes into that file beside ``path``; one tensor's chunk is in memory at a time. Without
    it, a model written into ``source_folder`` goes on referring to its weights, and one written elsewhere gets them
    inside. Both files are written whole or not at all.

    Raises UsageError if the weights are too large for one file (over 1 GB, or 2 GB with everything) or a file cannot
    be written; ModelError if weights are missing.
    """
    if external is not None:
        _save_beside(model, path, source_folder, external, threshold)
        return
    sources: set[Path] = set()
    if path.parent.resolve() != source_folder.resolve():
        _require_small(model, path)
        sources = {span_of(tensor, source_folder).path for tensor in external_tensors(model)}
        load_into(model, source_folder)
    with as_private_as(sources):
        write_whole(path, [serialized(model, path)])


def serialized(model: onnx.ModelProto, path: Path) -> bytes:
    """The model as bytes. Raises UsageError if it is too large for one protobuf message; ``path`` is only named."""
    if model.ByteSize() > _LARGEST_MESSAGE:
        raise _too_large(model.ByteSize(), path)
    return bytes(model.SerializeToString())


def _require_small(model: onnx.ModelProto, path: Path) -> None:
    total = model.ByteSize() + sum(byte_size(tensor) for tensor in external_tensors(model))
    if total > MOST_INLINE and any(True for _ in external_tensors(model)):
        raise _too_large(total, path)


def _too_large(total: int, path: Path) -> errors.UsageError:
    return errors.UsageError(
        f"{path} would be {total / 1e9:.1f} GB with its weights inside, too much for one file",
        next_steps=["--save-external-data, which puts the weights into a file beside it"],
    )


def _save_beside(model: onnx.ModelProto, path: Path, folder: Path, external: str, threshold: int) -> None:
    target = _require_own_file(model, path, folder, external)
    moved = [weight for weight in walk.weights(model) if _can_move(weight, threshold)]
    kept = {id(weight) for weight in moved}
    for tensor in [tensor for tensor in external_tensors(model) if id(tensor) not in kept]:
        _load_one(tensor, span_of(tensor, folder))
    sources = [(weight.name, _source(weight, folder)) for weight in moved]
    offset = 0
    offsets = []
    for weight in moved:
        length = byte_size(weight)
        offset = _aligned(offset, length)
        offsets.append(offset)
        _refer(weight, external, offset, length)
        offset += length
    data = serialized(model, path)
    with as_private_as(source.path for _, source in sources if isinstance(source, Span)):
        write_whole(target, _laid_out(sources, offsets))
        write_whole(path, [data])


def _require_own_file(model: onnx.ModelProto, path: Path, folder: Path, external: str) -> Path:
    """The file for the weights, if it is a plain name and no file that the model's weights still stand in."""
    if not external or Path(external).name != external or external == path.name:
        raise errors.UsageError(
            f"the file for external data {external!r} must be a file name: it is written beside {path}"
        )
    target = path.parent / external
    used = {span_of(tensor, folder).path for tensor in external_tensors(model)}
    if target.resolve() in used:
        raise errors.UsageError(
            f"{target} holds the weights of the model that is read; they would be overwritten",
            next_steps=["--save-external-data ANOTHER-NAME"],
        )
    return target


def _can_move(weight: onnx.TensorProto, threshold: int) -> bool:
    return weight.data_type in BITS and weight.data_type != 8 and byte_size(weight) >= max(threshold, 1)


def _source(weight: onnx.TensorProto, folder: Path) -> Span | bytes:
    if is_external(weight):
        return span_of(weight, folder)
    values = raw_values(weight)
    if len(values) != byte_size(weight):
        raise errors.ModelError(
            f"tensor {weight.name!r} needs {byte_size(weight)} bytes by its type and shape, but it has {len(values)}"
        )
    return values


def raw_values(tensor: onnx.TensorProto) -> bytes:
    """The values of a tensor that stands in the model, little-endian and packed, whichever field holds them."""
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    from onnx import numpy_helper

    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)


def _refer(weight: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
        weight.ClearField(field)
    weight.data_location = 1  # type: ignore[assignment]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value


def _aligned(offset: int, length: int) -> int:
    """Where a tensor may begin: large ones on a page, so that engines can map them, small ones on 64 bytes."""
    step = _PAGE if length >= 1 << 16 else 64
    return -(-offset // step) * step


def _laid_out(sources: Iterable[tuple[str, Span | bytes]], offsets: Iterable[int]) -> Iterator[bytes]:
    at = 0
    for (name, source), offset in zip(sources, offsets, strict=True):
        yield bytes(offset - at)
        at = offset
        for chunk in chunks(name, source) if isinstance(source, Span) else (source,):
            yield chunk
            at += len(chunk)


def default_name(path: Path) -> str:
    """The file name for weights beside ``path`` when the user gives none: ``model.onnx.data``, as torch names it."""
    return f"{path.name}.data"
