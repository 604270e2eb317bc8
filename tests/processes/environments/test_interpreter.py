"""Interpreters: found by version or path, with the tags of wheels that each takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.processes.environments.interpreter import interpreter_of
from packaging import tags


def test_this_interpreter_takes_the_wheels_that_it_says_itself() -> None:
    found = interpreter_of()
    assert list(found.tags) == [str(tag) for tag in tags.sys_tags()]
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_it_is_the_same_from_every_environment_that_is_made_with_it(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(interpreter_of().path)
    assert interpreter_of(str(link)) == interpreter_of()


def test_its_own_version_is_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert interpreter_of(f"3.{sys.version_info[1]}") == interpreter_of()


@pytest.mark.parametrize(
    "minor", [12, *(pytest.param(minor, marks=pytest.mark.slow) for minor in (8, 9, 10, 11, 13, 14))]
)
def test_another_version_takes_the_wheels_for_it(minor: int) -> None:
    try:
        found = interpreter_of(f"3.{minor}")
    except errors.UsageError:
        pytest.skip("not on this machine")
    assert found.version.startswith(f"3.{minor}.")
    assert found.tags[0].startswith(f"cp3{minor}-cp3{minor}")
    assert found.tags[-1] == "py30-none-any"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("3.99", "there is no Python 3.99 on this machine"),
        ("2.7", "Python 2.7 is too old: 3.8 is the oldest that can be used"),
        ("no-such-program", "there is no program 'no-such-program' that could be a Python"),
        ("/bin/true", "/bin/true is not a Python that works here"),
        ("/bin/false", "/bin/false is not a Python that works here"),
    ],
)
def test_what_is_no_python_is_told(text: str, told: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        interpreter_of(text)
    assert caught.value.message == told


def test_a_program_that_claims_another_machine_is_refused(tmp_path: Path) -> None:
    facts = {"path": "/x", "version": "3.11.0", "implementation": "cpython", "machine": "another", "libc": None}
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    program.chmod(0o755)
    with pytest.raises(errors.UsageError, match="another machine"):
        interpreter_of(str(program))


def test_modules_of_the_user_do_not_get_into_the_question(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit")
    code = (
        "from biopsy.processes.environments.interpreter import interpreter_of; print(interpreter_of('python3').version)"
    )
    (tmp_path / "run").mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == interpreter_of().version, done.stderr
