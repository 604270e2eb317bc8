"""Settings files: where they are, which options each may set, and how they become words of a command line."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from biopsy import errors
from biopsy.checks.words import HELP, NO_SETTINGS, SETTINGS_VARIABLE, VERSION
from biopsy.cli.arguments import engines, groups
from biopsy.cli.arguments.declared import Declaration
from biopsy.cli.arguments.types import FileKind
from biopsy.cli.commands import COMMANDS, REST_OPTIONS, Command, own_command
from biopsy.cli.parser import Parser, parser_of
from biopsy.processes.own_files import folder_of_user, has_modes
from biopsy.processes.reading import read_plain
from biopsy.text import ListOption, did_you_mean, line_of, shortened, similar

OWN_FILE = "biopsy.toml"
SHARED_FILE = "pyproject.toml"
USERS_FILE = "config.toml"
MOST_BYTES = 1 << 20

Value: TypeAlias = "bool | tuple[str, ...]"
"""The value of a setting: whether a switch is on, or the words of an option."""


class _Number(str):
    """A float as it is written in the file, so that messages show ``1e9`` as ``1e9``."""


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """A file and its settings, by key. ``is_users``: it is the user's own file, not a project's."""

    file: Path
    values: Mapping[str, Value]
    is_users: bool

    @property
    def name(self) -> str:
        """The path to show: relative to the current folder, unless it is the user's own file."""
        return str(self.file) if self.is_users else os.path.relpath(self.file)


def of_project(folder: Path) -> SettingsFile | None:
    """The settings of the project that a folder belongs to, or None.

    They are in the nearest file between the folder and the one with ``.git``; without ``.git``, in the folder itself.
    Raises UsageError if the file cannot be read, belongs to another user, or is a link that leads out of the project.
    """
    if are_off():
        return None
    upwards = (folder.absolute(), *folder.absolute().parents)
    root = next((place for place in upwards if (place / ".git").exists()), upwards[0])
    for place in upwards[: upwards.index(root) + 1]:
        for file in (place / OWN_FILE, place / SHARED_FILE):
            if (table := _table(file, root)) is not None:
                _require_owner(file)
                return SettingsFile(file=file, values=_values(table, file), is_users=False)
    return None


def of_user() -> SettingsFile | None:
    """The settings in ``users_path``; None if there is no such file.

    Raises UsageError if the file cannot be read, or if another user owns it or may write to it.
    """
    file = None if are_off() else users_path()
    if file is None or (table := _table(file, None)) is None:
        return None
    for path in (file, file.parent.resolve(), file.resolve().parent):
        _require_owner(path)
        if has_modes() and path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise errors.UsageError(
                f"others may write to {path}: the settings in {file} are not followed",
                next_steps=[f"chmod go-w {path}"],
            )
    return SettingsFile(file=file, values=_values(table, file), is_users=True)


def are_off() -> bool:
    """Whether the environment says to read no settings files; it says so in all checks that biopsy starts."""
    return os.environ.get(SETTINGS_VARIABLE) == NO_SETTINGS


def users_path() -> Path | None:
    """``$XDG_CONFIG_HOME/biopsy/config.toml``, else ``~/.config/biopsy/config.toml``; None without a home."""
    folder = folder_of_user("XDG_CONFIG_HOME", ".config")
    return None if folder is None else folder / USERS_FILE


