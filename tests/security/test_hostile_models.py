"""A model from a stranger neither hangs, exhausts nor crashes the command that it is given to: it is refused, in words.

Each command has 3 GB of memory and 10 seconds, far more than it needs; more would end it by a signal.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from biopsy import errors
from biopsy.model.describe import description
from biopsy.model.index import index_bytes
from biopsy.model.load import parse
from support import hostile_models
from support.confined import Confinement, Ended
from support.models import info, model
from support.tangled import TANGLED, WAITING

COMMANDS = {
    "inspect": "inspect model m.onnx --mode=full",
    "polygraphy": "inspect model m.onnx --show layers attrs weights",
    "lint": "check lint m.onnx",
    "sanitize": "surgeon sanitize m.onnx -o o.onnx --fold-constants --toposort --cleanup",
    "extract": "surgeon extract m.onnx -o o.onnx --outputs y:auto",
    "insert": "surgeon insert m.onnx -o o.onnx --op Relu --inputs x --outputs y",
    "known": "debug known m.onnx",
    "prune": "surgeon prune m.onnx -o o.onnx --save-external-data",
    "strip": "surgeon weight-strip m.onnx -o o.onnx",
    "reference": "run m.onnx --reference --onnx-outputs mark all --save-outputs o.npz",
    "onnxrt": "run m.onnx --onnxrt --onnx-outputs mark all --save-outputs o.npz",
}

BREAKS_ENGINES = {"3,000 functions in a row"}
"""Models on which an engine itself dies, by a stack that overflows."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    found.mkdir()
    os.mkfifo(found / "pipe")
    (found / "w.bin").write_bytes(bytes(64))
    return found


def require_told(ended: Ended, file: str) -> None:
    """It ended by itself, with a documented status, and with one message that names the file if it was refused."""
    assert ended.status in range(5), ended
    assert "itself failed" not in ended.err
    assert "Traceback" not in ended.err
    assert "Warning:" not in ended.err
    assert len(ended.err) < 8_000
    if ended.status > 1:
        assert ended.err.count("error: ") == 1, ended.err
    if ended.status == 0:
        assert "error: " not in ended.err


SLOW = [
    pytest.param(other, marks=pytest.mark.slow)
    for other in ("polygraphy", "extract", "insert", "lint", "prune", "strip", "reference", "onnxrt")
]
QUICK_AND_SLOW = ["inspect", "sanitize", *SLOW]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "inspect") for name in hostile_models.HOSTILE),
        *(
            pytest.param(name, "sanitize", marks=[pytest.mark.slow] * (number % 4 > 0))
            for number, name in enumerate(hostile_models.HOSTILE)
        ),
        *(pytest.param(name, *other.values, marks=other.marks) for name in hostile_models.HOSTILE for other in SLOW),
    ],
)
def test_a_hostile_model_is_refused_or_harmless(name: str, command: str, folder: Path, confined: Confinement) -> None:
    if command == "onnxrt" and name in BREAKS_ENGINES:
        pytest.skip("ONNX Runtime dies of it")
    (folder / "m.onnx").write_bytes(hostile_models.HOSTILE[name]())
    require_told(confined.run(COMMANDS[command].split(), folder), "m.onnx")


@pytest.mark.parametrize("command", QUICK_AND_SLOW)
@pytest.mark.parametrize("name", hostile_models.READABLE)
def test_an_odd_model_that_is_fine_is_read(name: str, command: str, folder: Path, confined: Confinement) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.READABLE[name]())
    output = {"y": "r", "y:auto": "r:auto"} if "If" in name else {}
    ended = confined.run([output.get(word, word) for word in COMMANDS[command].split()], folder)
    assert ended.status == 0, ended.err


@pytest.mark.parametrize("name", hostile_models.FOLDING)
def test_a_constant_that_would_fill_the_memory_is_not_computed(name: str, folder: Path, confined: Confinement) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.FOLDING[name]())
    words = ["surgeon", "sanitize", "m.onnx", "-o", "o.onnx", "--fold-constants", "--allow-invalid"]
    ended = confined.run(words, folder)
    assert ended.status == 0, ended.err
    assert ended.peak < 1 << 30
    kept = onnx.load(folder / "o.onnx")
    assert len(kept.graph.node) >= 2
    assert (folder / "o.onnx").stat().st_size < 1 << 20


def test_a_constant_that_may_be_computed_still_is(folder: Path, confined: Confinement) -> None:
    expand = helper.make_node("Expand", ["o", "s"], ["k"])
    one = hostile_models.weight("o", np.ones(1, np.float32))
    (folder / "m.onnx").write_bytes(hostile_models.folding([expand], hostile_models.shape_of(2, 2), one))
    assert confined.run(["surgeon", "sanitize", "m.onnx", "-o", "o.onnx", "--fold-constants"], folder).status == 0
    assert [node.op_type for node in onnx.load(folder / "o.onnx").graph.node] == ["Add"]


