"""Paths that begin with a dash, and lines to paste, mean the same to whoever reads them next."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from biopsy.cli.advice import resume_line
from biopsy.text import line_of
from support.advice import advised
from support.command_line import BIN
from support.models import chain, save
from support.predicates import names

CODE = """
import os, re, sys
names = [name.decode() for name in re.findall(rb"\\x1a[\\x02-\\x05](n\\d+)\\x22", open(sys.argv[-1], "rb").read())]
sys.exit('n1' in names and 'n4' in names)
"""
REST = ("--check",)


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-dash").mkdir()
    save(chain(6), tmp_path / "m.onnx")
    save(chain(6), tmp_path / "-dash" / "m.onnx")
    Path("check it's.py").write_text(CODE)


def biopsy(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [str(BIN / "biopsy"), *words], capture_output=True, text=True, timeout=60, **options
    )


LOOK = ("--fail-regex", "n4", "--check", "biopsy", "inspect", "model", "{}", "--mode=basic")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("m.onnx", "-o", "./-dash/r.onnx", *LOOK),
        ("./-dash/m.onnx", "-o", "./-dash/r.onnx", "--iter-artifact", "./-dash/-c.onnx", *LOOK),
        ("./-dash/m.onnx", "--output=-dash/r.onnx", "--iter-artifact=-dash/c.onnx", *LOOK),
        ("m.onnx", "-o", "./-dash/r.onnx", "--iter-artifact", "./-c.onnx", *LOOK[:-2], "./-c.onnx", "--mode=basic"),
        ("m.onnx", "-o", "./-dash/r.onnx", "--check", "biopsy", "run", "{}", "--openvino"),
    ],
)
def test_a_path_that_begins_with_a_dash_is_a_path_for_everyone(words: tuple[str, ...]) -> None:
    ran = biopsy("debug", "reduce", *words)
    if "--openvino" in words:
        assert ran.returncode in (3, 4), ran.stderr  # it passes, or is not installed: the path was understood
        assert "unrecognized" not in ran.stderr + ran.stdout
        return
    assert ran.returncode == 0, ran.stderr
    assert names(onnx.load("-dash/r.onnx")) == ["n4"]
    (following,) = advised(ran.stdout)
    assert biopsy(*shlex.split(following)[1:]).returncode == 0


@pytest.mark.slow
def test_the_other_commands_hand_them_on_too() -> None:
    save(chain(3, ["Softplus"]), Path("-dash/m.onnx"))
    search = ("--fp16", "-o", "./-dash/r.onnx", "--iter-artifact", "./-dash/c.onnx")
    ran = biopsy("debug", "precision", "./-dash/m.onnx", *search, "--check", "biopsy", "run", "{}", "--onnxrt")
    assert ran.returncode == 0, ran.stderr
    ran = biopsy("debug", "flags", "./-dash/m.onnx", "--check", "biopsy", "run", "{}", "--onnxrt")
    assert "unrecognized" not in ran.stderr + ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("limit", [("--max-checks", "6"), ("--max-checks=6",)])
def test_the_line_to_resume_can_be_pasted_as_it_is(limit: tuple[str, ...]) -> None:
    words = ["debug", "reduce", "m.onnx", "-o", "./-dash/it's $HOME.onnx", "--fresh", "--jobs", "1", *limit]
    ran = biopsy(*words, "--check", sys.executable, "-S", "check it's.py", "--max-checks", "a  b\nc", "{}")
    assert ran.returncode == 5, ran.stderr
    resume = next(line for line in ran.stdout.splitlines() if line.startswith("resume"))
    line = resume.removeprefix("resume").strip()
    assert "--fresh" not in line
    assert shlex.split(line.replace("$'", "'"))[-1] == "{}"
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    pasted = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert pasted.returncode == 0, pasted.stderr
    assert "remembered" in pasted.stdout
    assert names(onnx.load("-dash/it's $HOME.onnx")) == ["n1", "n4"]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
def test_any_words_come_back_from_a_shell(words: list[str]) -> None:
    printed = subprocess.run(
        ["bash", "-c", f'printf "%s\\0" {line_of(["x", *words])}'], capture_output=True, check=True
    ).stdout
    assert printed.decode("utf-8").split("\0")[:-1] == ["x", *words]


def test_names_that_are_no_unicode_come_back_too() -> None:
    word = os.fsdecode(b"caf\xe9'1.onnx")
    printed = subprocess.run(["bash", "-c", f"printf %s {line_of([word])}"], capture_output=True, check=True).stdout
    assert printed == b"caf\xe9'1.onnx"


def test_what_stands_behind_check_is_left_alone() -> None:
    words = ["debug", "reduce", "m", "--fresh", "--max-time", "3s", "--check", "x", "--fresh", "--max-time", "3"]
    assert resume_line(words, REST, ["--max-time"]) == "biopsy debug reduce m --check x --fresh --max-time 3"
