"""The options that every command has: they stand anywhere before the words of a check, as Polygraphy's do."""

import re
from pathlib import Path

import pytest

from biopsy.checks.command_line import OwnRun, parse
from biopsy.checks.words import split_leading
from biopsy.cli import commands
from biopsy.cli.app import main
from support.models import save, seeds_example

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "model.onnx")
    zeros = "{name: numpy.zeros((1, 3, 8, 8)) for name in ('X0', 'Y0')}"
    (tmp_path / "doubles.py").write_text(f"import numpy\ndef load_data():\n    yield {zeros}\n")
    return tmp_path / "model.onnx"


INSPECT = ["model.onnx", "--mode=basic"]
RUN_WITH_A_WARNING = ["run", "model.onnx", "--reference", "--data-loader-script", "doubles.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["--log-format", "line-info", "inspect", "model", *INSPECT],
        ["inspect", "--log-format", "line-info", "model", *INSPECT],
        ["inspect", "model", "--log-format", "line-info", "--", "model.onnx"],
        ["inspect", "model", *INSPECT, "--log-format", "line-info"],
        ["--log-format=line-info", "inspect", "model", *INSPECT],
        ["-v", "inspect", "-q", "--log-format", "line-info", "no-colors", "model", *INSPECT],
    ],
)
def test_a_common_option_stands_before_between_or_behind_the_words_of_a_command(words: list[str], capsys: Captured):
    assert main(words) == 0
    assert all(line.startswith("[cli/inspect/") for line in capsys.readouterr().out.splitlines())


def test_what_stands_in_several_places_adds_up(capsys: Captured):
    assert main(["-q", "inspect", "-q", "model", *INSPECT]) == 0
    assert capsys.readouterr().out == ""
    assert main(["-qq", "inspect", "model", *INSPECT, "-v", "--verbose"]) == 0
    assert "Op: Mul" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loudness", "shows_result", "shows_warning"),
    [
        ([], True, True),
        (["-q"], True, True),
        (["-qq"], False, True),
        (["-qqqq"], False, False),
        (["--silent"], False, False),
        (["--silent", "-vv"], False, False),
        (["--verbosity", "VERBOSE"], True, True),
        (["--verbosity", "warning"], False, True),
        (["--verbosity", "error", "-v"], False, False),
        (["--verbosity", "critical"], False, False),
    ],
)
def test_how_much_is_shown(loudness: list[str], shows_result: bool, shows_warning: bool, capsys: Captured):
    assert main([*loudness, *RUN_WITH_A_WARNING]) == 0
    shown = capsys.readouterr()
    assert ("PASSED" in shown.out, "warning" in shown.err) == (shows_result, shows_warning)


def test_the_error_that_ends_a_command_is_shown_in_silence_too(capsys: Captured):
    assert main(["--silent", "run", "missing.onnx", "--onnxrt"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_level_for_a_path_is_accepted_and_said_to_have_no_effect(capsys: Captured):
    assert main(["--verbosity", "backend/trt:VERBOSE", "warning", "inspect", "model", *INSPECT]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "backend/trt:verbose has no effect" in line
    assert "warning holds for all" in line


def test_the_log_holds_the_lines_that_are_shown_and_no_others(capsys: Captured, tmp_path: Path):
    words = [*RUN_WITH_A_WARNING, "--log-file", "log.txt"]
    assert main(words) == 0
    shown = capsys.readouterr()
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert sorted(log) == sorted([*shown.out.splitlines(), *shown.err.splitlines()])
    assert main([*words, "-qq"]) == 0
    assert (tmp_path / "log.txt").read_text() == capsys.readouterr().err


def test_the_log_holds_the_error_that_ended_the_command(capsys: Captured, tmp_path: Path):
    assert main(["--log-file", "log.txt", "inspect", "model", "missing.onnx"]) == 2
    assert (tmp_path / "log.txt").read_text() == capsys.readouterr().err


def test_a_log_replaces_no_file_that_is_read(model: Path):
    before = model.read_bytes()
    assert main(["--log-file", "model.onnx", "inspect", "model", *INSPECT]) == 2
    assert model.read_bytes() == before


def test_a_log_that_cannot_be_written_is_told_before_any_work(model: Path, capsys: Captured):
    assert main(["--log-file", "model.onnx/log.txt", "inspect", "model", *INSPECT]) == 2
    assert "model.onnx is not a folder" in capsys.readouterr().err


def test_a_time_stands_before_each_line(capsys: Captured):
    assert main(["--log-format", "timestamp", "inspect", "model", *INSPECT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(re.match(r"\(\d\d:\d\d:\d\d\) ", line) for line in lines)


def test_words_behind_a_check_belong_to_it(capsys: Captured):
    check = ["--check", "biopsy", "-v", "inspect", "model", "{}", "--mode=basic", "--log-format", "timestamp"]
    words = ["debug", "reduce", "model.onnx", "-o", "r.onnx", "--fail-regex", "Op: Mul", "--hide-fail-output"]
    assert main([*words, *check]) == 0
    assert not capsys.readouterr().out.startswith("(")


def test_a_check_with_options_before_its_command_is_known_for_what_it_is():
    check = parse(["biopsy", "-v", "--log-file", "l", "run", "{}", "--onnxrt", "--", "x"])
    assert isinstance(check, OwnRun)
    assert check.words == ("biopsy", "run", "{}", "--onnxrt", "-v", "--log-file", "l", "--", "x")


def test_nothing_is_taken_behind_two_dashes():
    assert split_leading(["--", "-v", "run"]) == ([], ["--", "-v", "run"])


def test_every_option_with_common_meaning_is_found_before_a_command():
    """What the parser of every command has, the words before a command may be."""
    import argparse

    from biopsy.cli import parser as messages

    parser = argparse.ArgumentParser(add_help=False)
    messages.add_options(parser)
    for action in parser._actions:
        for option in action.option_strings:
            value = {"--verbosity": ["info"], "--log-format": ["timestamp"], "--log-file": ["f"]}.get(option, [])
            asked = commands.read([option, *value, "debug", option, *value, "reduce", "m.onnx"])
            assert asked.command is not None, option
            assert asked.rest == ["m.onnx"]


@pytest.mark.parametrize("words", [["-v"], ["--version", "run"], ["run", "--version"], ["debug", "-V"], ["-q", "-V"]])
def test_the_version_is_shown_wherever_it_is_asked_for(words: list[str], capsys: Captured):
    assert main(words) == 0
    assert re.fullmatch(r"biopsy \d\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        ["help", "debug", "reduce"],
        ["--help", "debug", "reduce"],
        ["debug", "--help", "reduce"],
        ["debug", "reduce", "model.onnx", "--help"],
        ["-v", "help", "debug", "reduce", "--mode"],
    ],
)
def test_help_is_shown_wherever_it_is_asked_for(words: list[str], capsys: Captured):
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: biopsy debug reduce ")


@pytest.mark.parametrize("words", [["help"], ["help", "debug"], ["-v", "--help"], ["--help", "debug"]])
def test_help_without_a_whole_command_lists_commands(words: list[str], capsys: Captured):
    assert main(words) == 0
    assert "debug reduce  " in capsys.readouterr().out


def test_options_without_a_command_are_no_command(capsys: Captured):
    assert main(["-q"]) == 2
