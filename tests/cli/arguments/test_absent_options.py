"""Options of Polygraphy that are not here: each says why, and none is silently dropped."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest

from biopsy.cli.app import main
from biopsy.cli.commands import COMMANDS, find, why_absent
from biopsy.cli.parser import absent_options, parser_of
from support.models import chain, save

Captured = pytest.CaptureFixture[str]

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
THEIRS = json.loads((REFERENCE / "polygraphy-0.53.6.json").read_text(encoding="utf-8"))
DIFFERENCES = json.loads((REFERENCE / "polygraphy-differences.json").read_text(encoding="utf-8"))
REFUSED = [(command, row) for command, rows in absent_options().items() for row in rows if row.instead]
WITHOUT_EFFECT = [row for row in absent_options()["run"] if not row.instead]


@pytest.mark.parametrize(("command", "row"), REFUSED)
def test_an_option_that_is_refused_says_why_and_what_instead(command: str, row, capsys: Captured) -> None:
    for option in row.options:
        for words in ([option], [option, "value"], [f"{option}=value"]):
            assert main([*command.split(), "model.onnx", *words]) == 2
            told = capsys.readouterr().err
            assert f"{option} is not available: {row.why}" in told
            assert row.instead in told


@pytest.mark.parametrize("row", WITHOUT_EFFECT)
def test_an_option_without_effect_is_told_once_and_the_run_goes_on(row, tmp_path: Path, capsys: Captured) -> None:
    model = save(chain(1), tmp_path / "model.onnx")
    value = ["numpy"] if row.takes_value else []
    for option in row.options:
        assert main(["run", str(model), option, *value, "--onnxrt"]) == 0
        assert capsys.readouterr().err.count(f"{option} has no effect: {row.why}") == 1


@pytest.mark.parametrize("command", {**absent_options(), **DIFFERENCES})
def test_rows_that_differ_speak_of_options_that_are_here_and_no_option_has_two(command: str) -> None:
    parser = parser_of("biopsy", next(one for one in COMMANDS if " ".join(one.words) == command))
    hidden = [option for row in absent_options().get(command, ()) for option in row.options]
    spellings = Counter([*hidden, *(option for row in DIFFERENCES.get(command, ()) for option in row.split())])
    assert [option for option, times in spellings.items() if times > 1] == []
    assert [option for option in spellings if option not in parser._option_string_actions] == []
    assert all(parser._option_string_actions[option].help == argparse.SUPPRESS for option in hidden)


@pytest.mark.parametrize("words", THEIRS)
def test_every_option_of_polygraphy_is_here_or_says_why_not_and_every_row_is_of_one(words: str) -> None:
    command = find(words.split())
    if command is None:
        assert why_absent(words.split()) is not None
        return
    parser = parser_of("biopsy", command)
    spellings = {spelling for option in THEIRS[words] for spelling in option if spelling.startswith("-")}
    assert [spelling for spelling in spellings if not parser.answers_to(spelling)] == []
    spoken_of = {spelling for row in absent_options().get(words, ()) for spelling in row.options}
    spoken_of |= {spelling for row in DIFFERENCES.get(words, ()) for spelling in row.split()}
    assert spoken_of - spellings == set()


def test_infinities_of_the_same_sign_compare_equal_without_an_option(tmp_path: Path) -> None:
    model = str(save(chain(1, ops=["Reciprocal"]), tmp_path / "model.onnx"))
    assert main(["run", model, "--onnxrt", "--reference", "--val-range", "[0,0]"]) == 0