def _table(file: Path, root: Path | None) -> Mapping[str, Any] | None:
    """The table of settings for biopsy in a file; None if there is no file or no such table.

    A link that leads out of ``root`` is refused before its target is parsed, so that no error can quote it.
    """
    try:
        if not file.is_file():
            return None
        data = read_plain(file, MOST_BYTES, follow=True)
    except OSError as error:  # not ignored: settings decide what passes
        raise errors.UsageError(
            f"{file} is not read for settings: {error.strerror}",
            next_steps=[f"make it readable and small, or put the settings in a {OWN_FILE} beside it"],
        ) from error
    if file.name == SHARED_FILE and b"biopsy" not in data:
        return None
    if root is not None and not file.resolve().is_relative_to(root.resolve()):
        raise errors.UsageError(
            f"{file} is a link that leads out of {root}: it is not followed", next_steps=["put a copy in its place"]
        )
    import tomllib  # here, since most folders have no such file

    try:
        table: Any = tomllib.loads(data.decode(), parse_float=_Number)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.UsageError(f"{file} is not valid TOML: {error}") from error
    if file.name == SHARED_FILE:
        tools = table.get("tool")
        table = tools.get("biopsy") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise errors.UsageError(f"{file}: tool.biopsy is not a table")
    return table


def _require_owner(path: Path) -> None:
    """Raise UsageError if a file or folder belongs to another user: settings decide what passes."""
    owner = path.stat().st_uid
    if has_modes() and owner not in (os.geteuid(), 0):
        raise errors.UsageError(
            f"{path} belongs to another user (number {owner}): its settings are not followed",
            next_steps=["take it over with chown, or work in another folder"],
        )


def _values(table: Mapping[str, Any], file: Path) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            raise errors.UsageError(
                f"{file}: there are no sections here, and so no [{key}]",
                next_steps=["take that line away: every setting holds for all commands that have its option"],
            )
        if value == []:
            raise errors.UsageError(f"{file}: {key} has no value")
        listed = value if isinstance(value, list) else [value]
        if not isinstance(value, bool) and any(
            isinstance(item, bool) or not isinstance(item, str | int) for item in listed
        ):
            raise errors.UsageError(f"{file}: {key} is text, a number, or a list of them; a switch is true or false")
        for item in listed:
            if isinstance(item, str) and not isinstance(item, _Number) and item.startswith("-"):
                raise errors.UsageError(f"{file}: {key} begins with a dash: {item!r}")
        values[key] = value if isinstance(value, bool) else tuple(map(str, listed))
    return values


# A project's file comes with the folder, as the model does, so it may be a stranger's. It may set only options that are
# declared as ``shared``: those that are harmless in the sense of ``biopsy.engines.base.Option.harmless``, or that name
# files below the folder.

ENGINES = "engines"
"""The key for the list of engines that ``biopsy run`` compares, each as ``--engine`` takes it."""

MOST_ITERATIONS = 1000


@cache
def common_options() -> Mapping[str, Declaration]:
    """The options of ``run``, by their first spelling, that mean the same in every command that has them."""
    from biopsy.cli.arguments import comparing  # slow, and most commands find no settings file

    records = (
        engines.EngineOptions, comparing.JudgeOptions, comparing.NoiseOptions, comparing.RunningOptions,
        comparing.OutputOptions, groups.InputOptions, groups.WeightsFolderOption,
    )  # fmt: skip
    fields = (field for record in records for field in record.declared.values())
    return {field.spellings[0]: field for field in fields if field is not None and field.spellings}


def shared_keys() -> tuple[str, ...]:
    """The settings that a project's file may set."""
    return (ENGINES, *(option[2:] for option, field in common_options().items() if field.shared))


def objection(key: str, value: Value, folder: Path) -> str:
    """Why a project's file in ``folder`` may not set this, to be put after the word "it"; "" if it may."""
    if key not in shared_keys():
        return f"may not give {key}"
    texts = () if isinstance(value, bool) else value
    if key == ENGINES:
        return next(filter(None, map(_objection_to_engine, texts)), "")
    if _names_file(key):
        return next(filter(None, (_objection_to_path(key, text, folder) for text in texts)), "")
    if key == "iterations" and any(text.isdecimal() and int(text) > MOST_ITERATIONS for text in texts):
        return f"may not ask for more than {MOST_ITERATIONS} iterations"
    return ""


