"""A check that is a command; what starts its runs; and the error if that is impossible."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.command_line import CommandLine, OwnCommand, OwnInspect, OwnRun, missing_script, parse
from biopsy.checks.judge import status_text
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.words import NAME, NO_SETTINGS, SETTINGS_VARIABLE, as_word, names_undone, start_words
from biopsy.processes import cleanup, engine_calls, own_process, process
from biopsy.processes.forks import START_VARIABLE
from biopsy.processes.reading import files_meant, open_plain, similar_files
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.watch import Ended, Limits, StillRunningError, Stop
from biopsy.text import ask_for, count, line_of, printable, similar

ARBITER = "--tell-rounding"
"""The hidden option of ``run`` that makes it judge a mismatch against float64."""
PROFILER = "--tell-slow-tensors"
"""That of ``run --slower`` which makes it only report the tensors that take longer, as outputs, the worst first."""

_NOTHING_CONCLUDED = frozenset({2, 4, 5})
"""Exit statuses of our own commands that are not an answer: wrong usage, nothing concluded, interrupted."""

_Runner: TypeAlias = Callable[[list[str], Path, Stop | None], Ended]
"""Runs words, with the path for the verdict file, until they end or are stopped."""

_LAST_LINES = 5
_MOST_OF_A_LINE = 300
_LOOKED_AT = 1 << 13
"""Bytes at the end of a check's output that are looked at for a message."""

_LEAST_TIMEOUT = 60.0  # seconds
_TIMES_THE_ORIGINAL = 20


