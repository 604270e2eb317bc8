"""From files of settings to words of a command line, as if typed, wherever the command has the option.

A person's words count most, then the project's file, then the user's own. As the settings are words, everything that
keeps or shows a command line, such as a journal or an advised command, holds them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
    "--engine", *(f"--{key}" for key in (*allowed.TOLERANCES, *allowed.INPUTS, *allowed.PATHS)),
    *LIMITS, *MAKING, "--load-outputs", "--compare-with", "--compare-func-script", "--postprocess-func-script",
    "--build-only", "--onnx-outputs", "--onnx-outputs-by-type", "--onnx-exclude-outputs", "--match", "--fail-regex",
    "--fail-code", "--ignore-fail-code", "--allow-vacuous-check", "--allow-invalid", "--require-uniform",
})  # fmt: skip
"""Options with which a model may pass that fails without them: a verdict names those that a file gave."""

TYPED = frozenset({*REST_OPTIONS, *HELP, *VERSION})
"""Options that no file gives, since they change what a command line is."""

_NEARLY = 0.8

_Word = TypeVar("_Word")


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

    def typed(self, key: str, value: Value) -> Sequence[str | ListOption]:
        """A setting as a person types it here."""
        option = _option(key)
        if isinstance(value, bool):
            return [option] if value else []
        several = self.parser.most_values(option) > 1
        return [ListOption(option, texts) for texts in ([value] if several else [[text] for text in value])]

    def add(self, file: SettingsFile) -> dict[str, list[str]]:
        """Add the settings of a file that it takes and lacks; the words added, by key."""
        added = {}
        for key, value in file.values.items():
            if not self.takes(key) or self.says(key):
                continue
            is_switch = self.parser.most_values(_option(key)) == 0
            if isinstance(value, bool) != is_switch:
                wanted = "true or false" if is_switch else "text, a number, or a list of them"
                raise errors.UsageError(f"{file.name}: {key} is {wanted}")
            is_path = key in allowed.PATHS and not file.is_users
            typed = self.typed(key, _from_here(value, file.file.parent) if is_path else value)
            added[key] = [*chain.from_iterable([one] if isinstance(one, str) else one.words for one in typed)]
            self.added += added[key]
        return added

    @property
    def words(self) -> list[str]:
        """All words, those that were added before operands behind ``--``."""
        return _joined(self.given, self.added)


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The words of a command and of the check behind them, with what files of settings add.

    ``remarks`` say what was added; ``basis`` is what of it a verdict rests on: "atol=1e9 of biopsy.toml".
    """

    own: list[str]
    rest: list[str] | None
    remarks: Sequence[str] = ()
    basis: str = ""


def applied(program: str, command: Command, own: list[str], rest_option: str, rest: list[str] | None) -> Applied:
    """The command line with the settings of the project in the current folder, and of the user.

    Raises UsageError for a file that cannot be followed, and for a setting that a project may not give.
    """
    if rest is None and not {*HELP, *VERSION}.isdisjoint(own):
        return Applied(own=own, rest=rest)
    lines = [SettledLine(command=command, parser=parser_of(program, command), given=own)]
    looks = rest is not None or any(map(lines[0].takes, allowed.KEYS))
    sources = [file for file in (files.of_project(Path.cwd()) if looks else None, files.of_user()) if file is not None]
    if not sources:
        return Applied(own=own, rest=rest)
    check = None if rest is None else own_command(rest)
    if check is not None and {*REST_OPTIONS}.isdisjoint(check[1]):  # else it adds to its own check
        lines.append(SettledLine(command=check[0], parser=parser_of(program, check[0]), given=check[1]))
    remarks, bases = list[str](), list[str]()
    for file in sources:
        if file.is_users:
            _require_known(file, lines)
        else:
            _require_allowed(file, lines, [] if rest is None else [rest_option, *rest], program)
        words_by_key = [line.add(file) for line in lines]
        remarks += _remarks(file, words_by_key)
        bases += _bases(file, words_by_key)
    if rest is not None:
        rest = _joined(rest, lines[1].added if len(lines) > 1 else [])
    return Applied(own=lines[0].words, rest=rest, remarks=remarks, basis=", ".join(bases))