def _names_file(key: str) -> bool:
    return key != ENGINES and isinstance(common_options()[f"--{key}"].settings.get("type"), FileKind)


def path_below(text: str, folder: Path) -> Path | None:
    """The real path of a path relative to ``folder``, with links followed; None if it is outside of the folder."""
    try:
        root, real = (Path(os.path.realpath(path)) for path in (folder, folder / text))
    except ValueError:  # a NUL
        return None
    return real if real.is_relative_to(root) else None


def _objection_to_path(key: str, text: str, folder: Path) -> str:
    from biopsy.model.external import may_be_shared

    path = path_below(text, folder)
    if path is None:
        return f"may not name what stands outside of its folder, as {key} = {text!r} does"
    if key == "load-inputs" and path.is_dir():
        return f"may not name a folder for {key}, only its files: {text!r}"
    if may_be_shared(path, folder.resolve()):
        return f"may not name {text!r}, a hard link to a file that may stand outside of its folder"
    return ""


def _objection_to_engine(text: str) -> str:
    """Allow every engine, since the user has installed it, but only those of its options that are ``harmless``."""
    from biopsy.engines import registry

    spec = registry.parse_spec(text)
    try:
        declared = registry.find_class(spec.name).options_declared if spec.settings else ()
    except errors.EngineMissing:
        declared = ()  # the options of an engine that is missing are not known
    harmless = sorted(option.name for option in declared if option.harmless)
    wrong = [key for key in spec.settings if key not in harmless]
    if not wrong:
        return ""
    meant = "".join(f"; did you mean {name!r}?" for name in similar(wrong[0], harmless, most=1, cutoff=0.7))
    own = ", ".join(harmless) or "none"
    return f"may not give the engine {spec.name} its {wrong[0]} (allowed: {own}), as {text!r} does{meant}"


# Settings become words of the command line, as if they were typed. So journals and advised commands, which hold the
# command line, hold the settings too. Typed words come first, then the project's file, then the user's own.

TYPED_ONLY = frozenset({*REST_OPTIONS, *HELP, *VERSION})
"""Options that no file may set, since they change what a command line is."""

_Word = TypeVar("_Word")


