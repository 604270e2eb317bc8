"""What a person is told to type means, once it is pasted, what was meant: whatever the names in it hold."""

import argparse
import functools
import subprocess
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from biopsy import errors
from biopsy.cli.arguments.comparing import parse_tolerances
from biopsy.cli.arguments.types import parse_ranges, parse_shapes
from biopsy.cli.commands import COMMANDS
from biopsy.cli.console import Console
from biopsy.cli.debug.layers_options import LayersOptions
from biopsy.cli.debug.layers_report import next_lines
from biopsy.cli.parser import parser_of
from biopsy.comparison.describe import report_lines
from biopsy.model.extract import Wanted, extract
from biopsy.model.index import index_file
from biopsy.model.load import parse
from biopsy.model.tensor_type import TensorType
from biopsy.questions.layers.findings import Failure, LayerFindings, LayerGroup
from biopsy.tensors.generate import resolve_shapes
from biopsy.text import ListOption, is_refused, line_of, option_line
from support.command_line import BIN
from support.comparing import compare_tensors
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


def test_a_model_with_a_name_that_is_no_text_is_advised_as_it_is_called(tmp_path) -> None:
    data = chain(1, ("Abcd",)).SerializeToString().replace(b"Abcd", b"Ab\xffd")
    path = tmp_path / "a 'b\n$(c).onnx"
    step = step_of(lambda: parse(data, path))
    assert pasted(step.partition("    shows it")[0]) == ["biopsy", "inspect", "model", str(path), "--show", "layers"]


DASHED = st.sampled_from(["--data-loader-script=evil.py", "--report=/etc/passwd", "-o/x", "--", "-", "-x:1", "-h"])


def understood(line: str) -> argparse.Namespace:
    """What the command that a line names makes of it, once bash has read it; what stands behind --check is another."""
    words = pasted(line)
    assert words[0] == "biopsy"
    if "--check" in words:
        words = words[: words.index("--check")]
    command = next(one for one in COMMANDS if one.words == tuple(words[1 : 1 + len(one.words)]))
    return parser_of("biopsy", command).parse_args(words[1 + len(command.words) :])


def advised_after_layers(inputs: list[str], outputs: list[str], *given: str) -> list[str]:
    layers = next(one for one in COMMANDS if one.words == ("debug", "layers"))
    args = parser_of("biopsy", layers).parse_args(["m.onnx", "--suspect", "openvino", *given])
    options = LayersOptions.of(args).settled(Console())
    wrong = LayerGroup(
        nodes=(0, 1),
        labels=("a", "b"),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        error=None,
        failure=Failure("run", "Crash", "it crashed"),
        hides=None,
    )
    return [line_of(words) for words in next_lines(LayerFindings(layers=[], groups=[wrong]), options)]


@settings(max_examples=60, deadline=None)
@given(st.lists(TYPED | DASHED, min_size=1, max_size=3), st.lists(TYPED | DASHED, min_size=1, max_size=3))
def test_names_in_lists_are_values_or_the_line_is_refused(inputs: list[str], outputs: list[str]) -> None:
    _, extract, record, *_ = advised_after_layers(inputs, outputs)
    dashed = [len(names) > 1 and any(name.startswith("-") for name in names) for names in (inputs, outputs)]
    if any(dashed):
        assert is_refused(extract)
    else:
        found = understood(extract)
        assert found.inputs == [f"{name}:auto:auto" for name in inputs]
        assert found.outputs == [f"{name}:auto" for name in outputs]
        assert str(found.output) == "suspect.onnx"
    if dashed[0] or inputs == ["--"]:
        assert is_refused(record)
        assert record.endswith("rename it first")
    else:
        found = understood(record)
        assert found.onnx_outputs == inputs
        assert found.data_loader_script is None
        assert str(found.save_outputs) == "inner.npz"


def test_limits_that_begin_with_a_dash_are_handed_on_as_they_were_given() -> None:
    last = advised_after_layers(["x"], ["y"], "--atol=-o:1", "--val-range=-x:[0,1]")[-1]
    assert understood(last).atol == ["-o:1"]


@pytest.mark.slow
def test_a_line_that_reads_what_no_line_writes_is_not_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
    <ir_version: 9, opset_import: ["" : 17]>
    g (float[2,16] x) => (float[2,16] y) {
        [n0] a = Tanh (x)
        [n1] b = Sigmoid (x)
        [n2] c = Mul (a, b)
        [n3] y = Relu (c)
    }
    """
    model = onnx.parser.parse_model(text)
    model.graph.node[1].output[0] = model.graph.node[2].input[1] = "--data-loader-script=evil.py"
    onnx.save(model, "v.onnx")
    (tmp_path / "evil.py").write_text("open('ran', 'w')")
    line = [str(BIN / "biopsy"), "debug", "layers", "v.onnx", "--suspect", "fake:scale.Mul=1.5"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1, ran.stderr
    lines = [one.removeprefix("Next").strip() for one in ran.stdout.partition("\nNext")[2].splitlines()]
    assert lines[0].startswith("biopsy debug reduce v.onnx")
    assert [is_refused(one) for one in lines] == [False, True]
    subprocess.run(["bash", "-c", lines[1]], check=True, timeout=60)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["-x", "--report=/etc/passwd"])
def test_inputs_to_add_are_never_options(name: str, tmp_path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", name], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info(one, 1, [2]) for one in ("x", name)],
        [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    step = step_of(lambda: extract(index_file(tmp_path / "m.onnx"), [Wanted("x")]))
    assert f"{name}:auto:auto" in step
    assert is_refused(step.removeprefix("add to --inputs    "))


def test_an_option_alone_takes_a_value_that_begins_with_a_dash() -> None:
    assert line_of([ListOption("--inputs", ["-x:auto:auto"])]) == "--inputs=-x:auto:auto"
    assert is_refused(line_of([ListOption("--inputs", ["--"])]))
