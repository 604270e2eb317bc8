"""A check that removes or changes files does not take the result away."""

import sys
from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from support.models import chain, save
from support.predicates import names
from support.scripts import NAMES

FAILS = "\nsys.exit('n1' in names and 'n4' in names)\n"


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(6), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "harm",
    [
        "os.path.lexists('r.onnx') and os.unlink('r.onnx')",
        "open('r.onnx', 'w').write('nonsense')",
        "os.path.isfile('r.onnx') and (os.unlink('r.onnx'), os.mkdir('r.onnx'))",
        "os.path.lexists('r.onnx') and os.unlink('r.onnx'); os.mkfifo('r.onnx')",
        "os.path.lexists('r.onnx') and os.unlink('r.onnx'); os.symlink('/dev/zero', 'r.onnx')",
    ],
)
def test_it_is_written_again_and_told(harm: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("check.py").write_text(f"{NAMES}if len(names) == 2: {harm}{FAILS}")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1"]
    assert main([*words, "--check", sys.executable, "-S", "check.py", "{}"]) == 0
    assert names(onnx.load("r.onnx")) == ["n1", "n4"]
    assert "written again" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["os.mkfifo('r.onnx')", "os.symlink('/dev/zero', 'r.onnx')", "os.mkdir('r.onnx')"])
def test_what_stands_in_its_place_meanwhile_is_neither_written_into_nor_waited_for(harm: str) -> None:
    Path("check.py").write_text(f"{NAMES}if len(names) < 6 and not os.path.lexists('r.onnx'): {harm}{FAILS}")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--jobs", "1"]
    assert main([*words, "--check", sys.executable, "-S", "check.py", "{}"]) == 0
    assert Path("r.onnx").is_file()
    assert not Path("r.onnx").is_symlink()
    assert names(onnx.load("r.onnx")) == ["n1", "n4"]


def test_so_is_the_passing_model(capsys: pytest.CaptureFixture[str]) -> None:
    harm = "os.path.exists('g.onnx') and os.unlink('g.onnx')"
    Path("check.py").write_text(f"{NAMES}if len(names) == 2: {harm}{FAILS}")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--min-good", "g.onnx", "--jobs", "1"]
    assert main([*words, "--check", sys.executable, "-S", "check.py", "{}"]) == 0
    assert not {"n1", "n4"} <= set(names(onnx.load("g.onnx")))
    assert "g.onnx was removed" in capsys.readouterr().err
