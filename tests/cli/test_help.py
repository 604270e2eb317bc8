"""Help texts: short ones on one screen, whole ones with everything; both fit the terminal."""

import re
from pathlib import Path

import pytest

from biopsy.cli import help_text
from biopsy.cli.app import main
from biopsy.cli.commands import COMMANDS
from biopsy.cli.parser import parser_of
from biopsy.cli.terminal_text import fitted
from support.pseudo_terminal import seen

Captured = pytest.CaptureFixture[str]
WORDS = [" ".join(command.words) for command in COMMANDS]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def shown(words: str, capsys: Captured) -> list[str]:
    assert main(words.split()) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal(command: str, columns: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for option in ("-h", "--help"):
        too_long = [line for line in shown(f"{command} {option}", capsys) if len(line) > columns]
        assert [line for line in too_long if len(line.split()) > 1 and not re.match(r"\s+-\S+ \S+$", line)] == []


@pytest.mark.parametrize("command", WORDS)
def test_the_short_help_is_one_screen(command: str, capsys: Captured):
    lines = shown(f"{command} -h", capsys)
    assert len(lines) <= 40
    assert lines[0].startswith(f"usage: biopsy {command}")
    assert lines[-1] == f"biopsy {command} --help shows all {lines[-1].split()[-2]} options."


@pytest.mark.parametrize(
    ("command", "end"),
    [("diagnose", "[options] [--check COMMAND ...]"), ("debug flags", "[options] --check COMMAND ...")],
)
def test_the_usage_tells_whether_a_check_may_be_left_out(command: str, end: str, capsys: Captured):
    assert shown(f"{command} -h", capsys)[0].endswith(end)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.words in help_text.ESSENTIAL])
def test_the_short_help_has_examples_and_the_whole_one_all_options(command, capsys: Captured):
    name = " ".join(command.words)
    assert "examples:" in shown(f"{name} -h", capsys)
    whole = "\n".join(shown(f"{name} --help", capsys))
    parser = parser_of("biopsy", command)
    told = [action for action in parser._actions if action.help != "==SUPPRESS=="]
    missing = [option for action in told for option in action.option_strings if option not in whole]
    assert missing == []


def test_the_short_help_ends_behind_a_whole_example():
    lines = ["  One:", "    biopsy a \\", "        --b", "  Two, of which", "  more is said:", "    biopsy c"]
    assert [help_text.within(lines, most) for most in (2, 3, 4, 5, 6)] == [[], lines[:3], lines[:3], lines[:3], lines]
    commands = ["  biopsy a \\", "      --b", "  biopsy c", "  biopsy d"]
    assert [help_text.within(commands, most) for most in (1, 2, 3)] == [[], commands[:2], commands[:3]]


def test_a_command_without_options_of_its_own_has_no_heading_for_them(capsys: Captured):
    assert "options:" not in shown("cache list -h", capsys)


def test_what_the_short_help_names_exists():
    by_words = {command.words: command for command in COMMANDS}
    for words, options in help_text.ESSENTIAL.items():
        assert len(help_text.essential(parser_of("biopsy", by_words[words]), words)) == len(options)


def test_a_command_with_many_options_says_which_ones_most_people_need():
    def told(command):
        return [action for action in parser_of("biopsy", command)._actions if action.help != "==SUPPRESS=="]

    many = [command.words for command in COMMANDS if len(told(command)) > 24]
    assert set(many) <= set(help_text.ESSENTIAL)


def test_options_of_an_engine_that_is_not_installed_are_one_line(capsys: Captured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(help_text, "find_spec", lambda name: None)
    lines = shown("run --help", capsys)
    assert not any("--trt-min-shapes" in line or line.startswith("  --openvino") for line in lines)
    (trt,) = [line for line in lines if line.startswith("The engine trt is not installed here")]
    assert re.search(r"\d\d options left out. See: biopsy doctor trt", trt)
    monkeypatch.undo()
    assert any("--trt-min-shapes" in line for line in shown("run --help", capsys))


@pytest.mark.parametrize("words", ["--help", "debug --help", "run -h", "run --help"])
def test_help_is_coloured_on_a_terminal_and_says_the_same(words: str, tmp_path: Path):
    coloured, status = seen(words, tmp_path)
    plain, _ = seen(words, tmp_path, environment={"NO_COLOR": "1"})
    assert status == 0
    assert coloured.startswith("\x1b[38;5;208musage:\x1b[0m ")
    assert "\x1b" not in plain
    assert COLOUR.sub("", coloured) == plain


def test_a_long_command_goes_on_behind_a_backslash_and_before_an_option():
    line = "  biopsy run model.onnx --onnxrt --save-inputs inputs.json --save-outputs golden.json"
    assert fitted([line], 60) == [
        "  biopsy run model.onnx --onnxrt --save-inputs inputs.json \\",
        "      --save-outputs golden.json",
    ]


def test_what_is_said_of_a_long_command_follows_it():
    line = "  biopsy run model.onnx --reference --onnxrt      two engines"
    assert fitted([line], 50) == ["  biopsy run model.onnx --reference --onnxrt", "      two engines"]


def test_a_paragraph_is_wrapped_as_a_whole():
    assert fitted(["  one two three", "  four"], 12) == ["  one two", "  three four"]


def test_what_fits_stays_as_it_is():
    lines = ["examples:", "  biopsy run m.onnx    runs it", "", "a line", "another"]
    assert fitted(lines, 40) == lines
