"""Files that are not ONNX models are told for what they are."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy import errors
from biopsy.model import load
from biopsy.model.describe import description
from biopsy.model.index import index_file
from biopsy.model.load import refused
from support.models import seeds_example

MODEL = seeds_example().SerializeToString()


def zipped(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"...")  # with no time of today: workers must collect the same tests
    return stream.getvalue()


def tensors() -> bytes:
    from safetensors.numpy import save

    return save({"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(MODEL, mtime=0), "compressed with gzip"),
        (lzma.compress(MODEL), "compressed with xz"),
        (bz2.compress(MODEL), "compressed with bzip2"),
        (zipped("model.onnx"), "a zip archive"),
        (zipped("archive/data.pkl"), "a PyTorch model"),
        (zipped("x.npy"), "a file of tensors (.npz)"),
        (tensors(), "a file of tensors (safetensors)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "a pointer of Git LFS; the model (5 by",
        ),
        (b"<!DOCTYPE html>\n<html>", "a web page"),
        (b"\xef\xbb\xbf  <html lang='en'>", "a web page"),
        (b'<?xml version="1.0"?>\n<net name="m">', "XML"),
        (json.dumps({"a": [1]}).encode(), "it is JSON"),
        (onnx.serialization.registry.get("json").serialize_proto(seeds_example()), "an ONNX model as JSON"),
        (b"hello\x1b[31m world\nmore", "text, which begins with 'hello\\x1b[31m world'"),
    ],
)
def test_a_file_that_is_no_model_is_named_by_its_kind(content: bytes, what: str, tmp_path: Path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    for read in (
        index_file,
        lambda path: list(description(path)),
        lambda path: load.parse(load.read_bytes(path), path),
    ):
        with pytest.raises(errors.ModelError) as caught:
            read(path)
        assert f"the file {path} is not an ONNX model: " in caught.value.message
        assert what in caught.value.message


@given(st.binary(max_size=300))
def test_any_beginning_of_a_file_gives_an_error_of_one_line(start: bytes):
    error = refused(Path("m.onnx"), start, "is damaged")
    assert error.message.startswith(("the file m.onnx is not an ONNX model: ", "the model m.onnx is damaged"))
    assert "\n" not in error.message


@pytest.mark.parametrize("size", [1, 10, 60, len(MODEL) - 1])
def test_a_model_that_is_cut_short_is_not_taken_for_something_else(size: int, tmp_path: Path):
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL[:size])
    with pytest.raises(errors.ModelError, match=r"is damaged|has no graph|is not an ONNX model: it has no"):
        load.parse(load.read_bytes(path), path)