@pytest.mark.parametrize("name", ["30 functions that double", "30 functions that double in bodies"])
@pytest.mark.parametrize("engine", ["--onnxrt", "--reference", "--openvino"])
def test_no_engine_is_handed_functions_that_nobody_could_write_out(
    name: str, engine: str, folder: Path, confined: Confinement
) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.HOSTILE[name]())
    ended = confined.run(["run", "m.onnx", engine], folder)
    assert ended.status == 4
    assert "it stands for more than 10000000 nodes" in ended.err


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("names that are not text", "holds a name that is not text"),
        ("an operator that is not text", "holds a name that is not text"),
        ("a domain that is not text", "holds a name that is not text"),
        ("an attribute that is not text", "holds a name that is not text"),
        ("a weight of rank 10^6", "a weight has more than 64 dimensions"),
        ("an input of rank 10^6", "tensor 'x' has more than 64 dimensions"),
        ("10,000 nested graphs", "damaged"),
        ("a location of a megabyte", "that is not a file name"),
        ("a pipe as a location", "not a plain file"),
    ],
)
def test_the_message_says_what_is_wrong(name: str, told: str, folder: Path, confined: Confinement) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.HOSTILE[name]())
    ended = confined.run(["surgeon", "sanitize", "m.onnx", "-o", "o.onnx", "--fold-constants"], folder)
    assert ended.status == 4
    assert told in ended.err
    assert not (folder / "o.onnx").exists()


@pytest.mark.parametrize(
    "name", ["an input of 2^62", "an input of 2^40", "strings of 2^40", "an input of 0 times 2^62"]
)
def test_values_are_made_up_for_no_more_elements_than_there_is_memory(
    name: str, folder: Path, confined: Confinement
) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.HOSTILE[name]())
    ended = confined.run(["run", "m.onnx", "--onnxrt"], folder)
    assert ended.status == 4
    assert "no values can be made up for input 'x' of shape [" in ended.err
    assert "--load-inputs FILE" in ended.err


def test_a_weight_in_a_pipe_is_never_waited_for(folder: Path, confined: Confinement) -> None:
    (folder / "m.onnx").write_bytes(hostile_models.HOSTILE["a pipe as a location"]())
    ended = confined.run(["inspect", "model", "m.onnx", "--show", "weights"], folder)
    assert ended.status == 0
    assert "it is not a plain file" in ended.out


def whole() -> bytes:
    """A model with a bit of everything."""
    made = onnx.ModelProto.FromString(hostile_models.nested_if(2))
    made.graph.initializer.append(hostile_models.weight("w", np.arange(4, dtype=np.int64)))
    made.functions.extend(onnx.ModelProto.FromString(hostile_models.doubling(1)).functions)
    made.metadata_props.add(key="k", value="v")
    return made.SerializeToString()


def test_a_model_cut_anywhere_is_read_or_told_as_damaged(tmp_path: Path) -> None:
    data = whole()
    path = tmp_path / "m.onnx"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        for read in (
            lambda: index_bytes(data[:length]),  # noqa: B023 -- called at once
            lambda: list(description(path, ["layers", "attrs", "weights"])),
            lambda: parse(data[:length], path),  # noqa: B023
        ):
            try:
                read()
            except errors.ModelError as error:
                assert error.message


def test_fields_that_follow_another_wire_type_are_unknown_ones(tmp_path: Path) -> None:
    plain = model([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")]).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(plain + b"\x0a\x00" + b"\x38\x05" + b"\x40\x05")  # ir_version, graph and opset_import
    assert onnx.load(path).ir_version == index_bytes(path.read_bytes()).ir_version == 9
    assert index_bytes(path.read_bytes()).opset == 17
    assert "IR version 9" in "\n".join(description(path))


TANGLED_COMMANDS = {
    **COMMANDS,
    "reduce": "debug reduce m.onnx -o o.onnx --check sh -c 'exit 7' {}",
    "layers": "debug layers m.onnx --suspect onnxrt -o o.json",
    "precision": "debug precision m.onnx -o o.onnx --check test -f {}",
}


@pytest.mark.parametrize(
    "command",
    [
        "inspect",
        "extract",
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in TANGLED_COMMANDS
            if other not in {"inspect", "extract"}
        ),
    ],
)
@pytest.mark.parametrize("name", TANGLED)
def test_a_model_whose_nodes_wait_for_each_other_hangs_no_command(
    name: str, command: str, folder: Path, confined: Confinement
) -> None:
    onnx.save(TANGLED[name], folder / "m.onnx")
    require_told(confined.run(shlex.split(TANGLED_COMMANDS[command]), folder), "m.onnx")


@pytest.mark.parametrize("name", [*WAITING, "a function that calls itself"])
def test_sanitize_says_that_no_engine_can_run_what_it_wrote(name: str, folder: Path, confined: Confinement) -> None:
    made = WAITING[name].SerializeToString() if name in WAITING else hostile_models.calling([("F", ["F"])], "F")
    (folder / "m.onnx").write_bytes(made)
    ended = confined.run(["surgeon", "sanitize", "m.onnx", "-o", "o.onnx"], folder)
    assert ended.status == 0
    assert ended.err.startswith("warning: what was written is not valid ONNX, and no engine can run it: ")
