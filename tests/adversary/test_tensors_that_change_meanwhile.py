"""A file of tensors that is written to while it is read is told as that, and kills nobody."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.tensors.files import read_feeds, write_feeds
from support.command_line import BIN
from support.models import chain, save


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.safetensors"
    write_feeds(path, [{"a": np.ones(1 << 20, np.float32), "b": np.zeros(1 << 20, np.float32)}])
    return path


def test_a_tensor_of_a_file_that_was_cut_short_is_not_touched(file: Path) -> None:
    (feed,) = read_feeds(file)
    assert feed["a"].sum() == 1 << 20
    os.truncate(file, 4096)
    with pytest.raises(errors.DataError, match="was changed while it was read"):
        feed["b"].sum()
    with pytest.raises(errors.DataError, match="was changed while it was read"):
        dict(feed)


def test_one_that_was_replaced_is_read_on_as_it_was(file: Path) -> None:
    (feed,) = read_feeds(file)
    write_feeds(file, [{"a": np.zeros(1, np.float32)}])
    assert feed["a"].sum() == 1 << 20


def test_a_run_whose_golden_values_are_cut_short_says_so(tmp_path: Path) -> None:
    save(chain(2), tmp_path / "m.onnx")
    (tmp_path / "load.py").write_text(
        "import os\nimport numpy as np\n\n\ndef load_data():\n"
        "    os.truncate('golden.safetensors', os.path.getsize('golden.safetensors') - 1)\n"
        "    yield {'t0': np.ones((2, 2), np.float32)}\n"
    )
    saved = ["run", "m.onnx", "--onnxrt", "--save-outputs", "golden.safetensors"]
    compared = ["run", "m.onnx", "--onnxrt", "--load-outputs", "golden.safetensors", "--data-loader-script", "load.py"]
    for words, status in ((saved, 0), (compared, 4)):
        ran = subprocess.run([str(BIN / "biopsy"), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == status, ran.stderr
    assert "golden.safetensors was changed while it was read" in ran.stderr
