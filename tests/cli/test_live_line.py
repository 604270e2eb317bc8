"""The live line fits the terminal: the bar goes first, and the name of a pass is never cut."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.cli.console import fitted
from support.models import chain, save
from support.pseudo_terminal import seen, settled

TEXT = "12 of 458 nodes left · 31 checks, 8.1/s · about 4 s left in this pass · trying to cut 'block7/adapter/Pow'"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (200, (True, TEXT)),
        (120, (False, TEXT)),
        (100, (False, TEXT.rpartition(" · ")[0])),
        (90, (False, "12 of 458 nodes left · 31 checks, 8.1/s · about 4 s left in this pass")),
        (80, (False, "12 of 458 nodes left · 31 checks, 8.1/s")),
        (24, (False, "12 of 458 n…")),
    ],
)
def test_the_bar_goes_first_and_then_the_last_parts(columns: int, expected: tuple[bool, str]):
    assert fitted("bisect", TEXT, columns) == expected


@given(head=st.text(min_size=1, max_size=20), text=st.text(max_size=400), columns=st.integers(24, 300))
def test_what_is_shown_fits_and_begins_as_the_text_does(head: str, text: str, columns: int):
    bar, shown = fitted(head, text, columns)
    assert max(10, len(head)) + 1 + (13 if bar else 0) + len(shown) < columns
    assert text.startswith(shown.removesuffix("…"))


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_reduction_leaves_no_line_that_changed_and_none_that_is_too_wide(columns: int, tmp_path: Path):
    save(chain(40, ("Abs", "Neg")), tmp_path / "model.onnx")
    (tmp_path / "check.sh").write_text('grep -q Neg "$1" && exit 1; exit 0\n')
    shown, status = seen(
        "debug reduce model.onnx -o r.onnx --max-checks 6 --check bash check.sh {}", tmp_path, columns=columns
    )
    assert status in (0, 5)
    updates = [COLOUR.sub("", part) for part in re.split(r"\r|\n", shown) if "\x1b[2K" in part]
    updates = [re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", part) for part in updates]
    assert any("original" in part for part in updates)
    assert max(map(len, updates)) <= columns
    assert "nodes left" not in settled(shown)


def test_checks_at_once_stand_behind_what_is_left(tmp_path: Path):
    """Where a terminal is narrow, other parts go before they do."""
    save(chain(40, ("Abs", "Neg")), tmp_path / "model.onnx")
    (tmp_path / "check.sh").write_text('sleep 0.1; grep -q Neg "$1" && exit 1; exit 0\n')
    words = "debug reduce model.onnx -o r.onnx --jobs 2 --max-checks 9 --check bash check.sh {}"
    shown, status = seen(words, tmp_path, columns=60)
    assert status in (0, 5)
    assert re.search(r"\d+ of 40 nodes left · [12] running", shown)
    assert "running" not in settled(shown)


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_verdicts_are_coloured_on_a_terminal(environment: dict[str, str], coloured: bool, tmp_path: Path):
    save(chain(3, ("Abs",)), tmp_path / "model.onnx")
    shown, status = seen("run model.onnx --reference", tmp_path, environment=environment)
    assert status == 0
    assert ("\x1b[32mPASSED\x1b[0m | " in shown) is coloured


def test_colours_can_be_forced_but_not_into_the_output_of_a_check(tmp_path: Path, monkeypatch, capsys):
    from biopsy.cli.app import main

    save(chain(3, ("Abs",)), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["run", "model.onnx", "--reference"]) == 0
    assert "\x1b[32mPASSED" in capsys.readouterr().out
    assert main(["--log-format", "no-colors", "run", "model.onnx", "--reference"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("BIOPSY_VERDICT", str(tmp_path / "verdict.json"))
    assert main(["run", "model.onnx", "--reference"]) == 0
    assert "\x1b" not in capsys.readouterr().out
