"""PyTorch is large, and few have it: only one file imports it, and only when it is needed."""

import ast
import sys
from pathlib import Path

import pytest

import biopsy
from biopsy import errors
from biopsy.cli.app import main
from biopsy.processes.own_process import install_line

SOURCE = Path(biopsy.__file__).parent
ONE_PLACE = SOURCE / "torch" / "arrays.py"


def imports(code: str) -> set[str]:
    """The packages that some code names in its import statements."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_no_statement_imports_torch() -> None:
    codes = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert [path for path, code in codes.items() if "torch" in code and "torch" in imports(code)] == []


def test_only_the_room_of_torch_asks_for_it() -> None:
    asking = {path for path in SOURCE.rglob("*.py") if "biopsy.torch.arrays" in path.read_text(encoding="utf-8")}
    assert {path.parent for path in asking} == {SOURCE / "torch"}
    assert "import_module" in ONE_PLACE.read_text(encoding="utf-8")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_package_is_imported_and_a_call_says_what_to_install() -> None:
    import biopsy.torch

    assert "record" in dir(biopsy.torch)
    with pytest.raises(errors.EngineMissing, match="needs PyTorch, which is not installed") as raised:
        biopsy.torch.record(object(), (), "golden.safetensors")
    assert raised.value.next_steps[0] == install_line("biopsy[torch]")


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_command_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "from-torch", "models:make", "-o", "golden.safetensors"]) == 4
    assert "error: biopsy.torch needs PyTorch, which is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
