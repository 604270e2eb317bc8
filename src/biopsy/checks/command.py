"""A check that is a command: run for each candidate in a process group of its own, never through a shell."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from biopsy import errors
from biopsy.checks import verdict
from biopsy.checks.command_line import LOAD_INPUTS, CommandLine, OwnCommand, OwnInspect, OwnRun, parse
from biopsy.checks.file_names import names_undone
from biopsy.checks.outcome import Check, Evidence
from biopsy.checks.own_program import NAME, NO_SETTINGS, SETTINGS_VARIABLE, start_words
from biopsy.checks.signature import status_text
from biopsy.checks.start_failure import cannot_start
from biopsy.isolation import cleanup, process
from biopsy.isolation.forks import START_VARIABLE
from biopsy.isolation.reaper import VERDICT_VARIABLE
from biopsy.isolation.watch import Ended, Limits, StillRunningError, Stop
from biopsy.quantities import count
from biopsy.shell_words import line_of

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

    @property
    def words(self) -> tuple[str, ...]:
        """The words as they were typed."""
        return self.command.words

    @property
    def sees_values(self) -> bool:
        """Whether the command may depend on what the candidate computes."""
        return not isinstance(self.command, OwnInspect)

    @property
    def names_candidate(self) -> bool:
        """Whether the command says where the candidate's path goes; if not, it knows the default name by itself."""
        return self.command.names_candidate(self.default_name)

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
        return self._with(own.without_option(LOAD_INPUTS).with_options(LOAD_INPUTS[0], str(inputs)))

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
                    remark=self._remark_on(ended),
                )
        except StillRunningError as error:
            raise errors.CheckError(f"the check (process {error.pid}) does not end, not even by SIGKILL") from error
        except OSError as error:
            raise errors.CheckError(
                f"the check could not be run: {error.strerror or error}"
                + (f" ({error.filename})" if error.filename else ""),
            ) from error

    def _remark_on(self, ended: Ended) -> str:
        """What is to be said, once, of processes that a command of the user's has left in the background."""
        check = self._original or self
        is_ours = isinstance(self.command, OwnCommand)  # an interpreter of another release ends a moment after it
        if ended.left == 0 or ended.cause != "itself" or is_ours or check._has_remarked:
            return ""
        check._has_remarked = True
        left = count(ended.left, "process", "processes")
        return f"checks     a check left {left} in the background, which ended with it: --keep-processes keeps them"

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
        return verdict.VerdictFile(outcome="infrastructure", kind="NeverLooked", message=_never_looked(ended, command))
    if not said.outcome and ended.cause == "itself" and ended.status in _NOTHING_CONCLUDED:
        reason = f"the check concluded nothing ({status_text(ended.status)}){last_words(ended.output)}"
        return verdict.VerdictFile(outcome="infrastructure", kind="NothingConcluded", message=reason)
    return verdict.believed(said, ended.status)


def _never_looked(ended: Ended, command: CommandLine) -> str:
    causes = {"time": "no answer in time", "memory": "more memory than --check-memory allows"}
    reason = causes.get(ended.cause) or status_text(ended.status)
    is_ours = command.program == NAME
    other = "" if is_ours else "; if it is an older biopsy, or no biopsy, call it in a script of your own"
    return f"the check ended before it looked at the model ({reason}){other}{last_words(ended.output)}"


def last_words(output: bytes) -> str:
    """The last lines of what a process printed, to be put behind a sentence; nothing if it printed nothing."""
    lines = [line for line in output[-_LOOKED_AT:].decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line[:_MOST_OF_A_LINE]}" for line in lines[-_LAST_LINES:])
