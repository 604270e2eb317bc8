"""A check that is a command: run for each candidate in a process group of its own, never through a shell."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.outcome import Evidence
from biopsy.checks.signature import status_text
from biopsy.checks.words import as_word, names_path
from biopsy.filesystem.plain_file import open_plain
from biopsy.isolation import cleanup, process
from biopsy.isolation.interpreter import own_python
from biopsy.isolation.watch import Ended, Limits, StillRunningError, Stop
from biopsy.shell_words import line_of
from biopsy.text import printable

PLACEHOLDER = "{}"
ARBITER = "--tell-rounding"
"""The option of ``run``, not in its help, that makes it judge a mismatch against float64."""
LOAD_INPUTS = ("--load-inputs", "--load-input-data")
"""The option of our own ``run`` that names files of inputs, and its other spelling."""

_NOTHING_CONCLUDED = frozenset({2, 4, 5})
"""The exit statuses with which our own commands say that they have no answer: wrong usage, no answer, interrupted."""

_LAST_LINES = 5
_MOST_OF_A_LINE = 300
_LOOKED_AT = 1 << 13
"""Bytes of the end of what a check printed, for a message."""

_LONGEST_FIRST_LINE = 256  # bytes, as much as Linux reads of it

_LEAST_TIMEOUT = 60.0  # seconds
_TIMES_THE_ORIGINAL = 20


class CommandCheck:
    """Runs ``words`` for each candidate. In every word, ``{}`` and the literal ``default_name`` stand for its path.

    ``timeout`` is in seconds, ``memory`` in bytes; None for no limit.
    """

    def __init__(
        self, words: Sequence[str], default_name: str, timeout: float | None = None, memory: int | None = None
    ) -> None:
        if not words:
            raise errors.UsageError("--check needs a command", next_steps=["--check biopsy run {} --onnxrt"])
        self.words = tuple(words)
        self.default_name = default_name
        self.timeout = timeout
        self.memory = memory
        self.limit_given = timeout

    automatic = True
    stoppable = True

    @property
    def names_candidate(self) -> bool:
        """Whether the command says where the candidate's path goes; if not, it knows the default name by itself."""
        return any(PLACEHOLDER in word or names_path(word, self.default_name) for word in self.words)

    def words_for(self, candidate: Path) -> list[str]:
        """The command for one candidate."""
        path = as_word(candidate)
        return [path if names_path(word, self.default_name) else word.replace(PLACEHOLDER, path) for word in self.words]

    def expect(self, seconds: float) -> None:
        """Set the limit, if the user gave none: far more than the original took."""
        if self.timeout is None:
            self.timeout = max(_LEAST_TIMEOUT, _TIMES_THE_ORIGINAL * seconds)

    @property
    def _limits(self) -> Limits:
        return Limits(self.timeout, self.memory)

    def glance(self) -> CommandCheck:
        """Our own ``run`` ends at the first output that is wrong; any other command is as it is."""
        own = own_words(self.words)
        return self._with(with_options(self.words, "--fail-fast")) if own and own[0] == "run" else self

    def arbiter(self) -> CommandCheck | None:
        """Our own ``run`` judges what it finds wrong against float64 too; None for any other command."""
        own = own_words(self.words)
        return self._with(with_options(self.words, ARBITER)) if own and own[0] == "run" else None

    def fed(self, inputs: Path) -> CommandCheck:
        """Our own ``run`` with inputs of another file in place of those that it loads."""
        return self._with(with_options(_without_option(self.words, LOAD_INPUTS), LOAD_INPUTS[0], str(inputs)))

    def _with(self, words: tuple[str, ...]) -> CommandCheck:
        return CommandCheck(words, self.default_name, self.timeout, self.memory)

    def cold(self) -> CommandCheck:
        """The check itself: each run is a process of its own."""
        return self

    def close(self) -> None:
        """There is nothing to end: every run ends its own process group."""

    def line(self, candidate: Path) -> str:
        """The command as a person would type it."""
        return line_of(self.words_for(candidate))

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Run the command once, unless ``stop`` ends it before.

        Raises CheckError if it cannot be started, or if its verdict file is not understood.
        """
        words = self.words_for(candidate)
        try:
            with cleanup.temporary_folder("biopsy-check-") as folder:
                told = folder / "verdict.json"
                started = time.monotonic()
                ended = self._run(words, told, stop)
                seconds = time.monotonic() - started
                if ended.cause != "itself":
                    cleanup.end_marked([str(folder)])
                said = _meant(verdict_of(told, ended), ended, self.words)
                return _evidence(ended, said, seconds, str(candidate), self._scripts(candidate))
        except StillRunningError as error:
            raise errors.CheckError(f"the check (process {error.pid}) does not end, not even by SIGKILL") from error
        except OSError as error:
            raise errors.CheckError(
                f"the check could not be run: {error.strerror or error}"
                + (f" ({error.filename})" if error.filename else ""),
            ) from error

    def _scripts(self, candidate: Path) -> tuple[str, ...]:
        """The files among the words, and what stands for other ways to name a program of one's own in Python."""
        words = [word for word in self.words_for(candidate) if word != str(candidate)]
        # Links stay, as in tracebacks; a word may be no path at all.
        files = [os.path.abspath(word) for word in words if os.path.isfile(word)]  # noqa: PTH100, PTH113
        after = dict(pairwise(words))
        if "-c" in after:
            files.append("<string>")
        if "-m" in after:
            module = after["-m"].replace(".", "/")
            files += [f"{module}.py", f"{module}/__main__.py"]
        return tuple(files)

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        command = [*program(words[0]), *words[1:]]
        environment = {cleanup.VERDICT_VARIABLE: str(told)}
        try:
            return process.run(command, lambda: self._limits, stop, environment=environment)
        except process.CannotStartError as error:
            raise _cannot_start(words, error.reason, self.words) from error


