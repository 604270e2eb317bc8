"""From files of settings to words of a command line, as if typed, wherever the command has the option.

A person's words count most, then the project's file, then the user's own. As the settings are words, everything that
keeps or shows a command line, such as a journal or an advised command, holds them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from biopsy import errors
from biopsy.checks.leading_options import HELP, VERSION
from biopsy.cli.arguments.checks import REST_OPTIONS
from biopsy.cli.arguments.given_options import LIMITS, MAKING
from biopsy.cli.check_words import own_command
from biopsy.cli.commands import COMMANDS
from biopsy.cli.parser import parser_of
from biopsy.cli.settings import allowed, files
from biopsy.cli.settings.files import SettingsFile, Value
from biopsy.cli.settings.loosest import in_words
from biopsy.shell_words import ListOption, line_of
from biopsy.similar_names import did_you_mean

if TYPE_CHECKING:
    from biopsy.cli.commands import Command
    from biopsy.cli.parser import Parser

DECIDING = frozenset({
    "--engine", *(f"--{key}" for key in (*allowed.TOLERANCES, *allowed.INPUTS, *allowed.FILES, *allowed.FOLDERS)),
    *LIMITS, *MAKING, "--load-outputs", "--compare-with", "--compare-func-script", "--postprocess-func-script",
    "--build-only", "--onnx-outputs", "--onnx-outputs-by-type", "--onnx-exclude-outputs", "--match", "--fail-regex",
    "--fail-code", "--ignore-fail-code", "--allow-vacuous-check", "--allow-invalid", "--require-uniform",
})  # fmt: skip
"""Options with which a model may pass that fails without them: a verdict names those that a file gave."""

TYPED = frozenset({*REST_OPTIONS, *HELP, *VERSION})
"""Options that no file gives, since they change what a command line is."""


@dataclass(kw_only=True)
class SettledLine:
    """A command and the words behind it, to which settings are added."""

    command: Command
    parser: Parser
    given: list[str]
    added: list[str] = field(default_factory=list)

    def takes(self, key: str) -> bool:
        """Whether the command has the option of a setting."""
        option = _option(key)
        belongs = key != allowed.ENGINES or self.command.words == ("run",)
        return belongs and option not in TYPED and self.parser.has_option(option)

    def says(self, key: str) -> bool:
        """Whether it was given the option already, in any spelling, or one that excludes it."""
        return any(self.parser.rivals(word, _option(key)) for word in self.words if word.startswith("-"))

    @property
    def words(self) -> list[str]:
        """All words, those that were added before operands behind ``--``."""
        return _joined(self.given, self.added)


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The words of a command and of the check behind them, with what files of settings add.

    ``lines`` say what was added; ``proviso`` is what of it a verdict rests on: "with atol=1e9 of biopsy.toml".
    """

    own: list[str]
    rest: list[str] | None
    lines: Sequence[str] = ()
    proviso: str = ""


def applied(program: str, command: Command, own: list[str], rest_option: str, rest: list[str] | None) -> Applied:
    """The command line with the settings of the project in the current folder, and of the user.

    Raises UsageError for a file that cannot be followed, and for a setting that a project may not give.
    """
    if rest is None and not {*HELP, *VERSION}.isdisjoint(own):
        return Applied(own=own, rest=rest)
    lines = [SettledLine(command=command, parser=parser_of(program, command), given=own)]
    looks = rest is not None or any(lines[0].takes(key) for key in allowed.KEYS)
    project, users = files.of_project(Path.cwd()) if looks else None, files.of_user()
    if project is None and users is None:
        return Applied(own=own, rest=rest)
    inner = None if rest is None else own_command(rest)
    if inner is not None and {*REST_OPTIONS}.isdisjoint(inner[1]):  # else it adds to its own check
        lines.append(SettledLine(command=inner[0], parser=parser_of(program, inner[0]), given=inner[1]))
    if project is not None:
        _require_allowed(project, lines, [] if rest is None else [rest_option, *rest], program)
    told, proviso = list[str](), list[str]()
    for file in filter(None, (project, users)):
        added = [_add(file, line) for line in lines]
        _require_known(file, lines, program)
        shown = [line_of(word for words in one.values() for word in words) for one in added]
        parts = [f"{'check: ' * bool(number)}{text}" for number, text in enumerate(shown) if text]
        if parts:
            told.append(f"settings   {file.name}: {' · '.join(parts)}")
        deciding = dict.fromkeys(
            key for one in added for key, words in one.items() if words and _option(key) in DECIDING
        )
        if deciding:
            proviso.append(f"{in_words({key: file.values[key] for key in deciding})} of {file.name}")
    if rest is not None:
        rest = _joined(rest, lines[-1].added if len(lines) > 1 else [])
    return Applied(own=lines[0].words, rest=rest, lines=told, proviso=f"with {', '.join(proviso)}" if proviso else "")


