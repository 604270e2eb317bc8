"""Why a check could not be started, and what to type instead."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy import errors
from biopsy.checks.own_program import NAME
from biopsy.checks.words import as_word
from biopsy.filesystem.plain_file import open_plain
from biopsy.filesystem.similar_files import similar_files
from biopsy.shell_words import line_of
from biopsy.similar_names import ask_for, did_you_mean
from biopsy.text import printable

_LONGEST_FIRST_LINE = 256  # bytes, as much as Linux reads of it


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


def _no_program(word: str, given: Sequence[str]) -> tuple[str, list[str]]:
    """What is said where no program is called ``word``, and what to type: the user gave the words ``given``."""
    if len(word.split()) > 1:
        reason = f"there is no program '{printable(given[0])}': quotes make one word of a command"
        for_a_shell = f"for a shell: --check {line_of(['bash', '-c', given[0], *given[1:]])}"
        if _SHELL.search(given[0]):
            return reason, [for_a_shell.removeprefix("for a shell: ")]
        return reason, [
            f"remove the quotes: --check {' '.join([given[0], *(line_of([one]) for one in given[1:])])}",
            for_a_shell,
        ]
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
        reason, steps = _no_program(words[0], given)
    elif isinstance(error, PermissionError):
        reason = f"'{printable(words[0])}' may not be executed"
        steps = [f"chmod +x {line_of(words[:1])}"]
    else:
        reason = str(error)
    return errors.CheckError(f"the check could not be run: {reason}", next_steps=steps)
