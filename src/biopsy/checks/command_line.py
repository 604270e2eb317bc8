"""The words of a check, parsed once: what they run, and what is known of them before they run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

from biopsy.checks.words import (
    as_word,
    existing,
    files_named,
    files_of_user,
    is_named,
    is_own_program,
    is_this_installation,
    modules_beside,
    names_path,
    paths_in,
    split_leading,
    with_files,
)

PLACEHOLDER = "{}"
"""The placeholder for the candidate's path, in any word."""

LOAD_INPUTS = ("--load-inputs", "--load-input-data")
"""The option of our own ``run`` that names files of inputs, in both spellings."""

LOAD_OUTPUTS = ("--load-outputs", "--load-results")
"""The option of our own ``run`` that names files of golden values, in both spellings."""

_COMPARE_SCRIPT = "--compare-func-script"

_ENGINE = "--engine"
_PLAIN_ENGINES = frozenset({"--onnxrt", "--openvino", "--trt", "--reference"})


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, program first; this class is for programs that are not ours."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The program as it was typed; "" without any words."""
        return self.words[0] if self.words else ""

    @property
    def compares_recorded(self) -> bool | None:
        """Whether it compares its outputs with values recorded before; None if its words do not tell."""
        return None

    @property
    def has_golden_values(self) -> bool | None:
        """Whether it is given golden values to compare with; None if its words do not tell."""
        return None

    def names_candidate(self, default_name: str) -> bool:
        """Whether the words contain the candidate's path; if not, the program has to know the default name."""
        return any(PLACEHOLDER in word or names_path(word, default_name) for word in self.words)

    def words_for(self, candidate: Path, default_name: str) -> list[str]:
        """The words for one candidate: its path replaces ``{}`` and the default name."""
        path = as_word(candidate)
        return [path if names_path(word, default_name) else word.replace(PLACEHOLDER, path) for word in self.words]

    def names_file(self, path: Path) -> bool:
        """Whether the words name a file, and only in ways that ``with_files`` can replace."""
        return is_named(path, self.words)

    def with_files(self, files: Mapping[Path, Path]) -> CommandLine:
        """The same command with other files in place of those that it names."""
        return replace(self, words=with_files(self.words, files))

    def files_named(self) -> Iterator[tuple[Path, bool]]:
        """Each plain file that a word names, and whether it is run rather than read."""
        return files_named(self.words)

    def files(self, default_name: str) -> list[Path]:
        """The files and folders that answers depend on: those in the words, modules, and programs.

        Values behind ``=`` and the commands in ``sh -c '...'`` are looked at too.
        """
        words = [word for word in self.words if not names_path(word, default_name)]
        return existing(path for path in paths_in(words) if not names_path(path, default_name))

    def programs(self, default_name: str) -> list[Path]:
        """The files among the words that are run, and the modules that Python scripts import from their folders."""
        named = (path for path, is_run in self.files_named() if is_run and not names_path(str(path), default_name))
        scripts = ([path, *(modules_beside(path) if path.suffix == ".py" else ())] for path in named)
        return list(dict.fromkeys(chain.from_iterable(scripts)))

    def user_scripts(self, candidate: Path, default_name: str) -> tuple[str, ...]:
        """The user's own files as tracebacks name them, or the ends of their paths."""
        return files_of_user([word for word in self.words_for(candidate, default_name) if word != str(candidate)])


NO_WORDS = CommandLine(())
"""The words of a check that is not a command."""


@dataclass(frozen=True)
class OwnCommand(CommandLine):
    """A command of this program."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after the program."""
        return self.words[1:]

    @property
    def is_this_installation(self) -> bool:
        """Whether the program is this installation, and not another one named by its path."""
        return is_this_installation(self.program)


_SHOWING_NODES = (" layers ", " --mode basic ", " --mode attrs ", " --mode full ")
"""Options that make ``inspect model`` show nodes: a value of --show, and some of --mode."""


@dataclass(frozen=True)
class OwnInspect(OwnCommand):
    """``biopsy inspect``, which looks at no values."""

    @property
    def prints_no_nodes(self) -> bool:
        """Whether it is ``inspect model`` without an option that shows nodes."""
        options = " ".join(self.words[2:]).replace("=", " ")
        return self.words[2:3] == ("model",) and not any(word in f" {options} " for word in _SHOWING_NODES)

    compares_recorded = False
    has_golden_values = False


