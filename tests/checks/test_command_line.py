"""What the words of a check tell before it runs."""

import shutil
from pathlib import Path

import pytest

from biopsy.checks.command_line import CommandLine, OwnCommand, OwnInspect, OwnRun, parse
from biopsy.checks.words import commands_of_shell

NAME = "polygraphy_debug.onnx"


def run(words: str) -> OwnRun:
    command = parse(f"biopsy run {words}".split())
    assert isinstance(command, OwnRun)
    return command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("check.py", "golden.json", "package/__main__.py", "alone.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def files(*words: str) -> set[str]:
    return {str(path) for path in parse(words).files(NAME)}


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("biopsy run {} --onnxrt", OwnRun),
        ("/some/where/biopsy run {}", OwnRun),
        ("biopsy inspect model {}", OwnInspect),
        ("biopsy debug reduce {}", OwnCommand),
        ("biopsy", OwnCommand),
        ("python check.py {}", CommandLine),
        ("./run biopsy run {}", CommandLine),
        ("", CommandLine),
    ],
)
def test_the_program_and_its_command_say_what_kind_a_check_is(words: str, kind: type[CommandLine]) -> None:
    assert type(parse(words.split())) is kind


def test_another_installation_of_our_name_is_ours_and_not_this_one(tmp_path: Path) -> None:
    other = tmp_path / "biopsy"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    command = parse([str(other), "run", "{}"])
    assert isinstance(command, OwnRun)
    assert not command.is_this_installation
    assert run("{}").is_this_installation


@pytest.mark.parametrize(
    ("words", "compares"),
    [
        ("biopsy run {} --onnxrt", False),
        ("biopsy run {} --onnxrt --load-outputs golden.json", True),
        ("biopsy run {} --onnxrt --load-results=golden.json", True),
        ("biopsy run {} --onnxrt --validate", True),
        ("biopsy run --onnxrt -- --validate", False),
        ("biopsy inspect model {}", False),
        ("biopsy data to-input {}", None),
        ("python check.py {}", None),
    ],
)
def test_only_commands_of_ours_tell_whether_they_compare_with_recorded_values(words: str, compares: object) -> None:
    assert parse(words.split()).compares_recorded is compares


def test_the_golden_values_that_a_run_loads_are_known_in_every_spelling() -> None:
    command = run("{} --load-outputs a.json b.json --onnxrt --load-results=c.npz --load-inputs d.json -- e.json")
    assert command.golden_files == [Path("a.json"), Path("b.json"), Path("c.npz")]


def test_an_option_goes_with_its_values_and_nothing_else() -> None:
    command = run("{} --load-inputs a.json b.json --onnxrt --load-inputs=c.json -- --load-inputs")
    kept = command.without_option(["--load-inputs"])
    assert kept.words == ("biopsy", "run", "{}", "--onnxrt", "--", "--load-inputs")
    assert kept.with_options("--fail-fast").words[-3:] == ("--fail-fast", "--", "--load-inputs")


def test_engines_have_their_places_whatever_the_spelling() -> None:
    command = run("{} --onnxrt --engine openvino --engine=reference:float64")
    assert len(command.engine_places) == 3
    assert command.with_engine(0, "X")[3:5] == ("--engine", "X")
    assert command.with_engine(1, "X")[4:6] == ("--engine", "X")
    assert command.with_engine(2, "X")[-1] == "--engine=X"


def test_a_candidate_is_named_by_braces_or_by_the_default_name_however_it_is_spelled() -> None:
    for word in ("{}", "--model={}", NAME, f"./{NAME}"):
        assert parse(["true", word]).names_candidate(NAME)
    assert not parse(["true", f"--model={NAME}"]).names_candidate(NAME)


def test_answers_depend_on_the_files_that_words_name_but_not_on_the_candidate(here: Path) -> None:
    (here / NAME).write_text("")
    assert {"check.py", "golden.json"} <= files("python", "check.py", NAME, "--golden=golden.json", "no-such-file")
    assert NAME not in files("python", "check.py", NAME)


