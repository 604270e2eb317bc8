"""Who is the check, at a terminal: every question can be read, and every answer be taken back."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from biopsy.cli.app import main
from support.command_line import BIN
from support.models import chain, save
from support.predicates import names

QUESTION = b"[p]ass or [f]ail? ([s]kip, [u]ndo, [q]uit) "
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def in_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(chain(6), tmp_path / "m.onnx")


class Terminal:
    """A process on a terminal of its own. ``seen`` is all that came out of it."""

    def __init__(self, *words: str, stdout: object = None) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs if stdout is None else stdout, stderr=theirs, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""

    def read(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self.seen += os.read(self._ours, 4096)
                except OSError:  # the other end is closed
                    return

    def wait_for_question(self, number: int) -> bool:
        end = time.monotonic() + 30
        while self.seen.count(QUESTION) < number and time.monotonic() < end and self.process.poll() is None:
            self.read(0.05)
        return self.seen.count(QUESTION) >= number

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode() + b"\n")

    def close(self) -> int:
        self.read(0.2)
        status = self.process.wait(30)
        os.close(self._ours)
        return status


def candidate() -> list[str]:
    return names(onnx.load("polygraphy_debug.onnx"))


@pytest.mark.slow
def test_a_question_is_not_painted_over_while_the_person_thinks() -> None:
    terminal = Terminal(str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx")
    asked = 0
    while terminal.wait_for_question(asked + 1):
        asked += 1
        terminal.read(0.3)  # long enough for a line that moves to be painted again
        before, _, after = terminal.seen.rpartition(QUESTION)
        assert not after, after
        line = before.replace(b"\r", b"").rpartition(b"\n")[2]
        assert line == b"polygraphy_debug.onnx: ", line
        terminal.type("f" if {"n1", "n4"} <= set(candidate()) else "p")
    assert terminal.close() == 0, terminal.seen
    assert asked > 3
    assert not CONTROL.search(terminal.seen)
    assert names(onnx.load("r.onnx")) == ["n1", "n4"]


def test_where_the_output_goes_into_a_file_the_question_is_still_on_the_terminal() -> None:
    with Path("log.txt").open("wb") as log:
        terminal = Terminal(str(BIN / "biopsy"), "debug", "reduce", "m.onnx", "-o", "r.onnx", stdout=log)
        assert terminal.wait_for_question(1)
        terminal.type("p")
        while terminal.wait_for_question(terminal.seen.count(QUESTION) + 1):
            terminal.type("p")
        assert terminal.close() == 3


def answers(told: list[str]) -> Iterator[str]:
    """``told`` first; from then on the truth."""
    yield from told
    while True:
        yield "f" if {"n1", "n4"} <= set(candidate()) else "p"


@pytest.mark.parametrize("place", range(24))
def test_an_answer_is_taken_back_at_any_question(place: int, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """At each place once: the answer before it was wrong, is taken back there, and does no harm."""
    count = 0
    undone = False

    def answer(question: str) -> str:
        nonlocal count, undone
        truth = "f" if {"n1", "n4"} <= set(candidate()) else "p"
        count += 1
        if count == place + 1 and not undone:
            return "p" if truth == "f" else "f"
        if count == place + 2 and not undone:
            undone = True
            return "u"
        return truth

    monkeypatch.setattr("builtins.input", answer)
    status = main(["debug", "reduce", "m.onnx", "-o", "r.onnx"])
    assert "itself failed" not in capsys.readouterr().err
    if undone:
        assert status == 0
        assert names(onnx.load("r.onnx")) == ["n1", "n4"]


def test_at_the_first_question_there_is_nothing_to_take_back(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    told = answers(["u", "u"])
    monkeypatch.setattr("builtins.input", lambda question: next(told))
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx"]) == 0
    assert "there is no answer to take back" in capsys.readouterr().out


def test_the_question_whether_the_failure_is_masked_can_take_back_that_the_original_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = answers(["p", "u", "f"])
    monkeypatch.setattr("builtins.input", lambda question: next(told))
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx"]) == 0
    assert names(onnx.load("r.onnx")) == ["n1", "n4"]


def test_every_answer_can_be_taken_back_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told = answers(["f", "f", "p", "u", "u", "u"])
    monkeypatch.setattr("builtins.input", lambda question: next(told))
    assert main(["debug", "reduce", "m.onnx", "-o", "r.onnx", "--simplify"]) == 0
    assert names(onnx.load("r.onnx")) == ["n1", "n4"]
