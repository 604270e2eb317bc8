"""A check that a model of one Identity node fails in the same way says nothing: no result may come of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import onnx
import pytest

import biopsy
from biopsy import Rules
from biopsy.cli.app import main
from support.models import chain, save, seeds_example
from support.predicates import names


def script(folder: Path, code: str) -> list[str]:
    (folder / "check.py").write_text(code)
    return [sys.executable, str(folder / "check.py"), "{}"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(chain(6), tmp_path / "m.onnx")


def test_it_ends_with_status_4_and_writes_nothing(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path.name for path in tmp_path.iterdir()} | {"check.py"}
    line = ["debug", "reduce", "m.onnx", "-o", "r.onnx"]
    check = ["--check", *script(tmp_path, "import sys\nsys.exit(1)\n")]
    assert main([*line, *check]) == 4
    told = capsys.readouterr().err
    assert "a model of one Identity node fails this check in the same way" in told
    assert "--allow-vacuous-check" in told
    assert told.count("\n  next  ") == 2
    assert "does the check fail before it compares?" in told
    assert {path.name for path in tmp_path.iterdir()} == before
    assert main([*line, "--allow-vacuous-check", *check]) == 0
    assert "the check fails on anything" in capsys.readouterr().err
    assert (tmp_path / "r.onnx").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import sys, no_such_module\n",
        "import sys\nopen('no such file')\n",
        "import sys\nassert len(sys.argv) == 3\n",
        "import os\nos.abort()\n",
    ],
)
def test_a_script_that_dies_before_it_looks_at_the_model_is_no_check(tmp_path: Path, model: Path, code: str) -> None:
    with pytest.raises(biopsy.CheckError, match="fails on anything"):
        biopsy.reduce(model, script(tmp_path, code), tmp_path / "r.onnx")
    assert not (tmp_path / "r.onnx").exists()


def test_what_a_check_prints_last_is_shown_where_only_its_status_speaks(tmp_path: Path, model: Path) -> None:
    with pytest.raises(biopsy.CheckError, match=r"printed .*no settings here"):
        biopsy.reduce(model, [sys.executable, "-c", "import sys; sys.exit('no settings here')"], tmp_path / "r.onnx")


def test_a_function_is_held_to_the_same(tmp_path: Path, model: Path) -> None:
    with pytest.raises(biopsy.CheckError, match="fails on anything"):
        biopsy.reduce(model, lambda path: True, tmp_path / "r.onnx")
    found = biopsy.reduce(model, lambda path: True, tmp_path / "r.onnx", allow_vacuous_check=True)
    assert len(found.nodes) == 1


def test_an_engine_that_is_broken_for_every_model_is_named_as_a_possible_reason(tmp_path: Path, model: Path) -> None:
    def broken(path: Path) -> bool:
        raise biopsy.EngineFailure("no device", engine="gpu", stage="build", kind="RuntimeError")

    with pytest.raises(biopsy.CheckError) as raised:
        biopsy.reduce(model, broken, tmp_path / "r.onnx")
    assert "(build · RuntimeError · gpu · no device)" in raised.value.message
    assert any("engine itself broken" in step for step in raised.value.next_steps)


def test_one_that_fails_on_anything_now_and_then_is_found_too(tmp_path: Path, model: Path) -> None:
    chances = iter([True, True, False] * 1000)
    with pytest.raises(biopsy.CheckError, match="fails on anything"):
        biopsy.reduce(model, lambda path: next(chances), tmp_path / "r.onnx")


def test_a_check_that_cannot_say_or_fails_otherwise_on_identity_is_fine(tmp_path: Path, model: Path) -> None:
    def check(candidate: onnx.ModelProto) -> bool:
        operators = [node.op_type for node in candidate.graph.node]
        if operators == ["Identity"]:
            raise KeyError("no such output")
        return "n3" in names(candidate)

    assert biopsy.reduce(model, check, tmp_path / "r.onnx", takes="model").nodes == ("Relu 'n3'",)

    def unsure(candidate: onnx.ModelProto) -> bool:
        if [node.op_type for node in candidate.graph.node] == ["Identity"]:
            raise biopsy.CannotCompare("no golden values")
        return "n3" in names(candidate)

    assert biopsy.reduce(model, unsure, tmp_path / "r.onnx", takes="model").nodes == ("Relu 'n3'",)


def test_a_simulated_failure_by_a_regular_expression_works_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "m.onnx")
    check = ["--check", "sh", "-c", "grep -q Mul polygraphy_debug.onnx && echo Op: Mul; exit 0"]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--fail-regex", "Op: Mul", *check]) == 0
    assert names(onnx.load("r.onnx")) == ["onnx_graphsurgeon_node_3"]


def test_a_regular_expression_that_matches_anything_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(seeds_example(), tmp_path / "m.onnx")
    check = ["--check", "echo", "Op:", "{}"]
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--fail-regex", "Op:", *check]) == 4
    assert "fails on anything" in capsys.readouterr().err


def test_where_the_last_lines_tell_identity_from_the_original_that_is_said_first(tmp_path: Path, model: Path) -> None:
    code = """
