"""The command tree: help, versions, statuses, and what starting up may cost."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.cli import commands
from biopsy.cli.app import main
from biopsy.cli.commands import ABSENT, COMMANDS, GROUPS, find

WORDS = [" ".join(command.words) for command in COMMANDS]
HEAVY = ("numpy", "onnx", "onnxruntime", "rich", "safetensors", "openvino", "google.protobuf")


@pytest.mark.parametrize("command", WORDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"biopsy {command}" in shown.splitlines()[0]
    assert "--verbose" in shown


@pytest.mark.parametrize("command", WORDS)
def test_every_option_of_every_command_is_explained(command: str) -> None:
    import argparse
    import importlib

    parser = argparse.ArgumentParser()
    importlib.import_module(commands.find(command.split()).module).configure(parser)
    assert [action.dest for action in parser._actions if not action.help] == []


def test_the_overview_names_every_command_and_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"  {command}  " in shown for command in WORDS)
        assert all(f"  {status}  " in shown for status in range(6))


@pytest.mark.parametrize("words", ABSENT, ids=" ".join)
def test_a_command_of_polygraphy_that_is_not_here_says_why_and_what_to_use(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert find(words) is None
    assert main([*words, "--help"]) == main([*words, "model.onnx"]) == 2
    told = capsys.readouterr().err
    assert f"Polygraphy's command '{' '.join(words)}' is not here: " in told
    for named in re.findall(r"biopsy ((?:(?:debug|inspect|surgeon) )?[a-z][a-z-]*)", told):
        assert find(named.split()) is not None or named in (*GROUPS, "only", "has", "does", "runs"), named


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all((f"  {command}  " in shown) is command.startswith(group) for command in WORDS)
    assert main([group]) == 2  # half a command is not a command, though its help is what is wanted


@pytest.mark.parametrize(
    ("words", "named", "next_step"),
    [
        (["reduce"], "there is no command 'reduce'", "biopsy --help"),
        (["debug", "reduc"], "there is no command 'debug reduc'", "biopsy debug --help"),
        (["--no-such-option"], "there is no command '--no-such-option'", "biopsy --help"),
        (["run", "m.onnx", "--no-such-option"], "--no-such-option", "biopsy run --help"),
        (["run"], "MODEL", "biopsy run --help"),
        (["run", "m.onnx", "--onnxrt", "--iter", "3"], "--iter", "biopsy run --help"),
    ],
)
def test_a_wrong_command_line_is_status_2_with_the_way_on(
    words: Sequence[str], named: str, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert named in told
    assert f"next  {next_step}" in told


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main([option]) == 0
    assert capsys.readouterr().out == f"biopsy {version('biopsy')}\n"


def test_every_exception_has_the_status_that_is_documented() -> None:
    statuses = {
        errors.BiopsyError: 4,
        errors.UsageError: 2,
        errors.ModelError: 4,
        errors.DataError: 4,
        errors.CannotCompare: 4,
        errors.EngineMissing: 4,
        errors.EngineFailure: 1,
        errors.CheckError: 4,
        errors.OriginalPasses: 3,
        errors.Interrupted: 5,
    }
    assert {error: error.status for error in statuses} == statuses


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        (errors.OriginalPasses("it passes"), 3, "error: it passes"),
        (errors.Interrupted("stopped", kept="r.onnx"), 5, "interrupted: stopped\n  kept  r.onnx"),
        (KeyboardInterrupt(), 5, "interrupted: "),
        (ZeroDivisionError("oh"), 4, "error: biopsy itself failed: ZeroDivisionError: oh"),
    ],
)
def test_whatever_ends_a_command_becomes_a_message_and_a_status(
    raised: BaseException,
    status: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> int:
        raise raised

    monkeypatch.setattr("biopsy.cli.doctor.execute", fail)
    assert main(["doctor"]) == status
    shown = capsys.readouterr().err
    assert told in shown
    assert "Traceback" not in shown
    assert main(["doctor", "-vv"]) == status
    if not isinstance(raised, KeyboardInterrupt):
        assert "Traceback" in capsys.readouterr().err


def imported(*words: str) -> set[str]:
    """The heavy packages that a process of ours has imported when it ends."""
    code = (
        "import sys; from biopsy.cli.app import main; status = main(sys.argv[1:]); "
        f"print('IMPORTED', *(name for name in {HEAVY!r} if name in sys.modules)); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("IMPORTED")[2].split())


@pytest.mark.parametrize("words", [["--help"], ["debug", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert imported(*words) == set()


def test_a_defect_shows_where_it_is_with_vv_even_before_options_are_parsed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("biopsy.cli.app._dispatch", lambda *words, **more: 1 / 0)
    assert main(["check", "lint", "model.onnx", "-vv"]) == 4
    said = capsys.readouterr().err
    assert "biopsy itself failed: ZeroDivisionError" in said and "test_app.py" in said


def test_help_of_no_command_imports_an_engine_or_rich() -> None:
    code = f"""