class CommandCheck(Check):
    """Runs ``words`` for each candidate. In every word, ``{}`` and the literal ``default_name`` stand for its path.

    ``timeout`` is in seconds, ``memory`` in bytes; None for no limit. ``environment`` are further variables; None
    removes one. ``starter`` starts the runs: by default, each as a process of its own.
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
        starter: ProcessStarter | None = None,
    ) -> None:
        if not words:
            raise errors.UsageError("--check needs a command", next_steps=["--check biopsy run {} --onnxrt"])
        self.command = parse(words)
        script = None if isinstance(self.command, OwnCommand) else missing_script(words, default_name)
        if script is not None:
            raise errors.UsageError(f"there is no file {script}", next_steps=files_meant(script, (".py",), "scripts"))
        self.words = self.command.words  # as they were typed
        self.sees_values = not isinstance(self.command, OwnInspect)
        self.names_candidate = self.command.names_candidate(default_name)
        self.default_name = default_name
        self.timeout = timeout
        self.memory = memory
        self.environment = dict(environment or {})
        self.starter = starter or ProcessStarter()
        self._timeout_of_user = timeout
        self._has_remarked = False
        self._original: tuple[CommandCheck, Mapping[Path, Path]] | None = None

    def names_file(self, path: Path) -> bool:
        """Whether the command names a file, and only in ways that ``with_files`` can replace."""
        return self.command.names_file(path)

    def with_files(self, files: Mapping[Path, Path]) -> CommandCheck:
        """The same command with other files in its words; it follows the limits of this one."""
        self.start()  # once, not for each run
        check = self._with(self.command.with_files(files).words)
        check._original = self, files
        return check

    @property
    def settings(self) -> Mapping[str, str]:
        """The command and the user's limits; a limit derived from the original is left out."""
        limits = {"option --check-timeout": str(self._timeout_of_user), "option --check-memory": str(self.memory)}
        return {**super().settings, **limits}

    @property
    def files(self) -> Sequence[Path]:
        """The files in the words, and the programs."""
        return list(dict.fromkeys([*self.command.files(self.default_name), *self.programs]))

    @property
    def programs(self) -> Sequence[Path]:
        """The scripts among the words, and the modules that Python finds beside them."""
        return self.command.programs(self.default_name)

    def expect(self, seconds: float) -> None:
        """Set the time limit, if the user gave none, to far more than the original took."""
        if self.timeout is None:
            self.timeout = max(_LEAST_TIMEOUT, _TIMES_THE_ORIGINAL * seconds)

    @property
    def original_and_files(self) -> tuple[CommandCheck, Mapping[Path, Path]]:
        """The check as the user typed it, and by what this one replaces each file in it."""
        return self._original or (self, {})

    @property
    def limits(self) -> Limits:
        """The limits of a run now."""
        return self._original[0].limits if self._original else Limits(self.timeout, self.memory)

    def glance(self) -> CommandCheck:
        """Our own ``run`` with ``--fail-fast``; any other command unchanged."""
        own = self.command
        return self._with(own.with_options("--fail-fast").words) if isinstance(own, OwnRun) else self

    def telling(self, option: str) -> CommandCheck | None:
        """Our own ``run`` with an option that makes it tell more; None for any other command."""
        own = self.command
        return self._with(own.with_options(option).words) if isinstance(own, OwnRun) else None

    def alone(self, number: int) -> CommandCheck | None:
        """``run`` of one of its two engines (``number`` is 0 or 1), held against float64.

        None for any other command.
        """
        own = self.command
        if not isinstance(own, OwnRun) or len(own.engine_places) != 2:
            return None
        return self._with(own.with_only_engine(number).with_options("--compare-with", "noise").words)

    def fed(self, inputs: Path) -> CommandCheck:
        """Our own ``run`` with inputs from another file. Only for that command."""
        own = self.command
        assert isinstance(own, OwnRun)
        return self._with(own.with_inputs(inputs).words)

    def cold(self) -> CommandCheck:
        """The same check, where each run is a process of its own."""
        cold = self.starter.cold()
        return self if cold is self.starter else self._with(self.words, cold)

    def _with(self, words: Sequence[str], starter: ProcessStarter | None = None) -> CommandCheck:
        starter = starter or self.starter.for_other_words()
        limits = self.timeout, self.memory
        return CommandCheck(words, self.default_name, *limits, environment=self.environment, starter=starter)

    def line(self, candidate: Path) -> str:
        """The command as a person would type it."""
        return line_of(self.words_for(candidate))

    def words_for(self, candidate: Path) -> list[str]:
        """The command for one candidate."""
        return self.command.words_for(candidate, self.default_name)

    def start(self) -> None:
        """Begin to warm up, without waiting."""
        self.starter.warm_up(self)

    def foresee_cold(self) -> None:
        """Let the process of the next run of ``cold`` load what it needs, and wait."""
        self.starter.foresee_cold(self.words)

    def close(self) -> None:
        """End warm processes."""
        self.starter.close()

    def run(self, candidate: Path, stop: Stop | None = None) -> Evidence:
        """Run the command once, unless ``stop`` ends it before.

        Raises CheckError if it cannot be started, or if its verdict file is not understood.
        """
        return self.starter.run(self, candidate, stop)

    def evidence(self, candidate: Path, stop: Stop | None, run: _Runner) -> Evidence:
        """Have ``run`` run the command for a candidate, and collect the evidence. Raises CheckError as ``run`` does."""
        words = self.words_for(candidate)
        try:
            with cleanup.temporary_folder("biopsy-check-") as folder:
                path = folder / "verdict.json"
                engine_calls.make_page_of_calls(path)
                started = time.monotonic()
                ended = process.run_marked(f"{VERDICT_VARIABLE}={folder}/", lambda: run(words, path, stop))
                seconds = time.monotonic() - started
                original, files = self.original_and_files
                is_ours = isinstance(self.command, OwnCommand)  # an interpreter of another release may end later
                remark = ""
                if ended.left and ended.cause == "itself" and not (is_ours or original._has_remarked):
                    original._has_remarked = True
                    left = f"left {count(ended.left, 'process', 'processes')} in the background, which ended with it"
                    remark = f"checks     a check {left}: --keep-processes keeps them"
                call = engine_calls.open_call(path, ended.pid)
                reported = _verdict(verdict_of(path, ended), ended, self.command, call)
                return Evidence(
                    status=ended.status,
                    output=names_undone(ended.output, files),
                    verdict=replace(reported, message=names_undone(reported.message, files)),
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


class ProcessStarter:
    """Starts each run of a command as a process of its own. Subclasses start it otherwise, if they can.

    In another process or on another machine, any starter becomes this one, since warm processes stay where they are.
    """

    served_by: str = ""
    """The warm process whose forks run the command, in words; "" if there is none."""

    def __reduce__(self) -> tuple[object, ...]:
        return ProcessStarter, ()

    @property
    def is_served(self) -> bool:
        """Whether there is such a process, or one can still be started."""
        return False

    def run(self, check: CommandCheck, candidate: Path, stop: Stop | None) -> Evidence:
        """Run a check once. Raises CheckError as ``CommandCheck.run`` does."""
        return check.evidence(candidate, stop, partial(self.run_words, check))

    def run_words(self, check: CommandCheck, words: list[str], verdict_path: Path, stop: Stop | None) -> Ended:
        """Run the words for one candidate. Raises CheckError if they cannot be started."""
        command = [*start_words(words[0]), *words[1:]]
        environment = {**check.environment, VERDICT_VARIABLE: str(verdict_path), START_VARIABLE: None}
        if isinstance(check.command, OwnCommand):
            environment[SETTINGS_VARIABLE] = NO_SETTINGS
        try:
            return process.run(command, lambda: check.limits, stop, environment=environment)
        except process.CannotStartError as error:
            raise cannot_start(words, error.reason, check.words) from error

    def for_other_words(self) -> ProcessStarter:
        """The starter for a variant of the command with other words."""
        return self

    def cold(self) -> ProcessStarter:
        """A starter that uses no forks."""
        return self

    def warm_up(self, check: CommandCheck) -> None:
        """Begin to start what serves the check, without waiting."""

    def foresee_cold(self, words: Sequence[str]) -> None:
        """Let the process of the next run by ``cold`` load what these words need, and wait."""

    def close(self) -> None:
        """End what was started."""


def verdict_of(path: Path, ended: Ended) -> verdict.VerdictFile:
    """The verdict that a check reported; an unclear one is ignored if the check was killed. Raises CheckError."""
    try:
        return verdict.read(path)
    except errors.CheckError:
        if ended.status >= 0 and ended.cause == "itself":
            raise
        return verdict.VerdictFile()


def _verdict(
    reported: verdict.VerdictFile, ended: Ended, command: CommandLine, call: engine_calls.LastCall | None
) -> verdict.VerdictFile:
    """The verdict given how the check ended. A command of ours that died before it looked at the model was not run.

    ``call`` is the call of an engine during which it ended, if any.
    """
    if not isinstance(command, OwnCommand) or ended.cause == "stop":
        was_ended = ended.status < 0 or ended.cause != "itself"  # a script may go on after an engine in a fork of it
        return verdict.believed(_during(call if was_ended else None, reported, ended), ended.status)
    if not reported.has_looked and (ended.status != 0 or isinstance(command, OwnRun)):
        causes = {"time": "no answer in time", "memory": "more memory than --check-memory allows"}
        reason = causes.get(ended.cause) or status_text(ended.status)
        is_ours = command.program == NAME
        other = "" if is_ours else "; if it is an older biopsy, or no biopsy, call it in a script of your own"
        message = f"the check ended before it looked at the model ({reason}){other}{_last_lines(ended.output)}"
        return verdict.VerdictFile(outcome="infrastructure", kind="NeverLooked", message=message)
    if not reported.outcome and ended.cause == "itself" and ended.status in _NOTHING_CONCLUDED:
        reason = f"the check concluded nothing ({status_text(ended.status)}){_last_lines(ended.output)}"
        return verdict.VerdictFile(outcome="infrastructure", kind="NothingConcluded", message=reason)
    return verdict.believed(_during(call, reported, ended), ended.status)


def _during(call: engine_calls.LastCall | None, reported: verdict.VerdictFile, ended: Ended) -> verdict.VerdictFile:
    """The verdict of a check that ended during ``call``: the engine and its stage, unless the check reported its own.

    A check that an engine ended by itself failed, even with exit status 0.
    """
    if call is None or call.stage not in errors.STAGE_VERBS or reported.outcome or reported.engine or reported.stage:
        return reported
    if ended.cause == "itself" and -ended.status in own_process.FROM_SOMEBODY:
        return reported
    reported = replace(reported, engine=call.engine.partition(":")[0], stage=call.stage)
    if ended.cause != "itself":
        return reported
    return replace(reported, outcome="fails", kind=status_text(ended.status).removeprefix("signal "))


def _last_lines(output: bytes) -> str:
    """The last lines that a process printed, to be appended to a sentence; "" if it printed nothing."""
    lines = [line for line in output[-_LOOKED_AT:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line[:_MOST_OF_A_LINE]}" for line in lines[-_LAST_LINES:])


_LONGEST_FIRST_LINE = 256  # bytes, as much as Linux reads of it


def _script(word: str) -> tuple[Path, str] | None:
    """The script that a word names, and the interpreter in its first line, "" if that is no ``#!`` line.

    None if it is a binary, or cannot be read.
    """
    path = Path(word) if "/" in word else Path(shutil.which(word) or word)
    if not ("/" in word or path.is_absolute()):
        return None  # the system looks only in PATH
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
    """The message and next steps if no program is called ``word``; ``given`` are the user's words."""
    if len(word.split()) > 1:
        reason = f"there is no program '{printable(given[0])}': quotes make one word of a command"
        for_a_shell = f"--check {line_of(['bash', '-c', given[0], *given[1:]])}"
        if _SHELL.search(given[0]):
            return reason, [for_a_shell]
        without_quotes = f"remove the quotes: --check {' '.join([given[0], *(line_of([word]) for word in given[1:])])}"
        return reason, [without_quotes, f"for a shell: {for_a_shell}"]
    reason = f"there is no program '{printable(word)}'"
    if "/" not in word:
        if Path(word).exists():
            return reason, [f"--check ./{line_of(given)}"]
        near = [f"./{file}" for file in similar_files(Path(word), (Path(word).suffix,))]
        meant = ask_for(near or similar(word, [NAME, *_programs()], most=1, cutoff=0.7))
        return reason, meant or ["write the path to the program, as in --check ./check.sh {}: it is not on PATH"]
    path = Path(word)
    here = "./" if word.startswith("./") else ""
    near = [f"{here}{file}" for file in similar_files(path, (path.suffix,))]
    return reason, ask_for(near) or files_meant(path)


def _programs() -> Iterator[str]:
    """The names of the files in the folders of PATH, as far as they can be listed."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            yield from (entry.name for entry in islice(entries, _MOST_PROGRAMS))


_MOST_PROGRAMS = 10_000
"""The number of files of a folder on PATH that are looked at for a similar name."""


_SHELL = re.compile(r"[|&;<>$`*?]")
"""Characters with a meaning in shells only."""


def cannot_start(words: Sequence[str], error: Exception, given: Sequence[str]) -> errors.CheckError:
    """The error if the system could not start ``words``; ``given`` are the words as the user typed them."""
    steps = []
    path, interpreter = _script(words[0]) or (None, "")
    # If a folder in PATH may not be searched, the system reports the same error as for a file without permission.
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


def run_biopsy(*words: str, seconds: float | None = None, memory: int | None = None) -> tuple[int, str]:
    """Run a command of biopsy without settings files; its status, and all that it printed.

    It may take some seconds, and with all its processes some bytes of memory; None for no limit.
    """
    line = [sys.executable, "-m", "biopsy", *words]
    ended = process.run(line, lambda: Limits(seconds, memory), environment={SETTINGS_VARIABLE: NO_SETTINGS})
    return ended.status, ended.output.decode("utf-8", "replace")