def _joined(given: list[str], added: Sequence[str]) -> list[str]:
    at = given.index("--") if "--" in given else len(given)
    return [*given[:at], *added, *given[at:]]


def _add(file: SettingsFile, line: SettledLine) -> dict[str, list[str]]:
    """Add the settings of a file to a command that lacks them; the words added, by key."""
    added = {}
    for key, value in file.values.items():
        if line.takes(key) and not line.says(key):
            added[key] = _words(key, value, line.parser, file)
            line.added += added[key]
    return added


def _words(key: str, value: Value, parser: Parser, file: SettingsFile) -> list[str]:
    option, most = _option(key), parser.most_values(_option(key))
    if isinstance(value, bool) != (most == 0):
        wanted = "text, a number, or a list of them" if most else "true or false"
        raise errors.UsageError(f"{file.name}: {key} is {wanted}")
    if isinstance(value, bool):
        return [option] if value else []
    if not file.is_users and key in allowed.FILES | allowed.FOLDERS:
        value = tuple(_path(text, file.file.parent) for text in value)
    return [option, *value] if most > 1 else [word for text in value for word in (option, text)]


def _path(text: str, folder: Path) -> str:
    """A path from the current folder, as a word that is no option, whatever the file is called."""
    path = os.path.relpath(allowed.path_below(text, folder) or folder)
    return f"{os.curdir}{os.sep}{path}" if path.startswith("-") else path


def _require_allowed(file: SettingsFile, lines: Sequence[SettledLine], rest: list[str], program: str) -> None:
    """Raise UsageError for settings that no project may give, unless a person typed these very options."""
    refused = {
        key: why
        for key, value in file.values.items()
        if (why := allowed.objection(key, value, file.file.parent)) and not _is_typed(key, lines)
    }
    if not refused:
        return
    typable = {key: file.values[key] for key in refused if any(line.takes(key) for line in lines)}
    others = [key for key in refused if key not in typable]
    unknown = next((key for key in refused if key not in allowed.KEYS), "")
    raise errors.UsageError(
        f"{file.name} came with its folder, and so it {'; it '.join(refused.values())}",
        next_steps=[
            *did_you_mean(unknown, [key for key in allowed.KEYS if key not in file.values], most=1, cutoff=0.6),
            *_typed_instead(typable, lines, rest, program),
            f"{'take' if others else 'or take'} {', '.join(others or refused)} out of {file.name}",
            f"your own {files.users_path()} may say everything",
        ],
    )


def _is_typed(key: str, lines: Iterable[SettledLine]) -> bool:
    taking = [line for line in lines if line.takes(key)]
    return bool(taking) and all(line.says(key) for line in taking)


def _typed_instead(
    refused: Mapping[str, Value], lines: Sequence[SettledLine], rest: list[str], program: str
) -> list[str]:
    """The line with which a person says the same, if the command, or else its check, has these options."""
    outer, check = lines[0], lines[-1]
    own = [word for key in refused if outer.takes(key) for word in _as_typed(key, refused[key], outer.parser)]
    inner = [word for key in refused if not outer.takes(key) for word in _as_typed(key, refused[key], check.parser)]
    words = [program, *outer.command.words, *outer.given, *own, *rest, *inner]
    return [f"{line_of(words)}    if you trust that"] if refused else []


def _as_typed(key: str, value: Value, parser: Parser) -> list[str | ListOption]:
    option = _option(key)
    if isinstance(value, bool):
        return [option] if value else []
    if parser.most_values(option) > 1:
        return [ListOption(option, value)]
    return [ListOption(option, [text]) for text in value]


def _require_known(file: SettingsFile, lines: Sequence[SettledLine], program: str) -> None:
    """Raise UsageError for a setting of the user's own file that no command has; a check leaves that to its caller."""
    from biopsy.checks import verdict

    left = [key for key in file.values if not any(line.takes(key) for line in lines)]
    if not file.is_users or not left or verdict.is_wanted():
        return
    commands = [SettledLine(command=command, parser=parser_of(program, command), given=[]) for command in COMMANDS]
    for key in left:
        if not any(command.takes(key) for command in commands):
            raise errors.UsageError(
                f"{file.name}: there is no setting {key!r}",
                next_steps=did_you_mean(key, allowed.KEYS, most=1, cutoff=0.6),
            )


def _option(key: str) -> str:
    return "--engine" if key == allowed.ENGINES else f"--{key}"
