"""Inputs that a script of the user's makes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from biopsy import errors
from biopsy.tensors.user_script import load_script


def script(folder: Path, text: str) -> Path:
    path = folder / "loader.py"
    path.write_text("import numpy as np\n" + text)
    return path


def test_a_script_yields_its_own_inputs(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("COUNT = 2\n")
    path = script(
        tmp_path, "from beside import COUNT\ndef load_data():\n  for i in range(COUNT): yield {'x': np.full(2, i)}\n"
    )
    before = list(sys.path)
    assert [feed["x"].tolist() for feed in load_script(path)] == [[0, 0], [1, 1]]
    assert sys.path == before


def test_a_script_may_return_a_list_and_its_function_have_any_name(tmp_path: Path) -> None:
    path = script(tmp_path, "def mine(): return [{'x': [1.5]}, {'words': np.array(['a'], object)}]\n")
    first, second = load_script(path, "mine")
    assert first["x"].dtype == np.float64
    assert second["words"].tolist() == ["a"]


def test_a_missing_script_or_function_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="there is no data loader script"):
        load_script(tmp_path / "none.py")
    with pytest.raises(errors.UsageError, match="no function 'load_data'") as caught:
        load_script(script(tmp_path, "def make_inputs(): pass\n"))
    assert caught.value.next_steps[0].endswith("loader.py:make_inputs")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("def load_data(): yield 3\n", "iteration 0 of .* is of type int"),
        ("def load_data():\n  yield {}\n  yield {'x': None}\n", "iteration 1 of .*: 'x' is of type NoneType"),
        ("def load_data(): return []\n", "no iteration"),
        ("def load_data(): return None\n", "failed: TypeError"),
        ("def load_data():\n  yield {}\n  raise KeyError('x')\n", r"failed in line 4: KeyError\('x'\)"),
        ("1 / 0\n", "failed in line 2: ZeroDivisionError"),
        ("def load_data(:\n", "failed in line 2: SyntaxError"),
    ],
)
def test_a_script_that_fails_is_told_with_its_line(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(errors.DataError, match=match):
        list(load_script(script(tmp_path, text)))
