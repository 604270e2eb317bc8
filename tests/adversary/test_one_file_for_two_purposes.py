"""A command line that gives one file two purposes, so that one of them would be lost, is refused by every command."""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from biopsy import errors
from biopsy.cli import parser
from biopsy.cli.app import main
from biopsy.cli.arguments.types import FileKind
from biopsy.cli.commands import COMMANDS, Command
from biopsy.cli.parser import parser_of
from biopsy.tensors.files import write_feeds
from support.models import chain, save, weight

NAMES_A_FILE = ("FILE", "DIR", "PATH", "MODEL")
BESIDE_THE_OUTPUT = "--save-external-data"  # a name, whose path derived_files makes


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(3), tmp_path / "m.onnx")
    write_feeds("in.json", [{"x": np.ones((2, 4), np.float32)}])
    Path("check.py").write_text("import sys; sys.exit(1)\n")


def actions(command: Command) -> list[argparse.Action]:
    return parser_of("biopsy", command)._actions


def named(command: Command) -> list[argparse.Action]:
    """The options that name files or folders."""
    return [action for action in actions(command) if isinstance(action.type, FileKind)]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_every_option_that_names_a_file_says_what_becomes_of_it(command: Command) -> None:
    for action in actions(command):
        looks_so = action.type is Path or any(name in str(action.metavar) for name in NAMES_A_FILE)
        looks_so = looks_so and action.dest != "verbosity"  # of Polygraphy's sources, which are not here
        if looks_so and BESIDE_THE_OUTPUT not in action.option_strings:
            assert isinstance(action.type, FileKind), (
                f"{action.option_strings or action.dest}: see cli/arguments/types.py"
            )


def pairs() -> Iterator[tuple[Command, argparse.Action, argparse.Action]]:
    """Every option that writes, with every other that names a file, of every command."""
    for command in COMMANDS:
        found = [action for action in named(command) if not action.type.container]
        for one in found:
            for other in found:
                if one.type.task != "read" and other is not one:
                    yield command, one, other


ON_PURPOSE = {
    # as users of Polygraphy do: all of the model is still there afterwards
    *(("--output", "model", " ".join(command.words)) for command in COMMANDS if command.words[0] == "surgeon"),
    # as there: what was loaded is saved too
    *(("--save-debug-replay", "--load-debug-replay", f"debug {word}") for word in ("reduce", "precision", "repeat")),
    # a cache that grows is one file
    *(("--save-timing-cache", "--load-timing-cache", " ".join(command.words)) for command in COMMANDS),
}
ITERATION = {"--artifacts", "--iter-artifact", "--iter-info", "--iter-inputs", "--save-tactics", "--save-timing-cache"}
"""What is made anew for each check is sorted after it."""


def spelling(action: argparse.Action) -> str:
    return next((name for name in action.option_strings if name.startswith("--")), action.dest)


def test_whatever_is_written_may_not_be_what_any_other_option_names() -> None:
    allowed = set()
    for command, one, other in pairs():
        value = Path("m.onnx").absolute()
        args = argparse.Namespace(
            **{action.dest: None for action in actions(command)}
            | {one.dest: [Path("m.onnx")] if one.nargs == "+" else Path("m.onnx"), other.dest: value}
        )
        try:
            parser.require_no_file_twice(parser_of("biopsy", command), args, {})
        except errors.UsageError as error:
            assert "it would be" in error.message
        else:
            allowed.add((spelling(one), spelling(other), " ".join(command.words)))
    sorted_after = {pair for pair in allowed if "--artifacts" in pair and ITERATION.issuperset(pair[:2])}
    mirrored = {(other, one, words) for one, other, words in ON_PURPOSE}
    assert allowed - sorted_after <= ON_PURPOSE | mirrored
    has_caches = {words for one, _, words in allowed if one == "--save-timing-cache"}
    assert allowed >= {pair for pair in ON_PURPOSE if "cache" not in pair[0] or pair[2] in has_caches}
    assert {"run", "convert", "debug build"} <= has_caches


CHECK = ("--check", sys.executable, "check.py", "{}")


FED = ("--check", "biopsy", "run", "{}", "--onnxrt", "--load-inputs", "in.json")


