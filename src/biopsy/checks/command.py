"""A check that is a command: run for each candidate in a process group of its own, or in a fork of a warm process;
and why it could not be started.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.command_line import CommandLine, OwnCommand, OwnInspect, OwnRun, parse
from biopsy.checks.judge import status_text
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.words import NAME, NO_SETTINGS, SETTINGS_VARIABLE, as_word, names_undone, start_words
from biopsy.processes import cleanup, process
from biopsy.processes.forks import START_VARIABLE
from biopsy.processes.reading import open_plain, similar_files
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.warm import ForkServer, ServerGoneError
from biopsy.processes.watch import Ended, Limits, StillRunningError, Stop
from biopsy.text import ask_for, count, did_you_mean, line_of, printable

ARBITER = "--tell-rounding"
"""The option of ``run``, not in its help, that makes it judge a mismatch against float64."""

_NOTHING_CONCLUDED = frozenset({2, 4, 5})
"""The exit statuses with which our own commands say that they have no answer: wrong usage, no answer, interrupted."""

_Runner: TypeAlias = Callable[[list[str], Path, Stop | None], Ended]
"""Runs words that say their verdict in this file, unless they are stopped."""

_LAST_LINES = 5
_MOST_OF_A_LINE = 300
_LOOKED_AT = 1 << 13
"""Bytes of the end of what a check printed, for a message."""

_LEAST_TIMEOUT = 60.0  # seconds
_TIMES_THE_ORIGINAL = 20


class CommandCheck(Check):
    """Runs ``words`` for each candidate. In every word, ``{}`` and the literal ``default_name`` stand for its path.

    ``timeout`` is in seconds, ``memory`` in bytes; None for no limit. ``environment`` are variables that it finds
    besides those of this process; None for one that it does not find.
    """

    stoppable = True

    def __init__(
        self,
        words: Sequence[str],
        default_name: str,
        timeout: float | None = None,
        memory: int | None = None,
        *,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        if not words:
            raise errors.UsageError("--check needs a command", next_steps=["--check biopsy run {} --onnxrt"])
        self.command = parse(words)
        self.words = self.command.words  # as they were typed
        self.sees_values = not isinstance(self.command, OwnInspect)
        self.names_candidate = self.command.names_candidate(default_name)
        self.default_name = default_name
        self.timeout = timeout
        self.memory = memory
        self.environment = dict(environment or {})
        self._timeout_of_user = timeout
        self._has_remarked = False
        self._files: Mapping[Path, Path] = {}
        self._original: CommandCheck | None = None

    @property
    def given(self) -> tuple[Sequence[str], str, float | None, int | None]:
        """What makes another check of the same command, with the limits of now."""
        return self.words, self.default_name, self.timeout, self.memory

    def names_file(self, path: Path) -> bool:
        """Whether the command says where a file stands, in each place that speaks of it."""
        return self.command.names_file(path)

    def with_files(self, files: Mapping[Path, Path]) -> CommandCheck:
        """The same command with other files in its words; what is learned of its limits holds for this one too."""
        self.start()  # once, and not for each run
        check = self._with(self.command.with_files(files))
        check._files, check._original = files, self
        return check

    @property
    def settings(self) -> Mapping[str, str]:
        """The command and its limits; a limit that follows from the original is none of them."""
        limits = {"option --check-timeout": str(self._timeout_of_user), "option --check-memory": str(self.memory)}
        return {**super().settings, **limits}

    @property
    def files(self) -> Sequence[Path]:
        """Those that the words name or hold, and the programs."""
        return list(dict.fromkeys([*self.command.files(self.default_name), *self.programs]))

    @property
    def programs(self) -> Sequence[Path]:
        """The scripts among the words, and the modules that Python finds beside them."""
        return self.command.programs(self.default_name)

    def expect(self, seconds: float) -> None:
        """Set the limit, if the user gave none: far more than the original took."""
        if self.timeout is None:
            self.timeout = max(_LEAST_TIMEOUT, _TIMES_THE_ORIGINAL * seconds)

    @property
    def of_files(self) -> tuple[CommandCheck, Mapping[Path, Path]]:
        """The check of the files that the user has named, and those that stand for some of them in this one."""
        return self if self._original is None else self._original, self._files

    @property
    def limits(self) -> Limits:
        """What a run may use now."""
        return Limits(self.timeout, self.memory) if self._original is None else self._original.limits

    def glance(self) -> CommandCheck:
        """Our own ``run`` ends at the first output that is wrong; any other command is as it is."""
        own = self.command
        return self._with(own.with_options("--fail-fast")) if isinstance(own, OwnRun) else self

    def arbiter(self) -> CommandCheck | None:
        """Our own ``run`` judges what it finds wrong against float64 too; None for any other command."""
        own = self.command
        return self._with(own.with_options(ARBITER)) if isinstance(own, OwnRun) else None

    def fed(self, inputs: Path) -> CommandCheck:
        """Our own ``run`` with inputs of another file in place of those that it loads. Only for that command."""
        own = self.command
        assert isinstance(own, OwnRun)
        return self._with(own.with_inputs(inputs))

    def _with(self, command: CommandLine) -> CommandCheck:
        return CommandCheck(command.words, self.default_name, self.timeout, self.memory, environment=self.environment)

    def cold(self) -> CommandCheck:
        """The check itself: each run is a process of its own."""
        return self

    def line(self, candidate: Path) -> str:
        """The command as a person would type it."""
        return line_of(self.words_for(candidate))

    def words_for(self, candidate: Path) -> list[str]:
        """The command for one candidate."""
        return self.command.words_for(candidate, self.default_name)

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Run the command once, unless ``stop`` ends it before.

        Raises CheckError if it cannot be started, or if its verdict file is not understood.
        """
        return self._evidence(candidate, stop, self._run)

    def _evidence(self, candidate: Path, stop: Stop | None, run: _Runner) -> Evidence:
        """What a run of the command leaves."""
        words = self.words_for(candidate)
        try:
            with cleanup.temporary_folder("biopsy-check-") as folder:
                told = folder / "verdict.json"
                started = time.monotonic()
                ended = process.run_marked(f"{VERDICT_VARIABLE}={folder}/", lambda: run(words, told, stop))
                seconds = time.monotonic() - started
                check = self._original or self
                is_ours = isinstance(self.command, OwnCommand)  # an interpreter of another release ends a moment after
                remark = ""
                if ended.left and ended.cause == "itself" and not (is_ours or check._has_remarked):
                    check._has_remarked = True
                    left = f"left {count(ended.left, 'process', 'processes')} in the background, which ended with it"
                    remark = f"checks     a check {left}: --keep-processes keeps them"
                said = _verdict(verdict_of(told, ended), ended, self.command)
                return Evidence(
                    status=ended.status,
                    output=names_undone(ended.output, self._files),
                    verdict=replace(said, message=names_undone(said.message, self._files)),
                    seconds=seconds,
                    timed_out=ended.cause == "time",
                    out_of_memory=ended.cause == "memory",
                    candidate=str(candidate),
                    scripts=self.command.user_scripts(candidate, self.default_name),
                    remark=remark,
                )
        except StillRunningError as error:
            raise errors.CheckError(f"the check (process {error.pid}) does not end, not even by SIGKILL") from error
        except OSError as error:
            raise errors.CheckError(
                f"the check could not be run: {error.strerror or error}"
                + (f" ({error.filename})" if error.filename else ""),
            ) from error

    def _run(self, words: list[str], told: Path, stop: Stop | None) -> Ended:
        command = [*start_words(words[0]), *words[1:]]
        environment = {**self.environment, VERDICT_VARIABLE: str(told), START_VARIABLE: None}
        if isinstance(self.command, OwnCommand):
            environment[SETTINGS_VARIABLE] = NO_SETTINGS
        try:
            return process.run(command, lambda: self.limits, stop, environment=environment)
        except process.CannotStartError as error:
            raise cannot_start(words, error.reason, self.words) from error