@dataclass(kw_only=True)
class SettledLine:
    """A command line, to which the settings of files are added."""

    command: Command
    parser: Parser
    given: list[str]
    added: list[str] = field(default_factory=list)

    def takes(self, key: str) -> bool:
        """Whether the command has the option of a setting."""
        option = _option(key)
        is_for_command = key != ENGINES or self.command.words == ("run",)
        return is_for_command and option not in TYPED_ONLY and self.parser.has_option(option)

    def says(self, key: str) -> bool:
        """Whether the words hold the option already, in any spelling, or one that excludes it."""
        return any(self.parser.rivals(word, _option(key)) for word in self.words if word.startswith("-"))

    def decides(self, key: str) -> str:
        """``Declaration.decides`` of the option of a setting."""
        declared = self.parser.declaration_of(_option(key)) or common_options().get(_option(key))
        return "" if declared is None else declared.decides or ""

    def typed(self, key: str, value: Value) -> Sequence[str | ListOption]:
        """A setting as words of this command."""
        option = _option(key)
        if isinstance(value, bool):
            return [option] if value else []
        several = self.parser.most_values(option) > 1
        return [ListOption(option, texts) for texts in ([value] if several else [[text] for text in value])]

    def add(self, file: SettingsFile) -> dict[str, list[str]]:
        """Add the settings of a file that the command takes and the words lack; returns the added words by key.

        Raises UsageError for a value of the wrong kind.
        """
        added = {}
        for key, value in file.values.items():
            if not self.takes(key) or self.says(key):
                continue
            is_switch = self.parser.most_values(_option(key)) == 0
            if isinstance(value, bool) != is_switch:
                wanted = "true or false" if is_switch else "text, a number, or a list of them"
                raise errors.UsageError(f"{file.name}: {key} is {wanted}")
            is_path = not file.is_users and _names_file(key)
            typed = self.typed(key, _from_here(value, file.file.parent) if is_path else value)
            added[key] = [*chain.from_iterable([word] if isinstance(word, str) else word.words for word in typed)]
            self.added += added[key]
        return added

    @property
    def words(self) -> list[str]:
        """All words; the added ones stand before a ``--``."""
        return _joined(self.given, self.added)


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The words of a command and of its check, with the settings from files.

    ``remarks`` say what was added; ``basis`` names the added settings that decide the verdict: "atol=1e9 of
    biopsy.toml".
    """

    own: list[str]
    check: list[str] | None
    remarks: Sequence[str] = ()
    basis: str = ""


def applied(program: str, command: Command, own: list[str], check_option: str, check: list[str] | None) -> Applied:
    """Add the settings of the project in the current folder and of the user to a command line.

    Raises UsageError for a file that cannot be followed, and for a setting that a project may not give.
    """
    if check is None and not {*HELP, *VERSION}.isdisjoint(own):
        return Applied(own=own, check=check)
    lines = [SettledLine(command=command, parser=parser_of(program, command), given=own)]
    reads_project = check is not None or any(map(lines[0].takes, shared_keys()))
    sources = [file for file in (of_project(Path.cwd()) if reads_project else None, of_user()) if file is not None]
    if not sources:
        return Applied(own=own, check=check)
    inner = None if check is None else own_command(check)
    if inner is not None and {*REST_OPTIONS}.isdisjoint(inner[1]):  # else it adds to its own check
        lines.append(SettledLine(command=inner[0], parser=parser_of(program, inner[0]), given=inner[1]))
    remarks, bases = list[str](), list[str]()
    for file in sources:
        if file.is_users:
            _require_known(file, lines)
        else:
            _require_allowed(file, lines, [] if check is None else [check_option, *check], program)
        added = [line.add(file) for line in lines]
        shown = [
            f"{label}{line_of(chain.from_iterable(words.values()))}"
            for label, words in zip(("", "check: "), added, strict=False)
            if any(words.values())
        ]
        if shown:
            remarks.append(f"settings   {file.name}: {' · '.join(shown)}")
        weights = {
            key: line.decides(key)
            for line, words in zip(lines, added, strict=True)
            for key in words
            if words[key] and line.decides(key)
        }
        if weights:
            bases.append(f"{in_words(file.values, weights)} of {file.name}")
    if check is not None:
        check = _joined(check, lines[1].added if len(lines) > 1 else [])
    return Applied(own=lines[0].words, check=check, remarks=remarks, basis=", ".join(bases))


def is_known(key: str) -> bool:
    """Whether any command has the option of a setting. Imports all commands, which takes a moment."""
    parsers = ((command, parser_of("biopsy", command)) for command in COMMANDS)
    return any(SettledLine(command=command, parser=parser, given=[]).takes(key) for command, parser in parsers)


def _from_here(value: Value, folder: Path) -> Value:
    """Paths in a file of ``folder`` as paths from the current folder. None of them begins with a dash."""
    texts = () if isinstance(value, bool) else value
    paths = [os.path.relpath(path_below(text, folder) or folder) for text in texts]
    return tuple(f"{os.curdir}{os.sep}{path}" if path.startswith("-") else path for path in paths)


def _joined(given: Sequence[_Word], added: Sequence[_Word]) -> list[_Word]:
    at = given.index("--") if "--" in given else len(given)
    return [*given[:at], *added, *given[at:]]


def _require_allowed(file: SettingsFile, lines: Sequence[SettledLine], check: list[str], program: str) -> None:
    """Raise UsageError for settings that no project may give, unless these options were typed as well."""
    taking = {key: [line for line in lines if line.takes(key)] for key in file.values}
    refused = {
        key: why
        for key, value in file.values.items()
        if (why := objection(key, value, file.file.parent))
        and not (taking[key] and all(line.says(key) for line in taking[key]))
    }
    if not refused:
        return
    for key in refused:
        if key not in shared_keys() and _option(key) not in TYPED_ONLY and not is_known(key):
            free = [name for name in shared_keys() if name not in file.values]
            raise errors.UsageError(
                f"{file.name}: there is no setting {key!r}", next_steps=did_you_mean(key, free, most=1, cutoff=0.6)
            )
    for_command, for_check = list[str | ListOption](), list[str | ListOption]()
    for key in refused:
        for line in taking[key][:1]:
            (for_command if line is lines[0] else for_check).extend(line.typed(key, file.values[key]))
    words = [*lines[0].command.words, *_joined(lines[0].given, for_command), *_joined(check, for_check)]
    others = [key for key in refused if not taking[key]]
    raise errors.UsageError(
        f"{file.name} came with its folder, and so it {'; it '.join(refused.values())}",
        next_steps=[
            *([f"{line_of([program, *words])}    if you trust that"] if len(others) < len(refused) else []),
            f"{'take' if others else 'or take'} {', '.join(others or refused)} out of {file.name}",
            f"your own {users_path()} may give any option",
        ],
    )


def _require_known(file: SettingsFile, lines: Sequence[SettledLine]) -> None:
    """Raise UsageError for a setting of the user's own file that no command has, if it resembles one of this command.

    Other unknown settings pass: to tell them from those of other commands, all would have to be imported, as ``biopsy
    doctor`` does.
    """
    for key in file.values:
        if any(line.takes(key) for line in lines):
            continue
        here = [shared for shared in shared_keys() if any(line.takes(shared) for line in lines)]
        meant = did_you_mean(key, here, most=1, cutoff=0.8)
        if _option(key) in TYPED_ONLY or (meant and not is_known(key)):
            raise errors.UsageError(f"{file.name}: there is no setting {key!r}", next_steps=meant)


def _option(key: str) -> str:
    return "--engine" if key == ENGINES else f"--{key}"


_LONGEST = 200
_LONGEST_NAME = 40
_MOST = 5
"""How many values are shown of a long list. It is the number of statistics too, so none of them is left out."""


def in_words(settings: Mapping[str, Value], weights: Mapping[str, str]) -> str:
    """Settings that decide a verdict, limits first: ``atol=o30:1e9 o0:1e-5 and 58 no looser, engines=onnxrt``.

    Of a long list of limits, the loosest come first and are never cut. ``weights`` are ``Declaration.decides`` by key.
    """
    keys = sorted((key for key in settings if key in weights), key=lambda key: weights[key] == "yes")
    return ", ".join(_shown(key, settings[key], weights[key]) for key in keys)


def _shown(key: str, value: Value, weight: str) -> str:
    if isinstance(value, bool):
        return key
    text = line_of(value)
    if weight == "yes" or len(text) <= _LONGEST:
        return f"{key}={text}"

    def looseness(word: str) -> float:
        try:
            number = float(word.rpartition(":")[2])
        except ValueError:
            return math.inf  # a statistic, or an invalid value
        return -number if weight == "the smaller, the looser" else number

    one_of_each: dict[str, str] = {}
    for word in sorted(value, key=looseness, reverse=True):
        one_of_each.setdefault(word.rpartition(":")[2], word)
    named = [_short(word) for word in one_of_each.values()][:_MOST]
    left = len(value) - len(named)
    return f"{key}={line_of(named)}{f' and {left} no looser' if left else ''}"


def _short(value: str) -> str:
    name, colon, text = value.rpartition(":")
    try:
        text = text if len(text) <= _LONGEST_NAME else f"{float(text):g}"
    except ValueError:
        text = shortened(text, _LONGEST_NAME)
    return f"{shortened(name, _LONGEST_NAME)}{colon}{text}"
