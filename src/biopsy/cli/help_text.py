"""The help of a command: short (``-h``), whole (``--help``), and the list of all commands; coloured where wanted."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from biopsy.cli import short_help
from biopsy.cli.fitted_text import fitted
from biopsy.cli.line_form import wants_colours

_PACKAGES = {"openvino": ("openvino",), "trt": ("tensorrt", "tensorrt_rtx")}
"""Engine with options of its own -> the packages of which it needs one."""

_WIDEST = 100
_MOST_LINES = 40
"""What has room on a screen."""
_COLUMN = 26
"""Where the help of an option begins in the short form."""
_OPTION = re.compile(r"(?<![\w-])-(?:[a-zA-Z]|-[a-z][\w-]*)(?![\w-])")
_HEADING, _NAME, _PROGRAM, _END = "\x1b[38;5;208m", "\x1b[36m", "\x1b[38;5;244m", "\x1b[0m"


def whole(parser: argparse.ArgumentParser) -> list[str]:
    """All options; those of engines that are not installed are one line."""
    formatter = _formatter(parser)
    formatter.add_usage(_usage(parser), parser._actions, [])
    formatter.add_text(parser.description)
    with _without_missing_engines(parser) as missing:
        for group in parser._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        lines = [piece for line in formatter.format_help().rstrip().split("\n") for piece in _wrapped(line)]
    for engine, count in missing.items():
        options = f"{count} options" if count > 1 else "its option"
        lines += ["", f"The engine {engine} is not installed here: {options} left out. See: biopsy doctor {engine}"]
    epilog = fitted((parser.epilog or "").rstrip().split("\n"), _width())
    return painted([*lines, "", *epilog] if parser.epilog else lines)


def short(parser: argparse.ArgumentParser, program: str, words: tuple[str, ...]) -> list[str]:
    """What most people need, on one screen."""
    title = "what most people need:" if words in short_help.ESSENTIAL else "options:"
    with _without_missing_engines(parser):
        shown = [action for action in short_help.essential(parser, words) if action.help != argparse.SUPPRESS]
        count = sum(action.help != argparse.SUPPRESS for action in parser._actions if action.option_strings)
    options = [line for action in shown for line in _row(action)]
    after = short_help.next_lines(program, words)
    parts = [
        _wrapped(f"usage: {_usage(parser)}".replace("%%", "%")),
        _wrapped(parser.description or ""),
        [title, *options] if options else [],
        [],
        ["next:", *after] if after else [],
        [f"{parser.prog} --help shows all {count} options."],
    ]
    room = _MOST_LINES - sum(len(part) + 1 for part in parts if part)
    examples = short_help.within(fitted(short_help.examples(parser.epilog), _width()), room - 1)
    parts[3] = ["examples:", *examples] if examples else []
    return painted([line for part in parts if part for line in (*part, "")][:-1])


def _row(action: argparse.Action) -> list[str]:
    """An option by its first spelling, and the first clause of its help."""
    spellings = sorted({len(name) > 2: name for name in reversed(action.option_strings)}.items())
    value = _Formatter("")._format_args(action, action.metavar or action.dest.upper()) if action.nargs != 0 else ""  # type: ignore[arg-type]
    head = " ".join(filter(None, (", ".join(name for _, name in spellings), value)))
    indent = " " * _COLUMN
    text = textwrap.wrap(short_help.brief(action), _width() - _COLUMN, break_on_hyphens=False)
    if len(head) + 4 > _COLUMN:
        return [f"  {head}", *(indent + line for line in text)]
    return [f"  {head:<{_COLUMN - 2}}{text[0]}", *(indent + line for line in text[1:])]


def _wrapped(line: str) -> list[str]:
    """A heading or a sentence; what is indented has its width already."""
    return [line] if not line or line.startswith(" ") else textwrap.wrap(line, _width(), break_on_hyphens=False)


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size().columns)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Each value is named once, behind all spellings of its option, as from Python 3.13 on."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        lines = textwrap.wrap(f"{', '.join(action.option_strings)} {value}", self._width - 4, break_on_hyphens=False)
        return "\n      ".join(lines)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+":
            return f"{self._metavar_formatter(action, default_metavar)(1)[0]} ..."
        if action.nargs == argparse.REMAINDER:
            return str(action.metavar)
        return super()._format_args(action, default_metavar)


def _formatter(parser: argparse.ArgumentParser) -> argparse.HelpFormatter:
    return _Formatter(parser.prog, width=_width(), max_help_position=32)


_NEED_A_CHECK = ("debug repeat", "debug flags")
"""Commands that refuse to begin without a check; others compare engines, or ask the person who typed the line."""


def _usage(parser: argparse.ArgumentParser) -> str:
    """The line of usage: the words that are needed, and the option that takes the rest."""
    words = []
    rest = ""
    for action in parser._actions:
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if not action.option_strings:
            words.append({"?": f"[{name}]", "+": f"{name} ...", "*": f"[{name} ...]"}.get(str(action.nargs), name))
        elif action.required:
            words.append(f"{action.option_strings[0]} {name}")
        elif action.nargs == argparse.REMAINDER and "--check" in action.option_strings:
            is_needed = parser.prog.endswith(_NEED_A_CHECK)
            rest = " --check COMMAND ..." if is_needed else " [--check COMMAND ...]"
    return f"{parser.prog} {' '.join([*words, '[options]'])}{rest}".replace("%", "%%")


@contextmanager
def _without_missing_engines(parser: argparse.ArgumentParser) -> Iterator[dict[str, int]]:
    """Hide the options of engines whose packages are not here; how many there are of each engine."""
    kept: list[tuple[argparse.Action, str | None]] = []
    missing: dict[str, int] = {}
    for action in parser._actions:
        engine = _engine_of(action)
        if engine is not None and not any(find_spec(name) for name in _PACKAGES[engine]):
            kept.append((action, action.help))
            missing[engine] = missing.get(engine, 0) + 1
    try:
        for action, _ in kept:
            action.help = argparse.SUPPRESS
        yield missing
    finally:
        for action, text in kept:
            action.help = text


def _engine_of(action: argparse.Action) -> str | None:
    """The engine that an option is of alone."""
    if action.dest.startswith("trt_"):
        return "trt"
    return next((engine for engine in _PACKAGES if f"--{engine}" in action.option_strings), None)


def painted(lines: Sequence[str]) -> list[str]:
    """The lines of a help text, in colours where these are wanted."""
    if not wants_colours(sys.stdout):
        return list(lines)
    return [_painted_line(line) for line in lines]


def _painted_line(line: str) -> str:
    if line.startswith("usage: "):
        return f"{_HEADING}usage:{_END} {_PROGRAM}{line.removeprefix('usage: ')}{_END}"
    if line.endswith(":") and not line.startswith(" "):
        return f"{_HEADING}{line}{_END}"
    match = re.fullmatch(r"(  )((?:\S+ )*\S+)(  .*)", line)
    head, rest = (f"  {_NAME}{match[2]}{_END}", match[3]) if match else ("", line)
    return head + _OPTION.sub(f"{_NAME}\\g<0>{_END}", rest)
