"""The Python names that the alias brings: scripts that were written for Polygraphy's work on our files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from biopsy import errors
from biopsy.tensors.files import read_feeds, read_results, write_feeds
from biopsy.tensors.user_script import load_script
from support.pages import ROOT

ALIAS = ROOT / "alias"

GENERATES_DATA = """\
import numpy as np
from polygraphy.comparator import IterationResult, RunResults
from polygraphy.json import save_json

x = np.ones((1, 1, 2, 2), np.float32)
save_json([{"x": x}], "custom_inputs.json", description="custom input data")
outputs = RunResults()
outputs.add([{"y": x}], runner_name="custom_runner")
outputs["other"] = [IterationResult({"y": 2 * x}, runner_name="other")]
outputs.save("custom_outputs.json")
"""

LOOKS_AT_DATA = """\
from polygraphy.comparator import RunResults
from polygraphy.json import load_json

[feed] = load_json("custom_inputs.json")
feed["x"] += 1
for name, array in feed.items():
    print(name, array.dtype, array.sum())
results = RunResults.load("custom_outputs.json")
for runner, [outputs] in results.items():
    print(runner, outputs["y"].sum())
print(results[0][0], "other" in results, len(results))
"""


@pytest.fixture
def polygraphy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    for name in [name for name in sys.modules if name.partition(".")[0] == "polygraphy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(ALIAS))
    monkeypatch.chdir(tmp_path)
    import polygraphy.comparator
    import polygraphy.json

    return polygraphy


def script(text: str) -> str:
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ALIAS)!r})\n{text}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_that_makes_golden_values_writes_what_run_loads(polygraphy: ModuleType) -> None:
    script(GENERATES_DATA)
    assert read_feeds("custom_inputs.json")[0]["x"].dtype == np.float32
    assert [result.runner for result in read_results("custom_outputs.json")] == ["custom_runner", "other"]
    assert script(LOOKS_AT_DATA).split("\n") == [
        "x float32 8.0",
        "custom_runner 4.0",
        "other 8.0",
        "custom_runner True 2",
        "",
    ]


def test_a_loader_script_that_also_saves_is_run_as_it_stands(polygraphy: ModuleType) -> None:
    Path("data_loader.py").write_text(
        "import numpy as np\nfrom polygraphy.json import save_json\n"
        "def load_data():\n    for _ in range(5):\n        yield {'x': np.ones(3, np.float32)}\n"
        "save_json(list(load_data()), 'custom_inputs.json')\n"
    )
    assert len(list(load_script("data_loader.py"))) == len(read_feeds("custom_inputs.json")) == 5


def test_json_is_written_under_any_name_and_iterations_in_a_folder_are_read(polygraphy: ModuleType) -> None:
    polygraphy.json.save_json({"x": np.zeros(2)}, "inputs.txt")
    assert Path("inputs.txt").read_text().startswith("[")
    write_feeds("folder", [{"x": np.zeros(2)}] * 3)
    assert len(polygraphy.json.load_json("folder")) == 3


@pytest.mark.parametrize("value", [[], 3, "text", [1, 2], None])
def test_what_is_neither_inputs_nor_outputs_is_not_saved(polygraphy: ModuleType, value: object) -> None:
    with pytest.raises(errors.DataError, match="RunResults"):
        polygraphy.json.save_json(value, "anything.json")
    assert not Path("anything.json").exists()


def test_inputs_are_no_results_and_a_name_that_is_not_here_says_what_is(polygraphy: ModuleType) -> None:
    polygraphy.json.save_json([{"x": np.zeros(2)}], "inputs.json")
    with pytest.raises(errors.DataError, match="holds inputs"):
        polygraphy.comparator.RunResults.load("inputs.json")
    with pytest.raises(ImportError, match="has no Comparator: only IterationResult, RunResults"):
        from polygraphy.comparator import Comparator  # noqa: F401


def test_a_script_whose_module_is_missing_is_told_where_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text("import polygraphy.backend\n")
    with pytest.raises(errors.DataError, match="line 1") as caught:
        load_script(tmp_path / "loader.py")
    assert "alias" in caught.value.next_steps[0]
