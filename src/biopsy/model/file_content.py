"""What a file is that should be an ONNX model and is none, told by its first bytes, and what to type then."""

from __future__ import annotations

import re
from pathlib import Path

from biopsy import errors
from biopsy.shell_words import line_of

START = 1 << 12
"""Bytes from the beginning."""

_MAGIC = (
    (b"\x1f\x8b", "it is compressed with gzip", "gunzip -c -- {file} > model.onnx"),
    (b"\xfd7zXZ\x00", "it is compressed with xz", "xz -dc -- {file} > model.onnx"),
    (b"BZh", "it is compressed with bzip2", "bunzip2 -c -- {file} > model.onnx"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd", "zstd -dc -- {file} > model.onnx"),
    (b"\x89HDF", "it is an HDF5 file, such as a Keras model", "export it to ONNX, as with tf2onnx"),
    (b"\x80\x02", "it is a Python pickle, such as an old PyTorch model", "export it with torch.onnx.export"),
)


def refused(path: Path | None, start: bytes, why: str) -> errors.ModelError:
    """The error for a file that could not be read as a model because of ``why``: what it is, where that can be told.

    ``start``: its first bytes, or all of them. ``path`` is only named.
    """
    found = None if path is None else _recognized(bytes(start[:START]), line_of([str(path)]))
    if found is None:
        return errors.ModelError(f"the model {path if path is not None else 'in memory'} {why}")
    what, step = found
    return errors.ModelError(f"the file {path} is no ONNX model: {what}", next_steps=[step] if step else [])


def _recognized(start: bytes, file: str) -> tuple[str, str] | None:
    """What begins like this, and what to do with it; None if that is not known."""
    for magic, what, step in _MAGIC:
        if start.startswith(magic):
            return what, step.format(file=file)
    if start[4:8] == b"TFL3":
        return "it is a TensorFlow Lite model", "export it to ONNX, as with tf2onnx"
    if start.startswith(b"PK\x03\x04"):
        return _zip(start, file)
    if start[8:10] == b'{"' and start[1:8].rstrip(b"\0") == start[1:8].rstrip(b"\0")[:3]:
        return "it is a file of tensors (safetensors): weights without a graph", f"biopsy inspect data {file}"
    return _text(start, file)


def _zip(start: bytes, file: str) -> tuple[str, str]:
    first = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    if first.endswith((b"/data.pkl", b"/version", b"/.format_version", b"/byteorder")):
        return "it is a PyTorch model", "export it with torch.onnx.export"
    if first.endswith(b".npy"):
        return "it is a file of tensors (.npz)", f"biopsy inspect data {file}"
    return "it is a zip archive", f"unzip {file}"


def _text(start: bytes, file: str) -> tuple[str, str] | None:
    if b"\0" in start or re.search(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]", start):
        return None
    try:
        text = start.decode("utf-8-sig", "strict" if len(start) < START else "ignore").lstrip()
    except UnicodeDecodeError:
        return None
    for recognize in (_lfs_pointer, _page, _json):
        found = recognize(text, file)
        if found is not None:
            return found
    return f"it is text, which begins with {text.split(chr(10))[0][:40]!r}", ""


def _lfs_pointer(text: str, file: str) -> tuple[str, str] | None:
    if not text.startswith("version https://git-lfs.github.com/spec/"):
        return None
    size = re.search(r"^size (\d{1,15})$", text, re.MULTILINE)
    whole = f" ({size[1]} bytes)" if size else ""
    return f"it is a pointer of Git LFS; the model{whole} was not fetched", f"git lfs pull -I {file}"


def _page(text: str, file: str) -> tuple[str, str] | None:
    begin = text[:200].lower()
    if begin.startswith(("<!doctype html", "<html")):
        return "it is a web page", "download the file itself, not the page that shows it (on GitHub: the link 'Raw')"
    if begin.startswith("<?xml") or re.match(r"<net\b", begin):
        return "it is XML, such as a model of OpenVINO", "take the ONNX model that it was made from"
    return None


def _json(text: str, file: str) -> tuple[str, str] | None:
    if not re.match(r'[{\[]\s*(["\]}{\[]|-?\d)', text):
        return None
    if '"ir_version"' in text or '"irVersion"' in text:
        code = "import onnx, sys; onnx.save(onnx.load(sys.argv[1], format='json'), 'model.onnx')"
        return "it is an ONNX model as JSON", line_of(["python", "-P", "-c", code]) + f" {file}"
    return "it is JSON", f"biopsy inspect data {file}    if it holds inputs or outputs"
