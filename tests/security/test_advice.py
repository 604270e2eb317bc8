"""What a person is told to type means, once it is pasted, what was meant: whatever the names in it hold."""

import functools
import shlex
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.cli.options import parse_ranges, parse_shapes, parse_tolerances
from biopsy.comparison.compare import compare_tensors
from biopsy.comparison.describe import report_lines
from biopsy.filesystem.write import cannot_write
from biopsy.model.load import parse
from biopsy.model.tensor_type import TensorType
from biopsy.shell_words import line_of, option_line
from biopsy.tensors.generate import resolve_shapes
from support.hostile_names import HOSTILE
from support.models import chain

NAMES = [
    "a b",
    "it's",
    "x:1",
    "a:[2]",
    "-o",
    "--atol",
    "~",
    "a;reboot",
    "$(reboot)",
    "`reboot`",
    "a!b",
    "#",
    HOSTILE,
    "\udc80",
]
TYPED = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


SHELL = r"""
while IFS= read -r -d '' line
do
    set --
    eval "set -- $line"
    printf '%s\0' $# "$@"
done
"""
"""Says of each line, ended by a NUL, how many words it has, and which."""


@functools.cache
def shell() -> subprocess.Popen[bytes]:
    """One for all lines: it ends with its input."""
    return subprocess.Popen(["bash", "-c", SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def pasted(line: str) -> list[str]:
    """The words that bash makes of a line."""
    stdin, stdout = shell().stdin, shell().stdout
    assert stdin is not None and stdout is not None
    stdin.write(f"{line}\0".encode("utf-8", "surrogateescape"))
    told = b""
    while told.count(b"\0") < 1 + int(told.partition(b"\0")[0] or 0):
        read = stdout.read(1 << 16)
        assert read, "bash has ended"
        told += read
    return told.decode("utf-8", "surrogateescape").split("\0")[1:-1]


def value_of(line: str) -> str:
    """The value of an advised option, as argparse takes it: the next word, or what stands behind '='."""
    first, *rest = pasted(line)
    assert len(rest) == (0 if "=-" in first else 1)
    assert not rest or not rest[0].startswith("-")
    return rest[0] if rest else first.partition("=")[2]


def advised(lines: list[str]) -> str:
    """The first option that a report of a mismatch names."""
    line = next(line for line in lines if line.startswith("  passes    with "))
    assert line.isprintable()
    return line.removeprefix("  passes    with ").partition(" or --rtol")[0].partition(" (now:")[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_line_is_pasted_as_the_words_that_were_meant(words: list[str]) -> None:
    line = line_of(words)
    assert line.isprintable()
    assert pasted(line) == words


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_no_shell_can_be_given_is_a_comment_that_says_so(name: str) -> None:
    line = line_of(["biopsy", "run", name])
    assert line.startswith("# no shell can be given")
    assert line.endswith("rename it first")
    assert line.isprintable()


@pytest.mark.parametrize("name", NAMES)
def test_a_tolerance_that_would_pass_is_parsed_as_it_was_meant(name: str) -> None:
    lines = report_lines(compare_tensors(name, np.array([1.5]), np.array([1.0])))
    assert parse_tolerances([value_of(advised(lines))]) == {name: 0.5}


@settings(max_examples=40, deadline=None)
@given(TYPED)
def test_options_with_a_name_are_parsed_as_they_were_meant(name: str) -> None:
    lines = [option_line("--opt", f"{name}:{value}") for value in ("0.5", "[1,2]")]
    tolerance, shape = (word.removeprefix("--opt=") for word in pasted(" ".join(lines)) if word != "--opt")
    assert parse_tolerances([tolerance]) == {name: 0.5}
    assert parse_shapes([shape]) == {name: (1, 2)}
    assert parse_ranges([shape]) == {name: (1.0, 2.0)}


def step_of(call: Callable[[], object]) -> str:
    with pytest.raises(errors.BiopsyError) as raised:
        call()
    return raised.value.next_steps[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_is_advised_that_fits(name: str) -> None:
    tensor = TensorType(1, ("N,]' 'M", 3))
    step = step_of(lambda: resolve_shapes({name: tensor}, {name: (1, 2, 3)}))
    assert parse_shapes([value_of(step)]) == {name: (1, 3)}


def test_a_folder_to_make_is_advised_as_it_is_called(tmp_path) -> None:
    folder = tmp_path / "a 'b\n$(c)"
    step = cannot_write(folder / "x", OSError()).next_steps[0]
    assert pasted(step) == ["mkdir", "-p", "--", str(folder)]
    assert shlex.split("mkdir -p -- plain") == ["mkdir", "-p", "--", "plain"]


def test_a_model_with_a_name_that_is_no_text_is_advised_as_it_is_called(tmp_path) -> None:
    data = chain(1, ("Abcd",)).SerializeToString().replace(b"Abcd", b"Ab\xffd")
    path = tmp_path / "a 'b\n$(c).onnx"
    step = step_of(lambda: parse(data, path))
    assert pasted(step.partition("    shows it")[0]) == ["biopsy", "inspect", "model", str(path), "--show", "layers"]