@dataclass(frozen=True)
class OwnRun(OwnCommand):
    """``biopsy run``."""

    @property
    def options(self) -> tuple[str, ...]:
        """The words after ``run``: the model and the options."""
        return self.words[2:]

    @property
    def compares_recorded(self) -> bool | None:
        """Whether it loads golden values or validates its outputs; None if a function of the user's may do either."""
        return True if "--validate" in self._before_operands else self.has_golden_values

    @property
    def has_golden_values(self) -> bool | None:
        """Whether it loads golden values; None if a function of the user's may have some."""
        if self.golden_files:
            return True
        return None if any(option == _COMPARE_SCRIPT for option, _ in self._groups) else False

    @property
    def input_files(self) -> list[Path]:
        """The input files that it loads."""
        return self._files(LOAD_INPUTS)

    @property
    def golden_files(self) -> list[Path]:
        """The files of golden values that it compares with."""
        return self._files(LOAD_OUTPUTS)

    @cached_property
    def engine_places(self) -> list[tuple[int, int]]:
        """The engines among the words, in order: the index of the first word, and the number of words."""
        places = []
        for place, word in enumerate(self.words):
            if word == _ENGINE:
                places.append((place, 2))
            elif word.startswith(f"{_ENGINE}=") or word.partition(":")[0] in _PLAIN_ENGINES:
                places.append((place, 1))
        return places

    @property
    def engines(self) -> list[str]:
        """The specs of its engines, as they are written."""
        last_words = (self.words[place + number - 1] for place, number in self.engine_places)
        return [word.removeprefix(f"{_ENGINE}=").removeprefix("--") for word in last_words]

    def with_engine(self, number: int, text: str) -> tuple[str, ...]:
        """The words with another engine in place of the engine of this number."""
        first, count = self.engine_places[number]
        engine = [f"{_ENGINE}={text}"] if self.words[first].startswith(f"{_ENGINE}=") else [_ENGINE, text]
        return (*self.words[:first], *engine, *self.words[first + count :])

    @property
    def with_engines_exchanged(self) -> OwnRun:
        """The same command with its first two engines in each other's place; there must be two."""
        (first, size), (second, other_size) = self.engine_places[:2]
        words, end = self.words, first + size
        between, rest = words[end:second], words[second + other_size :]
        exchanged = (*words[second : second + other_size], *between, *words[first:end])
        return OwnRun((*words[:first], *exchanged, *rest))

    def with_only_engine(self, number: int) -> OwnRun:
        """The same command with only the engine of this number."""
        others = [place for at, place in enumerate(self.engine_places) if at != number]
        gone = {first + word for first, count in others for word in range(count)}
        return OwnRun(tuple(word for at, word in enumerate(self.words) if at not in gone))

    def with_inputs(self, file: Path) -> OwnRun:
        """The same command with one input file in place of all those that it loads."""
        return self.without_option(LOAD_INPUTS).with_options(LOAD_INPUTS[0], as_word(file))

    def with_options(self, *added: str) -> OwnRun:
        """The same command with more options, inserted before ``--``, after which all words are operands."""
        return OwnRun((*self._before_operands, *added, *self.words[len(self._before_operands) :]))

    def without_option(self, names: Sequence[str]) -> OwnRun:
        """The same command without an option in any of its spellings, and without its values."""
        return self._with_groups(words for option, words in self._groups if option not in names)

    def words_of(self, names: Sequence[str]) -> list[str]:
        """The words of an option in any of its spellings, with its values."""
        return [word for option, words in self._groups if option in names for word in words]

    def with_values(self, is_kept: Callable[[str, str], bool]) -> OwnRun:
        """The same command with only the option values for which ``is_kept(option, value)``.

        An option that loses all its values is left out.
        """
        groups = []
        for option, words in self._groups:
            values = _values_in(words) if option else ()
            kept = [value for value in values if is_kept(option, value)]
            if kept or not values:
                groups.append(words if len(kept) == len(values) else [words[0], *kept])
        return self._with_groups(groups)

    def _files(self, names: Sequence[str]) -> list[Path]:
        return [Path(value) for option, words in self._groups if option in names for value in _values_in(words)]

    def _with_groups(self, groups: Iterable[Sequence[str]]) -> OwnRun:
        return OwnRun((*chain.from_iterable(groups), *self.words[len(self._before_operands) :]))

    @cached_property
    def _groups(self) -> list[tuple[str, list[str]]]:
        """The words before ``--`` in groups: an option with its values, or "" with words that belong to no option."""
        groups: list[tuple[str, list[str]]] = [("", [])]
        for word in self._before_operands:
            name, equals, _ = word.partition("=")
            if word.startswith("-"):
                groups.append((name, [word]))
                if equals:
                    groups.append(("", []))
            else:
                groups[-1][1].append(word)
        return groups

    @cached_property
    def _before_operands(self) -> tuple[str, ...]:
        return self.words[: self.words.index("--")] if "--" in self.words else self.words


def _values_in(words: Sequence[str]) -> Sequence[str]:
    """The values of an option; ``words`` are its name and the words that follow."""
    _, equals, value = words[0].partition("=")
    return [value] if equals else words[1:]


