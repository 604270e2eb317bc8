"""The page on the architecture: its drawing, its table of rooms and the files that it names are those of the source."""

import re
import tomllib
from pathlib import Path

import pytest

from support.pages import ROOT

SOURCE = ROOT / "src" / "biopsy"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
DRAWING = PAGE.partition("```mermaid")[2].partition("```")[0]


def rooms_of_the_source() -> set[str]:
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    return packages | modules


def layers_of_the_contract() -> list[set[str]]:
    """From the top; rooms side by side are one layer."""
    if tomllib is None:
        pytest.skip("tomllib needs Python 3.11")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [set(layer.split(" | ")) for layer in contract["layers"]]


def drawn_layers() -> list[set[str]]:
    """From the top, as the drawing has them: a subgraph each."""
    blocks = re.findall(r"subgraph [^\n]*\n(.*?)\n *end", DRAWING, re.DOTALL)
    return [set(re.findall(r"^ *(\w+)(?:\[[^\]]*\])?$", block, re.MULTILINE)) for block in blocks]


def files_named() -> list[str]:
    return sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))


def test_the_table_has_a_row_for_each_room_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(rooms_of_the_source())


def test_the_drawing_has_the_layers_that_the_contract_of_imports_has() -> None:
    assert drawn_layers() == layers_of_the_contract()


def test_every_room_is_in_a_layer() -> None:
    assert set().union(*layers_of_the_contract()) == rooms_of_the_source()


@pytest.mark.parametrize("named", files_named())
def test_every_file_that_the_page_names_exists(named: str) -> None:
    assert (SOURCE / named).is_file() or (ROOT / named).is_file()


@pytest.mark.parametrize("room", sorted(rooms_of_the_source()))
def test_a_package_says_in_one_line_what_it_holds(room: str) -> None:
    face = Path(SOURCE, room, "__init__.py")
    if face.exists():
        assert face.read_text(encoding="utf-8").startswith('"""')