import sys
from biopsy.cli.app import main
for command in {WORDS!r}:
    assert main([*command.split(), "--help"]) == 0
    loaded = {{"onnx", "onnxruntime", "openvino", "rich"}} & sys.modules.keys()
    assert not loaded, f"{{command}}: {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_process_of_warm_checks_starts_before_anything_slow_is_imported(tmp_path: Path) -> None:
    code = """
import sys
import biopsy.processes.process as process

def started(words, **others):
    print("IMPORTED", *sys.modules)
    raise process.CannotStartError(OSError("not now"))

process.Process = started
from biopsy.cli.app import main
main(sys.argv[1:])
"""
    words = ["debug", "reduce", "missing.onnx", "--check", "biopsy", "run", "{}", "--onnxrt"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path)
    line = next(line for line in done.stdout.splitlines() if line.startswith("IMPORTED"))
    loaded = set(line.split())
    assert loaded & set(HEAVY) == set()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("biopsy.")}
    assert rooms == {"checks", "cli", "errors", "processes", "text"}


@pytest.mark.parametrize(
    "words",
    [
        ["missing.onnx", "--check", "biopsy", "run", "{}", "--onnxrt"],
        ["m.onnx", "-o", "m.onnx", "--check", "biopsy", "run", "{}", "--onnxrt"],
        ["m.onnx", "--check", "biopsy", "run", "{}", "--onnxrt", "--max-time", "3"],
    ],
)
def test_a_command_that_cannot_begin_leaves_no_process_that_warms_up(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from biopsy.processes.warm import ForkServer

    begun: list[ForkServer] = []
    start = ForkServer.__init__

    def started(server: ForkServer, *given: str, **others: int) -> None:
        start(server, *given, **others)
        begun.append(server)

    monkeypatch.setattr(ForkServer, "__init__", started)
    assert main(["debug", "reduce", *words]) == 2
    (server,) = begun
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_module_of_the_same_name_starts_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "biopsy", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: biopsy COMMAND")


@pytest.mark.parametrize(
    ("words", "step"),
    [
        (["run", "m.onnx", "--onxrt"], "did you mean '--onnxrt'?"),
        (["run", "m.onnx", "--saveoutputs=x.npz"], "did you mean '--save-outputs'?"),
        (["reduce", "m.onnx"], "did you mean 'debug reduce'?"),
        (["redcue", "m.onnx"], "did you mean 'debug reduce'?"),
        (["debug", "redcue"], "did you mean 'debug reduce'?"),
        (["dbug", "redcue"], "did you mean 'debug reduce'?"),
        (["inspect", "reduce"], "did you mean 'debug reduce'?"),
        (["data", "mrge"], "did you mean 'data merge'?"),
        (["help", "rnu"], "did you mean 'run'?"),
        (["Run"], "did you mean 'run'?"),
        (["debug", "reduce", "m.onnx", "--mode", "bisct"], "did you mean 'bisect'?"),
        (["run", "m.onnx", "--engine", "onnxr"], "did you mean 'onnxrt'?"),
        (["--verbosity", "ino", "run"], "did you mean 'info'?"),
        (["rnu", "m.onnx"], "did you mean 'run'?"),
    ],
)
def test_what_is_mistyped_is_told_with_what_is_nearest(
    words: list[str], step: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["biopsy"])
    assert main(words) == 2
    assert f"  hint  {step}\n" in capsys.readouterr().err
