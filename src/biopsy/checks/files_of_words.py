"""The files that the words of a command name or hold: what it runs and reads."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

_LONGEST_PATH = 4096  # bytes
_LONGEST_NAME = 255  # bytes between two slashes; a longer one is an error to ask for
_SCRIPTS = frozenset({".py", ".sh", ".bash", ".zsh", ".pl", ".rb", ".js", ".lua", ".R", ".jl"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_SHELL_CODE = re.compile(r"-[a-zA-Z]*c")
_OPERATORS = re.compile(r"[();<>|&\n]+")
_REDIRECTIONS = re.compile(r"[<>|&]*[<>][<>|&]*")
_BRANCHES = frozenset({"if", "then", "elif", "else", "fi"})
_LOOPS = frozenset({"while", "until", "do", "done"})
_KEYWORDS = _BRANCHES | _LOOPS | {"exec", "time", "!", "{", "}", "#"}
_READS_NOTHING = frozenset({"cd", "echo", "printf", "tee", "mkdir", "rm", "touch"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_MOST_NESTED = 3  # shells that run shells


def files_named(words: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Each plain file that a word names, and whether it is run rather than read."""
    programs = set(_programs(words))
    for word in dict.fromkeys(_with_parts(words)):
        if _may_be_path(word) and Path(word).is_file():
            yield Path(word), word in programs


def _programs(words: Sequence[str]) -> Iterator[str]:
    """The words that are run: the first one, and every script. Data, such as golden values, may be made anew."""
    for place, word in enumerate(words):
        yield from _script_of(word)
        path = Path(word)
        is_program = _may_be_path(word) and path.is_file() and os.access(path, os.X_OK)
        if place == 0 or path.suffix in _SCRIPTS or is_program:
            yield word


def files_of_user(words: Sequence[str]) -> tuple[str, ...]:
    """The files among the words as tracebacks name them, and what stands there for code and for modules."""
    # Links stay, as in tracebacks; a word may be no path at all.
    files = [os.path.abspath(word) for word in words if os.path.isfile(word)]  # noqa: PTH100, PTH113
    after = dict(pairwise(words))
    if "-c" in after:
        files.append("<string>")
    if "-m" in after:
        files += _module_files(after["-m"])
    return tuple(files)


def existing(paths: Iterable[str]) -> list[Path]:
    """Those that stand there, sorted, each once."""
    return [Path(path) for path in sorted(set(paths)) if _may_be_path(path) and os.path.exists(path)]  # noqa: PTH110


def paths_in(words: Sequence[str], nested: int = 0) -> Iterator[str]:
    """Whatever may be a path: words, values behind ``=``, the program, modules, and so on in the code of a shell."""
    if not words:
        return
    yield from _with_parts(words)
    yield shutil.which(words[0]) or ""
    after = dict(pairwise(words))
    if "-m" in after:
        yield from _places_of_module(after["-m"])
    if nested < _MOST_NESTED:
        for code in _shell_code(words):
            for command in commands_of_shell(code):
                yield from paths_in(command, nested + 1)


def _shell_code(words: Sequence[str]) -> Iterator[str]:
    """What shells among the words are given to run. One may stand behind ``env``, ``timeout`` and the like."""
    is_shell = False
    for option, code in pairwise(words):
        is_shell = is_shell or Path(option).name in _SHELLS
        if is_shell and _SHELL_CODE.fullmatch(option):
            yield code
            return


def commands_of_shell(code: str) -> Iterator[list[str]]:
    """The words of each command in a shell's code, but for its keywords, variables that are set, and what it writes.

    Nothing is expanded: a path that a variable or a pattern stands for is not seen.
    """
    command: list[str] = []
    is_written = False
    for word in _tokens_of_shell(code):
        if _OPERATORS.fullmatch(word):
            is_written = ">" in word
            if not _REDIRECTIONS.fullmatch(word):
                yield from _read_by(command)
                command = []
        elif is_written:
            is_written = False
        elif command or not (word in _KEYWORDS or _ASSIGNMENT.fullmatch(word)):
            command.append(word)
    yield from _read_by(command)


def _read_by(command: list[str]) -> Iterator[list[str]]:
    """A command, unless its words are no files that it reads."""
    if command and command[0] not in _READS_NOTHING:
        yield command


def _tokens_of_shell(code: str) -> Iterator[str]:
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters = " \t\r", ""
    lexer.whitespace_split = True
    with suppress(ValueError):  # quotes without an end: the shell will say so
        yield from lexer


def _places_of_module(name: str) -> Iterator[str]:
    """Where a module of the user may stand: its file, or the folder of its package, beside us or on PYTHONPATH."""
    top = name.partition(".")[0]
    for folder in ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]:
        yield os.path.join(folder, f"{top}.py")  # noqa: PTH118 -- as any other word
        yield os.path.join(folder, top) if top else ""  # noqa: PTH118 -- same


def _module_files(name: str) -> list[str]:
    path = name.replace(".", "/")
    return [f"{path}.py", f"{path}/__main__.py"]


def _with_parts(words: Iterable[str]) -> Iterator[str]:
    """Each word, what stands behind its first ``=``, and the file of ``FILE.py:function``."""
    for word in words:
        for part in (word, word.partition("=")[2]):
            yield part
            yield from _script_of(part)


def _script_of(word: str) -> Iterator[str]:
    """The file of ``FILE.py:function``."""
    script, colon, function = word.rpartition(":")
    if colon and script.endswith(".py") and function.isidentifier():
        yield script


def _may_be_path(word: str) -> bool:
    parts = word.encode("utf-8", "surrogatepass").split(b"/")
    return bool(word) and "\0" not in word and len(word) < _LONGEST_PATH and max(map(len, parts)) <= _LONGEST_NAME
