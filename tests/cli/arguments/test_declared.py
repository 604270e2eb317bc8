"""Options that are declared once: added to a parser, read back as a record, and said again as words."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from biopsy.cli.arguments.declared import Options, option, switch
from biopsy.text import line_of


class Colours(Options):
    paint: Sequence[str] | None = option("--paint", "--colour", nargs="+", metavar="NAME", meaning="what to paint with")
    layers: int = option("--layers", type=int, default=1, meaning="how many layers (default: {text})", text="1")
    matt: bool = switch("--matt", rivals="finish", meaning="without gloss")
    gloss: bool = switch("--gloss", rivals="finish", meaning="with gloss")


class Wall(Options):
    wall: Path = option(type=Path, metavar="WALL", meaning="the wall")


class Painting(Wall, Colours):
    layers: int = option("--layers", type=int, default=2, meaning="how many layers")
    began: float = 0.0


def parsed(*words: str, **command: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Wall.add(parser)
    Colours.add(parser, **command)
    return parser.parse_args(["north", *words])


def test_values_are_fields_of_the_record_under_every_spelling() -> None:
    colours = Colours.of(parsed("--colour", "red", "blue", "--layers", "3", "--matt"))
    assert (colours.paint, colours.layers, colours.matt, colours.gloss) == (["red", "blue"], 3, True, False)
    assert Wall.of(parsed()).wall == Path("north")


def test_an_option_that_a_command_lacks_has_its_default() -> None:
    assert Colours.of(argparse.Namespace(wall="north")).layers == 1
    assert Colours().paint is None


def test_rivals_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--matt", "--gloss")
    assert "not allowed with" in capsys.readouterr().err


def test_a_command_may_have_fewer_options_other_defaults_and_more_spellings() -> None:
    assert parsed("--coats", "4", also={"layers": ["--coats"]}).layers == 4
    assert parsed(defaults={"layers": 7}).layers == 7
    assert not hasattr(parsed(only=["paint"]), "layers")


def test_a_command_says_its_part_of_the_help_or_all_of_it() -> None:
    parser = argparse.ArgumentParser()
    Colours.add(parser, layers="as many as it takes", paint="a brush")
    told = {action.dest: action.help for action in parser._actions}
    assert told["layers"] == "how many layers (default: as many as it takes)"
    assert told["paint"] == "a brush"


def test_what_was_given_is_said_again_as_it_is_typed() -> None:
    colours = Colours.of(parsed("--colour", "red", "-1", "--matt"))
    assert colours.given() == {"--paint": ["red", "-1"], "--matt": True}
    assert colours.given(("matt", "paint")) == {"--matt": True, "--paint": ["red", "-1"]}
    assert line_of(Colours.of(parsed("--colour", "light red", "--layers", "2")).as_typed()) == (
        "--paint 'light red' --layers 2"
    )


def test_a_record_of_a_command_has_the_fields_of_its_groups_in_their_order() -> None:
    assert list(Painting.declared) == ["wall", "paint", "layers", "matt", "gloss", "began"]
    assert Painting.of(argparse.Namespace(wall=Path("north"), began=2.5)).began == 2.5
    assert Painting(wall=Path("north")).layers == 2


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="read-only"):
        Colours().layers = 2
