"""A program that is missing is told as missing, whatever stands in the PATH beside where it could be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from biopsy import errors
from biopsy.checks.command import CommandCheck


def why(word: str) -> str:
    with pytest.raises(errors.CheckError) as raised:
        CommandCheck([word, "{}"], "c.onnx").run(Path("c.onnx"))
    return raised.value.message


def test_an_entry_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for entry in (tmp_path / "file", tmp_path / "nowhere", tmp_path / "a\nb"):
        monkeypatch.setenv("PATH", f"{entry}{os.pathsep}/usr/bin")
        assert "there is no program 'no-such-program'" in why("no-such-program")


def test_a_program_that_is_there_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "check").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "'check' may not be executed" in why("check")
    assert "may not be executed" in why(str(tmp_path / "check"))


MISSING = """
import difflib, os, subprocess, sys  # what is imported later could not be read then
from biopsy.checks.command import cannot_start
os.environ["PATH"] = sys.argv[1] + ":/usr/bin:/bin"
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for word in ("no-such-program", "ls"):
    try:
        subprocess.run([word, "-d", "/"], stdout=subprocess.DEVNULL)
        print("it runs")
    except OSError as error:
        print(type(error).__name__, cannot_start([word], error, [word]).message)
"""


def test_an_entry_that_may_not_be_searched(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o000)
    line = [sys.executable, "-c", MISSING, str(tmp_path / "locked")]
    told = subprocess.run(line, cwd="/", capture_output=True, text=True, timeout=60)
    assert not told.stderr
    missing, there = told.stdout.splitlines()
    assert missing == "PermissionError the check could not be run: there is no program 'no-such-program'"
    assert there == "it runs"
