"""The words of a check: our own programs and the options before a command's name; words as paths, and other files in
their place; and the modules beside a script.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import AnyStr

from biopsy.processes.own_process import own_python
from biopsy.processes.reading import read_plain


def as_word(path: Path) -> str:
    """A path as a word that no program takes for an option: Path turns ``./-name`` into ``-name``."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def output_word(name: str, model: Path) -> str:
    """A file name to suggest for an output: ``name``, or a variant if that is the model itself."""
    path = Path(name)
    return f"{path.stem}_2{path.suffix}" if path.resolve() == model.resolve() else name


def names_path(word: str, path: str) -> bool:
    """Whether a word is the path, however it is spelled: ``./a`` is ``a``."""
    return word == path or (word[:1] == "." and str(Path(word)) == path)


_PLAIN = re.compile(r"[\w./+-]+")
"""A path that needs no quotes in a shell, so that it may be replaced within shell code."""
_BEFORE = r"(?<![^\s\"'=:,;<>()|&@])(?:\./+)*"
_AFTER = r"(?![^\s\"':,;<>()|&])"
"""What may precede and follow a path within a word."""


def is_named(path: Path, words: Sequence[str]) -> bool:
    """Whether words name a file only in ways that ``with_files`` can replace.

    They do not if its name also occurs otherwise, such as after a variable: that part of the check would read a file
    of another run.
    """
    left = with_files(words, {path: Path("other")})
    if left == tuple(words):
        return False
    elsewhere = re.compile(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])")
    return not any(elsewhere.search(word) for word in left)


def with_files(words: Iterable[str], files: Mapping[Path, Path]) -> tuple[str, ...]:
    """Words with other ``files`` in place of those named: as a word, behind ``=``, or within shell code."""
    others = {str(path): as_word(other) for path, other in files.items()}
    plain = [re.escape(path) for path in others if _PLAIN.fullmatch(path)]
    within = re.compile(f"{_BEFORE}({'|'.join(plain)}){_AFTER}") if plain else None

    def replaced(word: str) -> str:
        option, equals, value = word.partition("=")
        for path, other in others.items():
            if names_path(word, path):
                return other
            if equals and names_path(value, path):
                return f"{option}={other}"
        return within.sub(lambda match: others[match[1]], word) if within else word

    return tuple(map(replaced, words))


def names_undone(text: AnyStr, files: Mapping[Path, Path]) -> AnyStr:
    """The output of a program as if it had been given the original files and not the others in their place."""
    for path, other in files.items():
        pattern = rf"(?<![\w.-]){re.escape(other.name)}(?![\w-])"
        if isinstance(text, str):
            text = path.name.join(re.split(pattern, text))
        else:
            text = os.fsencode(path.name).join(re.split(os.fsencode(pattern), text))
    return text