def test_answers_depend_on_the_program(here: Path) -> None:
    assert shutil.which("true") in files("true", "{}")


def test_answers_depend_on_the_files_within_the_code_of_a_shell(here: Path) -> None:
    code = "cd . && A=1 python check.py '{}' >log; if true; then diff out golden.json; fi"
    assert {"check.py", "golden.json", shutil.which("diff")} <= files("sh", "-c", code)
    assert "check.py" in files("env", "A=1", "bash", "-ec", "exec sh -c 'python check.py {}'")
    assert "check.py" in files("sh", "-c", "python check.py 'never closed")


def test_answers_depend_on_a_module_and_its_whole_package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "package" in files("python", "-m", "package", "{}")
    assert "package" in files("python", "-m", "package.part", "{}")
    assert "alone.py" in files("sh", "-c", "python -m alone {}")
    monkeypatch.chdir("/")
    monkeypatch.setenv("PYTHONPATH", str(here))
    assert str(here / "alone.py") in files("python", "-m", "alone", "{}")


def test_what_a_shell_writes_or_goes_to_is_nothing_that_answers_depend_on(here: Path) -> None:
    code = "cd package && python ../check.py {} >golden.json 2>&1 | tee alone.py"
    assert not {"package", "golden.json", "alone.py"} & files("sh", "-c", code)


def test_the_code_of_a_shell_is_split_into_commands() -> None:
    code = "A=1 B= python 'a b.py' <in | sort;(x&&if y; then z 2>&1 >out; fi)\n# it's\n"
    commands = [["python", "a b.py", "in"], ["sort"], ["x"], ["y"], ["z", "2"]]
    assert list(commands_of_shell(code)) == commands


def test_scripts_are_told_from_data_among_the_files_that_words_name(here: Path) -> None:
    named = dict(parse(["python", "check.py", "golden.json", "--also=alone.py"]).files_named())
    assert named == {Path("check.py"): True, Path("golden.json"): False, Path("alone.py"): False}


def test_tracebacks_name_scripts_code_and_modules(here: Path) -> None:
    candidate = Path("c.onnx")
    assert parse(["python", "check.py", "{}"]).user_scripts(candidate, NAME) == (str(here / "check.py"),)
    assert parse(["python", "-c", "code"]).user_scripts(candidate, NAME) == ("<string>",)
    assert parse(["python", "-m", "a.b"]).user_scripts(candidate, NAME) == ("a/b.py", "a/b/__main__.py")


@pytest.mark.parametrize(
    ("options", "prints"),
    [
        ("", False), ("--show attrs", False), ("--show attrs weights", False), ("--mode none", False),
        ("--show layers", True), ("--show attrs layers", True), ("--mode=basic", True), ("--mode attrs", True),
    ],
)  # fmt: skip
def test_it_is_known_whether_a_check_that_inspects_prints_nodes(options: str, prints: bool) -> None:
    command = parse(["biopsy", "inspect", "model", "{}", *options.split()])
    assert isinstance(command, OwnInspect)
    assert command.prints_no_nodes is not prints


@pytest.mark.parametrize(
    "words",
    [
        ("biopsy", "run", "{}", "--engine", "a", "--engine", "b:x=1", "--atol", "1"),
        ("biopsy", "run", "{}", "--engine=a", "--atol", "1", "--engine", "b:x=1"),
        ("biopsy", "run", "{}", "--onnxrt", "--engine", "b:x=1"),
    ],
)
def test_the_first_two_engines_of_a_run_change_places(words: tuple[str, ...]) -> None:
    command = parse(words)
    assert isinstance(command, OwnRun)
    exchanged = command.with_engines_exchanged
    assert exchanged.engines == command.engines[::-1]
    assert exchanged.with_engines_exchanged.words == words