def verdict_of(told: Path, ended: Ended) -> verdict.VerdictFile:
    """What a check reported of itself; what it was killed while writing counts for nothing. Raises CheckError."""
    try:
        return verdict.read(told)
    except errors.CheckError:
        if ended.status >= 0 and ended.cause == "itself":
            raise
        return verdict.VerdictFile()


def _verdict(said: verdict.VerdictFile, ended: Ended, command: CommandLine) -> verdict.VerdictFile:
    """What a check reported, seen beside how it ended. Our own command that died of something else was not run."""
    if not isinstance(command, OwnCommand) or ended.cause == "stop":
        return verdict.believed(said, ended.status)
    if not said.has_looked and (ended.status != 0 or isinstance(command, OwnRun)):
        causes = {"time": "no answer in time", "memory": "more memory than --check-memory allows"}
        reason = causes.get(ended.cause) or status_text(ended.status)
        is_ours = command.program == NAME
        other = "" if is_ours else "; if it is an older biopsy, or no biopsy, call it in a script of your own"
        message = f"the check ended before it looked at the model ({reason}){other}{last_words(ended.output)}"
        return verdict.VerdictFile(outcome="infrastructure", kind="NeverLooked", message=message)
    if not said.outcome and ended.cause == "itself" and ended.status in _NOTHING_CONCLUDED:
        reason = f"the check concluded nothing ({status_text(ended.status)}){last_words(ended.output)}"
        return verdict.VerdictFile(outcome="infrastructure", kind="NothingConcluded", message=reason)
    return verdict.believed(said, ended.status)


