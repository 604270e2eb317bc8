"""Words of a check that have an interpreter of Python run a script, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from biopsy.checks.command_line import PLACEHOLDER
from biopsy.checks.words import names_path

_NAME = re.compile(r"python(\d(\.\d+)?)?t?")
_FLAGS = re.compile(r"-[bBdOPRsuvx]+")
"""Options of the interpreter after which it still reads what stands on PYTHONPATH, runs the script, and ends."""
_WITH_VALUE = re.compile(r"-[bBdOPRsuvx]*[WX]")
_LONGEST_FIRST_LINE = 255  # bytes; Linux reads no more
_BINARY = b"\x7fELF"


@dataclass(frozen=True, kw_only=True)
class PythonScript:
    """A script that an interpreter runs: its name as the interpreter is given it, and the program of the interpreter.

    ``before`` are the words of the process up to the script, and ``given`` is how many words of the check stand before
    the first that the script is given.
    """

    name: str
    interpreter: Path
    before: tuple[str, ...]
    given: int

    @property
    def file_name(self) -> str:
        """The name of its file, as a person is told it."""
        return Path(self.name).name

    def argv(self, words: Sequence[str]) -> list[str]:
        """What the script has as ``sys.argv``, for these words of a check."""
        return [self.name, *words[self.given :]]


def python_script(words: Sequence[str], default_name: str) -> PythonScript | None:
    """The script that these words have run; None if they do anything else, or anything that is not understood."""
    try:
        script = _run_by_name(words) or _run_by_first_line(words)
    except OSError:
        return None
    if script is None or any(PLACEHOLDER in word or names_path(word, default_name) for word in words[: script.given]):
        return None
    return script


def _run_by_name(words: Sequence[str]) -> PythonScript | None:
    """``python check.py ...``"""
    interpreter = interpreter_of(words[0])
    place = _place_of_script(words)
    if interpreter is None or place is None or not Path(words[place]).is_file():
        return None
    return PythonScript(name=words[place], interpreter=interpreter, before=tuple(words[:place]), given=place + 1)


def _run_by_first_line(words: Sequence[str]) -> PythonScript | None:
    """``check.py ...``, the first line of which names an interpreter."""
    found = shutil.which(words[0])
    with Path(found or words[0]).open("rb") as file:
        first = file.read(_LONGEST_FIRST_LINE)
    if found is None or not first.startswith(b"#!") or b"\n" not in first:
        return None
    program, _, rest = first[2:].partition(b"\n")[0].decode().strip().partition(" ")
    rest = rest.strip()
    before = [program, rest] if rest else [program]
    if Path(program).name == "env":
        before = rest.removeprefix("-S").split() if rest.startswith("-S") else [rest]
    interpreter = interpreter_of(before[0]) if before else None
    if interpreter is None or _place_of_script([*before, found]) != len(before):
        return None
    return PythonScript(name=found, interpreter=interpreter, before=tuple(before), given=1)


def interpreter_of(word: str) -> Path | None:
    """The file of a program, if it is an interpreter of Python, and no script that may do anything before it."""
    found = shutil.which(word)
    if found is None or not any(_NAME.fullmatch(path.name) for path in (Path(found), Path(found).resolve())):
        return None
    with Path(found).open("rb") as file:
        return Path(found) if file.read(len(_BINARY)) == _BINARY else None


def _place_of_script(words: Sequence[str]) -> int | None:
    """Which word is the script, where all words before it are the interpreter and options that are understood."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        if _WITH_VALUE.fullmatch(word):
            place += 1  # the value is the next word
        elif not (_FLAGS.fullmatch(word) or _WITH_VALUE.match(word)):
            return None
        place += 1
    return place if place < len(words) else None