def is_known(key: str) -> bool:
    """Whether any command has the option of a setting. This imports all commands, which takes a moment."""
    parsers = ((command, parser_of("biopsy", command)) for command in COMMANDS)
    return any(SettledLine(command=command, parser=parser, given=[]).takes(key) for command, parser in parsers)


def _remarks(file: SettingsFile, words_by_key: Iterable[dict[str, list[str]]]) -> list[str]:
    """A line with the words that a file added to a command and to its check; none if it added nothing."""
    shown = [
        f"{label}{line_of(chain.from_iterable(added.values()))}"
        for label, added in zip(("", "check: "), words_by_key, strict=False)
        if any(added.values())
    ]
    return [f"settings   {file.name}: {' · '.join(shown)}"] if shown else []


def _bases(file: SettingsFile, words_by_key: Sequence[dict[str, list[str]]]) -> list[str]:
    """What a verdict owes to a file; nothing if that decides nothing."""
    deciding = {
        key: value
        for key, value in file.values.items()
        if _option(key) in DECIDING and any(added.get(key) for added in words_by_key)
    }
    return [f"{in_words(deciding)} of {file.name}"] if deciding else []


def _joined(given: Sequence[_Word], added: Sequence[_Word]) -> list[_Word]:
    at = given.index("--") if "--" in given else len(given)
    return [*given[:at], *added, *given[at:]]


def _from_here(value: Value, folder: Path) -> Value:
    """Paths below a folder as paths from the current one, as words that are no options, whatever files are called."""
    texts = () if isinstance(value, bool) else value
    paths = [os.path.relpath(allowed.path_below(text, folder) or folder) for text in texts]
    return tuple(f"{os.curdir}{os.sep}{path}" if path.startswith("-") else path for path in paths)


def _require_allowed(file: SettingsFile, lines: Sequence[SettledLine], rest: list[str], program: str) -> None:
    """Raise UsageError for settings that no project may give, unless a person typed these very options."""
    taking = {key: [line for line in lines if line.takes(key)] for key in file.values}
    refused = {
        key: why
        for key, value in file.values.items()
        if (why := allowed.objection(key, value, file.file.parent))
        and not (taking[key] and all(line.says(key) for line in taking[key]))
    }
    if not refused:
        return
    for key in refused:
        if key not in allowed.KEYS and _option(key) not in TYPED and not is_known(key):
            free = [name for name in allowed.KEYS if name not in file.values]
            raise errors.UsageError(
                f"{file.name}: there is no setting {key!r}", next_steps=did_you_mean(key, free, most=1, cutoff=0.6)
            )
    own, checks = list[str | ListOption](), list[str | ListOption]()
    for key in refused:
        for line in taking[key][:1]:
            (own if line is lines[0] else checks).extend(line.typed(key, file.values[key]))
    words = [*lines[0].command.words, *_joined(lines[0].given, own), *_joined(rest, checks)]
    others = [key for key in refused if not taking[key]]
    raise errors.UsageError(
        f"{file.name} came with its folder, and so it {'; it '.join(refused.values())}",
        next_steps=[
            *([f"{line_of([program, *words])}    if you trust that"] if len(others) < len(refused) else []),
            f"{'take' if others else 'or take'} {', '.join(others or refused)} out of {file.name}",
            f"your own {files.users_path()} may give any option",
        ],
    )


def _require_known(file: SettingsFile, lines: Sequence[SettledLine]) -> None:
    """Raise UsageError for a setting of the user's own file that no command has, but looks like one that decides here.

    Any other may belong to another command. To know takes the imports of all, which ``biopsy doctor`` has time for.
    """
    for key in file.values:
        if any(line.takes(key) for line in lines):
            continue
        here = [one for one in allowed.KEYS if any(line.takes(one) for line in lines)]
        meant = did_you_mean(key, here, most=1, cutoff=_NEARLY)
        if _option(key) in TYPED or (meant and not is_known(key)):
            raise errors.UsageError(f"{file.name}: there is no setting {key!r}", next_steps=meant)


def _option(key: str) -> str:
    return "--engine" if key == allowed.ENGINES else f"--{key}"
