"""Help texts: ``-h`` shows one screen of what most people need, ``--help`` all options; and their colours."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise

from biopsy.cli.console import wants_colours
from biopsy.cli.terminal_text import fitted

_PACKAGES = {"openvino": ("openvino",), "trt": ("tensorrt", "tensorrt_rtx")}
"""An engine with options of its own -> packages; it works if one of them is installed."""

_WIDEST = 100
_MOST_LINES = 40
"""Lines of a short help, so that it fits on a screen."""
_COLUMN = 26
"""The column of the texts in a short help."""
_OPTION = re.compile(r"(?<![\w-])-(?:[a-zA-Z]|-[a-z][\w-]*)(?![\w-])")
_HEADING, _NAME, _PROGRAM, _END = "\x1b[38;5;208m", "\x1b[36m", "\x1b[38;5;244m", "\x1b[0m"


def full(parser: argparse.ArgumentParser) -> list[str]:
    """The help with all options. One line stands for all options of an engine that is not installed."""
    formatter = _Formatter(parser.prog, width=_width(), max_help_position=32)
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


def short(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> list[str]:
    """The help with what most people need, on one screen."""
    title = "what most people need:" if words in ESSENTIAL else "options:"
    with _without_missing_engines(parser):
        shown = [action for action in essential(parser, words) if action.help != argparse.SUPPRESS]
        count = sum(action.help != argparse.SUPPRESS for action in parser._actions if action.option_strings)
    options = [line for action in shown for line in _row(action)]
    parts = [
        _wrapped(f"usage: {_usage(parser)}".replace("%%", "%")),
        _wrapped(parser.description or ""),
        [title, *options] if options else [],
        [],
        [f"{parser.prog} --help shows all {count} options."],
    ]
    room = _MOST_LINES - sum(len(part) + 1 for part in parts if part)
    examples = within(fitted(short_help_examples(parser.epilog), _width()), room - 1)
    parts[3] = ["examples:", *examples] if examples else []
    return painted([line for part in parts if part for line in (*part, "")][:-1])


def _row(action: argparse.Action) -> list[str]:
    """The lines of an option: its first spelling, and the first clause of its help."""
    spellings = sorted({len(name) > 2: name for name in reversed(action.option_strings)}.items())
    value = _Formatter("")._format_args(action, action.metavar or action.dest.upper()) if action.nargs != 0 else ""  # type: ignore[arg-type]
    head = " ".join(filter(None, (", ".join(name for _, name in spellings), value)))
    indent = " " * _COLUMN
    text = textwrap.wrap(brief(action), _width() - _COLUMN, break_on_hyphens=False)
    if len(head) + 4 > _COLUMN:
        return [f"  {head}", *(indent + line for line in text)]
    return [f"  {head:<{_COLUMN - 2}}{text[0]}", *(indent + line for line in text[1:])]


def _wrapped(line: str) -> list[str]:
    """A line broken to the width of the screen, unless it is indented: the formatter has broken those."""
    return [line] if not line or line.startswith(" ") else textwrap.wrap(line, _width(), break_on_hyphens=False)


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size().columns)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows the value of an option once, after all spellings, as Python does from 3.13 on."""

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


_NEED_A_CHECK = ("debug repeat", "debug flags")
"""Commands that need a check; others compare engines themselves, or ask the user."""


def _usage(parser: argparse.ArgumentParser) -> str:
    """The usage: the required words and ``--check``."""
    words = []
    check = ""
    for action in parser._actions:
        name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if not action.option_strings:
            words.append({"?": f"[{name}]", "+": f"{name} ...", "*": f"[{name} ...]"}.get(str(action.nargs), name))
        elif action.required:
            words.append(f"{action.option_strings[0]} {name}")
        elif action.nargs == argparse.REMAINDER and "--check" in action.option_strings:
            is_needed = parser.prog.endswith(_NEED_A_CHECK)
            check = " --check COMMAND ..." if is_needed else " [--check COMMAND ...]"
    return f"{parser.prog} {' '.join([*words, '[options]'])}{check}".replace("%", "%%")


@contextmanager
def _without_missing_engines(parser: argparse.ArgumentParser) -> Iterator[dict[str, int]]:
    """Hide the options of engines that are not installed; gives the number of hidden options by engine."""
    kept: list[tuple[argparse.Action, str | None]] = []
    missing: dict[str, int] = {}
    for action in parser._actions:
        flags = (engine for engine in _PACKAGES if f"--{engine}" in action.option_strings)
        engine = "trt" if action.dest.startswith("trt_") else next(flags, None)
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