def verdict_of(told: Path, ended: Ended) -> verdict.VerdictFile:
    """What a check reported of itself; what it was killed while writing counts for nothing. Raises CheckError."""
    try:
        return verdict.read(told)
    except errors.CheckError:
        if ended.status >= 0 and ended.cause == "itself":
            raise
        return verdict.VerdictFile()


def _meant(said: verdict.VerdictFile, ended: Ended, words: Sequence[str]) -> verdict.VerdictFile:
    """What a check's words mean beside how it ended. Our own command that died of something else was not run."""
    own = own_words(words)
    if own is None or ended.cause == "stop":
        return verdict.believed(said, ended.status)
    if not said.has_looked and (ended.status != 0 or own[:1] == ("run",)):
        return verdict.VerdictFile("infrastructure", kind="NeverLooked", message=_never_looked(ended, words))
    if not said.outcome and ended.cause == "itself" and ended.status in _NOTHING_CONCLUDED:
        reason = f"the check concluded nothing ({status_text(ended.status)}){last_words(ended.output)}"
        return verdict.VerdictFile("infrastructure", kind="NothingConcluded", message=reason)
    return verdict.believed(said, ended.status)


def _never_looked(ended: Ended, words: Sequence[str]) -> str:
    causes = {"time": "no answer in time", "memory": "more memory than --check-memory allows"}
    how = causes.get(ended.cause) or status_text(ended.status)
    other = "" if words[0] == "biopsy" else "; if it is an older biopsy, or no biopsy, call it in a script of your own"
    return f"the check ended before it looked at the model ({how}){other}{last_words(ended.output)}"


