"""The words of a check: the programs that are this one, the options that each of our commands has before its words; and
words as paths: the files that they name, run or read, other files in their place, and the modules beside a script.
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
    """A path as a word that no program takes for an option, which Path makes of ``./-name``."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def output_word(name: str, model: Path) -> str:
    """A file name to suggest for an output: ``name``, or another one if that is the model itself."""
    path = Path(name)
    return f"{path.stem}_2{path.suffix}" if path.resolve() == model.resolve() else name


def names_path(word: str, path: str) -> bool:
    """Whether a word is a path, however it is spelled: ``./a`` is ``a``."""
    return word == path or (word[:1] == "." and str(Path(word)) == path)


# Files that the words of a command name, and other files in their place.

_PLAIN = re.compile(r"[\w./+-]+")
"""A path that no shell reads as anything else: it may be found within the code of one."""
_BEFORE = r"(?<![^\s\"'=:,;<>()|&@])(?:\./+)*"
_AFTER = r"(?![^\s\"':,;<>()|&])"
"""What may stand around a path within a word."""


def is_named(path: Path, words: Sequence[str]) -> bool:
    """Whether words name a file, each time so that ``with_files`` can put another in its place.

    They do not if its name is also met otherwise, such as behind a variable: what reads it there would read a file of
    another run.
    """
    left = with_files(words, {path: Path("other")})
    if left == tuple(words):
        return False
    elsewhere = re.compile(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])")
    return not any(elsewhere.search(word) for word in left)


def with_files(words: Iterable[str], files: Mapping[Path, Path]) -> tuple[str, ...]:
    """Words with other ``files`` in place of those that they name: as a word, behind ``=``, or within shell code."""
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
        return within.sub(lambda found: others[found[1]], word) if within else word

    return tuple(map(replaced, words))


def names_undone(text: AnyStr, files: Mapping[Path, Path]) -> AnyStr:
    """What a program said, as if it had been told the files themselves and not the others in their place."""
    for path, other in files.items():
        pattern = rf"(?<![\w.-]){re.escape(other.name)}(?![\w-])"
        if isinstance(text, str):
            text = path.name.join(re.split(pattern, text))
        else:
            text = os.fsencode(path.name).join(re.split(os.fsencode(pattern), text))
    return text


# The files that the words of a command name or hold: what it runs and reads.

_LONGEST_PATH = 4096  # bytes
_LONGEST_NAME = 255  # bytes between two slashes; a longer one is an error to ask for
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

    Data, such as golden values, may be made anew.
    """
    scripts = {script for word in words for script in _script_of(word)}
    for word in dict.fromkeys(_with_parts(words)):
        if _may_be_path(word) and (path := Path(word)).is_file():
            is_program = path.suffix in _SCRIPTS or os.access(path, os.X_OK)
            yield path, word in scripts or word == words[0] or (word in words and is_program)


def files_of_user(words: Sequence[str]) -> tuple[str, ...]:
    """The files among the words as tracebacks name them, and what stands there for code and for modules."""
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
        top = after["-m"].partition(".")[0]  # the file of a module, or the folder of its package
        for folder in ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]:
            yield os.path.join(folder, f"{top}.py")  # noqa: PTH118 -- as any other word
            yield os.path.join(folder, top) if top else ""  # noqa: PTH118 -- same
    is_shell = False  # one may stand behind ``env``, ``timeout`` and the like
    for option, code in pairwise(words) if nested < _MOST_NESTED else ():
        is_shell = is_shell or Path(option).name in _SHELLS
        if is_shell and _SHELL_CODE.fullmatch(option):  # what the shell is given to run
            for command in commands_of_shell(code):
                yield from paths_in(command, nested + 1)
            return


def commands_of_shell(code: str) -> Iterator[list[str]]:
    """The words of each command in a shell's code, but for its keywords, variables that are set, and what it writes.

    Nothing is expanded: a path that a variable or a pattern stands for is not seen.
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


# The modules of a Python script that stand beside it: what it imports of its own folder, read from its text.

_LARGEST = 1 << 20  # bytes of a module
_MOST = 100


def modules_beside(script: Path) -> list[Path]:
    """The files of modules in a script's folder that it imports, or that these import, by name and not computed.

    Modules in packages are not followed: of a package only ``__init__.py``. Never raises: a script that cannot be read
    or parsed has none.
    """
    folder, waiting, found = script.parent, [script], dict[Path, None]()
    while waiting and len(found) < _MOST:
        for name in dict.fromkeys(imported_names(waiting.pop())):
            path = next(filter(Path.is_file, (folder / f"{name}.py", folder / name / "__init__.py")), None)
            if path is not None and path != script and path not in found:
                found[path] = None
                waiting.append(path)
    return sorted(found)


def imported_names(module: Path) -> Iterator[str]:
    """The first parts of the names that a module imports, wherever in its text."""
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
"""With that value, a command of ours reads no settings files, nor does what it starts.

So is a check that is our own command: whoever runs it has added to its words what it is to have.
"""


def is_own_program(word: str) -> bool:
    """Whether a program is ours, typed as ``biopsy`` or as the alias, with or without a path."""
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
    """Whether a program of our name is what runs here, and not another one of that name, named by its path."""
    if word == NAME:
        return True
    program = Path(shutil.which(word) or Path(sys.executable).with_name(word))
    try:
        return program.parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False


def start_words(word: str) -> list[str]:
    """The words that start a program. ``biopsy`` is this very installation, also where it is not on the PATH."""
    if word == NAME:
        return own_python("biopsy.cli.app")
    if word == ALIAS and shutil.which(word) is None:
        beside = Path(sys.executable).with_name(word)
        return [str(beside)] if beside.exists() else [word]
    return [word]


# The options that every command of ours has, where they stand before its words: ``biopsy -v debug reduce``.

LEVELS = {
    "ULTRA_VERBOSE": 4, "SUPER_VERBOSE": 3, "EXTRA_VERBOSE": 2, "VERBOSE": 1, "INFO": 0,
    "START": -1, "FINISH": -2, "WARNING": -3, "ERROR": -4, "CRITICAL": -5,
}  # fmt: skip
"""The levels of ``--verbosity``, as Polygraphy names them -> how many times ``-v``, or ``-q`` if negative."""

FORMATS = ("timestamp", "line-info", "no-colors")
"""What ``--log-format`` takes."""

HELP = ("-h", "--help")
VERSION = ("-V", "--version")

_SWITCH = re.compile(r"-[vqhV]+|--verbose|--quiet|--silent|--help|--version|--(verbosity|log-format|log-file)=.*", re.S)


def split_leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The common options that words begin with, and the words behind them.

    An option that takes several values takes one in any case, and more of them as long as they are values of it: what
    comes behind is the name of a command.
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