_OWN: dict[str, type[OwnCommand]] = {"run": OwnRun, "inspect": OwnInspect}


def parse(words: Sequence[str]) -> CommandLine:
    """Parse the words of a check; results are cached."""
    return _parsed(tuple(words))


@lru_cache(maxsize=1024)
def _parsed(words: tuple[str, ...]) -> CommandLine:
    if not words or not is_own_program(words[0]):
        return CommandLine(words)
    options, command = split_leading(words[1:])
    if options and command and command[0] in _OWN:  # biopsy -v run {} means biopsy run {} -v
        words = OwnRun((words[0], *command)).with_options(*options).words
    return _OWN.get(words[1] if len(words) > 1 else "", OwnCommand)(words)


def is_served(words: Sequence[str]) -> bool:
    """Whether checks of these words can run in forks of a warm process: those of our own ``run``."""
    command = parse(words)
    return isinstance(command, OwnRun) and command.is_this_installation


_NAME = re.compile(r"python(\d(\.\d+)?)?t?")
_FLAGS = re.compile(r"-[bBdOPRsuvx]+")
"""Options after which the interpreter still reads PYTHONPATH, runs the script, and ends."""
_WITH_VALUE = re.compile(r"-[bBdOPRsuvx]*[WX]")
_LONGEST_FIRST_LINE = 255  # bytes; Linux reads no more
_BINARY = b"\x7fELF"


@dataclass(frozen=True, kw_only=True)
class PythonScript:
    """A Python script that the words of a check run.

    ``name`` is the script as the interpreter is given it. ``before`` are the words of the process up to the script, and
    ``given`` is how many words of the check precede the script's own arguments.
    """

    name: str
    interpreter: Path
    before: tuple[str, ...]
    given: int

    @property
    def file_name(self) -> str:
        """The name of its file, for messages."""
        return Path(self.name).name

    def argv(self, words: Sequence[str]) -> list[str]:
        """The script's ``sys.argv`` for these words of a check."""
        return [self.name, *words[self.given :]]


def python_script(words: Sequence[str], default_name: str) -> PythonScript | None:
    """The script that these words run; None if they do anything else, or anything not understood."""
    script: PythonScript | None
    try:
        interpreter, place = interpreter_of(words[0]), _place_of_script(words)
        if interpreter is not None and place is not None and Path(words[place]).is_file():
            before = tuple(words[:place])
            script = PythonScript(name=words[place], interpreter=interpreter, before=before, given=place + 1)
        else:
            script = _run_by_first_line(words)
    except OSError:
        return None
    if script is None or any(PLACEHOLDER in word or names_path(word, default_name) for word in words[: script.given]):
        return None
    return script


def missing_script(words: Sequence[str], default_name: str) -> Path | None:
    """The script that these words give a Python interpreter, if nothing is at its path."""
    with suppress(OSError, ValueError):  # a name that no file can have
        place = _place_of_script(words) if interpreter_of(words[0]) is not None else None
        if place is not None and PLACEHOLDER not in words[place] and not names_path(words[place], default_name):
            script = Path(words[place])
            return None if script.exists() else script
    return None


def _run_by_first_line(words: Sequence[str]) -> PythonScript | None:
    """The script of ``check.py ...``, whose first line names an interpreter."""
    path = shutil.which(words[0])
    with Path(path or words[0]).open("rb") as file:
        first = file.read(_LONGEST_FIRST_LINE)
    if path is None or not first.startswith(b"#!") or b"\n" not in first:
        return None
    program, _, arguments = first[2:].partition(b"\n")[0].decode().strip().partition(" ")
    arguments = arguments.strip()
    before = [program, arguments] if arguments else [program]
    if Path(program).name == "env":
        before = arguments.removeprefix("-S").split() if arguments.startswith("-S") else [arguments]
    interpreter = interpreter_of(before[0]) if before else None
    if interpreter is None or _place_of_script([*before, path]) != len(before):
        return None
    return PythonScript(name=path, interpreter=interpreter, before=tuple(before), given=1)


def interpreter_of(word: str) -> Path | None:
    """The file of a program if it is a Python interpreter; None for a script that may run other code first."""
    path = shutil.which(word)
    if path is None or not any(_NAME.fullmatch(each.name) for each in (Path(path), Path(path).resolve())):
        return None
    with Path(path).open("rb") as file:
        return Path(path) if file.read(len(_BINARY)) == _BINARY else None


def _place_of_script(words: Sequence[str]) -> int | None:
    """The index of the script, if all words before it are the interpreter and options that are understood."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        if _WITH_VALUE.fullmatch(word):
            place += 1  # the value is the next word
        elif not (_FLAGS.fullmatch(word) or _WITH_VALUE.match(word)):
            return None
        place += 1
    return place if place < len(words) else None