import sys
data = open(sys.argv[1], "rb").read()
if b"Relu" not in data:
    print("there is no input t0")
    sys.exit(1)
if b"n3" in data:
    print("the outputs differ by 12")
    sys.exit(1)
"""
    with pytest.raises(biopsy.CheckError) as raised:
        biopsy.reduce(model, script(tmp_path, code), tmp_path / "r.onnx")
    assert "the outputs differ by 12" in raised.value.message
    assert "there is no input t0" in raised.value.message
    assert raised.value.next_steps[0].startswith(
        "--match message tells them apart; --fail-regex 'the outputs differ by'"
    )
    found = biopsy.reduce(model, script(tmp_path, code), tmp_path / "r.onnx", rules=Rules(match="message"))
    assert found.nodes == ("Relu 'n3'",)


def test_a_failure_of_the_ir_version_is_told_as_one_of_no_node(tmp_path: Path) -> None:
    made = chain(4)
    made.ir_version = 99
    with pytest.raises(biopsy.CheckError) as raised:
        biopsy.reduce(made, ["biopsy", "run", "{}", "--onnxrt"], tmp_path / "r.onnx")
    assert "what fails is not a node, but opset 17, IR version 99" in raised.value.message


def takes_a_path(path: Path) -> bool:
    return bool(onnx.load(path).graph.node)


def takes_a_model(model: onnx.ModelProto) -> bool:
    return bool(model.graph.node)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize(
    ("function", "takes", "given"),
    [
        (takes_a_model, "path", 'the function is given a pathlib.Path (takes="path"), not an onnx.ModelProto'),
        (takes_a_path, "model", 'the function is given an onnx.ModelProto (takes="model"), not a pathlib.Path'),
    ],
)
def test_a_function_that_fails_on_anything_is_told_what_it_is_given(
    tmp_path: Path,
    model: Path,
    function: Callable[..., bool],
    takes: Literal["path", "model"],
    given: str,
    caught: bool,
) -> None:
    def check(argument: object) -> bool:
        try:
            return function(argument)
        except Exception:
            if not caught:
                raise
            return True

    with pytest.raises(biopsy.CheckError, match="fails on anything") as raised:
        biopsy.reduce(model, check, tmp_path / "r.onnx", takes=takes)
    told = "\n".join([str(raised.value), *raised.value.next_steps])
    assert given in told
    assert "allow_vacuous_check=True" in told
    assert "exit status" not in told
    assert "--allow" not in told


def test_an_exception_that_a_function_catches_itself_is_no_answer(tmp_path: Path, model: Path) -> None:
    def check(candidate: onnx.ModelProto) -> bool:
        try:
            raise ValueError(len(candidate.graph.node))
        except ValueError:
            return "n3" in names(candidate)

    seen: list[biopsy.events.Event] = []
    found = biopsy.reduce(model, check, tmp_path / "r.onnx", takes="model", listener=seen.append)
    assert names(onnx.load(tmp_path / "r.onnx")) == ["n3"]
    assert found.signature == "the function returned True"
    assert "exit status" not in str(seen)


def test_what_a_function_raises_is_named_where_rules_decide(tmp_path: Path, model: Path) -> None:
    def check(candidate: Path) -> bool:
        raise ValueError(candidate.stem)

    with pytest.raises(biopsy.OriginalPasses) as raised:
        biopsy.reduce(model, check, tmp_path / "r.onnx", rules=Rules(fail_codes=frozenset({7})))
    assert "ValueError, which is not counted as the failure" in str(raised.value)


def test_a_function_that_passes_the_original_is_told_what_it_is_given(tmp_path: Path, model: Path) -> None:
    with pytest.raises(biopsy.OriginalPasses) as raised:
        biopsy.reduce(model, lambda candidate: False, tmp_path / "r.onnx")
    told = "\n".join([str(raised.value), *raised.value.next_steps])
    assert "the function returned False" in told
    assert 'a pathlib.Path (takes="path")' in told
    assert "exit status" not in told
    assert "--fail" not in told