_LONGEST_PATH = 4096  # bytes
_LONGEST_NAME = 255  # bytes between two slashes; asking the system about a longer one is an error
_SCRIPTS = frozenset({".py", ".sh", ".bash", ".zsh", ".pl", ".rb", ".js", ".lua", ".R", ".jl"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_SHELL_CODE = re.compile(r"-[a-zA-Z]*c")
_OPERATORS = re.compile(r"[();<>|&\n]+")
_REDIRECTIONS = re.compile(r"[<>|&]*[<>][<>|&]*")
_KEYWORDS = frozenset({
    "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "exec", "time", "!", "{", "}", "#",
})  # fmt: skip
_READS_NOTHING = frozenset({"cd", "echo", "printf", "tee", "mkdir", "rm", "touch"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_MOST_NESTED = 3  # shells that run shells


def files_named(words: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Each plain file that a word names, and whether it is run rather than read: the first word, and every script.

    Files that are only read, such as golden values, may be made anew.
    """
    scripts = {script for word in words for script in _script_of(word)}
    for word in dict.fromkeys(_with_parts(words)):
        if _may_be_path(word) and (path := Path(word)).is_file():
            is_program = path.suffix in _SCRIPTS or os.access(path, os.X_OK)
            yield path, word in scripts or word == words[0] or (word in words and is_program)


def files_of_user(words: Sequence[str]) -> tuple[str, ...]:
    """The files among the words as tracebacks name them, including the names for ``-c`` code and ``-m`` modules."""
    # Links stay, as in tracebacks; a word may be no path at all.
    files = [os.path.abspath(word) for word in words if os.path.isfile(word)]  # noqa: PTH100, PTH113
    after = dict(pairwise(words))
    if "-c" in after:
        files.append("<string>")
    if "-m" in after:
        path = after["-m"].replace(".", "/")
        files += [f"{path}.py", f"{path}/__main__.py"]
    return tuple(files)


def existing(paths: Iterable[str]) -> list[Path]:
    """The paths that exist, sorted, each once."""
    return [Path(path) for path in sorted(set(paths)) if _may_be_path(path) and os.path.exists(path)]  # noqa: PTH110


def paths_in(words: Sequence[str], nested: int = 0) -> Iterator[str]:
    """Everything that may be a path: words, values behind ``=``, the program, modules, and the same in shell code."""
    if not words:
        return
    yield from _with_parts(words)
    yield shutil.which(words[0]) or ""
    after = dict(pairwise(words))
    if "-m" in after:
        top = after["-m"].partition(".")[0]  # the file of a module, or the folder of its package
        for folder in ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]:
            yield os.path.join(folder, f"{top}.py")  # noqa: PTH118 -- as any other word
            yield os.path.join(folder, top) if top else ""  # noqa: PTH118 -- same
    is_shell = False  # a shell may follow ``env``, ``timeout`` and the like
    for option, code in pairwise(words) if nested < _MOST_NESTED else ():
        is_shell = is_shell or Path(option).name in _SHELLS
        if is_shell and _SHELL_CODE.fullmatch(option):  # what the shell is given to run
            for command in commands_of_shell(code):
                yield from paths_in(command, nested + 1)
            return


def commands_of_shell(code: str) -> Iterator[list[str]]:
    """The words of each command in shell code, without keywords, assignments and output files.

    Nothing is expanded: a path after a variable or a pattern is not seen.
    """
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters = " \t\r", ""
    lexer.whitespace_split = True
    tokens: list[str] = []
    with suppress(ValueError):  # quotes without an end: the shell will say so
        tokens.extend(lexer)
    command: list[str] = []
    is_written = False
    for word in [*tokens, ";"]:
        if _OPERATORS.fullmatch(word):
            is_written = ">" in word
            if not _REDIRECTIONS.fullmatch(word):
                if command and command[0] not in _READS_NOTHING:
                    yield command
                command = []
        elif is_written:
            is_written = False
        elif command or not (word in _KEYWORDS or _ASSIGNMENT.fullmatch(word)):
            command.append(word)


def _with_parts(words: Iterable[str]) -> Iterator[str]:
    """Each word, the part behind its first ``=``, and the file of ``FILE.py:function``."""
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


_LARGEST = 1 << 20  # bytes of a module
_MOST = 100


def modules_beside(script: Path) -> list[Path]:
    """The modules in a script's folder that it imports, directly or through other such modules, with literal names.

    Of a package, only ``__init__.py`` is followed. Never raises: a script that cannot be read or parsed has none.
    """
    folder, waiting, modules = script.parent, [script], dict[Path, None]()
    while waiting and len(modules) < _MOST:
        for name in dict.fromkeys(imported_names(waiting.pop())):
            path = next(filter(Path.is_file, (folder / f"{name}.py", folder / name / "__init__.py")), None)
            if path is not None and path != script and path not in modules:
                modules[path] = None
                waiting.append(path)
    return sorted(modules)


def imported_names(module: Path) -> Iterator[str]:
    """The top-level names that a module imports, anywhere in its text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(read_plain(module, _LARGEST, follow=True))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


NAME, ALIAS = "biopsy", "polygraphy"

SETTINGS_VARIABLE, NO_SETTINGS = "BIOPSY_SETTINGS", "none"
"""With this value, a command of ours and what it starts read no settings files.

A check that is our own command gets it: the options that settings files give are already among its words.
"""


def is_own_program(word: str) -> bool:
    """Whether a program is ours, as ``biopsy`` or the alias, with or without a path."""
    name = Path(word).name
    if name != ALIAS:
        return name == NAME
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("polygraphy-is-biopsy")
    except PackageNotFoundError:
        return False
    return True


def is_this_installation(word: str) -> bool:
    """Whether a program of our name is this installation, and not another one named by its path."""
    if word == NAME:
        return True
    program = Path(shutil.which(word) or Path(sys.executable).with_name(word))
    try:
        return program.parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False


def start_words(word: str) -> list[str]:
    """The words that start a program. ``biopsy`` is this installation, even if it is not on the PATH."""
    if word == NAME:
        return own_python("biopsy.cli.app")
    if word == ALIAS and shutil.which(word) is None:
        beside = Path(sys.executable).with_name(word)
        return [str(beside)] if beside.exists() else [word]
    return [word]


LEVELS = {
    "ULTRA_VERBOSE": 4, "SUPER_VERBOSE": 3, "EXTRA_VERBOSE": 2, "VERBOSE": 1, "INFO": 0,
    "START": -1, "FINISH": -2, "WARNING": -3, "ERROR": -4, "CRITICAL": -5,
}  # fmt: skip
"""Levels of ``--verbosity``, named as in Polygraphy -> number of ``-v``, or of ``-q`` if negative."""

FORMATS = ("timestamp", "line-info", "no-colors")
"""Values of ``--log-format``."""

HELP = ("-h", "--help")
VERSION = ("-V", "--version")

_SWITCH = re.compile(r"-[vqhV]+|--verbose|--quiet|--silent|--help|--version|--(verbosity|log-format|log-file)=.*", re.S)


def split_leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the common options before a command's name, as in ``biopsy -v debug reduce``; returns both parts.

    An option with several values takes one in any case, and more as long as they are valid: the next word is the name
    of a command.
    """
    values: dict[str, Callable[[str], bool]] = {
        "--verbosity": lambda word: word.rpartition(":")[2].upper() in LEVELS,
        "--log-format": lambda word: word in FORMATS,
        "--log-file": lambda word: False,
    }
    place = 0
    while place < len(words):
        if words[place] in values:
            option, place = words[place], place + 2
            while place < len(words) and values[option](words[place]):
                place += 1
        elif _SWITCH.fullmatch(words[place]):
            place += 1
        else:
            break
    return list(words[:place]), list(words[place:])
