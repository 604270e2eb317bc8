"""A check that is a command: run for each candidate in a process group of its own, never through a shell."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.outcome import Evidence

PLACEHOLDER = "{}"
_KEPT_OUTPUT = 8 << 20  # bytes of the beginning and of the end of a check's output that are looked at
_LEAST_TIMEOUT = 60.0  # seconds
_TIMES_THE_ORIGINAL = 20
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL

_OWN_COMMAND = """\
import sys
sys.path.remove("")
sys.argv[0] = "biopsy"
from biopsy.cli.app import main
sys.exit(main())
"""
"""``python -m biopsy`` would look for modules in the current folder first, where a user may keep an onnx.py."""


class CommandCheck:
    """Runs ``words`` for each candidate. In every word, ``{}`` and the literal ``default_name`` stand for its path.

    ``timeout`` is in seconds, None for no limit.
    """

    def __init__(self, words: Sequence[str], default_name: str, timeout: float | None = None) -> None:
        if not words:
            raise errors.UsageError("--check needs a command", next_steps=["--check biopsy run {} --onnxrt"])
        self.words = tuple(words)
        self.default_name = default_name
        self.timeout = timeout

    automatic = True

    @property
    def names_candidate(self) -> bool:
        """Whether the command says where the candidate's path goes; if not, it knows the default name by itself."""
        return any(PLACEHOLDER in word or word == self.default_name for word in self.words)

    def words_for(self, candidate: Path) -> list[str]:
        """The command for one candidate."""
        return [
            str(candidate) if word == self.default_name else word.replace(PLACEHOLDER, str(candidate))
            for word in self.words
        ]

    def expect(self, seconds: float) -> None:
        """Set the limit, if the user gave none: far more than the original took."""
        if self.timeout is None:
            self.timeout = max(_LEAST_TIMEOUT, _TIMES_THE_ORIGINAL * seconds)

    def cold(self) -> CommandCheck:
        """The check itself: each run is a process of its own."""
        return self

    def close(self) -> None:
        """There is nothing to end: every run ends its own process group."""

    def line(self, candidate: Path) -> str:
        """The command as a person would type it."""
        return shlex.join(self.words_for(candidate))

    def run(self, candidate: Path) -> Evidence:
        """Run the command once. Raises CheckError if it cannot be started, or if its verdict file is not understood."""
        words = self.words_for(candidate)
        with tempfile.TemporaryDirectory(prefix="biopsy-check-") as folder:
            told = Path(folder) / "verdict.json"
            with (Path(folder) / "output").open("w+b") as output:
                started = time.monotonic()
                status, timed_out = self._run(words, output, told)
                seconds = time.monotonic() - started
                said = verdict.believed(verdict.read(told), status)
                return Evidence(status, _both_ends(output), said, seconds, timed_out)

    def _run(self, words: list[str], output: BinaryIO, told: Path) -> tuple[int, bool]:
        try:
            process = subprocess.Popen(
                [*program(words[0]), *words[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, verdict.VARIABLE: str(told)},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _cannot_start(words, error) from error
        try:
            return process.wait(self.timeout), False
        except subprocess.TimeoutExpired:
            return _end(process), True
        finally:
            _end(process)


def program(word: str) -> list[str]:
    """The words that start a program. ``biopsy`` is this very installation, also where it is not on the PATH."""
    if word == "biopsy":
        return [sys.executable, "-c", _OWN_COMMAND]
    if word == "polygraphy" and shutil.which(word) is None:
        beside = Path(sys.executable).with_name(word)
        return [str(beside)] if beside.exists() else [word]
    return [word]


def own_words(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words after the program's name if a command is our own, typed as ``biopsy`` or as the alias; else None."""
    if not words:
        return None
    if Path(words[0]).name == "biopsy" or (Path(words[0]).name == "polygraphy" and _alias_installed()):
        return tuple(words[1:])
    return None


def _alias_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("polygraphy-is-biopsy")
    except PackageNotFoundError:
        return False
    return True


def _cannot_start(words: Sequence[str], error: Exception) -> errors.CheckError:
    steps = []
    if isinstance(error, FileNotFoundError):
        reason = f"there is no program '{words[0]}'"
        if Path(words[0]).exists() and "/" not in words[0]:
            steps = [f"--check ./{shlex.join(words)}"]
    elif isinstance(error, PermissionError):
        reason = f"'{words[0]}' may not be executed"
        steps = [f"chmod +x {words[0]}"]
    else:
        reason = str(error)
    return errors.CheckError(f"the check could not be run: {reason}", kept="nothing was concluded", next_steps=steps)


def _end(process: subprocess.Popen[bytes]) -> int:
    """End every process of the group that is left, politely first; returns the status of the first one."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    _signal_group(process, signal.SIGKILL)
    return process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # everyone has gone; macOS says so by EPERM
        os.killpg(process.pid, number)


def _both_ends(output: BinaryIO) -> bytes:
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    if size <= 2 * _KEPT_OUTPUT:
        return output.read()
    start = output.read(_KEPT_OUTPUT)
    output.seek(-_KEPT_OUTPUT, os.SEEK_END)
    return start + b"\n[... cut by biopsy ...]\n" + output.read()
