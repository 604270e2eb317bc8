"""A large model whose file is written to while it is read is told as that, and kills nobody."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import errors
from biopsy.model import load
from biopsy.model.index import index_bytes, index_file
from biopsy.model.wire import FileBuffer, FileChanged
from support.command_line import BIN
from support.models import chain, info, save, weight
from support.predicates import names

LARGE = load.READ_WHOLE + (1 << 20)


def large_model(path: Path) -> Path:
    """Nodes before and after a weight that makes the file too large to be read whole."""
    made = chain(8)
    made.graph.node[3].CopyFrom(onnx.helper.make_node("Add", ["t3", "w"], ["t4"], name="n3"))
    made.graph.initializer.append(weight("w", *[0.0] * 4, shape=(2, 2)))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(LARGE // 4, np.float32), "unused"))
    made.graph.input.append(info("second"))
    return save(made, path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_model(tmp_path_factory.mktemp("large") / "m.onnx")


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(model.read_bytes())
    return tmp_path / "m.onnx"


def test_a_large_model_is_read_as_a_small_one_is(model: Path) -> None:
    found, whole = index_file(model), index_bytes(model.read_bytes())
    assert isinstance(found.buffer, FileBuffer)
    assert (found.nodes, found.node_spans, found.weights) == (whole.nodes, whole.node_spans, whole.weights)
    assert all(found.buffer[place] == whole.buffer[place] for place in whole.weight_fields.values())
    assert len(found.buffer[:]) == model.stat().st_size
    assert found.buffer[10:5] == b""
    with pytest.raises(IndexError):
        found.buffer[LARGE * 2]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, 1000),
        lambda path: os.truncate(path, path.stat().st_size + 1),
        lambda path: path.write_bytes(b"another model"),
    ],
)
def test_what_has_changed_is_not_read_on(copy: Path, change) -> None:
    index = index_file(copy)
    change(copy)
    with pytest.raises(FileChanged, match="was changed while it was read"):
        index.buffer[index.weight_fields[index.ids["w"]]]


def test_what_was_replaced_in_one_step_is_read_on_as_it_was(copy: Path) -> None:
    index = index_file(copy)
    before = index.buffer[:100]
    save(chain(1), copy.with_name("other.onnx")).replace(copy)
    assert index.buffer[:100] == before


def test_a_file_that_shrinks_while_it_is_indexed_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread

    def shrinks(descriptor: int, length: int, at: int) -> bytes:
        os.truncate(copy, 1 << 20)
        return read(descriptor, length, at)

    monkeypatch.setattr(os, "pread", shrinks)
    with pytest.raises(errors.ModelError, match="was changed while it was read"):
        index_file(copy)


def test_a_reduction_whose_model_is_cut_short_keeps_what_it_found_and_says_so(copy: Path) -> None:
    (copy.parent / "check.py").write_text(
        "import os, sys\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "names = [b'n%d' % number for number in range(8) if b'\\x1a\\x02n%d\\x22' % number in data]\n"
        "fails = b'n3' in names and b'n6' in names\n"
        "if fails and len(names) < 7: os.truncate('m.onnx', 1000)\n"
        "sys.exit(fails)\n"
    )
    line = [str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1", "--check"]
    ran = subprocess.run(
        [*line, sys.executable, "-S", "check.py", "{}"], cwd=copy.parent, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 4, ran.stderr
    assert "m.onnx was changed while it was read" in ran.stderr
    assert "Traceback" not in ran.stderr
    if "kept" in ran.stderr:
        assert {"n3", "n6"} <= set(names(onnx.load(copy.parent / "r.onnx")))
    else:
        assert not (copy.parent / "r.onnx").exists()


def test_inspecting_a_model_that_is_cut_short_is_told(copy: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from biopsy.cli.app import main

    read = os.pread

    def shrinks(descriptor: int, length: int, at: int) -> bytes:
        os.truncate(copy, 1 << 20)
        return read(descriptor, length, at)

    monkeypatch.setattr(os, "pread", shrinks)
    assert main(["inspect", "model", str(copy)]) == 4
    assert "was changed while it was read" in capsys.readouterr().err
