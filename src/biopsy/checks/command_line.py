"""The words of a check, parsed once: what they run, a command of ours or a Python script perhaps, and what can be
known of it before it runs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
"""What stands for the path of the candidate, in any word."""

LOAD_INPUTS = ("--load-inputs", "--load-input-data")
"""The option of our own ``run`` that names files of inputs, and its other spelling."""

LOAD_OUTPUTS = ("--load-outputs", "--load-results")
"""The option of our own ``run`` that names files of golden values, and its other spelling."""

_COMPARE_SCRIPT = "--compare-func-script"

_ENGINE = "--engine"
_PLAIN_ENGINES = frozenset({"--onnxrt", "--openvino", "--trt", "--reference"})


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, the first of which names its program: one that we know nothing more of."""

    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """The program as it is named; "" where there are no words."""
        return self.words[0] if self.words else ""

    @property
    def compares_recorded(self) -> bool | None:
        """Whether it compares what it computes with values recorded before; None if its words do not tell."""
        return None

    @property
    def has_golden_values(self) -> bool | None:
        """Whether these are golden values that it was given; None if its words do not tell."""
        return None

    def names_candidate(self, default_name: str) -> bool:
        """Whether the words say where the candidate's path goes; if not, the program knows the default name itself."""
        return any(PLACEHOLDER in word or names_path(word, default_name) for word in self.words)

    def words_for(self, candidate: Path, default_name: str) -> list[str]:
        """The words for one candidate, whose path stands in for ``{}`` and for the default name."""
        path = as_word(candidate)
        return [path if names_path(word, default_name) else word.replace(PLACEHOLDER, path) for word in self.words]

    def names_file(self, path: Path) -> bool:
        """Whether the words say where a file stands, and none speaks of it in a way that ``with_files`` leaves."""
        return is_named(path, self.words)

    def with_files(self, files: Mapping[Path, Path]) -> CommandLine:
        """The same words with other files in place of those that they name."""
        return replace(self, words=with_files(self.words, files))

    def files_named(self) -> Iterator[tuple[Path, bool]]:
        """Each plain file that a word names, and whether it is run rather than read."""
        return files_named(self.words)

    def files(self, default_name: str) -> list[Path]:
        """Files and folders that the answers depend on: those that words name or hold, modules, and programs.

        What words hold are the values behind ``=``, and the commands in ``sh -c '...'``.
        """
        words = [word for word in self.words if not names_path(word, default_name)]
        return existing(path for path in paths_in(words) if not names_path(path, default_name))

    def programs(self, default_name: str) -> list[Path]:
        """Files among the words that are run, and the modules that Python scripts of them import from beside them."""
        named = (path for path, is_run in self.files_named() if is_run and not names_path(str(path), default_name))
        scripts = ([path, *(modules_beside(path) if path.suffix == ".py" else ())] for path in named)
        return list(dict.fromkeys(chain.from_iterable(scripts)))

    def user_scripts(self, candidate: Path, default_name: str) -> tuple[str, ...]:
        """The user's own files as tracebacks name them, or the ends of their paths."""
        return files_of_user([word for word in self.words_for(candidate, default_name) if word != str(candidate)])


NO_WORDS = CommandLine(())
"""Those of a check that is no command."""


@dataclass(frozen=True)
class OwnCommand(CommandLine):
    """A command of ours."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words behind the program."""
        return self.words[1:]

    @property
    def is_this_installation(self) -> bool:
        """Whether the program is what runs here, and not another one of that name, named by its path."""
        return is_this_installation(self.program)


_SHOWING_NODES = (" layers ", " --mode basic ", " --mode attrs ", " --mode full ")
"""What ``inspect model`` shows nodes for: a value of --show, and some of --mode."""


@dataclass(frozen=True)
class OwnInspect(OwnCommand):
    """``biopsy inspect``: it looks at no values at all."""

    @property
    def prints_no_nodes(self) -> bool:
        """Whether it is ``inspect model`` without an option that has it print nodes."""
        options = " ".join(self.words[2:]).replace("=", " ")
        return self.words[2:3] == ("model",) and not any(word in f" {options} " for word in _SHOWING_NODES)

    compares_recorded = False
    has_golden_values = False