def last_words(output: bytes) -> str:
    """The last lines of what a process printed, to be put behind a sentence; nothing if it printed nothing."""
    lines = [line for line in output[-_LOOKED_AT:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line[:_MOST_OF_A_LINE]}" for line in lines[-_LAST_LINES:])


def _evidence(
    ended: Ended, said: verdict.VerdictFile, seconds: float, candidate: str, scripts: tuple[str, ...]
) -> Evidence:
    timed_out, out_of_memory = ended.cause == "time", ended.cause == "memory"
    return Evidence(ended.status, ended.output, said, seconds, timed_out, out_of_memory, candidate, scripts)


def program(word: str) -> list[str]:
    """The words that start a program. ``biopsy`` is this very installation, also where it is not on the PATH."""
    if word == "biopsy":
        return own_python("biopsy.cli.app")
    if word == "polygraphy" and shutil.which(word) is None:
        beside = Path(sys.executable).with_name(word)
        return [str(beside)] if beside.exists() else [word]
    return [word]


def with_options(words: Sequence[str], *added: str) -> tuple[str, ...]:
    """The words of a command line with more options: what stands behind ``--`` are operands, however it looks."""
    end = _end_of_options(words)
    return (*words[:end], *added, *words[end:])


def _end_of_options(words: Sequence[str]) -> int:
    return list(words).index("--") if "--" in words else len(words)


def _without_option(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """The words without an option, in any of its spellings, and without what follows it up to the next option."""
    kept: list[str] = []
    inside = False
    end = _end_of_options(words)
    for word in words[:end]:
        if word.startswith("-"):
            inside = word in names
            if inside or any(word.startswith(f"{name}=") for name in names):
                continue
        if not inside:
            kept.append(word)
    return [*kept, *words[end:]]


def own_words(words: Sequence[str]) -> tuple[str, ...] | None:
    """The words after the program's name if a command is our own, typed as ``biopsy`` or as the alias; else None."""
    if not words:
        return None
    if Path(words[0]).name == "biopsy" or (Path(words[0]).name == "polygraphy" and _alias_installed()):
        return tuple(words[1:])
    return None


def is_this_installation(word: str) -> bool:
    """Whether a program of our name is what runs here, and not another one of that name, named by its path."""
    if word == "biopsy":
        return True
    found = Path(shutil.which(word) or Path(sys.executable).with_name(word))
    try:
        return found.parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False


def _alias_installed() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("polygraphy-is-biopsy")
    except PackageNotFoundError:
        return False
    return True


def _is_nowhere(word: str) -> bool:
    """Whether no folder of the PATH is seen to have a program of this name.

    One folder there that may not be searched is what the system then tells of, as of a file without permission.
    """
    if "/" in word:
        return False
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return not any(os.path.isfile(os.path.join(folder, word)) for folder in folders)  # noqa: PTH113, PTH118 -- any word


@dataclass(frozen=True)
class _Script:
    """A text file that is to be run: ``interpreter`` is what its first line names, "" if that is no ``#!`` line."""

    path: Path
    interpreter: str

    @property
    def reader(self) -> str:
        """What can read it by its name."""
        return "python" if self.path.suffix == ".py" else "bash"


def _script(word: str) -> _Script | None:
    """The script that a word names; None if it is a program, or may not be looked at."""
    path = Path(word) if "/" in word else Path(shutil.which(word) or word)
    if not ("/" in word or path.is_absolute()):
        return None  # the system looks only in the folders of the PATH
    try:
        with open_plain(path, follow=True) as stream:
            begin = stream.read(_LONGEST_FIRST_LINE)
    except OSError:
        return None
    if b"\0" in begin:
        return None
    first = begin.partition(b"\n")[0]
    named = first[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")[0] if first.startswith(b"#!") else b""
    return _Script(path, named.decode("utf-8", "surrogateescape"))


def _wants_interpreter(error: Exception) -> bool:
    return isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno == errno.ENOEXEC)


def _cannot_start(words: Sequence[str], error: Exception, given: Sequence[str]) -> errors.CheckError:
    steps = []
    script = _script(words[0])
    interpreter = script.interpreter if script is not None else ""
    if script is not None and not interpreter and _wants_interpreter(error):
        reason = f"'{printable(words[0])}' has no #! line, so no program can read it"
        steps = [f"--check {line_of([script.reader, *given])}"]
    elif interpreter and isinstance(error, FileNotFoundError):
        ends = " (Windows line ends)" if interpreter.endswith("\r") else ""
        reason = f"the first line of '{printable(words[0])}' names '{printable(interpreter)}', which is not there{ends}"
        if ends and script is not None:
            mended = line_of(["sed", "-i", r"s/\r$//", as_word(script.path)])
            steps = [f"{mended}    takes them away"]
    elif isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and _is_nowhere(words[0])):
        reason = f"there is no program '{printable(words[0])}'"
        if len(words[0].split()) > 1:
            steps = [f"remove the quotes: --check {given[0]} {line_of(given[1:])}"]
        elif Path(words[0]).exists() and "/" not in words[0]:
            steps = [f"--check ./{line_of(words)}"]
    elif isinstance(error, PermissionError):
        reason = f"'{printable(words[0])}' may not be executed"
        steps = [f"chmod +x {line_of(words[:1])}"]
    else:
        reason = str(error)
    return errors.CheckError(f"the check could not be run: {reason}", next_steps=steps)
