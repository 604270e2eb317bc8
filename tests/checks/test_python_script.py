"""Which words have Python run a script, as far as that is certain."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from biopsy.checks.command_line import PythonScript, python_script

NAME = "polygraphy_debug.onnx"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="scripts are kept warm on Linux only")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "check.py").write_text("pass\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "options",
    ["", "-u", "-uB", "-O -s", "-W error", "-Werror", "-uW error", "-X dev", "-Xdev -P"],
)
def test_an_interpreter_may_have_options_before_the_script(options: str) -> None:
    before = ("python3", *options.split())
    assert python_script([*before, "check.py", "{}", "-c"], NAME) == PythonScript(
        name="check.py",
        interpreter=Path(shutil.which("python3") or ""),
        before=before,
        given=len(before) + 1,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["python3"], ["python3", "-c", "pass"], ["python3", "-m", "check"], ["python3", "-"],
        ["python3", "-uc", "pass"],
        ["python3", "-I", "check.py"], ["python3", "-E", "check.py"], ["python3", "-S", "check.py"],
        ["python3", "-i", "check.py"], ["python3", "--version"], ["python3", "-W"], ["python3", "no.py"],
        ["python3", "bin"], ["python3", "{}"], ["python3", NAME], ["python3", "-W{}", "check.py"], ["sh", "check.py"],
        ["check.py"], ["no-such-program", "check.py"], ["env", "python3", "check.py"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_not_understood_is_no_script(words: list[str]) -> None:
    assert python_script(words, NAME) is None


def test_a_program_that_is_called_python_and_is_a_script_is_none(folder: Path) -> None:
    """It may run Python more than once, or something before it."""
    wrapper = executable(folder / "python", '#!/bin/sh\nexec python3 "$@"\n')
    assert python_script([wrapper, "check.py", "{}"], NAME) is None
    assert python_script([executable(folder / "with", f"#!{wrapper}\n")], NAME) is None


@pytest.mark.parametrize(
    ("first", "before"),
    [
        (f"#!{sys.executable}", (sys.executable,)),
        (f"#! {sys.executable} -u", (sys.executable, "-u")),
        ("#!/usr/bin/env python3", ("python3",)),
        ("#!/usr/bin/env -S python3 -u -B", ("python3", "-u", "-B")),
    ],
)
def test_a_first_line_may_name_the_interpreter(first: str, before: tuple[str, ...], folder: Path) -> None:
    path = executable(folder / "checker", f"{first}\npass\n")
    script = python_script([path, "{}", "more"], NAME)
    assert script is not None
    assert (script.name, script.before, script.given) == (path, before, 1)
    assert script.argv([path, "m.onnx", "more"]) == [path, "m.onnx", "more"]


@pytest.mark.parametrize(
    "first", ["#!/bin/sh", "#!/usr/bin/env", "#!/usr/bin/env python3 -u", "#!/usr/bin/env -i python3", "#!", "python3"]
)
def test_a_first_line_that_is_not_understood_makes_no_script(first: str, folder: Path) -> None:
    assert python_script([executable(folder / "checker", f"{first}\npass\n"), "{}"], NAME) is None


def test_a_script_of_one_endless_line_is_none(folder: Path) -> None:
    assert python_script([executable(folder / "checker", f"#!{sys.executable}" + " " * 300), "{}"], NAME) is None