def painted(lines: Sequence[str]) -> list[str]:
    """The lines of a help text, coloured if stdout takes colours."""
    if not wants_colours(sys.stdout):
        return list(lines)
    shown = []
    for line in lines:
        match = re.fullmatch(r"(  )((?:\S+ )*\S+)(  .*)", line)
        if line.startswith("usage: "):
            shown.append(f"{_HEADING}usage:{_END} {_PROGRAM}{line.removeprefix('usage: ')}{_END}")
        elif line.endswith(":") and not line.startswith(" "):
            shown.append(f"{_HEADING}{line}{_END}")
        else:
            head, text = (f"  {_NAME}{match[2]}{_END}", match[3]) if match else ("", line)
            shown.append(head + _OPTION.sub(f"{_NAME}\\g<0>{_END}", text))
    return shown


_ESSENTIAL = """\
run: model --onnxrt --reference --openvino --trt --engine --load-inputs --save-inputs --load-outputs --save-outputs
    --onnx-outputs --atol --rtol
diagnose: model --onnxrt --openvino --engine --load-inputs --input-shapes --atol --rtol --check --max-time --dir
hunt: places --onnxrt --openvino --engine --dir --against --max-time --per-bug --no-diagnosis --fresh
debug reduce: model --output --mode --check --fail-regex --hide-fail-output --load-inputs --max-time --simplify
debug precision: model --output --list --fp16 --bf16 --mode --dir --check
debug repeat: --until --check --fail-regex --artifacts --art-dir --jobs
debug build: model --until --vary --save-tactics --artifacts --art-dir --check
debug flags: model --engine --output --check --fail-regex
debug version: model --package --good --bad --versions --with --all --reduce --report --check
debug workaround: model --engine --output --only --piece --nodes --reference-engine --load-inputs --atol --rtol
    --max-time --check
debug transform: model --by --passes --package --output --engine --load-inputs --atol --rtol --report --max-time
    --check
debug layers: model --suspect --reference-engine --onnxrt --openvino --engine --load-inputs --atol --rtol --report
inspect capability: model --output --onnxrt --openvino --trt --engine
convert: model --output --convert-to --fp-to-fp16 --input-shapes --trt --engine
check lint: model --output --onnxrt --engine --load-inputs --input-shapes
surgeon extract: model --output --inputs --outputs --model-input-shapes --force-fallback-shape-inference --load-inputs
    --save-external-data
surgeon insert: model --output --op --name --inputs --outputs --attrs --save-external-data
surgeon sanitize: model --output --fold-constants --cleanup --toposort --override-input-shapes --outputs
    --save-external-data
"""

ESSENTIAL: dict[tuple[str, ...], list[str]] = {
    tuple(command.split()): options.split()
    for command, _, options in (row.partition(": ") for row in re.sub(r"\n +", " ", _ESSENTIAL).splitlines())
}
"""The options that ``-h`` shows, by command; all of them for commands that are not here."""


def essential(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> list[argparse.Action]:
    """The actions in the short help of a command, in the order of ``ESSENTIAL`` or of the parser."""
    named = ESSENTIAL.get(words)
    if named is None:
        groups = [group for group in parser._action_groups if not (group.title or "").startswith("messages")]
        return [action for group in groups for action in group._group_actions]
    by_name = {name: action for action in parser._actions for name in action.option_strings or [action.dest]}
    return [by_name[name] for name in named]


def brief(action: argparse.Action) -> str:
    """The first clause of the help of an option."""
    text = action.help or ""
    if action.choices is not None and any(text.startswith(f"{choice}:") for choice in action.choices):
        return f"default: {action.default}"
    return re.split(r"; |: |\. | \(|, such as|, as in", text)[0]


def short_help_examples(epilog: str | None) -> list[str]:
    """The lines of the examples in an epilog."""
    lines = (epilog or "").rstrip().split("\n")
    start = next((place for place, line in enumerate(lines) if line.startswith("  ")), len(lines))
    end = next((place for place in range(start, len(lines)) if not lines[place]), len(lines))
    return lines[start:end]


def within(lines: list[str], most: int) -> list[str]:
    """The first lines, at most ``most``, so that no example is cut."""
    if len(lines) <= most:
        return lines
    least = min(map(_indent, lines))
    begins = [
        place
        for place, (before, line) in enumerate(pairwise(lines), 1)
        if _indent(line) == least and (_indent(before) > least or before.lstrip().startswith("biopsy "))
    ]  # an example of a comment and a command counts as one
    return lines[: max((place for place in begins if place <= most), default=0)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