def last_words(output: bytes) -> str:
    """The last lines of what a process printed, to be put behind a sentence; nothing if it printed nothing."""
    lines = [line for line in output[-_LOOKED_AT:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line[:_MOST_OF_A_LINE]}" for line in lines[-_LAST_LINES:])


# Why a check could not be started, and what to type instead.

_LONGEST_FIRST_LINE = 256  # bytes, as much as Linux reads of it


def _script(word: str) -> tuple[Path, str] | None:
    """The text file that a word has run, and the interpreter that its first line names, "" if that is no ``#!`` line.

    None if it is a program, or may not be looked at.
    """
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
    return path, named.decode("utf-8", "surrogateescape")


def _no_program(word: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """What is said where no program is called ``word``, and what to type: the user gave the words ``given``."""
    if len(word.split()) > 1:
        reason = f"there is no program '{printable(given[0])}': quotes make one word of a command"
        for_a_shell = f"--check {line_of(['bash', '-c', given[0], *given[1:]])}"
        if _SHELL.search(given[0]):
            return reason, [for_a_shell]
        without_quotes = f"remove the quotes: --check {' '.join([given[0], *(line_of([one]) for one in given[1:])])}"
        return reason, [without_quotes, f"for a shell: {for_a_shell}"]
    reason = f"there is no program '{printable(word)}'"
    if "/" not in word:
        if Path(word).exists():
            return reason, [f"--check ./{line_of(given)}"]
        return reason, did_you_mean(word, [NAME], cutoff=0.7)
    here = "./" if word.startswith("./") else ""
    return reason, ask_for([f"{here}{file}" for file in similar_files(Path(word), (Path(word).suffix,))])


_SHELL = re.compile(r"[|&;<>$`*?]")
"""What only a shell understands."""


def cannot_start(words: Sequence[str], error: Exception, given: Sequence[str]) -> errors.CheckError:
    """Why the system could not start ``words``, made of what the user has ``given`` as the check."""
    steps = []
    path, interpreter = _script(words[0]) or (None, "")
    # One folder of the PATH that may not be searched is what the system tells of, as of a file without permission.
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    places = [os.path.join(folder, words[0]) for folder in folders]  # noqa: PTH118 -- any word
    is_nowhere = "/" not in words[0] and not any(map(os.path.isfile, places))
    wants_interpreter = isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.ENOEXEC
    if path is not None and not interpreter and wants_interpreter:
        reason = f"'{printable(words[0])}' has no #! line, so no program can read it"
        steps = [f"--check {line_of(['python' if path.suffix == '.py' else 'bash', *given])}"]
    elif path is not None and interpreter and isinstance(error, FileNotFoundError):
        ends = " (Windows line ends)" if interpreter.endswith("\r") else ""
        reason = f"the first line of '{printable(words[0])}' names '{printable(interpreter)}', which is not there{ends}"
        if ends:
            steps = [line_of(["sed", "-i", r"s/\r$//", as_word(path)]) + "    takes them away"]
    elif isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and is_nowhere):
        reason, steps = _no_program(words[0], given)
    elif isinstance(error, PermissionError):
        reason = f"'{printable(words[0])}' may not be executed"
        steps = [f"chmod +x {line_of(words[:1])}"]
    else:
        reason = str(error)
    return errors.CheckError(f"the check could not be run: {reason}", next_steps=steps)


# Checks that are made in forks of one warm process, as far as that is possible.
#
# A cold process pays for its imports, and perhaps for reading its files, again in every check. Here one process, the
# server, pays once; each check is a fork of it. What the check prints and how it ends are the same either way.


class ServedCheck(CommandCheck):
    """A command that a warm process can run; falls back to cold processes where there is no fork or no server.

    ``cold`` is the same command in a process of its own, and ``jobs`` is how many of them may run at once. A subclass
    says what the server is, and when it is asked.
    """

    def __init__(self, cold: CommandCheck, jobs: int = 1) -> None:
        super().__init__(*cold.given)
        self._jobs = jobs
        self._server: ForkServer | None = None
        self._lost: list[ForkServer] = []
        self._given_up = not hasattr(os, "fork")
        self._starting = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """On another machine, or in another process, the check is a cold one: the server is here."""
        return CommandCheck, self.given

    @property
    @abstractmethod
    def served_by(self) -> str:
        """Of what each check is a fork, in words."""

    @property
    def is_served(self) -> bool:
        """Whether there is a warm process, or one can still be started."""
        return not self._given_up

    @abstractmethod
    def _started_server(self) -> ForkServer:
        """The server, started. Raises ServerGoneError if it cannot be."""

    def start(self) -> None:
        """Begin to warm up, and do not wait for it. If no server can be started, every check is a cold one."""
        with self._starting:
            if self._server is None and not self._given_up:
                try:
                    self._server = self._started_server()
                except ServerGoneError:
                    self._given_up = True

    def cold(self) -> CommandCheck:
        """The same check in a process of its own."""
        return CommandCheck(*self.given)

    def close(self) -> None:
        """End the server."""
        with self._starting:
            for server in (*self._lost, *([] if self._server is None else [self._server])):
                server.close()
            self._lost, self._server = [], None

    def _lose(self, server: ForkServer) -> None:
        """Go on without it. Other threads may still listen to it: what they listen to stays open until the end."""
        with self._starting:
            self._given_up = True
            server.kill()
            if self._server is server:
                self._server = None
                self._lost.append(server)