@dataclass(frozen=True)
class OwnRun(OwnCommand):
    """``biopsy run``."""

    @property
    def options(self) -> tuple[str, ...]:
        """The words behind ``run``: the model and the options."""
        return self.words[2:]

    @property
    def compares_recorded(self) -> bool | None:
        """Whether it loads golden values, or judges the values themselves; a function of the user's may do either."""
        return True if "--validate" in self._before_operands else self.has_golden_values

    @property
    def has_golden_values(self) -> bool | None:
        """Whether it loads golden values; a function of the user's may have some."""
        if self.golden_files:
            return True
        return None if any(option == _COMPARE_SCRIPT for option, _ in self._groups) else False

    @property
    def input_files(self) -> list[Path]:
        """Files of inputs that it loads."""
        return self._files(LOAD_INPUTS)

    @property
    def golden_files(self) -> list[Path]:
        """Files of golden values that it compares with."""
        return self._files(LOAD_OUTPUTS)

    @cached_property
    def engine_places(self) -> list[tuple[int, int]]:
        """Where the words name an engine, in order: the place of the first word, and how many there are."""
        places = []
        for place, word in enumerate(self.words):
            if word == _ENGINE:
                places.append((place, 2))
            elif word.startswith(f"{_ENGINE}=") or word.partition(":")[0] in _PLAIN_ENGINES:
                places.append((place, 1))
        return places

    def with_engine(self, number: int, text: str) -> tuple[str, ...]:
        """The words with another engine in the place of the one of this number."""
        first, count = self.engine_places[number]
        engine = [f"{_ENGINE}={text}"] if self.words[first].startswith(f"{_ENGINE}=") else [_ENGINE, text]
        return (*self.words[:first], *engine, *self.words[first + count :])

    def with_only_engine(self, number: int) -> OwnRun:
        """The same without all other engines than the one of this number."""
        others = [place for at, place in enumerate(self.engine_places) if at != number]
        gone = {first + word for first, count in others for word in range(count)}
        return OwnRun(tuple(word for at, word in enumerate(self.words) if at not in gone))

    def with_inputs(self, file: Path) -> OwnRun:
        """The same with one file of inputs in place of all those that it loads."""
        return self.without_option(LOAD_INPUTS).with_options(LOAD_INPUTS[0], as_word(file))

    def with_options(self, *added: str) -> OwnRun:
        """The same with more options, which stand before what follows ``--``: those words are operands."""
        return OwnRun((*self._before_operands, *added, *self.words[len(self._before_operands) :]))

    def without_option(self, names: Sequence[str]) -> OwnRun:
        """The same without an option, in any of its spellings, and without its values."""
        return self._with_groups(words for option, words in self._groups if option not in names)

    def with_values(self, is_kept: Callable[[str, str], bool]) -> OwnRun:
        """The same with only some values of its options, by option and value; one that has lost all goes too."""
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
        """The words before the operands: each option with the words that are its values, "" for words of none."""
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
    """The values of an option; ``words`` are its name and what follows it."""
    _, equals, value = words[0].partition("=")
    return [value] if equals else words[1:]


_OWN: dict[str, type[OwnCommand]] = {"run": OwnRun, "inspect": OwnInspect}


def parse(words: Sequence[str]) -> CommandLine:
    """What the words of a check are. Words that are met again are not parsed again."""
    return _parsed(tuple(words))


@lru_cache(maxsize=1024)
def _parsed(words: tuple[str, ...]) -> CommandLine:
    if not words or not is_own_program(words[0]):
        return CommandLine(words)
    options, rest = split_leading(words[1:])
    if options and rest and rest[0] in _OWN:  # biopsy -v run {} is biopsy run {} -v, and is looked at as such
        words = OwnRun((words[0], *rest)).with_options(*options).words
    return _OWN.get(words[1] if len(words) > 1 else "", OwnCommand)(words)


def is_served(words: Sequence[str]) -> bool:
    """Whether checks of these words are made in forks of a warm process: those that are our own ``run``."""
    command = parse(words)
    return isinstance(command, OwnRun) and command.is_this_installation


# Words of a check that have an interpreter of Python run a script, and nothing else.

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