@pytest.mark.parametrize(
    "words",
    [
        ("debug", "reduce", "m.onnx", "-o", "m.onnx", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "hard.onnx", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "soft.onnx", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--iter-artifact", "check.py", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--iter-info", "check.py", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--artifacts", "check.py", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--min-good", "check.py", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--events", "in.json", *CHECK, "--with=in.json"),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--events", "r.onnx.journal", *CHECK),
        ("debug", "reduce", "m.onnx", "--events", "m_reduced.onnx", *CHECK),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--events", "r.onnx.inputs.safetensors", *FED),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--min-good", "r.onnx.inputs.safetensors", *FED),
        ("debug", "reduce", "m.onnx", "-o", "r.onnx", "--save-external-data", "m.onnx", *CHECK),
        ("run", "m.onnx", "--onnxrt", "--load-inputs", "in.json", "--save-inputs", "in.json"),
        ("run", "m.onnx", "--onnxrt", "--load-inputs", "in.json", "--save-outputs", "./in.json"),
        ("run", "m.onnx", "--onnxrt", "--save-inputs", "o.json", "--save-outputs", "o.json"),
        ("run", "m.onnx", "--onnxrt", "--load-inputs", "in.json", "--report", "in.json"),
        ("run", "m.onnx", "--onnxrt", "--save-engine", "m.onnx"),
        ("run", "m.onnx", "--onnxrt", "--data-loader-script", "check.py:load", "--report", "check.py"),
        ("data", "to-input", "in.json", "-o", "in.json"),
        ("data", "merge", "in.json", "-o", "in.json"),
        ("surgeon", "sanitize", "m.onnx", "-o", "s.onnx", "--save-external-data", "m.onnx"),
        ("debug", "precision", "m.onnx", "-o", "m.onnx", *CHECK),
        ("debug", "precision", "m.onnx", "--report", "polygraphy_debug.onnx", *CHECK),
        ("debug", "build", "m.onnx", "--onnxrt", "--iter-artifact", "m.onnx", *CHECK),
        ("debug", "build", "m.onnx", "--onnxrt", "--save-tactics", "check.py", *CHECK),
        ("debug", "repeat", "--until", "2", "--events", "check.py", *CHECK),
        ("debug", "repeat", "--until", "2", "--artifacts", "check.py", *CHECK),
        ("debug", "layers", "m.onnx", "--suspect", "onnxrt", "--report", "m.onnx"),
        ("debug", "layers", "m.onnx", "--suspect", "onnxrt", "--load-inputs", "in.json", "--csv", "in.json"),
        ("debug", "flags", "m.onnx", "--output", "m.onnx", *CHECK),
        ("debug", "flags", "m.onnx", "--events", "check.py", *CHECK),
        ("debug", "diff-tactics", "--good", "in.json", "--bad", "m.onnx", "--report", "in.json"),
    ],
    ids=" ".join,
)
def test_a_file_that_would_be_lost_is_named_and_nothing_is_done(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    os.link("m.onnx", "hard.onnx")
    Path("soft.onnx").symlink_to("m.onnx")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert main(list(words)) == 2
    fate = "moved away" if "--artifacts" in words else "lost"
    told = capsys.readouterr().err.splitlines()[0]
    assert re.fullmatch(rf"error: \S+ is given twice, for .+ and for .+: it would be {fate}", told)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


WEIGHTS = "w.bin"


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "e.onnx", "-o", "w.xml"),
        ("convert", "e.onnx", "-o", "o.onnx", "--onnxrt"),
        ("surgeon", "insert", "e.onnx", "-o", "w.bin", "--op", "Relu", "--inputs", "x", "--outputs", "x"),
        ("surgeon", "weight-strip", "e.onnx", "-o", "e.onnx", "--log-file", "w.bin"),
        ("check", "lint", "e.onnx", "-o", "hard.bin"),
        ("run", "sub/e.onnx", "--external-data-dir", ".", "--onnxrt", "--report", "w.bin"),
        ("debug", "reduce", "e.onnx", "-o", "r.onnx", "--min-good", "w.bin", *CHECK),
        ("debug", "reduce", "e.onnx", "-o", "r.onnx", "--artifacts", "w.bin", *CHECK),
    ],
    ids=" ".join,
)
def test_a_file_that_holds_the_weights_of_the_model_is_not_lost(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    location = "o.onnx.data" if "o.onnx" in words else WEIGHTS
    model = chain(3)
    model.graph.initializer.append(weight("w", 1.0, 2.0, shape=(2,)))
    onnx.save_model(model, "e.onnx", save_as_external_data=True, location=location, size_threshold=0)
    os.link(location, "hard.bin")
    Path("sub").mkdir()
    Path("sub/e.onnx").write_bytes(Path("e.onnx").read_bytes())
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert main(list(words)) == 2
    assert "for the weights of the model and for" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_file_in_a_folder_of_inputs_is_not_overwritten_by_outputs() -> None:
    write_feeds("inputs", [{"x": np.ones((2, 4), np.float32)}] * 2)
    inside = next(path for path in Path("inputs").iterdir())
    before = inside.read_bytes()
    assert main(["run", "m.onnx", "--onnxrt", "--load-inputs", "inputs", "--save-outputs", str(inside)]) == 2
    assert inside.read_bytes() == before


def test_a_model_may_be_sanitized_in_place() -> None:
    assert main(["surgeon", "sanitize", "m.onnx", "-o", "m.onnx", "--cleanup"]) == 0
    assert len(onnx.load("m.onnx").graph.node) == 3


@pytest.mark.slow
def test_streams_may_take_several_things() -> None:
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--events", "/dev/null", "--min-good", "/dev/null"]
    look = ["--fail-regex", "n1", "--check", "biopsy", "inspect", "model", "{}", "--mode=basic"]
    assert main([*words, *look]) == 0


def test_what_is_made_for_each_check_may_be_there_from_before_and_be_named_by_the_check() -> None:
    Path("ii.json").write_text("{}")
    words = ["debug", "reduce", "m.onnx", "-o", "r.onnx", "--iter-inputs", "ii.json", "--artifacts", "ii.json"]
    assert main([*words, "--check", "biopsy", "run", "{}", "--onnxrt", "--load-inputs", "ii.json"]) == 3
