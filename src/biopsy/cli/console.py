"""The terminal: results on stdout, problems on stderr, both also in the file of ``--log-file``, and a live line that
shows how long work goes on. rich is loaded only for a terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from biopsy import errors
from biopsy.processes import own_process
from biopsy.processes.reaper import VERDICT_VARIABLE
from biopsy.processes.writing import open_anew
from biopsy.text import QUESTION, printable, shortened

if TYPE_CHECKING:
    from biopsy import events

_LONGEST_LINE = 4000
"""Characters of a line on a terminal; longer ones are cut without -v, because a name may have megabytes."""

_MOST_LINES = 40
"""Lines of a problem that are shown without -v."""

_MOST_REMARKS = 200
"""Remarks that are kept for a report."""

_COLOUR = r"\x1b\[[0-9;]*m"
_NO_COLOUR = "\x1b[0m"
_VERDICTS = {"PASSED": "32", "FAILED": "31"}


@dataclass
class Basis:
    """The settings that a verdict depends on and that come from files, such as "atol=1e9 of biopsy.toml".

    ``own`` are those of this command; ``shown`` is the text that the last verdict was shown with.
    """

    own: str = ""
    shown: str = ""

    @property
    def text(self) -> str:
        """The settings of this command and of the commands in its checks; "" if there are none."""
        of_checks = ", ".join(own_process.settings_of_checks)
        return " and with ".join(filter(None, [self.own, of_checks and f"{of_checks}, in the check"]))


class Console:
    """The terminal, or the file or pipe in its place.

    ``verbosity`` is 0 by default, 1 or more after ``-v``, negative after ``-q``. ``asks``: a person decides in place of
    a check. All lines also go to the ``log``, if there is one. ``remarks`` are those of ``remark`` and ``warn``. A
    verdict (``PASSED | ...``) is shown with its ``basis``.
    If a stream is closed, its reader ends (``| head``) or its disk is full, the work goes on without it.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr
        self.verbosity = 0
        self.asks = False
        self.form = LineForm()
        self.log: LogFile | None = None
        self.remarks: list[events.Remark] = []
        self.basis = Basis()

    def on_stderr(self) -> Console:
        """A console that shows everything on stderr, and leaves stdout to another program."""
        console = Console(self._err, self._err)
        console.verbosity, console.form, console.log = self.verbosity, self.form, self.log
        console.remarks, console.basis = self.remarks, self.basis
        return console

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 if it is unknown."""
        return _width(self._out)

    def say(self, *lines: str) -> None:
        """Show lines of a result (an empty line without arguments), unless ``-q`` is given twice."""
        if self.verbosity > -2:
            self._lines(lines or ("",))

    def say_basis(self) -> None:
        """Show a line with the basis, if there is one that no verdict was shown with."""
        if self.basis.text != self.basis.shown:
            self.say(f"result     with {self.basis.text}")

    def note(self, *lines: str) -> None:
        """Show lines that are not a result, unless ``-q`` is given."""
        if self.verbosity > -1:
            self._lines(lines or ("",))

    def remark(self, text: str, *lines: str) -> None:
        """As ``note``, and keep the lines for a report."""
        self._remember(text, lines)
        self.note(text, *lines)

    def _remember(self, text: str, lines: tuple[str, ...], *, warning: bool = False) -> None:
        from biopsy import events  # dozens of records: they wait until the first is needed

        remark = events.Remark(text, warning=warning, lines=lines)
        if len(self.remarks) < _MOST_REMARKS and remark not in self.remarks:
            self.remarks.append(remark)

    def detail(self, *lines: str) -> None:
        """Show lines only with ``-v``."""
        if self.verbosity > 0:
            self._lines(lines or ("",))

    def coloured(self, *lines: str) -> None:
        """As ``say``, but keep the colours in the lines: for help texts."""
        if self.verbosity > -2:
            for line in lines:
                self._write(self._out, self._with_colours(line))

    def program_text(self, text: str) -> None:
        """Write a text for another program unchanged: without ``--log-format``, and not in the log."""
        form, log = self.form, self.log
        self.form, self.log = LineForm(), None
        self._write(self._out, text.rstrip("\n"))
        self.form, self.log = form, log

    def quote(self, line: str) -> None:
        """Show a line that a check printed, unless ``-q`` is given; of its control sequences only colours are kept."""
        if self.verbosity > -1:
            self._write(self._out, "  | " + self._with_colours(line.expandtabs()))

    def warn(self, text: str, *lines: str) -> None:
        """Show on stderr what may make the result worth less, unless ``-q`` is given four times."""
        self._remember(text, lines, warning=True)
        if self.verbosity > -4:
            self._problem(self._tinted("33", "warning: "), text, lines)

    def failure(self, error: errors.BiopsyError) -> int:
        """Show an error: what happened, what was kept, what to type next; returns its exit status."""
        tag = "interrupted: " if isinstance(error, errors.Interrupted) else "error: "
        text = error.summary if error.message != "interrupted" else "nothing was left half-written"
        self._problem(self._tinted("31", tag), text if error.quotes else printable(text), error.details)
        if error.kept:
            self._step("kept", error.kept)
        for step in error.next_steps:
            self._step("hint" if step.startswith(QUESTION) else "next", step)
        if isinstance(error, errors.Interrupted) and error.resume:
            self._step("resume", error.resume)
        if self.verbosity > 1:
            import traceback

            for line in "".join(traceback.format_exception(error)).rstrip().split("\n"):
                self._write(self._err, f"  | {printable(line)}")
        return error.status

    def defect(self, error: Exception) -> int:
        """Show an unexpected exception, which is a bug of biopsy; returns exit status 4."""
        problem = errors.BiopsyError(
            f"biopsy itself failed: {type(error).__name__}: {error}",
            next_steps=["run the same command with -vv and report what it prints"],
        )
        problem.__cause__ = error
        return self.failure(problem)

    def _lines(self, lines: Iterable[str]) -> None:
        """Write lines; a verdict gets its basis, and a green or red first word where colours are wanted."""
        for line in lines:
            # A file or a script gets the whole line.
            text = printable(self._shortened(line) if self._out is not None and self._out.isatty() else line)
            word, bar, rest = text.partition(" | ")
            if bar and word in _VERDICTS:
                if self.form.is_coloured(self._out):
                    word = f"\x1b[{_VERDICTS[word]}m{word}{_NO_COLOUR}"
                if self.basis.text:
                    self.basis.shown = self.basis.text
                    word += f", with {printable(self.basis.text)}"
                text = f"{word} | {rest}"
            self._write(self._out, text, wraps=True)

    def _problem(self, tag: str, text: str, lines: Iterable[str]) -> None:
        """Write a tag and a text, whose lines after the first are quotations of others, and then lines of our own."""
        first, *quoted = text.split("\n")
        self._write(self._err, tag + printable(self._shortened(first)), wraps=True)
        most = len(quoted) if self.verbosity > 0 else _MOST_LINES
        for line in quoted[:most]:
            self._write(self._err, f"  | {printable(self._shortened(line.rstrip().expandtabs()))}".rstrip())
        if len(quoted) > most:
            self._write(self._err, f"  | ... {len(quoted) - most} more lines, shown with -v")
        for line in lines:
            self._write(self._err, printable(self._shortened(line)), wraps=True)

    def _step(self, head: str, text: str) -> None:
        """Write what to type or to read, in full or not at all: half a command line does something else."""
        if len(text) > _LONGEST_LINE and self.verbosity < 1:
            text = f"a line of {len(text)} characters, shown with -v"
        self._write(self._err, f"  {head}  {printable(text)}", wraps=True)

    def _shortened(self, line: str) -> str:
        return line if self.verbosity > 0 else shortened(line, _LONGEST_LINE, ", shown with -v")

    def _with_colours(self, line: str) -> str:
        """The line made printable, with its colours if colours are wanted; they end with the line."""
        if "\x1b" not in line:
            return printable(line)
        parts = re.split(rf"({_COLOUR})", line)  # every second one is a colour
        parts[::2] = map(printable, parts[::2])
        if not self.form.is_coloured(self._out):
            return "".join(parts[::2])
        return "".join(parts) + (_NO_COLOUR if len(parts) > 1 else "")

    def _tinted(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_NO_COLOUR}" if self.form.is_coloured(self._err) else text

    def _write(self, stream: TextIO | None, text: str, *, wraps: bool = False) -> None:
        text = self.form.before_a_line() + text
        try:
            if self.log is not None:
                self.log.write(text)
        except OSError as error:
            self.end_log()
            self.warn(f"cannot write to the file of --log-file any more: {error.strerror or error}")
        if stream is None:  # closed before we started, as by ``>&-``
            return
        width = _width(stream) if wraps and stream.isatty() else 0
        if 0 < width < len(text):  # scripts and the log get it unwrapped
            from biopsy.cli.terminal_text import wrapped

            text = "\n".join(wrapped(text, width))
        encoding = stream.encoding or "utf-8"
        try:
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
        except BrokenPipeError:
            _discard_from_now_on(stream)
        except OSError as error:
            _discard_from_now_on(stream)
            if stream is not self._err:
                self.warn(f"cannot write to stdout any more: {error.strerror or error}")

    def end_log(self) -> None:
        """Close the log."""
        log, self.log = self.log, None
        if log is not None:
            log.close()


def _width(stream: TextIO) -> int:
    """The number of columns of a terminal; 0 if it is unknown."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal():
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _discard_from_now_on(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to the null device, or Python's flush at exit would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


_SOURCES = Path(__file__).parents[1]


@dataclass(kw_only=True)
class LineForm:
    """The form of lines that ``--log-format`` sets: what stands before each, and whether there are colours."""

    timestamp: bool = False
    line_info: bool = False
    colours: bool = True

    def before_a_line(self) -> str:
        """The time of day, and the place in our sources that shows the line, if the user wants them."""
        time_of_day = f"({time.strftime('%X')}) " if self.timestamp else ""
        return time_of_day + (f"[{_place_that_shows()}] " if self.line_info else "")

    def is_coloured(self, stream: TextIO | None) -> bool:
        """Whether colours are wanted on a stream."""
        return self.colours and wants_colours(stream)


def wants_colours(stream: TextIO | None) -> bool:
    """Whether a stream gets colours: a terminal does, unless ``NO_COLOR`` is set; any stream if ``FORCE_COLOR`` is.

    Empty variables do not count: see no-color.org and force-color.org. ``FORCE_COLOR`` has no effect in a check, whose
    output is matched by the user's patterns.
    """
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR") and not os.environ.get(VERDICT_VARIABLE)
    return bool(forced) or stream.isatty()


def _place_that_shows() -> str:
    """The nearest caller outside this file, such as ``cli/run/report.py:42``."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(_SOURCES).as_posix() if file.is_relative_to(_SOURCES) else file.name
    return f"{shown}:{frame.f_lineno}"


COLUMN = 10
"""Width of the column with the first word of a line."""


def headed(head: str, text: object) -> str:
    """A line whose first word stands in a column of its own."""
    return f"{head:<{COLUMN}} {text}"


_BAR_WIDTH = 12


def fitted(head: str, text: str, columns: int) -> tuple[bool, str]:
    """Whether the bar fits into a line of ``columns``, and as much of the text as fits.

    The bar is left out first, then the last parts of the text (separated by `` · ``), then the end of its first part.
    The head, such as the name of a pass, is never cut.
    """
    room = columns - 1 - max(COLUMN, len(head)) - 1  # a terminal may wrap behind its last column
    if len(text) <= room - _BAR_WIDTH - 1:
        return True, text
    parts = text.split(" · ")
    while len(parts) > 1 and len(" · ".join(parts)) > room:
        parts.pop()
    shown = " · ".join(parts)
    return False, shown if len(shown) <= room else f"{shown[: max(0, room - 1)]}…"


class LiveLine:
    """The last line of a terminal, which changes while long work goes on.

    It is not shown if stderr is not a terminal, with -v or -q, or if the user is asked questions, which it would cover.
    """

    def __init__(self, console: Console) -> None:
        self.is_wanted = sys.stderr.isatty() and console.verbosity == 0 and not console.asks
        self._shown: Any = None
        self._last = ("", "", 0.0)
        self._aside = ""

    def update(self, head: str, text: str, done: float = 0.0) -> None:
        """Show a line; ``done`` is the part of the work that is done, from 0 to 1."""
        if not self.is_wanted:
            return
        self._last = head, text, done
        if self._aside:
            first, *others = text.split(" · ")
            text = " · ".join([first, self._aside, *others])
        if self._shown is None:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, Progress, Task, TextColumn
            from rich.text import Text

            class Bar(BarColumn):
                """A bar that is left out where it does not fit."""

                def render(self, task: Task) -> Any:
                    return super().render(task) if task.fields["bar"] else Text()

            self._shown = Progress(
                TextColumn("{task.fields[head]}", markup=False),
                Bar(bar_width=_BAR_WIDTH),
                TextColumn("{task.description}", markup=False),
                console=Terminal(stderr=True),
                transient=True,
            )
            self._shown.add_task("", total=1.0, head="", bar=False)
            self._shown.start()
        task = self._shown.task_ids[0]
        head = printable(head)
        bar, description = fitted(head, printable(text), self._shown.console.width)
        self._shown.update(task, description=description, completed=done, head=f"{head:<{COLUMN}}", bar=bar)

    def beside(self, text: str) -> None:
        """Set what stands after the first part of the text from now on."""
        self._aside = text
        if self._shown is not None:
            self.update(*self._last)

    def stop(self) -> None:
        """Remove the line."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


class LogFile:
    """A file that gets each line as it is shown. Raises UsageError if it cannot be written."""

    def __init__(self, path: Path) -> None:
        self._stream = io.TextIOWrapper(open_anew(path), encoding="utf-8", errors="backslashreplace")

    def write(self, line: str) -> None:
        """Write one line at once, for readers that follow the file. Raises OSError."""
        self._stream.write(re.sub(_COLOUR, "", line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # it was reported when the line was written
            self._stream.close()
